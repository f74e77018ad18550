// Why not? What would happen to a payload if it were enqueued now: who blocks it, until when, and what each strategy would do.

import { at, get, post } from "./api.js";
import { button, h, part, put } from "./dom.js";
import { badge, count, jobLink, keyLink, mono, when } from "./format.js";
import { callers } from "./key.js";
import { problem } from "./notice.js";
import { admission, asRequested, diagram, strategies } from "./policy.js";
import { table } from "./table.js";

const SAMPLE = {
  type: "payment.capture",
  args: [{ order: 7 }],
  options: { unique: { keys: ["args"], args_keys: ["order"] } },
};
const REASONS = {
  in_state: "it is in a state that the policy looks at",
  in_window: "its window has not ended",
  unfinished: "its window starts when it ends",
  while_active: "it is unfinished",
  other_state: "its state is not one the policy looks at",
  expired: "it expired while it waited",
  window_over: "its window has ended",
};

export async function why({ query, signal }) {
  const input = h("textarea", { name: "payload", rows: "22", spellcheck: "false", "data-key": "/", "aria-label": "Payload" });
  input.value = query.of ? JSON.stringify(await offer(query.of, signal), null, 2) : JSON.stringify(SAMPLE, null, 2);
  const out = h("div", { "aria-live": "polite" });
  const hasHidden = query.of && input.value.includes("[sensitive]");
  const run = async () => {
    try {
      const text = input.value;
      const asked = JSON.parse(text);
      // Send the text and not the parsed value, so that numbers reach the server digit by digit.
      put(out, answer(await post("unique/explain", text, signal), asked));
    } catch (error) {
      if (error instanceof SyntaxError) error.title = "This is not JSON. ";
      if (!signal.aborted) put(out, problem(error));
    }
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  });
  if (query.of) await run();
  return [
    h("h1", {}, "Why not?"),
    h("p", { class: "lead" }, "Paste the body of an enqueue request. The server says what would happen to it now, and why. Nothing is stored."),
    h("div", { class: "split" },
      h("div", {}, input, h("p", { class: "actions" },
        button("Ask", run, { class: "main" }), h("span", { class: "dim" }, "Ctrl + Enter")),
      hasHidden ? h("p", { class: "note" }, "The job's hidden values appear here as [sensitive]. If they are part of the key, put in the real values before you trust the answer.") : null),
      out),
  ];
}

/** The request that created a stored job, as far as it is stored. */
async function offer(id, signal) {
  const { job } = await get(`jobs/${at(id)}`, {}, signal);
  const options = { queue: job.queue, ...(job.unique ? { unique: asRequested(job.unique) } : {}) };
  return { type: job.type, args: job.args, ...(Object.keys(job.meta ?? {}).length > 0 ? { meta: job.meta } : {}), options };
}

function answer(told, asked) {
  const isFree = ["create", "repeat"].includes(told.decision);
  const blocking = (told.holders ?? []).filter((holder) => holder.blocks);
  const tone = isFree ? "good" : ["replace", "follow_up", "amend", "existing"].includes(told.decision) ? "held" : "bad";
  const [policy, verdict, ...rest] = told.sentences.length > 1 ? told.sentences : [null, told.sentences[0]];
  return [
    h("div", { class: `verdict ${tone}` },
      h("p", {}, h("strong", {}, verdict)),
      rest.map((text) => h("p", {}, text)),
      told.disclosed === false ? h("p", {}, "A policy does not disclose who holds the key.") : null),
    told.pointers ? part("Where the content differs", h("ul", {}, told.pointers.map((pointer) => h("li", {}, mono(pointer))))) : null,
    (told.holders ?? []).length > 0
      ? part(blocking.length === 1 ? "Who blocks it" : `Who carries its key (${blocking.length} block it)`, table([
        { label: "Job", cell: (holder) => jobLink(holder.job_id) },
        { label: "State", cell: (holder) => badge(holder.state) },
        { label: "Since", cell: (holder) => when(holder.created_at) },
        { label: "Blocks", kind: "long", cell: (holder) => `${holder.blocks ? "yes" : "no"}: ${REASONS[holder.reason] ?? holder.reason}` },
        { label: "Until", cell: (holder) => when(holder.until) ?? (holder.blocks ? "no fixed time" : "–") },
      ], told.holders, { caption: "Holders" }))
      : null,
    told.strategies
      ? part("What each strategy would do", table([
        { label: "on_conflict", cell: ({ name }) => h("code", { class: name === told.policy?.on_conflict ? "chosen" : "" }, name, name === told.policy?.on_conflict ? " (requested)" : "") },
        { label: "Now", kind: "long", cell: ({ result }) => admission(result) },
      ], strategies(told), { caption: "Strategies" }))
      : null,
    told.policy ? part("The policy", h("p", { class: "sentence" }, policy), diagram(told.policy)) : null,
    told.key
      ? part("The key", h("p", {}, keyLink(told.key, true)),
        h("p", { class: "dim" }, `SHA-256 of this text (profile ${told.profile}):`),
        h("pre", { class: "json" }, told.canonical))
      : null,
    told.duplicates
      ? part(`Duplicates absorbed: ${count(told.duplicates.count)}`, callers([{ duplicates: told.duplicates }]))
      : null,
    asked.options?.unique || asked.unique ? null : h("p", { class: "note" }, "Add options.unique to give it a policy."),
  ];
}
