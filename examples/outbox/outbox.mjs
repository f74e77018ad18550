// Writes an order and the job that follows from it in one transaction, with pg.
//
//     npm install pg@8
//     export DATABASE_URL=postgres://localhost/shop
//     SEMEL_STORE="$DATABASE_URL" semel serve &        # creates and relays the outbox; without it this script waits forever
//     node outbox.mjs

import pg from "pg";

const order = 7;
// An Open Job Spec request. Equal requests make one job: the second entry gets the outcome `existing`.
const envelope = (order) => JSON.stringify({
  type: "order.ship",
  args: [{ order }],
  options: { unique: { keys: ["type", "args"], on_conflict: "ignore" } },
});

const db = new pg.Client({ connectionString: process.env.DATABASE_URL });
await db.connect();
try {
  await db.query("CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY)");

  await db.query("BEGIN"); // Both, or neither.
  await db.query("INSERT INTO orders (id) VALUES ($1) ON CONFLICT DO NOTHING", [order]);
  const insert = "INSERT INTO semel.outbox (envelope) VALUES ($1) RETURNING id";
  const { rows: [{ id }] } = await db.query(insert, [envelope(order)]);
  await db.query("COMMIT");

  await db.query("BEGIN"); // Rolled back: this entry never existed.
  await db.query(insert, [envelope(8)]);
  await db.query("ROLLBACK");

  // Waiting is optional: this reads the outcome once a server has relayed the entry.
  let row;
  do {
    await new Promise((resolve) => setTimeout(resolve, 50));
    ({ rows: [row] } = await db.query("SELECT outcome, job FROM semel.outbox WHERE id = $1", [id]));
  } while (row.outcome === null);
  console.log(`${row.outcome} ${row.job}`);
} finally {
  await db.end();
}
