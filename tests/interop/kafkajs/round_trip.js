// What an application on kafkajs does, once: makes a topic, writes to it with and without a
// transaction, reads it as a group, asks how far the group is. Prints what it saw as JSON.
//
//   node round_trip.js HOST:PORT TOPIC
'use strict'
process.env.KAFKAJS_NO_PARTITIONER_WARNING = '1'
const { CompressionTypes, Kafka, logLevel } = require('kafkajs')

const [bootstrapServer, topic] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'round-trip', brokers: [bootstrapServer], logLevel: logLevel.ERROR })
const groupId = `group-of-${topic}`
const EXPECTED = 5

async function write () {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId: `of-${topic}` })
  await producer.connect()
  const committed = await producer.transaction()
  await committed.send({ topic, messages: [{ key: 'a', value: 'committed', headers: { where: 'here' } }, { key: 'a', value: null }] })
  await committed.commit()
  const aborted = await producer.transaction()
  await aborted.send({ topic, messages: [{ key: 'a', value: 'aborted' }] })
  await aborted.abort()
  await producer.disconnect()

  const plain = kafka.producer()
  await plain.connect()
  await plain.send({ topic, compression: CompressionTypes.GZIP, messages: [{ value: 'x1' }, { value: 'x2' }, { value: 'x3' }] })
  await plain.disconnect()
}

async function read () {
  const consumer = kafka.consumer({ groupId, readUncommitted: false, maxWaitTimeInMs: 100 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const records = []
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer.run({
      eachMessage: async ({ message: { key, value, headers, offset } }) => {
        const text = (buffer) => buffer && buffer.toString()
        const named = Object.fromEntries(Object.entries(headers).map(([name, each]) => [name, text(each)]))
        records.push({ key: text(key), value: text(value), headers: named, offset: Number(offset) })
        if (records.length === EXPECTED) resolve()
      }
    })
  })
  await consumer.stop() // commits what it has read
  await consumer.disconnect()
  return records
}

async function main () {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }], waitForLeaders: true })
  await write()
  const records = await read()
  const [high] = await admin.fetchTopicOffsets(topic)
  const [{ partitions: [committed] }] = await admin.fetchOffsets({ groupId, topics: [topic] })
  const { groups } = await admin.listGroups()
  await admin.deleteGroups([groupId])
  await admin.deleteTopics({ topics: [topic] })
  const topics = await admin.listTopics()
  await admin.disconnect()
  console.log(JSON.stringify({
    records,
    end: Number(high.high),
    committed: Number(committed.offset),
    groups: groups.map((each) => each.groupId),
    topics
  }))
}

main().catch((error) => { console.error(error); process.exit(1) })
