// Jobs by state, queue, type and content, newest first; and an action that cancels every job that matches.

import { get, maybe } from "./api.js";
import { BULK_MAX, bulk } from "./bulk.js";
import { ask } from "./dialog.js";
import { button, facts, field, form, h } from "./dom.js";
import { badge, count, jobLink, keyLink, when } from "./format.js";
import { tell } from "./notice.js";
import { LIVE, STATES } from "./policy.js";
import { go, refresh } from "./router.js";
import { pager, table } from "./table.js";
import { forAdmins } from "./who.js";

const PER_PAGE = 50;

const COLUMNS = [
  { label: "Job", cell: (job) => jobLink(job.id) },
  { label: "Type", cell: (job) => job.type },
  { label: "Queue", cell: (job) => job.queue },
  { label: "State", cell: (job) => badge(job.state) },
  { label: "Attempt", kind: "num", cell: (job) => `${job.attempt} / ${job.max_attempts}` },
  { label: "Created", cell: (job) => when(job.created_at) },
];

export async function jobs({ query, signal }) {
  const filter = { state: query.state, queue: query.queue, type: query.type, where: query.where };
  const [found, queues] = await Promise.all([
    get("jobs", { ...filter, limit: PER_PAGE, cursor: query.cursor }, signal),
    maybe(get("queues", {}, signal)),
  ]);
  const chosen = (query.state ?? "").split(",");
  const box = (state) => h("label", { class: "chip" },
    h("input", { type: "checkbox", name: "state", value: state, checked: chosen.includes(state) }), state);
  return [
    h("h1", {}, "Jobs"),
    form({ class: "row", role: "search" }, (fields) => go("jobs", fields),
      h("fieldset", { class: "chips" }, h("legend", {}, "State"), STATES.map(box)),
      field("Queue", h("input", { name: "queue", list: "queues", value: query.queue ?? "", "data-key": "/" })),
      field("Type", h("input", { name: "type", list: "types", value: query.type ?? "" })),
      field("Args or meta", h("input", { name: "where", list: "places", value: query.where ?? "", placeholder: "/args/0/user_id=7" })),
      options("queues", (queues?.queues ?? []).map((queue) => queue.name)),
      options("types", found.jobs.map((job) => job.type)),
      options("places", found.jobs.flatMap(places)),
      h("button", { type: "submit", class: "main" }, "Filter"),
      query.where ? null : forAdmins(() => button("Cancel everything matching…", () => cancelAll(filter), { class: "danger" }))),
    table([
      ...COLUMNS,
      { label: "Key", cell: (job) => (job.unique_key ? keyLink(job.unique_key) : "–") },
      { label: "Duplicates", kind: "num", cell: (job) => count(job.unique?.duplicates?.count) },
    ], found.jobs, { caption: "Jobs, newest first", empty: found.pagination.has_more ? "None of the jobs looked at so far match; “Older” looks further." : "No job matches this filter." }),
    pager("jobs", query.cursor ? filter : null, found.pagination.has_more ? { ...filter, cursor: found.pagination.next_cursor } : null),
  ];
}

/** Suggestions for a field, without repeats. */
function options(id, texts) {
  return h("datalist", { id }, [...new Set(texts)].map((value) => h("option", { value })));
}

/** The places in a job's args and meta that the filter can ask for. */
function places(job) {
  const token = (name) => name.replaceAll("~", "~0").replaceAll("/", "~1");
  const members = (base, value) => (value !== null && typeof value === "object" ? Object.keys(value).map((name) => `${base}/${token(name)}=`) : []);
  return [...(job.args ?? []).flatMap((item, at) => members(`/args/${at}`, item)), ...members("/meta", job.meta)];
}

async function cancelAll(filter) {
  const states = filter.state ? filter.state.split(",").filter((state) => LIVE.includes(state)) : LIVE;
  if (states.length === 0) return tell("The filter matches ended jobs only: there is nothing to cancel.");
  const scope = { ...filter, state: states.join(",") };
  let found;
  try {
    found = await get("admin/jobs", { ...scope, per_page: 5 });
  } catch (error) {
    return tell(error.message);
  }
  const { total, is_lower_bound: isLeast } = found.pagination;
  if (total === 0 && !isLeast) return tell("No live job matches.");
  const words = await ask({
    title: total === 0 ? "Look further, and cancel the older jobs that match?" : `Cancel ${isLeast && total < BULK_MAX ? "at least " : ""}${count(Math.min(total, BULK_MAX))} jobs?`,
    body: [
      facts([["States", states.join(", ")], ["Queue", filter.queue ?? "all"], ["Type", filter.type ?? "all"]]),
      total === 0 ? h("p", {}, "None of the newest jobs match; older ones have not been looked at yet.") : h("p", {}, "For example:"),
      h("ul", {}, found.items.map((job) => h("li", {}, jobLink(job.id), ` ${job.type} · ${job.state}`))),
      h("p", {}, "Then:"),
      h("ul", {},
        h("li", {}, "Their keys are free at once."),
        h("li", {}, "Workers of active jobs are told at their next heartbeat, and late acks are refused."),
        h("li", {}, "This cannot be undone."),
        total >= BULK_MAX ? h("li", {}, `${count(BULK_MAX)} or more match, and one request handles ${count(BULK_MAX)}. Repeat it for the rest.`) : null),
    ],
    yes: "Cancel them",
    danger: true,
  });
  if (!words) return;
  try {
    const filters = { state: states, ...(filter.queue ? { queue: filter.queue } : {}), ...(filter.type ? { type: filter.type } : {}) };
    const told = await bulk("cancel", filters);
    tell(`Cancelled ${count(told.succeeded)}; ${count(told.failed)} could not be cancelled.${told.isMore ? " There may be more: repeat for the rest." : ""}`);
  } catch (error) {
    tell(error.message);
  }
  refresh();
}
