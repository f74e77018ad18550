// The event log, read page by page. It is ordered but has no index, so a job's events are found by bisecting to the time
// at which it was created and reading on from there.

import { get, Refusal } from "./api.js";

/** Events on a page: the most that the server gives. */
const PAGE = 1_000;
/** Pages read for one question; the server looks at up to 20,000 events for each. */
const PAGES_MAX = 5;
/** Bisection steps that narrow a log of any length down to one commit. */
const HALVES_MAX = 26;

const place = (cursor) => BigInt(cursor.replace(/^evt_/, ""));
const cursor = (place) => `evt_${place}`;

/** A page of events after a place, or from the start of the log if it has dropped that place. */
async function page(query, signal) {
  try {
    return await get("events", query, signal);
  } catch (error) {
    if (!(error instanceof Refusal) || error.code !== "cursor_gone" || !error.details.oldest) throw error;
    return get("events", { ...query, after: error.details.oldest }, signal);
  }
}

/** The first event after a place. A page may be empty although more events follow, so a few pages are read. */
async function first(after, signal) {
  let told = await page({ after, limit: 1 }, signal);
  for (let turn = 1; turn < PAGES_MAX && told.events.length === 0 && told.has_more; turn++) {
    told = await page({ after: told.cursor, limit: 1 }, signal);
  }
  return told;
}

/** A cursor after which everything since `time` (in ms) is found. */
export async function since(time, signal) {
  const begin = await first(undefined, signal);
  if (begin.events.length === 0) return begin.has_more ? begin.cursor : undefined;
  if (Date.parse(begin.events[0].time) >= time) return undefined;
  const end = await get("events", { after: "end", limit: 1 }, signal);
  let low = place(begin.cursor);
  let high = place(end.cursor);
  for (let step = 0; step < HALVES_MAX && high > low + 1n; step++) {
    const middle = (low + high) / 2n;
    const next = await first(cursor(middle), signal);
    if (next.events.length > 0 && Date.parse(next.events[0].time) < time) low = place(next.cursor);
    else high = middle;
  }
  return cursor(low);
}

/** The events that match a filter, from a cursor on, and where to continue if there may be more. */
export async function read(filter, after, signal, pages = PAGES_MAX) {
  const found = [];
  let from = after;
  for (let turn = 0; turn < pages; turn++) {
    const told = await page({ ...filter, after: from, limit: PAGE }, signal);
    found.push(...told.events);
    from = told.cursor;
    if (!told.has_more) return { events: found, after: from, more: false };
  }
  return { events: found, after: from, more: true };
}

/** What happened to jobs since the first of them was created. Reading starts a second earlier, in case the store's clock was set back. */
export async function ofJobs(ids, createdAt, signal) {
  const after = await since(Date.parse(createdAt) - 1_000, signal);
  return read({ jobs: ids.join(",") }, after, signal);
}
