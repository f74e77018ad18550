// pg-boss: a queue with policy `exclusive` (one job per singletonKey, waiting or running) and its own partition; LISTEN/NOTIFY wakes
// its worker, which fetches batches. Finished jobs are kept.

import { PgBoss } from 'pg-boss'
import pg from 'pg'

import { version } from './version.mjs'

const NAME = 'bench'

export async function open(url, options) {
  const boss = new PgBoss({ connectionString: url, max: options.pool ?? 16, useListenNotify: true })
  boss.on('error', (error) => console.error(error))
  await boss.start()
  await boss.createQueue(NAME, { policy: 'exclusive', partition: true, notify: true })
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  return {
    version: version('pg-boss'),
    enqueue: (key, args) => boss.send(NAME, args, { singletonKey: key }),
    bulk: (jobs) => boss.insert(NAME, jobs.map(([key, data]) => ({ data, singletonKey: key }))),
    count: async () => Number((await pool.query(`SELECT count(*) FROM pgboss.job WHERE name = $1 AND state = 'created'`, [NAME])).rows[0].count),
    work: async (handler) => {
      const settings = { batchSize: 1000, localConcurrency: 2, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true }
      await boss.work(NAME, settings, async (jobs) => { jobs.forEach((job) => handler(job.data)) })
      return () => boss.offWork(NAME)
    },
    close: async () => {
      await boss.stop({ graceful: false })
      await pool.end()
    },
  }
}
