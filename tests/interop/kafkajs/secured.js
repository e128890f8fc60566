// Writes a record to a secured broker and reads it again, for each configuration on standard input: a JSON
// array. Prints the kinds that worked, in JSON.
'use strict'
process.env.KAFKAJS_NO_PARTITIONER_WARNING = '1'
const fs = require('fs')
const https = require('https')
const { Kafka, logLevel } = require('kafkajs')

function fetchToken ({ tokens, authority, user, password }) {
  return new Promise((resolve, reject) => {
    const request = https.request(tokens, {
      method: 'POST', ca: fs.readFileSync(authority), auth: `${user}:${password}`
    }, (answer) => {
      let text = ''
      answer.on('data', (part) => { text += part })
      answer.on('end', () => {
        try { resolve({ value: JSON.parse(text).access_token }) } catch (error) { reject(error) }
      })
    })
    request.on('error', reject)
    request.end('grant_type=client_credentials')
  })
}

function sasl (given) {
  if (given.tokens) return { mechanism: 'oauthbearer', oauthBearerProvider: () => fetchToken(given) }
  return { mechanism: given.kind.toLowerCase(), username: given.user, password: given.password }
}

async function roundTrip (given) {
  const pem = given.certificate && fs.readFileSync(given.certificate, 'utf8')
  const kafka = new Kafka({
    clientId: 'secured',
    brokers: [given.server],
    logLevel: logLevel.ERROR,
    ssl: { ca: [fs.readFileSync(given.authority, 'utf8')], ...(pem && { key: pem, cert: pem }) },
    ...(given.user && { sasl: sasl(given) })
  })
  const producer = kafka.producer()
  await producer.connect()
  const value = `kafkajs by ${given.kind}`
  await producer.send({ topic: given.topic, messages: [{ value }] })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: given.topic })
  await consumer.connect()
  await consumer.subscribe({ topic: given.topic, fromBeginning: true })
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer.run({
      eachMessage: async ({ message }) => { if (message.value.toString() === value) resolve() }
    }).catch(reject)
  })
  await consumer.disconnect()
  return given.kind
}

async function main () {
  const all = JSON.parse(fs.readFileSync(0, 'utf8'))
  console.log(JSON.stringify(await Promise.all(all.map(roundTrip))))
}

main().catch((error) => { console.error(error); process.exit(1) })
