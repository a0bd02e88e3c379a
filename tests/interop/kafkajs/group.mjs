// A member of a consumer group on kafkajs; says what happens in lines of JSON, as
// group_worker.py does.  kafkajs knows neither static members nor cooperative assignment.
// Options of its own: from_beginning (true), and seek, places where to begin instead of the
// committed ones: [{"topic": ..., "partition": 0, "offset": "5"}].
import kafkajs from 'kafkajs'

const { Kafka, logLevel } = kafkajs
const task = JSON.parse(process.argv[2])
const say = (event, more) => process.stdout.write(JSON.stringify({ event, ...more }) + '\n')

const kafka = new Kafka({ clientId: 'kafkajs', brokers: [task.bootstrap], logLevel: logLevel.ERROR })
const consumer = kafka.consumer({
  groupId: task.group,
  sessionTimeout: task.session_ms,
  rebalanceTimeout: 10000,
  heartbeatInterval: 500,
  maxWaitTimeInMs: 200
})

consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
  const partitions = Object.entries(payload.memberAssignment).flatMap(([topic, parts]) =>
    parts.map((part) => [topic, part])
  )
  say('assigned', { partitions })
})
consumer.on(consumer.events.REBALANCING, () => say('rebalancing', {}))
consumer.on(consumer.events.CRASH, ({ payload }) => say('error', { text: String(payload.error) }))

process.on('SIGTERM', async () => {
  await consumer.disconnect()
  say('closed', {})
  process.exit(0)
})

await consumer.connect()
await consumer.subscribe({ topics: task.topics, fromBeginning: task.from_beginning ?? true })
await consumer.run({
  autoCommit: false,
  eachMessage: async ({ topic, partition, message }) => {
    const next = String(BigInt(message.offset) + 1n)
    await consumer.commitOffsets([{ topic, partition, offset: next }])
    say('record', { partition, offset: Number(message.offset), value: message.value.toString() })
  }
})
for (const place of task.seek ?? []) consumer.seek(place)
