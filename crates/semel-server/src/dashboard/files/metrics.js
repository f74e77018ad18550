// The server's Prometheus metrics, and how its counters grow from one look to the next.

import { send } from "./api.js";

const SAMPLE = /^(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** The samples of a metric family, each with its labels. */
export function samples(text, family) {
  const found = [];
  for (const line of text.split("\n")) {
    if (!line.startsWith(family)) continue;
    const parts = SAMPLE.exec(line);
    if (!parts || parts[1] !== family) continue;
    const labels = {};
    for (const [, name, value] of (parts[2] ?? "").matchAll(LABEL)) labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    found.push({ labels, value: Number(parts[3]) });
  }
  return found;
}

/** The text of the metrics. */
export async function metrics(signal) {
  const response = await send("GET", "/metrics", { signal });
  return response.text();
}

/** The outcomes that are drawn together in a chart. */
export const GROUPS = [
  { name: "Created", outcomes: ["created", "follow_up"], tone: "good" },
  { name: "Deduplicated", outcomes: ["existing", "amended", "repeated", "rejected", "rejected_finished", "rejected_undisclosed"], tone: "held" },
  { name: "Replaced", outcomes: ["replaced"], tone: "held" },
  { name: "Mismatched", outcomes: ["mismatch", "key_reused"], tone: "bad" },
  { name: "Completed", outcomes: ["completed"], tone: "good" },
  { name: "Failed runs", outcomes: ["failed"], tone: "bad" },
];

/** The total of each group since the server started, without the server's own jobs. */
export function totals(text, type) {
  const found = samples(text, "semel_outcomes_total").filter(({ labels }) => labels.tenant !== "~" && (!type || labels.type === type));
  return GROUPS.map(({ outcomes }) =>
    found.filter(({ labels }) => outcomes.includes(labels.outcome)).reduce((sum, { value }) => sum + value, 0));
}

/** The types that outcomes are counted for. */
export function types(text) {
  const names = samples(text, "semel_outcomes_total").filter(({ labels }) => labels.tenant !== "~").map(({ labels }) => labels.type);
  return [...new Set(names)].sort();
}

/** The values of counters at successive looks, kept while the page is open. */
export class History {
  #looks = [];

  constructor(looksMax) {
    this.looksMax = looksMax;
  }

  add(at, values) {
    const last = this.#looks.at(-1);
    // A restarted server counts from zero.
    if (last && values.some((value, index) => value < last.values[index])) this.#looks = [];
    this.#looks.push({ at, values });
    if (this.#looks.length > this.looksMax) this.#looks.shift();
  }

  clear() {
    this.#looks = [];
  }

  /** The growth of one value per second between consecutive looks. */
  rates(index) {
    return this.#looks.slice(1).map((look, before) => {
      const previous = this.#looks[before];
      return { at: look.at, value: ((look.values[index] - previous.values[index]) * 1_000) / (look.at - previous.at) };
    });
  }
}
