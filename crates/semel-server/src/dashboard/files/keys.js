// Who holds which key; and finding one by the key, a job or a payload.

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
  // Finding those that still hold theirs may be much to read for the server, so nothing is listed before it is asked for.
  const isAsked = query.list || filter.type || filter.queue || filter.state;
  const found = isAsked ? await get("unique-jobs", { ...filter, page, cursor: query.cursor, per_page: PER_PAGE }, signal) : null;
  return [
    h("h1", {}, "Keys"),
    h("p", { class: "lead" }, "A job that carries a unique policy holds a key. Another job with the same key is a duplicate for as long as the key is held."),
    part("Find a key",
      form({ class: "row", role: "search" }, find,
        field("Key or job id", h("input", { name: "what", type: "search", size: "50", spellcheck: "false", "data-key": "/", placeholder: "64 hex digits, or the id of a job" })),
        h("button", { type: "submit", class: "main" }, "Find"),
        h("a", { class: "button", href: link("why") }, "By a payload: Why not?"))),
    part("Held now",
      form({ class: "row", role: "search" }, (fields) => go("keys", { ...fields, list: "held" }),
        field("Type", h("input", { name: "type", value: query.type ?? "" })),
        field("Queue", h("input", { name: "queue", value: query.queue ?? "" })),
        field("State of the holder", select("state", [["", "any"], ...STATES], query.state)),
        h("button", { type: "submit" }, "Filter"),
        button("List all keys that are held", () => go("keys", { list: "held" }))),
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
      { label: "Held until", cell: (item) => (item.locked_until ? when(item.locked_until) : "its states end") },
    ], found.items, {
      caption: "Keys and their holders, newest first",
      empty: more ? "No job looked at so far holds a key; older ones follow." : "No job that this filter admits holds a key.",
    }),
    pager("keys", page > 1 || cursor ? filter : null,
      !more ? null : further ? { ...filter, cursor: further } : { ...filter, cursor, page: page + 1 }),
  ];
}

async function find({ what }) {
  if (!what) return;
  const text = what.toLowerCase();
  if (KEY.test(text)) return go(`keys/${at(text)}`);
  if (!JOB.test(text)) return tell("That is neither a key (64 hex digits) nor a job's id. With a payload in hand, use “Why not?”.");
  try {
    const { job } = await get(`jobs/${at(text)}`);
    if (job.unique_key) go(`keys/${at(job.unique_key)}`);
    else tell("This job carries no unique policy, so it holds no key.");
  } catch (error) {
    tell(error.message);
  }
}
