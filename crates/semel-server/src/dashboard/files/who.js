// What whoever looks may do, so that nothing is offered that would be refused. The server refuses it all the same.

import { get } from "./api.js";

const ALL = { roles: ["producer", "worker", "admin", "metrics"], inspect: true, queues: null };

let known = ALL;

/** Asks the server what the token may do; whoever cannot be asked is offered everything. */
export async function learn() {
  known = await get("whoami").catch(() => ALL);
}

/** Whether it may do what operators do, on every queue. */
export function isOperator() {
  return known.roles.includes("admin") && known.queues === null;
}

/** Whether it may look at jobs. */
export function mayRead() {
  return known.roles.includes("admin") || (known.inspect && (known.roles.includes("producer") || known.roles.includes("worker")));
}

/** Whether it may offer jobs, and change what it knows the id of. */
export function mayProduce() {
  return known.roles.includes("admin") || known.roles.includes("producer");
}

/** What an operator is offered, and others are not. */
export function forOperators(thing) {
  return isOperator() ? thing() : null;
}
