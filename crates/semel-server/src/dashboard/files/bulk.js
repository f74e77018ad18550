// Actions on many jobs at once.

import { post } from "./api.js";

/** The most jobs that one request handles, and the number up to which the server counts. */
export const BULK_MAX = 10_000;

/**
 * Applies an action to as many matching jobs as one request handles. The server looks through a bounded number of jobs at a time and says
 * where to continue. `isMore`: whether more jobs may match.
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
