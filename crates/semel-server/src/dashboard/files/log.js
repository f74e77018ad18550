// The event log, read by pages. It has an order and no index, so what happened to one job is found by going to the time
// it was made, by halves, and reading on from there.

import { get, Refusal } from "./api.js";

/** Events on a page, at most what the server gives. */
const PAGE = 1_000;
/** Pages read for one question; the server looks at 20,000 events for each. */
const PAGES_MAX = 5;
/** By so many halves a log of any length is narrowed to one commit. */
const HALVES_MAX = 26;

const place = (cursor) => BigInt(cursor.replace(/^evt_/, ""));
const cursor = (place) => `evt_${place}`;

/** A page of events after a place; where the log has dropped it, from where the log begins. */
async function page(query, signal) {
  try {
    return await get("events", query, signal);
  } catch (error) {
    if (!(error instanceof Refusal) || error.code !== "cursor_gone" || !error.details.oldest) throw error;
    return get("events", { ...query, after: error.details.oldest }, signal);
  }
}

/** The first event after a place. A page may have none and more behind it, so a few are read. */
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

/** The events that a filter admits, from a cursor on: those found, and where to go on if there may be more. */
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

/** What happened to jobs since the first of them was made. A clock of the store's that was set back may hide a second. */
export async function ofJobs(ids, createdAt, signal) {
  const after = await since(Date.parse(createdAt) - 1_000, signal);
  return read({ jobs: ids.join(",") }, after, signal);
}
