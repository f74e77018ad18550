// What is done to many jobs at once.

import { post } from "./api.js";

/** What one request takes, and as far as the server counts. */
export const BULK_MAX = 10_000;

/**
 * Does it to as many jobs of the filter as one request takes. The server looks through a bounded number of jobs for them at a time, and says
 * from where to go on; `isMore` is whether there may be others still.
 */
export async function bulk(verb, filter) {
  const sum = { matched: 0, succeeded: 0, failed: 0, isMore: false };
  let cursor = null;
  do {
    const told = await post(`admin/jobs/bulk/${verb}`, { confirm: true, filter, limit: BULK_MAX - sum.matched, ...(cursor ? { cursor } : {}) });
    for (const name of ["matched", "succeeded", "failed"]) sum[name] += told[name];
    cursor = told.has_more ? told.next_cursor : null;
  } while (cursor && sum.matched < BULK_MAX);
  return { ...sum, isMore: cursor !== null };
}
