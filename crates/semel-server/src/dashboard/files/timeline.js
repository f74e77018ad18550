// Timelines: events in order, with reasons.

import { at, get } from "./api.js";
import { button, h, none, put } from "./dom.js";
import { clock, duration, jobLink } from "./format.js";
import { ofJobs, read } from "./log.js";
import { problem } from "./notice.js";

const WORDS = {
  "job.enqueued": "Admitted",
  "job.scheduled": "Admitted, to run later",
  "job.available": "Ready for a worker",
  "job.started": "Taken by a worker",
  "job.completed": "Completed",
  "job.failed": "A run failed",
  "job.retrying": "Will be retried",
  "job.discarded": "Discarded: it did not succeed",
  "job.expired": "Expired before it was started",
  "job.cancelled": "Cancelled",
  "job.requeued": "Requeued: given back, postponed, or its worker was lost",
  "job.amended": "Took over a newer request's args and meta",
  "job.key_released": "Its key was released by an operator",
  "job.deduplicated": "Suppressed duplicates",
};
const DUPLICATES = {
  existing: "answered with this job",
  rejected: "refused",
  payload_mismatch: "refused: different content under the same key",
};

function words({ type, data }) {
  const parts = [WORDS[type] ?? type];
  if (type === "job.deduplicated") parts[0] = `${data.count} duplicate${data.count === 1 ? "" : "s"} ${DUPLICATES[data.reason] ?? data.reason}`;
  else if (data.reason === "replaced") parts.push("a newer job with its key took its place");
  else if (data.reason) parts.push(data.reason);
  if (data.attempt > 0 && /started|failed|completed|discarded/.test(type)) parts.push(`attempt ${data.attempt}`);
  if (data.duration_ms !== undefined) parts.push(`after ${duration(data.duration_ms)}`);
  if (data.retry_delay_ms !== undefined) parts.push(`in ${duration(data.retry_delay_ms)}`);
  return parts.join(" · ");
}

/** How an event's type is coloured: good, bad, held back, or neutral. */
function tone(type) {
  if (/completed$/.test(type)) return "good";
  if (/failed|discarded|expired$/.test(type)) return "bad";
  if (/deduplicated|amended|cancelled|released$/.test(type)) return "held";
  return "";
}

/** One event as a line. `names`: whether to name its job; `"full"` adds the job's type. */
export function line(event, names) {
  return h("li", { class: tone(event.type) },
    clock(event.time), h("span", {}, words(event)),
    names && event.data.job_id ? jobLink(event.data.job_id) : null,
    names === "full" ? h("span", { class: "dim" }, event.data.job_type ?? "") : null);
}

/** How far back a key's events are read, in minutes; null for the whole log. */
const SPANS = [["15 minutes", 15], ["1 hour", 60], ["1 day", 1_440], ["1 week", 10_080], ["whole log", null]];
/** Pages read before the user must ask for more; the server looks at up to 20,000 events for each. */
const KEY_PAGES = 5;

/** What happened to a key, including jobs that carried it and are gone. It starts at the oldest present holder, because the
 * server finds a place in the log by time and reads on from there. */
export function keyTimeline(key, since, signal) {
  const slot = h("div", { "aria-live": "polite" });
  const tabs = h("div", { class: "tabs", role: "group", "aria-label": "How far back" });
  const read = async (query) => {
    const events = [];
    let from = query;
    for (let page = 0; page < KEY_PAGES; page++) {
      const told = await get(`unique-jobs/${at(key)}/events`, { ...from, limit: 200 }, signal);
      events.push(...told.events);
      from = { cursor: told.cursor };
      if (!told.has_more) return { events, from, more: false };
    }
    return { events, from, more: true };
  };
  const show = async (query, chosen) => {
    for (const tab of tabs.children) tab.setAttribute("aria-pressed", String(tab === chosen));
    put(slot, none("Reading the log…"));
    const isChosen = () => chosen.getAttribute("aria-pressed") === "true";
    try {
      const found = await read(query);
      if (isChosen()) put(slot, events(found, ({ from }) => read(from), true, "The log has nothing about this key in that period."));
    } catch (error) {
      if (!signal.aborted && isChosen()) put(slot, problem(error, () => show(query, chosen)));
    }
  };
  const tab = (text, query) => button(text, (event) => show(query(), event.currentTarget));
  put(tabs,
    since ? tab("since the oldest holder", () => ({ since })) : null,
    SPANS.map(([text, minutes]) => tab(text, () => (minutes ? { since: new Date(Date.now() - minutes * 60_000).toISOString() } : {}))));
  show(since ? { since } : { since: new Date(Date.now() - 3_600_000).toISOString() }, tabs.children[since ? 0 : 1]);
  return h("div", {}, tabs, slot);
}

/** The events of jobs. The log may be long, so the rest of the screen does not wait for it. */
export function timeline(ids, createdAt, names, signal) {
  const slot = h("div", { "aria-live": "polite" }, none("Reading the log…"));
  const fetched = async () => {
    try {
      const found = await ofJobs(ids, createdAt, signal);
      const further = ({ after }) => read({ jobs: ids.join(",") }, after);
      put(slot, events(found, further, names, "The log no longer has this job's events."));
    } catch (error) {
      if (!signal.aborted) put(slot, problem(error, fetched));
    }
  };
  fetched();
  return slot;
}

/** The events found, with a button that calls `further` for the rest of a long log. */
function events(found, further, names, nothing) {
  const list = h("ol", { class: "timeline" }, found.events.map((event) => line(event, names)));
  const foot = h("div", {});
  const rest = (from) => put(foot, from.more
    ? button("Read further in the log", async () => {
      try {
        const next = await further(from);
        list.append(...next.events.map((event) => line(event, names)));
        rest(next);
      } catch (error) {
        put(foot, problem(error));
      }
    })
    : null);
  rest(found);
  return h("div", {}, found.events.length === 0 && !found.more ? none(nothing) : list, foot);
}
