// @platformatic/kafka told what to do over standard input; see ../drivers.py.
//
// An "admin" call names a method and its argument.  The consumer needs a group, so "consume"
// uses the fetch below it.

import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { Admin, Consumer, Producer } from '@platformatic/kafka'

const decode = (text) => (text === null ? undefined : Buffer.from(text, 'base64'))
const encode = (bytes) => (bytes == null ? null : Buffer.from(bytes).toString('base64'))
// A number that ends with n is a BigInt.
const fromJson = (_, value) => (/^-?[0-9]+n$/.test(value) ? BigInt(value.slice(0, -1)) : value)
const plain = (_, value) => {
  if (typeof value === 'bigint') return Number(value)
  return value instanceof Map ? Object.fromEntries(value) : value
}

const options = (call) => ({
  clientId: 'tests',
  bootstrapBrokers: [call.bootstrap],
  retries: 2,
  retryDelay: 100,
  autocreateTopics: true,
})

async function produce(call) {
  const producer = new Producer({ ...options(call), idempotent: !call.plain })
  try {
    const messages = call.rows.map((row) => ({
      topic: call.topic,
      partition: row.partition ?? 0,
      key: decode(row.key),
      value: decode(row.value),
      headers: new Map(row.headers.map(([name, value]) => [Buffer.from(name), decode(value)])),
      timestamp: BigInt(row.timestamp),
    }))
    const sent = await producer.send({ messages, compression: call.codec ?? 'none', acks: -1 })
    const first = Number(sent.offsets[0].offset)
    return messages.map((_, i) => first + i)
  } finally {
    await producer.close()
  }
}

async function consume(call) {
  const consumer = new Consumer({ ...options(call), groupId: 'unused' })
  try {
    const [[topic, partition, start]] = call.from
    const metadata = await consumer.metadata({ topics: [topic] })
    const rows = []
    const end = Date.now() + 20000
    let next = BigInt(start)
    while (rows.length < call.count && Date.now() < end) {
      const wanted = {
        partition,
        currentLeaderEpoch: -1,
        fetchOffset: next,
        lastFetchedEpoch: -1,
        partitionMaxBytes: 10_000_000,
      }
      const topics = [{ topicId: metadata.topics.get(topic).id, partitions: [wanted] }]
      const answer = await consumer.fetch({ node: 0, topics, maxWaitTime: 500 })
      for (const batch of answer.responses[0].partitions[0].records ?? []) {
        for (const record of batch.records) {
          const offset = batch.firstOffset + BigInt(record.offsetDelta)
          if (offset < next) continue // a batch comes whole, from its start
          next = offset + 1n
          rows.push({
            offset,
            timestamp: batch.firstTimestamp + record.timestampDelta,
            key: encode(record.key),
            value: encode(record.value),
            headers: record.headers.map(([name, value]) => [name.toString(), encode(value)]),
          })
        }
      }
    }
    return rows
  } finally {
    await consumer.close()
  }
}

async function admin(call) {
  const client = new Admin(options(call))
  try {
    return (await client[call.method](call.argument)) ?? null
  } finally {
    await client.close()
  }
}

function version() {
  const file = new URL('node_modules/@platformatic/kafka/package.json', import.meta.url)
  return JSON.parse(readFileSync(file, 'utf8')).version
}

const operations = { produce, consume, admin, version }

for await (const line of createInterface({ input: process.stdin })) {
  const call = JSON.parse(line, fromJson)
  let answer
  try {
    answer = { ok: await operations[call.op](call) }
  } catch (error) {
    let cause = error
    while (cause.errors?.length || cause.cause) cause = cause.errors?.[0] ?? cause.cause
    answer = { error: { type: cause.apiId ?? cause.code ?? cause.name, message: cause.message } }
  }
  process.stdout.write(JSON.stringify(answer, plain) + '\n')
}
process.exit(0)
