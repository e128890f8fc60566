// What an application on @platformatic/kafka does, once: makes a topic, writes to it in every codec
// and in transactions, reads it as a group of each protocol, administers what it left. Prints what it saw.
//
//   node round_trip.mjs HOST:PORT TOPIC      (in a folder that has the package in node_modules)
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const [bootstrapServer, topic] = process.argv.slice(2)
const require = createRequire(`${process.env.NODE_PATH}/`)
const { Admin, Consumer, Producer, stringDeserializers, stringSerializers } =
  await import(pathToFileURL(require.resolve('@platformatic/kafka')))

const connection = { clientId: 'round-trip', bootstrapBrokers: [bootstrapServer] }
const codecs = ['none', 'gzip', 'snappy', 'lz4', 'zstd']
// Node brings zstd from version 22.15 on.
const known = codecs.filter((codec) => codec !== 'zstd' || 'createZstdCompress' in require('node:zlib'))

async function write () {
  const producer = new Producer({ ...connection, idempotent: true, serializers: stringSerializers })
  for (const compression of known) {
    const messages = [{ topic, key: compression, value: `in ${compression}`, headers: { where: 'here' } }]
    await producer.send({ messages, compression, acks: -1 })
  }
  await producer.close()
  const transactional = new Producer({ ...connection, transactionalId: `of-${topic}`, idempotent: true, serializers: stringSerializers })
  const aborted = await transactional.beginTransaction()
  await aborted.send({ messages: [{ topic, key: 'a', value: 'aborted' }] })
  await aborted.abort()
  const committed = await transactional.beginTransaction()
  await committed.send({ messages: [{ topic, key: 'a', value: 'committed' }] })
  await committed.commit()
  await transactional.close()
}

async function read (groupId, groupProtocol) {
  const consumer = new Consumer({ ...connection, groupId, groupProtocol, deserializers: stringDeserializers, maxWaitTime: 100 })
  const stream = await consumer.consume({ topics: [topic], mode: 'earliest', autocommit: false, isolationLevel: 1 })
  const records = []
  for await (const message of stream) {
    records.push(message.value)
    await message.commit()
    if (records.length === known.length + 1) break
  }
  await consumer.close(true)
  return records
}

const admin = new Admin(connection)
await admin.createTopics({ topics: [topic], partitions: 1, replicas: 1 })
await write()
const groups = { classic: `classic-of-${topic}`, consumer: `modern-of-${topic}` }
const seen = {}
for (const [protocol, groupId] of Object.entries(groups)) seen[protocol] = await read(groupId, protocol)
await admin.createPartitions({ topics: [{ name: topic, count: 3 }] })
const listed = await admin.listGroups()
const [{ topics: [{ partitionsOffset, partitions }] }] = await admin.listConsumerGroupOffsets({ groups: [groups.classic] })
const [described] = await admin.describeConfigs({ resources: [{ resourceType: 2, resourceName: topic }] })
await admin.deleteGroups({ groups: Object.values(groups) })
await admin.deleteTopics({ topics: [topic] })
const topics = await admin.listTopics()
await admin.close()
console.log(JSON.stringify({
  known,
  seen,
  groups: [...listed.keys()],
  committed: Number((partitions ?? partitionsOffset)[0].committedOffset),
  configs: described.configs.length,
  topics
}))
