// The policies in use, by the newest jobs: what each holds, how often it has met a duplicate, and what that suggests.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count, jobLink } from "./format.js";
import { asRequested, askAgain, diagram, members } from "./policy.js";
import { link } from "./router.js";

const PAGE = 200;
const PAGES = 3;
const SHOWN = 12;

export async function policies({ signal }) {
  const { jobs, isAll } = await newest(signal);
  const groups = group(jobs);
  const shown = groups.slice(0, SHOWN);
  const sentences = await Promise.all(shown.map((each) => askAgain(each.sample, signal)));
  const plain = jobs.filter((job) => !job.unique).length;
  return [
    h("h1", {}, "Policies"),
    h("p", { class: "lead" }, isAll
      ? `Of all ${count(jobs.length)} stored jobs; ${count(plain)} carry no policy.`
      : `Of the newest ${count(jobs.length)} jobs; ${count(plain)} of them carry no policy. Older jobs are not looked at.`),
    shown.map((each, index) => card(each, sentences[index])),
    groups.length > SHOWN ? h("p", { class: "note" }, `${groups.length - SHOWN} more are not shown.`) : null,
  ];
}

async function newest(signal) {
  const jobs = [];
  let cursor;
  for (let page = 0; page < PAGES; page++) {
    const told = await get("jobs", { limit: PAGE, cursor }, signal);
    jobs.push(...told.jobs);
    if (!told.pagination.has_more) return { jobs, isAll: true };
    cursor = told.pagination.next_cursor;
  }
  return { jobs, isAll: false };
}

/** Jobs of one type whose policies differ at most in the caller's own key. */
function group(jobs) {
  const groups = new Map();
  for (const job of jobs) {
    if (!job.unique) continue;
    const policy = asRequested(job.unique);
    const name = JSON.stringify([job.type, { ...policy, ...(typeof policy.key === "string" ? { key: "" } : {}) }]);
    const found = groups.get(name) ?? { sample: job, jobs: 0, duplicates: 0 };
    found.jobs += 1;
    found.duplicates += job.unique.duplicates?.count ?? 0;
    groups.set(name, found);
  }
  return [...groups.values()].sort((a, b) => b.jobs - a.jobs);
}

function card({ sample, jobs, duplicates }, told) {
  const offered = jobs + duplicates;
  const share = (100 * duplicates) / offered;
  return h("section", { class: "part card" },
    h("h2", {}, sample.type),
    told ? h("p", { class: "sentence" }, told.sentences[0]) : members(sample.unique),
    diagram(sample.unique),
    h("p", {}, h("strong", {}, `${share.toFixed(1)} %`), ` duplicates: ${count(duplicates)} met ${jobs === 1 ? "one job" : `${count(jobs)} jobs`}. For instance `, jobLink(sample.id), ". ",
      h("a", { href: link("keys", { type: sample.type }) }, "Keys held by this type →")),
    advice(sample, jobs, duplicates));
}

/** What the figures suggest; nothing when they suggest nothing. */
function advice(sample, jobs, duplicates) {
  const words = [];
  const isReplacing = sample.unique.on_conflict.startsWith("replace");
  if (isReplacing) words.push("Jobs that took another's place are not counted here; the overview counts them by type.");
  else if (duplicates === 0 && jobs >= 5) words.push("It has never met a duplicate among these jobs. If duplicates are expected, ask “What if it came again?” on a job's page: a value that changes with every request may be part of the key.");
  if (sample.unique.on_conflict === "reject" && duplicates > jobs) words.push("Most of what is offered is refused with 409. Callers who only want the work done once have less to handle with on_conflict: ignore.");
  if (!sample.unique.keys?.includes("args") && sample.unique.key === undefined && !sample.unique.keys?.includes("meta")) words.push("Neither args nor meta count: at most one job of this type is held at a time.");
  return words.map((text) => h("p", { class: "note" }, text));
}
