// One job: its facts, what happened to it and why, its key and suppressed duplicates, and related jobs.

import { at, get, maybe, post, remove } from "./api.js";
import { ask } from "./dialog.js";
import { button, facts, h, json, none, part } from "./dom.js";
import { badge, clock, count, jobLink, keyLink, mono, when } from "./format.js";
import { callers, keyless } from "./key.js";
import { tell } from "./notice.js";
import { askAgain, diagram, LIVE, members } from "./policy.js";
import { link, refresh } from "./router.js";
import { table } from "./table.js";
import { timeline } from "./timeline.js";
import { isAdmin, mayProduce } from "./who.js";

export async function job({ params, signal }) {
  const { job } = await get(`jobs/${at(params.id)}`, {}, signal);
  // The actions below use this id, so the answer must be about the job that the address names.
  if (job.id !== params.id) throw new Error("This is not a job id.");
  const [again, carriers] = await Promise.all([
    askAgain(job, signal),
    job.unique_key ? maybe(get(`unique-jobs/${at(job.unique_key)}`, {}, signal)) : null,
  ]);
  const isLive = LIVE.includes(job.state);
  const isDead = job.state === "discarded" && job.retry?.on_exhaustion === "dead_letter";
  return [
    h("h1", { class: "keyed" }, job.type, " ", badge(job.state)),
    facts([
      ["Id", mono(job.id)],
      ["Queue", h("a", { href: link("jobs", { queue: job.queue }) }, job.queue)],
      ["Attempt", `${job.attempt} of ${job.max_attempts}`],
      ["Priority", job.priority || null],
      ["Created", moment(job.created_at)],
      ["Scheduled for", moment(job.scheduled_at)],
      ["Started", moment(job.started_at)],
      ["Ended", moment(job.completed_at ?? job.cancelled_at ?? job.discarded_at)],
      ["Ended as", job.ended_as],
      ["Expires", moment(job.expires_at)],
      ["Worker", job.worker_id],
      ["Progress", progress(job.progress)],
      ["Hidden values", job.sensitive?.length ? job.sensitive.join(", ") : null],
    ]),
    h("p", { class: "actions" },
      isLive ? button("Cancel this job…", () => cancel(job), { class: "danger" }) : null,
      isDead && isAdmin() ? button("Retry this job", () => replay(job), { class: "main" }) : null,
      // A follow-up waits for the run before it and cannot be activated.
      job.state === "pending" && !job.workflow_id && !job.follow_up_of && mayProduce()
        ? button("Activate this job", () => act(post(`jobs/${at(job.id)}/activate`), "Activated: it is available, or scheduled if its time is still to come.")) : null),
    part("Uniqueness", job.unique ? uniqueness(job, again) : keyless()),
    job.unique?.duplicates
      ? part(`Duplicates suppressed: ${count(job.unique.duplicates.count)}`, callers([{ job_id: job.id, duplicates: job.unique.duplicates }]))
      : null,
    failures(job),
    part("Timeline", timeline([job.id], job.created_at, false, signal)),
    lineage(job, carriers),
    part("Args", json(job.args)),
    Object.keys(job.meta ?? {}).length > 0 ? part("Meta", json(job.meta)) : null,
    job.result !== undefined ? part("Result", json(job.result)) : null,
    h("details", {}, h("summary", {}, "Everything the server says about it"), json(job)),
  ];
}

function moment(text) {
  return text ? h("span", {}, clock(text), " · ", when(text)) : null;
}

function progress(told) {
  if (told === undefined || told === null) return null;
  const share = typeof told === "number" ? told : told.progress;
  return typeof share === "number" ? h("progress", { max: "1", value: share, "aria-label": "Progress" }) : null;
}

function uniqueness(job, again) {
  const verdict = again?.isSame ? again.sentences.find((text) => text.includes(job.id)) : null;
  return [
    again ? h("p", { class: "sentence" }, again.sentences[0]) : members(job.unique),
    verdict ? h("p", {}, verdict) : null,
    diagram(job.unique, job.unique_key ? job.state : null),
    job.unique_key
      ? facts([["Key", keyLink(job.unique_key, true)]])
      : h("p", { class: "note" }, "It shows no key: the key was released, a newer job took it, or the policy does not disclose it."),
    h("p", { class: "actions" }, h("a", { class: "button", href: link("why", { of: job.id }) }, "What if it were enqueued again?")),
  ];
}

function failures(job) {
  const errors = job.errors ?? (job.error ? [job.error] : []);
  if (errors.length === 0) return null;
  return part("Errors", table([
    { label: "Attempt", kind: "num", cell: (error) => error.attempt ?? "–" },
    { label: "When", cell: (error) => clock(error.occurred_at) ?? "–" },
    { label: "Kind", cell: (error) => error.type ?? error.code ?? "–" },
    { label: "Message", kind: "long", cell: (error) => error.message ?? "–" },
  ], errors, { caption: "Errors of its attempts" }));
}

/** A fact that links to one job or several; null if there are none. */
function related(name, ids) {
  if (!ids) return null;
  return [name, h("span", {}, [ids].flat().flatMap((id) => [jobLink(id, true), " "]))];
}

function lineage(job, carriers) {
  const others = (carriers?.holders ?? []).filter((holder) => holder.job_id !== job.id);
  const isLive = LIVE.includes(job.state);
  const rows = [
    job.workflow_id ? ["Workflow", h("a", { class: "mono", href: link(`workflows/${at(job.workflow_id)}`) }, job.workflow_id)] : null,
    related("Replaces", job.replaces),
    related("Replaced by", job.replaced_by),
    related("Follow-up of", job.follow_up_of),
    related(isLive ? "Follow-up waiting for it" : "Its follow-up", job.follow_up_id),
    ...others.slice(0, 10).map((holder) => ["Carries the same key", h("span", {}, jobLink(holder.job_id, true), " ", badge(holder.state))]),
  ].filter(Boolean);
  // Only admins of all queues may see who carries a key, and some holders are shown to nobody.
  const ofOthers = !job.unique_key || carriers ? "no other stored job that may be shown carries its key" : "this token may not see who else carries its key";
  return part("Lineage", rows.length > 0 ? facts(rows) : none(`It belongs to no workflow, has no job before or after it, and ${ofOthers}.`));
}

async function cancel(job) {
  const done = await ask({
    title: "Cancel this job?",
    body: h("ul", {},
      h("li", {}, job.state === "active" ? "Its worker is told at the next heartbeat, and a late ack is refused." : "It will not run."),
      job.unique_key ? h("li", {}, "Its key is free at once, for callers whose policy does not look at cancelled jobs.") : null,
      h("li", {}, "This cannot be undone.")),
    yes: "Cancel it",
    danger: true,
  });
  if (done) await act(remove(`jobs/${at(job.id)}`), "The job is cancelled.");
}

async function replay(job) {
  await act(post(`dead-letter/${at(job.id)}/retry`), "The retry was admitted.");
}

async function act(answered, words) {
  try {
    await answered;
    tell(words);
  } catch (error) {
    tell(error.message);
  }
  refresh();
}
