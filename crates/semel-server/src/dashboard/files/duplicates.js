// Recent duplicates: the jobs that absorbed the most, and requests whose content differed from their key's holder.

import { at, get, maybe } from "./api.js";
import { h, part } from "./dom.js";
import { badge, count, duration, jobLink, keyLink, when } from "./format.js";
import { callers } from "./key.js";
import { read, since } from "./log.js";
import { link } from "./router.js";
import { table } from "./table.js";
import { isOperator } from "./who.js";

const SPANS = [["15", "15 minutes"], ["60", "1 hour"], ["1440", "1 day"], ["10080", "1 week"]];
const START = ["start", "since startup"];
const SHOWN = 20;
/** Jobs fetched in parallel. */
const TOGETHER = 5;

export async function duplicates({ query, signal }) {
  if (query.minutes === START[0]) return sinceTheStart(signal);
  const minutes = Number(query.minutes ?? 60);
  const from = Date.now() - minutes * 60_000;
  const after = await since(from, signal);
  const told = await read({ types: "job.deduplicated" }, after, signal);
  // The place found in the log may be earlier than `from`.
  const holders = sum(told.events.filter((event) => Date.parse(event.time) >= from));
  const top = holders.slice(0, SHOWN);
  const jobs = await each(top, async (holder) => (await maybe(get(`jobs/${at(holder.id)}`, {}, signal)))?.job);
  const rows = top.map((holder, index) => ({ ...holder, job: jobs[index] }));
  const all = holders.reduce((total, holder) => total + holder.count, 0);
  const wrong = holders.filter((holder) => holder.mismatches > 0).slice(0, SHOWN);
  return [
    h("h1", {}, "Duplicates"),
    spans(String(minutes)),
    h("p", { class: "lead" }, `${count(all)} duplicates met ${count(holders.length)} jobs in the last ${duration(minutes * 60_000)}, according to the event log.`,
      told.more ? " Only part of the log was read: these are the earliest duplicates of that period." : ""),
    part("Hottest", table([
      { label: "Key", cell: (row) => (row.job?.unique_key ? keyLink(row.job.unique_key) : "–") },
      { label: "Duplicates", kind: "num", cell: (row) => count(row.count) },
      { label: "Type", cell: (row) => row.type },
      { label: "Queue", cell: (row) => row.queue },
      { label: "Holder", cell: (row) => jobLink(row.id) },
      { label: "State", cell: (row) => (row.job ? badge(row.job.state) : "purged") },
      { label: "Answers", kind: "long", cell: (row) => reasons(row) },
    ], rows, { caption: "Jobs by duplicates absorbed", empty: "None in that period." })),
    part("Different content under the same key", table([
      { label: "Holder", cell: (row) => jobLink(row.id) },
      { label: "Type", cell: (row) => row.type },
      { label: "Refused", kind: "num", cell: (row) => count(row.mismatches) },
    ], wrong, { caption: "Requests whose args or type differed from the holder's", empty: "None in that period. Policies with on_mismatch: reject detect them." })),
    part("Last callers of the hottest keys", callers(rows.filter((row) => row.job?.unique?.duplicates).slice(0, 5)
      .map((row) => ({ job_id: row.id, duplicates: row.job.unique.duplicates })))),
  ];
}

function spans(chosen) {
  const offered = isOperator() ? [...SPANS, START] : SPANS;
  return h("nav", { class: "tabs", "aria-label": "Time span" }, offered.map(([value, text]) =>
    h("a", { href: link("duplicates", { minutes: value }), "aria-current": value === chosen ? "page" : null }, text)));
}

/** From the server's own counters: one request, however long the log is. */
async function sinceTheStart(signal) {
  const told = await get("unique-jobs", { sort: "duplicates", per_page: SHOWN }, signal);
  const lack = told.counted.may_lack;
  return [
    h("h1", {}, "Duplicates"),
    spans(START[0]),
    h("p", { class: "lead" }, "From this server's counters since it started, ", when(told.counted.since), ". ",
      lack > 0 ? `So many jobs have absorbed duplicates that a number may be too low, by ${count(lack)} at most.` : "The numbers are exact."),
    part("Hottest", table([
      { label: "Key", cell: (item) => keyLink(item.key) },
      { label: "Duplicates", kind: "num", cell: (item) => count(item.absorbed) },
      { label: "Type", cell: (item) => item.type },
      { label: "Queue", cell: (item) => item.queue },
      { label: "Holder", cell: (item) => jobLink(item.job_id) },
      { label: "State", cell: (item) => badge(item.state) },
      { label: "Holds", cell: (item) => (item.holds ? "yes" : "no longer") },
    ], told.items, { caption: "Jobs by duplicates absorbed", empty: "No stored job has absorbed a duplicate since then." })),
  ];
}

function sum(events) {
  const byJob = new Map();
  for (const { data } of events) {
    const row = byJob.get(data.job_id) ?? { id: data.job_id, type: data.job_type, queue: data.queue, count: 0, mismatches: 0, reasons: {} };
    row.count += data.count;
    row.reasons[data.reason] = (row.reasons[data.reason] ?? 0) + data.count;
    if (data.reason === "payload_mismatch") row.mismatches += data.count;
    byJob.set(data.job_id, row);
  }
  return [...byJob.values()].sort((a, b) => b.count - a.count);
}

const WORDS = { existing: "the existing job", rejected: "refused", payload_mismatch: "refused: different content" };

function reasons(row) {
  return Object.entries(row.reasons).map(([reason, number]) => `${WORDS[reason] ?? reason} ${count(number)}×`).join(", ");
}

async function each(items, act) {
  const done = [];
  for (let first = 0; first < items.length; first += TOGETHER) {
    done.push(...(await Promise.all(items.slice(first, first + TOGETHER).map(act))));
  }
  return done;
}
