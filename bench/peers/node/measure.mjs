// Measures one case on one queue: `node measure.mjs QUEUE CASE '{"url": …}'`. The last line printed is the result.
//
// Every peer is a module with `open(url, options)`, which returns
//   version            the installed version
//   enqueue(key, args) enqueues one unique job; resolves when the job is stored or found to be a duplicate
//   bulk(jobs)         enqueues several [key, args] in one call of the peer's API
//   count()            the number of waiting jobs
//   work(handler)      starts a worker that only calls handler(args); returns a function that stops it
//   close()
// so that the same loops measure every peer in the same way.

import { performance } from 'node:perf_hooks'

const [peer, kind, text] = process.argv.slice(2)
const options = JSON.parse(text)
const { open } = await import(`./${peer}.mjs`)

const PADDING = 'x'.repeat(Math.max(0, options.args_bytes - 60))
const run = Math.random().toString(36).slice(2, 10)
const key = (number) => `${run}-${number}`
const args = (number) => ({ order: number, user: `u-${number % 9973}`, note: PADDING })

/** Runs `callers` loops until the time is over; each turn returns its number of jobs. */
async function drive(callers, seconds, turn) {
  const latencies = []
  const began = performance.now()
  const until = began + seconds * 1000
  let jobs = 0
  await Promise.all(Array.from({ length: callers }, async () => {
    for (let at = performance.now(); at < until;) {
      const done = await turn()
      jobs += done
      const now = performance.now()
      latencies.push(now - at)
      at = now
    }
  }))
  return { jobs, seconds: (performance.now() - began) / 1000, ...quantiles(latencies) }
}

function quantiles(latencies) {
  latencies.sort((a, b) => a - b)
  const at = (share) => latencies[Math.min(latencies.length - 1, Math.floor(latencies.length * share))] ?? null
  return { p50_ms: at(0.5), p95_ms: at(0.95), p99_ms: at(0.99) }
}

/** Enqueues unique jobs one by one. A duplicate has the key of a job whose enqueue call has already returned. */
async function enqueue(queue) {
  let keys = 0
  let answered = 0
  const figure = await drive(options.callers, options.seconds, async () => {
    if (answered > 0 && Math.random() < options.duplicates) {
      const number = Math.floor(Math.random() * answered)
      await queue.enqueue(key(number), args(number))
    } else {
      const number = keys++
      await queue.enqueue(key(number), args(number))
      answered = Math.max(answered, number + 1)
    }
    return 1
  })
  return { ...figure, keys, stored: await queue.count() }
}

/** Enqueues one job, then duplicates of it. */
async function repeat(queue) {
  await queue.enqueue(key(0), args(0))
  const figure = await drive(options.callers, options.seconds, async () => {
    await queue.enqueue(key(0), args(0))
    return 1
  })
  return { ...figure, keys: 1, stored: await queue.count() }
}

async function fill(queue, jobs) {
  for (let from = 0; from < jobs; from += 1000) {
    const upto = Math.min(jobs, from + 1000)
    await queue.bulk(Array.from({ length: upto - from }, (_, i) => [key(from + i), args(from + i)]))
  }
}

async function bulk(queue) {
  let keys = 0
  const figure = await drive(options.callers, options.seconds, async () => {
    const from = keys
    keys += options.size
    await queue.bulk(Array.from({ length: options.size }, (_, i) => [key(from + i), args(from + i)]))
    return options.size
  })
  return { ...figure, keys, stored: await queue.count() }
}

/** Works off a backlog with a worker that does nothing. */
async function process_(queue) {
  await fill(queue, options.jobs)
  let done = 0
  let stop
  const began = performance.now()
  await new Promise((resolve, reject) => {
    const limit = setTimeout(() => reject(new Error(`${done} of ${options.jobs} were done in ${options.limit} s`)), options.limit * 1000)
    const handler = () => {
      if (++done === options.jobs) { clearTimeout(limit); resolve() }
    }
    queue.work(handler).then((stopper) => { stop = stopper }, reject)
  })
  const seconds = (performance.now() - began) / 1000
  await stop?.()
  return { jobs: options.jobs, seconds }
}

/** Enqueues new jobs one by one while a worker runs, until all of them have started. */
async function cycle(queue) {
  let [next, started, offered] = [0, 0, Infinity]
  let over
  const all = new Promise((resolve) => { over = resolve })
  const stop = await queue.work(() => { if (++started >= offered) over() })
  await new Promise((resolve) => setTimeout(resolve, 1000))
  const began = performance.now()
  const figure = await drive(options.callers, options.seconds, async () => {
    const number = next++
    await queue.enqueue(key(number), args(number))
    return 1
  })
  offered = figure.jobs
  if (started >= offered) over()
  await new Promise((resolve, reject) => {
    const limit = setTimeout(() => reject(new Error(`${started} of ${offered} were done in ${options.limit} s`)), options.limit * 1000)
    all.then(() => { clearTimeout(limit); resolve() })
  })
  const seconds = (performance.now() - began) / 1000
  await stop()
  return { ...figure, seconds }
}

/** Measures the time from the call of enqueue to the start of the handler, at a rate that does not overload the queue. */
async function latency(queue) {
  const waits = []
  const sent = new Map()
  const stop = await queue.work((job) => {
    const at = sent.get(job.order)
    if (at !== undefined) waits.push(performance.now() - at)
  })
  await new Promise((resolve) => setTimeout(resolve, 1000))
  const began = performance.now()
  const total = Math.floor(options.rate * options.seconds)
  const pending = []
  for (let number = 0; number < total; number++) {
    const due = began + (number * 1000) / options.rate
    const wait = due - performance.now()
    if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait))
    sent.set(number, due)
    pending.push(queue.enqueue(key(number), args(number)))
  }
  await Promise.all(pending)
  for (const limit = performance.now() + 20_000; waits.length < total && performance.now() < limit;) {
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  await stop()
  return { jobs: waits.length, offered: total, seconds: options.seconds, ...quantiles(waits) }
}

/** All callers enqueue the same key at once, round after round. */
async function race(queue) {
  const began = performance.now()
  for (let round = 0; round < options.rounds; round++) {
    await Promise.all(Array.from({ length: options.callers }, () => queue.enqueue(key(round), args(round))))
  }
  return { jobs: options.rounds * options.callers, seconds: (performance.now() - began) / 1000, keys: options.rounds, stored: await queue.count() }
}

const queue = await open(options.url, options)
const before = process.cpuUsage()
const cases = { enqueue, bulk, process: process_, cycle, latency, race, repeat }
const figure = await cases[kind](queue)
const used = process.cpuUsage(before)
const version = queue.version
await queue.close()
console.log(JSON.stringify({ version, ...figure, client_cpu_seconds: (used.user + used.system) / 1e6 }))
process.exit(0)
