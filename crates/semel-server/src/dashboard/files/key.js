// One key: who holds it and since when, what frees it and when, what it suppressed and what happened to it; and its release.

import { at, get, maybe, remove } from "./api.js";
import { ask } from "./dialog.js";
import { button, facts, field, h, none, part } from "./dom.js";
import { badge, clock, count, duration, jobLink, when } from "./format.js";
import { tell } from "./notice.js";
import { admission, askAgain, diagram, members, strategies } from "./policy.js";
import { link, refresh } from "./router.js";
import { table } from "./table.js";
import { keyTimeline } from "./timeline.js";

const REASON_CHARS_MAX = 500;
const CALLS_SHOWN = 20;

export async function key({ params, signal }) {
  const found = await maybe(get(`unique-jobs/${at(params.key)}`, {}, signal), [404]);
  if (!found) return [title(params.key), free(), timelinePart(params.key, null, signal)];
  const { holders, hidden } = found;
  if (holders.length === 0) return [title(found.key), ...unshown(found.key, hidden, found.is_lower_bound), timelinePart(found.key, null, signal)];
  const first = holders.find((holder) => holder.holds) ?? holders[0];
  const job = (await maybe(get(`jobs/${at(first.job_id)}`, {}, signal)))?.job;
  const again = job ? await askAgain(job, signal) : null;
  const suppressed = holders.reduce((sum, holder) => sum + (holder.duplicates?.count ?? 0), 0);
  return [
    title(found.key),
    verdict(first, again),
    facts([
      ["Holder", jobLink(first.job_id, true)],
      ["Type", first.type],
      ["Queue", first.queue],
      ["State", badge(first.state)],
      ["Held since", h("span", {}, when(first.created_at), " · ", clock(first.created_at))],
      ["Window ends", first.locked_until ? h("span", {}, when(first.locked_until), " · ", clock(first.locked_until)) : "no window: its state decides"],
      ["Duplicates suppressed", count(suppressed)],
      ["Other holders", found.is_lower_bound ? "more than 1,000 jobs carry it: cancel some of them before you release it" : hidden > 0 ? `${count(hidden)} that may not be shown` : null],
    ]),
    h("p", { class: "actions" },
      found.is_lower_bound ? null : button("Release this key…", () => release(found.key, holders, hidden), { class: "danger" }),
      job?.unique && again?.isSame ? h("a", { class: "button", href: link("why", { of: first.job_id }) }, "What if it were enqueued again?") : null),
    job?.unique
      ? part("The holder's policy",
        again ? h("p", { class: "sentence" }, again.sentences[0]) : members(job.unique),
        diagram(job.unique, job.state))
      : null,
    again?.isSame && again.strategies
      ? part("What each strategy would do with the same job now", table([
        { label: "on_conflict", cell: ({ name }) => h("code", {}, name) },
        { label: "Now", cell: ({ result }) => admission(result), kind: "long" },
      ], strategies(again), { caption: "Strategies" }))
      : null,
    holders.length > 1 ? part(`All ${holders.length} holders`, holderTable(holders)) : null,
    part("Last callers with a duplicate (ten are kept for each holder)", callers(holders)),
    timelinePart(found.key, holders.at(-1).created_at, signal),
  ];
}

function title(key) {
  return h("h1", { class: "keyed" }, "Key ", h("span", { class: "mono" }, key));
}

/** A key carried only by jobs that do not disclose it. */
function unshown(key, hidden, isLeast) {
  return [
    h("div", { class: "verdict" },
      h("p", {}, h("strong", {}, "Carried. "), `${isLeast ? "More than 1,000 jobs carry" : hidden === 1 ? "One job that may not be shown carries" : `${count(hidden)} jobs that may not be shown carry`} it. Whether it still blocks others is not shown.`)),
    isLeast ? null : h("p", { class: "actions" }, button("Release this key…", () => release(key, [], hidden), { class: "danger" })),
  ];
}

/** What happened to the key, including jobs that carried it before and may be gone. */
function timelinePart(key, created, signal) {
  // A little earlier, because clocks may differ.
  const since = created ? new Date(Date.parse(created) - 1_000).toISOString() : null;
  return part("Timeline", keyTimeline(key, since, signal));
}

function free() {
  return h("div", { class: "verdict good" },
    h("p", {}, h("strong", {}, "Nobody holds this key. "), "It was never held, it was released, or its last holder let it go."));
}

function verdict(holder, again) {
  const sentence = again?.isSame ? again.sentences.find((text) => text.includes(holder.job_id)) : null;
  if (!holder.holds) {
    return h("div", { class: "verdict" }, h("p", {}, h("strong", {}, "Carried, but no longer held. "),
      sentence ?? "By its own policy the job no longer blocks others; a request whose policy looks further may still meet it."));
  }
  const until = holder.locked_until ? Date.parse(holder.locked_until) - Date.now() : null;
  const head = until !== null && until > 0 ? `Held for at most ${duration(until)} more. ` : "Held. ";
  return h("div", { class: "verdict held" }, h("p", {}, h("strong", {}, head),
    sentence ?? `Job ${holder.job_id} (${holder.state}) has carried it since ${holder.created_at}. A request is blocked while its own policy includes that state.`));
}

function holderTable(holders) {
  return table([
    { label: "Job", cell: (holder) => jobLink(holder.job_id) },
    { label: "Type", cell: (holder) => holder.type },
    { label: "State", cell: (holder) => badge(holder.state) },
    { label: "Blocks others", cell: (holder) => (holder.holds ? "yes" : "not by its own policy") },
    { label: "Created", cell: (holder) => when(holder.created_at) },
    { label: "Window ends", cell: (holder) => when(holder.locked_until) ?? "–" },
    { label: "Duplicates", kind: "num", cell: (holder) => count(holder.duplicates?.count) },
  ], holders, { caption: "Holders, newest first" });
}

/** The recent duplicates that the holders remember, newest first. */
export function callers(holders) {
  const calls = holders.flatMap((holder) => (holder.duplicates?.recent ?? []).map((call) => ({ ...call, job: holder.job_id })));
  calls.sort((a, b) => Date.parse(b.at) - Date.parse(a.at));
  calls.splice(CALLS_SHOWN);
  return table([
    { label: "When", cell: (call) => clock(call.at) },
    { label: "Caller", cell: (call) => call.source ?? "–" },
    { label: "Meta", kind: "long", cell: (call) => (call.meta ? h("code", {}, JSON.stringify(call.meta)) : "–") },
    ...(holders.length > 1 ? [{ label: "Holder", cell: (call) => jobLink(call.job) }] : []),
  ], calls, { caption: "The last ten callers of each holder", empty: "None so far." });
}

async function release(key, holders, hidden) {
  const all = holders.length + hidden;
  const shown = holders.slice(0, 5).map((holder) => `${holder.job_id} (${holder.state})`).join(", ");
  const live = holders.filter((holder) => !["completed", "cancelled", "discarded"].includes(holder.state));
  const running = live.filter((holder) => holder.state === "active");
  const reason = h("input", { type: "text", maxlength: String(REASON_CHARS_MAX), required: true });
  const item = (text) => h("li", {}, text);
  const done = await ask({
    title: "Release this key?",
    body: [
      h("p", { class: "mono break" }, key),
      h("ul", {},
        item(`${all === 1 ? "One job loses" : `${all} jobs lose`} the key${shown ? `: ${shown}${holders.length > 5 ? ", …" : ""}` : ""}.`),
        hidden > 0 ? item(`${hidden === 1 ? "One of them" : `${hidden} of them`} may not be shown.`) : null,
        item("Job states do not change: nothing is cancelled, and waiting jobs still run."),
        item("The next job with this key is admitted."),
        running.length > 0 ? item(`${running.length} of them ${running.length === 1 ? "is" : "are"} running now, so two runs of the same work may overlap.`) : null,
        live.length > running.length ? item(`${live.length - running.length} of them will still run, so the same work may be done twice.`) : null,
        item("This cannot be undone. It is an event of each job, and goes to the audit log with your reason.")),
      field("Reason", reason, "For whoever asks later."),
    ],
    yes: "Release it",
    danger: true,
    check: () => (reason.value.trim() === "" ? "Enter a reason for the audit log." : null),
  });
  if (!done) return;
  try {
    const told = await remove(`unique-jobs/${at(key)}`, { reason: reason.value.trim() });
    const lost = told.released.length + told.hidden;
    tell(`Released from ${lost === 1 ? "one job" : `${lost} jobs`}.`);
  } catch (error) {
    tell(error.message);
  }
  refresh();
}

/** Says that a job has no key. */
export function keyless() {
  return none("It has no unique policy: it is never a duplicate, and it blocks no other job.");
}
