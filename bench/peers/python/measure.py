"""Measures one case on one queue: `python measure.py procrastinate CASE '{"url": ...}'`. The last line printed is the result.

The loops are the same as in node/measure.mjs, which says what a peer must provide.
"""

import asyncio
import importlib
import json
import random
import resource
import sys
import time

PEER, KIND, OPTIONS = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
PADDING = "x" * max(0, OPTIONS["args_bytes"] - 60)
RUN = "%08x" % random.getrandbits(32)


def key(number):
    return f"{RUN}-{number}"


def args(number):
    return {"order": number, "user": f"u-{number % 9973}", "note": PADDING}


def quantiles(latencies):
    latencies.sort()

    def at(share):
        return latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1000 if latencies else None

    return {"p50_ms": at(0.5), "p95_ms": at(0.95), "p99_ms": at(0.99)}


async def drive(callers, seconds, turn):
    """Runs `callers` loops until the time is over; each turn returns its number of jobs."""
    latencies = []
    began = time.perf_counter()
    until = began + seconds
    jobs = 0

    async def loop():
        nonlocal jobs
        at = time.perf_counter()
        while at < until:
            done = await turn()
            jobs += done
            now = time.perf_counter()
            latencies.append(now - at)
            at = now

    await asyncio.gather(*(loop() for _ in range(callers)))
    return {"jobs": jobs, "seconds": time.perf_counter() - began, **quantiles(latencies)}


async def enqueue(queue):
    keys = answered = 0

    async def turn():
        nonlocal keys, answered
        if answered and random.random() < OPTIONS["duplicates"]:
            number = random.randrange(answered)
            await queue.enqueue(key(number), args(number))
        else:
            number = keys
            keys += 1
            await queue.enqueue(key(number), args(number))
            answered = max(answered, number + 1)
        return 1

    figure = await drive(OPTIONS["callers"], OPTIONS["seconds"], turn)
    return {**figure, "keys": keys, "stored": await queue.count()}


async def repeat(queue):
    await queue.enqueue(key(0), args(0))

    async def turn():
        await queue.enqueue(key(0), args(0))
        return 1

    figure = await drive(OPTIONS["callers"], OPTIONS["seconds"], turn)
    return {**figure, "keys": 1, "stored": await queue.count()}


def jobs_of(start, upto):
    return [(key(number), args(number)) for number in range(start, upto)]


async def bulk(queue):
    keys = 0

    async def turn():
        nonlocal keys
        start = keys
        keys += OPTIONS["size"]
        await queue.bulk(jobs_of(start, start + OPTIONS["size"]))
        return OPTIONS["size"]

    figure = await drive(OPTIONS["callers"], OPTIONS["seconds"], turn)
    return {**figure, "keys": keys, "stored": await queue.count()}


async def process(queue):
    total = OPTIONS["jobs"]
    for start in range(0, total, 1000):
        await queue.bulk(jobs_of(start, min(total, start + 1000)))
    done = 0
    over = asyncio.Event()

    def handler(_):
        nonlocal done
        done += 1
        if done == total:
            over.set()

    began = time.perf_counter()
    stop = await queue.work(handler)
    await asyncio.wait_for(over.wait(), OPTIONS["limit"])
    seconds = time.perf_counter() - began
    await stop()
    return {"jobs": total, "seconds": seconds}


async def cycle(queue):
    """Enqueues new jobs one by one while a worker runs, until all of them have started."""
    keys = started = 0
    offered = None
    over = asyncio.Event()

    def handler(_):
        nonlocal started
        started += 1
        if offered is not None and started >= offered:
            over.set()

    async def turn():
        nonlocal keys
        number = keys
        keys += 1
        await queue.enqueue(key(number), args(number))
        return 1

    stop = await queue.work(handler)
    await asyncio.sleep(1)
    began = time.perf_counter()
    figure = await drive(OPTIONS["callers"], OPTIONS["seconds"], turn)
    offered = figure["jobs"]
    if started < offered:
        await asyncio.wait_for(over.wait(), OPTIONS["limit"])
    seconds = time.perf_counter() - began
    await stop()
    return {**figure, "seconds": seconds}


async def latency(queue):
    waits, sent = [], {}

    def handler(job):
        at = sent.get(job["order"])
        if at is not None:
            waits.append(time.perf_counter() - at)

    stop = await queue.work(handler)
    await asyncio.sleep(1)
    began = time.perf_counter()
    total = int(OPTIONS["rate"] * OPTIONS["seconds"])
    pending = []
    for number in range(total):
        due = began + number / OPTIONS["rate"]
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        sent[number] = due
        pending.append(asyncio.ensure_future(queue.enqueue(key(number), args(number))))
    await asyncio.gather(*pending)
    limit = time.perf_counter() + 20
    while len(waits) < total and time.perf_counter() < limit:
        await asyncio.sleep(0.02)
    await stop()
    return {"jobs": len(waits), "offered": total, "seconds": OPTIONS["seconds"], **quantiles(waits)}


async def race(queue):
    began = time.perf_counter()
    for number in range(OPTIONS["rounds"]):
        await asyncio.gather(*(queue.enqueue(key(number), args(number)) for _ in range(OPTIONS["callers"])))
    seconds = time.perf_counter() - began
    return {"jobs": OPTIONS["rounds"] * OPTIONS["callers"], "seconds": seconds, "keys": OPTIONS["rounds"], "stored": await queue.count()}


async def main():
    async with importlib.import_module(f"{PEER}_queue").open(OPTIONS) as queue:
        before = resource.getrusage(resource.RUSAGE_SELF)
        cases = {"enqueue": enqueue, "bulk": bulk, "process": process, "cycle": cycle, "latency": latency, "race": race, "repeat": repeat}
        figure = await cases[KIND](queue)
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(json.dumps({"version": queue.version, **figure, "client_cpu_seconds": used}), flush=True)


asyncio.run(main())
