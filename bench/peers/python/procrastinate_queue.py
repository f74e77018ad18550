"""Procrastinate: `queueing_lock` (one waiting job per lock; a duplicate raises an exception), a connection pool, batches by
`batch_defer`. Finished jobs are kept."""

import asyncio
import contextlib
import importlib.metadata

import procrastinate
import psycopg_pool


@contextlib.asynccontextmanager
async def open(options):
    connector = procrastinate.PsycopgConnector(conninfo=options["url"], min_size=8, max_size=options.get("pool", 32))
    app = procrastinate.App(connector=connector)
    handlers = []

    @app.task(name="noop")
    async def noop(**args):
        for handler in handlers:
            handler(args)

    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        yield Queue(app, connector, noop, handlers)


class Queue:
    version = importlib.metadata.version("procrastinate")

    def __init__(self, app, connector, task, handlers):
        self.app, self.connector, self.task, self.handlers = app, connector, task, handlers

    async def enqueue(self, key, args):
        with contextlib.suppress(procrastinate.exceptions.AlreadyEnqueued):
            await self.task.configure(queueing_lock=key).defer_async(**args)

    async def bulk(self, jobs):
        # A lock belongs to a deferrer, and a batch has only one deferrer, so batches are enqueued without locks.
        await self.task.batch_defer_async(*(args for _, args in jobs))

    async def count(self):
        rows = await self.connector.execute_query_one_async("SELECT count(*) AS jobs FROM procrastinate_jobs WHERE status = 'todo'")
        return rows["jobs"]

    async def work(self, handler):
        self.handlers.append(handler)
        worker = asyncio.ensure_future(self.app.run_worker_async(concurrency=32, install_signal_handlers=False, fetch_job_polling_interval=0.5))

        async def stop():
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker

        return stop
