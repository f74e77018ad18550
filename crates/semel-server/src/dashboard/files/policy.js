// Unique policies for people: a sentence, which the server writes, and a diagram of the states that hold the key.

import { post } from "./api.js";
import { facts, h } from "./dom.js";

/** The states of a job, in the order of its life. */
export const LIVE = ["scheduled", "available", "pending", "active", "retryable"];
const ENDED = ["completed", "cancelled", "discarded"];
export const STATES = [...LIVE, ...ENDED];

/** What would happen to a request, in words. */
const ADMISSIONS = {
  create: "the job is created",
  repeat: "the same request was admitted before: the answer is its job",
  existing: "the answer is the existing job; nothing is stored",
  reject: "it is refused as a duplicate (409)",
  replace: "the blocking jobs are cancelled and the new one is created",
  follow_up: "one follow-up is created; it runs after the current run",
  amend: "the waiting job takes over the newer args and meta",
  mismatch: "it is refused: the key is already used for different work (422)",
  id_taken: "it is refused: another request has used its id",
  too_many_holders: "it is refused: too many jobs hold the key",
  queue_full: "it is refused: the queue is full",
};

export function admission(name) {
  return ADMISSIONS[name] ?? name;
}

/** The policy as a request states it, without what the server adds to it in a job. */
export function asRequested(unique) {
  const { duplicates, ...policy } = unique;
  return policy;
}

/** What would happen if this job were enqueued again now; null if that cannot be asked. */
export async function askAgain(job, signal) {
  if (!job.unique) return null;
  const options = { queue: job.queue, unique: asRequested(job.unique) };
  const offer = { type: job.type, args: job.args, meta: job.meta, options };
  try {
    const told = await post("unique/explain", offer, signal);
    // Hidden values lead to another key; then only the sentence about the policy applies to this job.
    return { ...told, isSame: told.key === job.unique_key };
  } catch {
    return null;
  }
}

/** The policy in a few words, for lists. */
export function inShort(unique) {
  const what = unique.key !== undefined && typeof unique.key === "string"
    ? `key given by the caller${unique.scope === "global" ? ", across types" : ""}`
    : (unique.keys ?? ["type"]).map((name) => {
      const within = name === "args" ? unique.args_keys : name === "meta" ? unique.meta_keys : null;
      return within ? `${name}: ${within.join(", ")}` : name;
    }).join(" + ");
  const long = unique.period ? `, for ${unique.period}` : "";
  return `${what}${long} → ${unique.on_conflict}`;
}

/** The states that hold the key, beside those that leave it free. */
export function diagram(unique, present) {
  const states = unique.states ?? LIVE;
  const box = (state) => {
    const isHeld = states.includes(state);
    const here = state === present;
    return h("li", { class: `${isHeld ? "held" : "free"}${here ? " here" : ""}` },
      h("span", {}, state), h("small", {}, `${isHeld ? "holds" : "free"}${here ? " · now" : ""}`));
  };
  const row = (label, names) =>
    h("div", { class: "lane" }, h("p", {}, label), h("ol", { "aria-label": `${label} states` }, names.map(box)));
  return h("div", { class: "diagram" },
    row("Live", LIVE), row("Ended", ENDED),
    unique.period
      ? h("p", { class: "note" }, `and only for ${unique.period} from ${FROM[unique.period_from] ?? "its creation"}`
        + `${unique.while_active ? "; always while it is unfinished" : ""}.`)
      : null);
}

const FROM = { created: "its creation", finished: "its end", last_duplicate: "its last duplicate" };

/** The members of a policy that its diagram does not show. */
export function members(unique) {
  return facts([
    ["Compared by", inShort({ ...unique, on_conflict: "" }).replace(/ → $/, "")],
    ["On a duplicate", unique.on_conflict],
    ["Different content", unique.on_mismatch === "reject" ? "refused" : null],
    ["Shown to others", unique.disclose === "never" ? "never" : null],
    ["When active", unique.when_active],
  ]);
}

/** What each strategy would do, as rows. */
export function strategies(told) {
  return Object.entries(told.strategies ?? {}).map(([name, result]) => ({ name, result }));
}
