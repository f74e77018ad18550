// What the token may do, so that the page offers nothing that would be refused. The server checks it all the same.

import { get } from "./api.js";

const ALL = { roles: ["producer", "worker", "admin", "metrics"], inspect: true, queues: null };

let known = ALL;
let asked = 0;

/** Asks the server what the token may do. If the server cannot say, everything is offered. */
export async function learn() {
  const turn = ++asked;
  const told = await get("whoami").catch(() => ALL);
  // A late answer about an earlier token is ignored.
  if (turn === asked) known = told;
}

/** Whether it may do what operators do, on the queues it sees. */
export function isAdmin() {
  return known.roles.includes("admin");
}

/** Whether it may do so on every queue, as keys, workers, webhooks and the audit require. */
export function isOperator() {
  return isAdmin() && known.queues === null;
}

/** Whether it may look at jobs. */
export function mayRead() {
  return isAdmin() || (known.inspect && (known.roles.includes("producer") || known.roles.includes("worker")));
}

/** Whether it may look at what spans queues: workflows and policies in use. */
export function mayReadAll() {
  return mayRead() && known.queues === null;
}

/** Whether it may enqueue jobs, and change those whose id it knows. */
export function mayProduce() {
  return isAdmin() || known.roles.includes("producer");
}

/** The result of `thing` for an admin, null for others. */
export function forAdmins(thing) {
  return isAdmin() ? thing() : null;
}
