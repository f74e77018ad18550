// One job: what it is, what became of it and why, its key and what it suppressed, and whom it is related to.

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
  // What is done to a job is asked for by its id, so the answer must be about the one that the address names.
  if (job.id !== params.id) throw new Error("That is no job's id.");
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
      isDead && isAdmin() ? button("Offer it again", () => replay(job), { class: "main" }) : null,
      // A follow-up waits for the run before it, whoever asks.
      job.state === "pending" && !job.workflow_id && !job.follow_up_of && mayProduce()
        ? button("Make it available now", () => act(post(`jobs/${at(job.id)}/activate`), "It is available.")) : null),
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
    h("details", {}, h("summary", {}, "All that the server says of it"), json(job)),
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
      : h("p", { class: "note" }, "It holds nothing any more: its key was released, or a newer job took it."),
    h("p", { class: "actions" }, h("a", { class: "button", href: link("why", { of: job.id }) }, "What if it came again?")),
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
  ], errors, { caption: "What its attempts said" }));
}

/** A job or several, as links; nothing where there is none. */
function related(name, ids) {
  if (!ids) return null;
  return [name, h("span", {}, [ids].flat().flatMap((id) => [jobLink(id, true), " "]))];
}

function lineage(job, carriers) {
  const others = (carriers?.holders ?? []).filter((holder) => holder.job_id !== job.id);
  const isLive = LIVE.includes(job.state);
  const rows = [
    job.workflow_id ? ["Workflow", h("a", { class: "mono", href: link(`workflows/${at(job.workflow_id)}`) }, job.workflow_id)] : null,
    related("Took the place of", job.replaces),
    related("Its place was taken by", job.replaced_by),
    related("Follow-up of", job.follow_up_of),
    related(isLive ? "Follow-up that waits for it" : "Its follow-up", job.follow_up_id),
    ...others.slice(0, 10).map((holder) => ["Carries the same key", h("span", {}, jobLink(holder.job_id, true), " ", badge(holder.state))]),
  ].filter(Boolean);
  // Who carries a key is for admins of all queues, and some holders are for nobody.
  const ofOthers = !job.unique_key || carriers ? "no other stored job that may be shown carries its key" : "who else carries its key is not for this token";
  return part("Lineage", rows.length > 0 ? facts(rows) : none(`It belongs to no workflow, comes after no job and none after it, and ${ofOthers}.`));
}

async function cancel(job) {
  const done = await ask({
    title: "Cancel this job?",
    body: h("ul", {},
      h("li", {}, job.state === "active" ? "Its worker is told at the next heartbeat, and its late ack is refused." : "It will not run."),
      job.unique_key ? h("li", {}, "Its key is free at once, for callers whose policy does not look at cancelled jobs.") : null,
      h("li", {}, "It cannot be taken back.")),
    yes: "Cancel it",
    danger: true,
  });
  if (done) await act(remove(`jobs/${at(job.id)}`), "It is cancelled.");
}

async function replay(job) {
  await act(post(`dead-letter/${at(job.id)}/retry`), "It was offered again and admitted.");
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
