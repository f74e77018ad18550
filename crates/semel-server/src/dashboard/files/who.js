// What whoever looks may do, so that nothing is offered that would be refused. The server refuses it all the same.

import { get } from "./api.js";

const ALL = { roles: ["producer", "worker", "admin", "metrics"], inspect: true, queues: null };

let known = ALL;
let asked = 0;

/** Asks the server what the token may do; whoever cannot be asked is offered everything. */
export async function learn() {
  const turn = ++asked;
  const told = await get("whoami").catch(() => ALL);
  // An answer about the token before this one comes too late.
  if (turn === asked) known = told;
}

/** Whether it may do what operators do, on the queues that it sees. */
export function isAdmin() {
  return known.roles.includes("admin");
}

/** Whether it may do so on every queue: keys, workers, webhooks and the audit are not one queue's. */
export function isOperator() {
  return isAdmin() && known.queues === null;
}

/** Whether it may look at jobs. */
export function mayRead() {
  return isAdmin() || (known.inspect && (known.roles.includes("producer") || known.roles.includes("worker")));
}

/** Whether it may look at what goes across queues: workflows, policies in use. */
export function mayReadAll() {
  return mayRead() && known.queues === null;
}

/** Whether it may offer jobs, and change what it knows the id of. */
export function mayProduce() {
  return isAdmin() || known.roles.includes("producer");
}

/** What an admin is offered, and others are not. */
export function forAdmins(thing) {
  return isAdmin() ? thing() : null;
}
