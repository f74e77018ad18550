// Who holds which key; and a search by key, job id or payload.

import { at, get } from "./api.js";
import { button, field, form, h, part, select } from "./dom.js";
import { badge, jobLink, keyLink, when } from "./format.js";
import { STATES } from "./policy.js";
import { go, link } from "./router.js";
import { pager, table } from "./table.js";
import { tell } from "./notice.js";

const KEY = /^[0-9a-f]{64}$/;
const JOB = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const PER_PAGE = 50;

export async function keys({ query, signal }) {
  const page = Number(query.page ?? 1);
  const filter = { type: query.type, queue: query.queue, state: query.state };
  // To find jobs that still hold their keys, the server may have to read a lot, so nothing is listed until it is asked for.
  const isAsked = query.list || filter.type || filter.queue || filter.state;
  const found = isAsked ? await get("unique-jobs", { ...filter, page, cursor: query.cursor, per_page: PER_PAGE }, signal) : null;
  return [
    h("h1", {}, "Keys"),
    h("p", { class: "lead" }, "A job with a unique policy holds a key. Another job with the same key is a duplicate for as long as the key is held."),
    part("Find a key",
      form({ class: "row", role: "search" }, find,
        field("Key or job id", h("input", { name: "what", type: "search", size: "50", spellcheck: "false", "data-key": "/", placeholder: "64 hex digits or a job id" })),
        h("button", { type: "submit", class: "main" }, "Find"),
        h("a", { class: "button", href: link("why") }, "By payload: Why not?"))),
    part("Held now",
      form({ class: "row", role: "search" }, (fields) => go("keys", { ...fields, list: "held" }),
        field("Type", h("input", { name: "type", value: query.type ?? "" })),
        field("Queue", h("input", { name: "queue", value: query.queue ?? "" })),
        field("Holder's state", select("state", [["", "any"], ...STATES], query.state)),
        h("button", { type: "submit" }, "Filter"),
        button("List all held keys", () => go("keys", { list: "held" }))),
      found ? listed(found, { ...filter, list: "held" }, page, query.cursor) : null),
  ];
}

function listed(found, filter, page, cursor) {
  const { has_more: more, next_cursor: further } = found.pagination;
  return [
    table([
      { label: "Key", cell: (item) => keyLink(item.key) },
      { label: "Type", cell: (item) => item.type },
      { label: "Queue", cell: (item) => item.queue },
      { label: "Holder", cell: (item) => jobLink(item.job_id) },
      { label: "State", cell: (item) => badge(item.state) },
      { label: "Held until", cell: (item) => (item.locked_until ? when(item.locked_until) : "no fixed time") },
    ], found.items, {
      caption: "Keys and their holders, newest first",
      empty: more ? "None of the jobs looked at so far hold a key; “Older” looks further." : "No job that matches this filter holds a key.",
    }),
    pager("keys", page > 1 || cursor ? filter : null,
      !more ? null : further ? { ...filter, cursor: further } : { ...filter, cursor, page: page + 1 }),
  ];
}

async function find({ what }) {
  if (!what) return;
  const text = what.toLowerCase();
  if (KEY.test(text)) return go(`keys/${at(text)}`);
  if (!JOB.test(text)) return tell("That is neither a key (64 hex digits) nor a job id. If you have a payload, use “Why not?”.");
  try {
    const { job } = await get(`jobs/${at(text)}`);
    if (job.unique_key) go(`keys/${at(job.unique_key)}`);
    else tell("This job shows no key: it has no unique policy, its key was released or taken over, or its policy does not disclose it.");
  } catch (error) {
    tell(error.message);
  }
}
