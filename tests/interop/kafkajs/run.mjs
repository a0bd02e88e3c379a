// Runs calls on kafkajs and prints what came of them; see ../kafkajs_driver.py.
//
// In:  {"bootstrap": "...", "producer": {...}, "calls": [["admin", "createTopics", {...}], ...]}
// Out: [{"ok": value} or {"error": {"name", "type", "message"}}, ...]
// Bytes travel both ways as {"base64": "..."}.

import { readFileSync } from 'node:fs'
import { compress, decompress, init } from '@bokuweb/zstd-wasm'
import kafkajs from 'kafkajs'
import snappy from 'kafkajs-snappy'
import lz4 from 'lz4js'

const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = kafkajs

CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(decompress(buffer)),
})

const fromJson = (_, value) =>
  typeof value?.base64 === 'string' ? Buffer.from(value.base64, 'base64') : value
const toJson = (_, value) =>
  value?.type === 'Buffer' ? { base64: Buffer.from(value.data).toString('base64') } : value

async function main() {
  const { bootstrap, producer, calls } = JSON.parse(readFileSync(0, 'utf8'), fromJson)
  if (calls.some(([, , argument]) => argument?.compression === CompressionTypes.ZSTD)) await init()
  const kafka = new Kafka({
    brokers: [bootstrap],
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 50, retries: 5 },
  })
  const clients = { admin: kafka.admin(), producer: kafka.producer(producer) }
  const used = new Set(calls.map(([client]) => clients[client]))
  await Promise.all([...used].map((client) => client.connect()))
  const results = []
  for (const [client, method, argument] of calls) {
    try {
      results.push({ ok: (await clients[client][method](argument)) ?? null })
    } catch (error) {
      const { name, type, message } = error.cause ?? error.errors?.[0] ?? error
      results.push({ error: { name, type, message } })
    }
  }
  await Promise.all([...used].map((client) => client.disconnect()))
  return results
}

process.stdout.write(JSON.stringify(await main(), toJson))
