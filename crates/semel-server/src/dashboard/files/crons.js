// Crons: when each ticks next, and the outcomes of its last ticks.

import { at, get, post } from "./api.js";
import { ask } from "./dialog.js";
import { button, facts, h, json, part } from "./dom.js";
import { clock, count, jobLink, when } from "./format.js";
import { tell } from "./notice.js";
import { link, refresh } from "./router.js";
import { pager, table } from "./table.js";
import { mayProduce } from "./who.js";

export async function crons({ query, signal }) {
  const found = await get("cron", { limit: 200, cursor: query.cursor }, signal);
  return [
    h("h1", {}, "Crons"),
    table([
      { label: "Name", cell: (cron) => h("a", { href: link(`crons/${at(cron.name)}`) }, cron.name) },
      { label: "Schedule", cell: (cron) => h("code", {}, cron.expression) },
      { label: "Time zone", cell: (cron) => cron.timezone },
      { label: "Job", cell: (cron) => cron.type },
      { label: "Next", cell: (cron) => (cron.enabled ? when(cron.next_run_at) ?? "never" : "disabled") },
      { label: "Last", cell: (cron) => when(cron.last_run_at) ?? "–" },
      { label: "Ran", kind: "num", cell: (cron) => count(cron.run_count) },
      { label: "Skipped", kind: "num", cell: (cron) => count(cron.skip_count) },
    ], found.crons, { caption: "Crons, by name" }),
    pager("crons", query.cursor ? {} : null, found.pagination.next_cursor ? { cursor: found.pagination.next_cursor } : null),
  ];
}

export async function cron({ params, signal }) {
  const [{ cron }, told] = await Promise.all([
    get(`cron/${at(params.name)}`, {}, signal),
    get(`cron/${at(params.name)}/history`, {}, signal),
  ]);
  const act = async (verb, words) => {
    try {
      await post(`cron/${at(params.name)}/${verb}`);
      tell(words);
    } catch (error) {
      tell(error.message);
    }
    refresh();
  };
  const trigger = async () => {
    const done = await ask({
      title: `Tick ${cron.name} now?`,
      body: h("p", {}, "Its job is enqueued as at any tick: the overlap policy and the job's own unique policy apply."),
      yes: "Tick now",
    });
    if (done) await act("trigger", "It ticked; the outcome is under “Last ticks”.");
  };
  return [
    h("h1", {}, cron.name),
    facts([
      ["Schedule", h("code", {}, `${cron.expression} (${cron.timezone})`)],
      ["State", cron.enabled ? "enabled" : "disabled"],
      ["Next", cron.enabled ? h("span", {}, clock(cron.next_run_at), " · ", when(cron.next_run_at)) : null],
      ["If the last run has not ended", cron.overlap_policy],
      ["Ran", count(cron.run_count)],
      ["Skipped", count(cron.skip_count)],
    ]),
    mayProduce() ? h("p", { class: "actions" },
      button("Tick now…", trigger),
      cron.enabled
        ? button("Disable", () => act("disable", "The cron is disabled."))
        : button("Enable", () => act("enable", "The cron is enabled."))) : null,
    part("Last ticks", table([
      { label: "Tick", cell: (tick) => clock(tick.scheduled_at) },
      { label: "Decided", cell: (tick) => clock(tick.decided_at) },
      { label: "Outcome", cell: (tick) => `${tick.outcome}${tick.by_hand ? " (by hand)" : ""}` },
      { label: "Job", cell: (tick) => (tick.job_id ? jobLink(tick.job_id) : "–") },
      { label: "Existing job", cell: (tick) => (tick.existing_job_id ? jobLink(tick.existing_job_id) : "–") },
    ], told.history, { caption: "The last 50 ticks", empty: "It has not ticked yet." })),
    part("Job template", json(cron.job_template)),
  ];
}
