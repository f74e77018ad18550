// Whether the server and its store are healthy, and what they guarantee.

import { get, maybe, send } from "./api.js";
import { facts, h, part } from "./dom.js";
import { count } from "./format.js";
import { samples } from "./metrics.js";
import { table } from "./table.js";

export async function health({ signal }) {
  const [state, manifest, text] = await Promise.all([
    isWell(signal),
    get("/ojs/manifest", {}, signal),
    maybe(send("GET", "/metrics", { signal }).then((response) => response.text())),
  ]);
  const can = Object.entries(manifest.capabilities);
  const words = (is) => can.filter(([, has]) => has === is).map(([name]) => name.replaceAll("_", " ")).join(", ");
  return [
    h("h1", {}, "Health"),
    h("div", { class: `verdict ${state.isWell ? "good" : "bad"}` }, h("p", {}, h("strong", {}, state.isWell ? "Healthy. " : "Unhealthy. "), state.words)),
    part("Guarantees", facts([
      ["Uniqueness", `${manifest.unique_job_strength} — ${manifest.unique_job_mechanism}`],
      ["Durability", manifest.durability],
      ["Store", manifest.backend],
      ["Version", manifest.implementation.version],
    ])),
    text === null ? null : part("Slowest endpoints", slow(text)),
    part("Capabilities", facts([["Supported", words(true)], ["Not supported", words(false)]])),
    part("Limits", facts(Object.entries(manifest.limits).map(([name, value]) => [name.replaceAll("_", " "), count(value)]))),
  ];
}

async function isWell(signal) {
  try {
    await get("/health", {}, signal);
    return { isWell: true, words: "The server and its store answer." };
  } catch (error) {
    if (error.status !== 503) throw error;
    return { isWell: false, words: "The server answers, but its store does not answer in time: nothing is admitted until it does." };
  }
}

/** The endpoints with the longest mean time to answer. */
function slow(text) {
  const family = "semel_http_request_duration_seconds";
  const name = ({ labels }) => `${labels.method} ${labels.route}`;
  const sums = new Map(samples(text, `${family}_sum`).map((sample) => [name(sample), sample.value]));
  const rows = samples(text, `${family}_count`)
    .map((sample) => ({ name: name(sample), count: sample.value, mean: (1_000 * (sums.get(name(sample)) ?? 0)) / sample.value }))
    .filter(({ name }) => !name.includes("events") && !name.endsWith("/fetch"))
    .sort((a, b) => b.mean - a.mean)
    .slice(0, 8);
  return table([
    { label: "Endpoint", cell: (row) => h("code", {}, row.name) },
    { label: "Answers", kind: "num", cell: (row) => count(row.count) },
    { label: "Mean", kind: "num", cell: (row) => `${row.mean.toFixed(1)} ms` },
  ], rows, { caption: "Since startup, without long polls and streams" });
}
