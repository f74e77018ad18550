"""Writes an order and the job that follows from it in one transaction, with psycopg.

    pip install 'psycopg[binary]>=3.2,<4'
    export DATABASE_URL=postgres://localhost/shop
    SEMEL_STORE="$DATABASE_URL" semel serve &        # creates and relays the outbox; without it this script waits forever
    python3 outbox.py
"""

import os
import time

import psycopg
from psycopg.types.json import Json

ORDER = 7
ENVELOPE = {  # An Open Job Spec request. Equal requests make one job: the second entry gets the outcome `existing`.
    "type": "order.ship",
    "args": [{"order": ORDER}],
    "options": {"unique": {"keys": ["type", "args"], "on_conflict": "ignore"}},
}

with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
    db.execute("CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY)")

    with db.transaction():  # Both, or neither.
        db.execute("INSERT INTO orders (id) VALUES (%s) ON CONFLICT DO NOTHING", [ORDER])
        row = db.execute("INSERT INTO semel.outbox (envelope) VALUES (%s) RETURNING id", [Json(ENVELOPE)]).fetchone()

    with db.transaction(force_rollback=True):  # Rolled back: this entry never existed.
        db.execute("INSERT INTO semel.outbox (envelope) VALUES (%s)", [Json({**ENVELOPE, "args": [{"order": 8}]})])

    # Waiting is optional: this reads the outcome once a server has relayed the entry.
    while True:
        outcome, job = db.execute("SELECT outcome, job FROM semel.outbox WHERE id = %s", row).fetchone()
        if outcome is not None:
            break
        time.sleep(0.05)
    print(f"{outcome} {job}")
