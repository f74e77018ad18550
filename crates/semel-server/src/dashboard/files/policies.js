// The policies in use: what each holds, how often it matched, and what that suggests. An operator sees the server's own
// counters; other tokens see what the newest jobs tell.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count, jobLink, when } from "./format.js";
import { asRequested, askAgain, diagram, inShort, members } from "./policy.js";
import { link } from "./router.js";
import { table } from "./table.js";
import { isOperator } from "./who.js";

const PAGE = 200;
const PAGES = 3;
const SHOWN = 12;

export async function policies({ signal }) {
  return isOperator() ? counted(signal) : byJobs(signal);
}

/** From the server's counters since it started. */
async function counted(signal) {
  const told = await get("admin/stats/policies", {}, signal);
  const rows = told.items.map((item) => ({ ...item, hits: item.suppressed + item.replaced + item.followed_up }));
  const never = rows.filter((row) => row.hits === 0);
  const share = (row) => `${((100 * row.hits) / (row.hits + row.created)).toFixed(1)} %`;
  return [
    h("h1", {}, "Policies"),
    h("p", { class: "lead" }, `${count(rows.length)} in use since this server started, `, when(told.since), ". ",
      never.length > 0 ? h("strong", {}, `${count(never.length)} ${never.length === 1 ? "has" : "have"} never matched.`) : "Each has matched at least once.",
      told.uncounted > 0 ? ` ${count(told.uncounted)} requests had other policies: only ${count(told.policies_max)} are counted separately.` : null),
    table([
      { label: "Type", cell: (row) => row.type },
      { label: "Policy", kind: "long", cell: (row) => inShort(row.policy) },
      { label: "Matched", kind: "num", cell: share },
      { label: "Created", kind: "num", cell: (row) => count(row.created) },
      { label: "Suppressed", kind: "num", cell: (row) => count(row.suppressed) },
      { label: "Replaced", kind: "num", cell: (row) => count(row.replaced) },
      { label: "Followed up", kind: "num", cell: (row) => count(row.followed_up) },
    ], rows, { caption: "Policies, most used first", empty: "No job with a policy was enqueued since then." }),
    rows.slice(0, SHOWN).map((row) => countedCard(row, share(row))),
    rows.length > SHOWN ? h("p", { class: "note" }, `${rows.length - SHOWN} more are only in the table.`) : null,
  ];
}

function countedCard(row, share) {
  const offered = row.hits + row.created;
  return h("section", { class: "part card" },
    h("h2", {}, row.type),
    h("p", { class: "sentence" }, row.sentence),
    diagram(row.policy),
    h("p", {}, h("strong", {}, share), ` of ${count(offered)} requests met a holder. `,
      h("a", { href: link("keys", { type: row.type }) }, "Keys held by this type →")),
    suggestions(row.policy, row.created, row.hits, row.suppressed),
    row.advice.map((text) => h("p", { class: "note" }, text)));
}

async function byJobs(signal) {
  const { jobs, isAll } = await newest(signal);
  const groups = group(jobs);
  const shown = groups.slice(0, SHOWN);
  const sentences = await Promise.all(shown.map((each) => askAgain(each.sample, signal)));
  const plain = jobs.filter((job) => !job.unique).length;
  return [
    h("h1", {}, "Policies"),
    h("p", { class: "lead" }, isAll
      ? `From all ${count(jobs.length)} stored jobs; ${count(plain)} of them have no policy.`
      : `From the newest ${count(jobs.length)} jobs; ${count(plain)} of them have no policy. Older jobs are not looked at.`),
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

/** Groups the jobs of one type whose policies differ at most in the caller's own key. */
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
    h("p", {}, h("strong", {}, `${share.toFixed(1)} %`), ` duplicates: ${count(duplicates)} met ${jobs === 1 ? "one job" : `${count(jobs)} jobs`}. For example `, jobLink(sample.id), ". ",
      h("a", { href: link("keys", { type: sample.type }) }, "Keys held by this type →")),
    advice(sample, jobs, duplicates));
}

/** What the figures suggest, if anything. Which jobs replaced another is not known from the jobs listed. */
function advice(sample, jobs, duplicates) {
  if (!sample.unique.on_conflict.startsWith("replace")) return suggestions(sample.unique, jobs, duplicates, duplicates);
  return [h("p", { class: "note" }, "Jobs that replaced another are not counted here; the overview counts them by type."),
    suggestions(sample.unique, 0, 0, 0)];
}

function suggestions(policy, created, hits, suppressed) {
  const words = [];
  if (hits === 0 && created >= 5) words.push("It has never met a duplicate. If you expect duplicates, use “What if it were enqueued again?” on a job's page: a value that changes with every request may be part of the key.");
  if (policy.on_conflict === "reject" && suppressed > created) words.push("Most requests are refused with 409. Callers that only want the work done once have less to handle with on_conflict: ignore.");
  if (!policy.keys?.includes("args") && policy.key === undefined && !policy.keys?.includes("meta")) words.push("Neither args nor meta are part of the key: jobs of this type can be duplicates whatever they contain.");
  return words.map((text) => h("p", { class: "note" }, text));
}
