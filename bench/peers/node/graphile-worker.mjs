// graphile-worker: `jobKey` in mode `unsafe_dedupe`, its cheapest (a duplicate changes nothing), and its local queue with batched
// completions, as its docs recommend for speed. Finished jobs are deleted.

import { makeWorkerUtils, run, Logger } from 'graphile-worker'
import pg from 'pg'

import { version } from './version.mjs'

const quiet = new Logger(() => () => {})
const TASK = 'noop'

export async function open(url, options) {
  const pool = new pg.Pool({ connectionString: url, max: options.pool ?? 8 })
  const utils = await makeWorkerUtils({ pgPool: pool, logger: quiet })
  await utils.migrate()
  const jobKeyMode = 'unsafe_dedupe'
  return {
    version: version('graphile-worker'),
    enqueue: (key, args) => utils.addJob(TASK, args, { jobKey: key, jobKeyMode }),
    bulk: (jobs) => utils.addJobs(jobs.map(([key, payload]) => ({ identifier: TASK, payload, jobKey: key, jobKeyMode: 'replace' }))),
    count: async () => Number((await pool.query('SELECT count(*) FROM graphile_worker._private_jobs')).rows[0].count),
    work: async (handler) => {
      const runner = await run({
        pgPool: pool,
        logger: quiet,
        noHandleSignals: true,
        preset: {
          worker: {
            concurrentJobs: 24,
            pollInterval: 1000,
            localQueue: { size: 500 },
            completeJobBatchDelay: 0,
            failJobBatchDelay: 0,
          },
        },
        taskList: { [TASK]: async (payload) => { handler(payload) } },
      })
      return () => runner.stop()
    },
    close: async () => {
      await utils.release()
      await pool.end()
    },
  }
}
