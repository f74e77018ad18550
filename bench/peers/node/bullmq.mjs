// BullMQ: deduplication in its simple mode (until the job has ended). As its docs recommend: one connection serves many calls, the
// worker has a set concurrency, and finished jobs are removed.

import { Queue, Worker } from 'bullmq'
import Redis from 'ioredis'

import { version } from './version.mjs'

const NAME = 'bench'

export async function open(url, options) {
  const connection = new Redis(url, { maxRetriesPerRequest: null })
  const queue = new Queue(NAME, { connection })
  await queue.waitUntilReady()
  const job = (key, data) => ({ name: 'noop', data, opts: { deduplication: { id: key }, removeOnComplete: true } })
  return {
    version: version('bullmq'),
    enqueue: (key, args) => queue.add('noop', args, job(key, args).opts),
    bulk: (jobs) => queue.addBulk(jobs.map(([key, args]) => job(key, args))),
    count: () => queue.getWaitingCount(),
    work: async (handler) => {
      const blocking = new Redis(url, { maxRetriesPerRequest: null })
      const worker = new Worker(NAME, async ({ data }) => handler(data), { connection: blocking, concurrency: options.concurrency ?? 500 })
      await worker.waitUntilReady()
      return async () => {
        await worker.close()
        blocking.disconnect()
      }
    },
    close: async () => {
      await queue.close()
      connection.disconnect()
    },
  }
}
