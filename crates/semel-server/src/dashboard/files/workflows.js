// Workflows, and the steps of one as a graph.

import { at, get, post } from "./api.js";
import { ask } from "./dialog.js";
import { button, facts, field, form, h, json, part, s, select } from "./dom.js";
import { badge, clock, jobLink, mono, short, when } from "./format.js";
import { tell } from "./notice.js";
import { go, link, refresh } from "./router.js";
import { pager, table } from "./table.js";
import { mayProduce } from "./who.js";

const BOX = { width: 168, height: 44, across: 56, down: 18 };

export async function workflows({ query, signal }) {
  const filter = { state: query.state };
  const found = await get("workflows", { ...filter, cursor: query.cursor, limit: 50 }, signal);
  const next = found.pagination.next_cursor;
  return [
    h("h1", {}, "Workflows"),
    form({ class: "row" }, (fields) => go("workflows", fields),
      field("State", select("state", [["", "any"], "running", "completed", "failed", "cancelled"], query.state)),
      h("button", { type: "submit" }, "Filter")),
    table([
      { label: "Workflow", cell: (flow) => h("a", { href: link(`workflows/${at(flow.id)}`), class: "mono", title: flow.id }, short(flow.id)) },
      { label: "Name", cell: (flow) => flow.name ?? "–" },
      { label: "Kind", cell: (flow) => flow.type },
      { label: "State", cell: (flow) => badge(flow.state) },
      { label: "Steps", kind: "num", cell: (flow) => `${flow.steps_completed} / ${flow.steps_total}` },
      { label: "Failed", kind: "num", cell: (flow) => flow.steps_failed },
      { label: "Created", cell: (flow) => when(flow.created_at) },
    ], found.workflows, { caption: "Workflows, newest first" }),
    pager("workflows", query.cursor ? filter : null, next ? { ...filter, cursor: next } : null),
  ];
}

export async function workflow({ params, signal }) {
  const { workflow: flow } = await get(`workflows/${at(params.id)}`, {}, signal);
  return [
    h("h1", { class: "keyed" }, flow.name ?? "Workflow", " ", badge(flow.state)),
    facts([
      ["Id", mono(flow.id)],
      ["Kind", flow.type],
      ["Steps done", `${flow.steps_completed} of ${flow.steps_total}`],
      ["Created", clock(flow.created_at)],
      ["Ended", clock(flow.completed_at ?? flow.failed_at ?? flow.cancelled_at)],
    ]),
    flow.state === "running" && mayProduce() ? h("p", { class: "actions" }, button("Cancel this workflow…", () => cancel(flow), { class: "danger" })) : null,
    part("Graph", h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Graph" }, graph(flow.steps))),
    part("Steps", table([
      { label: "Step", cell: (step) => step.name ?? step.id },
      { label: "Type", cell: (step) => step.type },
      { label: "State", cell: (step) => badge(step.state) },
      { label: "Waits for", cell: (step) => step.depends_on.join(", ") || "–" },
      { label: "Job", cell: (step) => (step.job_id ? jobLink(step.job_id) : "not yet") },
      { label: "Shared", cell: (step) => (step.shared ? "an existing job" : "–") },
    ], flow.steps, { caption: "Steps" })),
    h("details", {}, h("summary", {}, "Everything the server says about it"), json(flow)),
  ];
}

/** Steps in columns, each to the right of every step that it waits for. */
function graph(steps) {
  const column = new Map();
  for (let turn = 0; turn < steps.length; turn++) {
    for (const step of steps) {
      column.set(step.id, Math.max(0, ...step.depends_on.map((id) => (column.get(id) ?? 0) + 1)));
    }
  }
  const filled = [];
  const spot = new Map();
  for (const step of steps) {
    const x = column.get(step.id);
    const y = (filled[x] = (filled[x] ?? 0) + 1) - 1;
    spot.set(step.id, { x: 4 + x * (BOX.width + BOX.across), y: 4 + y * (BOX.height + BOX.down) });
  }
  const width = 8 + filled.length * (BOX.width + BOX.across) - BOX.across;
  const height = 8 + Math.max(...filled.map((rows) => rows ?? 0)) * (BOX.height + BOX.down) - BOX.down;
  const edge = (from, to) => {
    const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
    return s("path", { d: `M${x1} ${y1} C${x1 + 28} ${y1} ${x2 - 28} ${y2} ${x2} ${y2}` });
  };
  const box = (step) => {
    const { x, y } = spot.get(step.id);
    return s("g", { class: `step ${step.state}` },
      s("rect", { x, y, width: BOX.width, height: BOX.height, rx: 4 }),
      s("text", { x: x + 10, y: y + 18 }, cut(step.name ?? step.type, 22)),
      s("text", { x: x + 10, y: y + 34, class: "dim" }, step.state));
  };
  return s("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Steps and what they wait for; the table below says the same" },
    steps.flatMap((step) => step.depends_on.filter((id) => spot.has(id)).map((id) => edge(spot.get(id), spot.get(step.id)))),
    steps.map(box));
}

function cut(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

async function cancel(flow) {
  const done = await ask({
    title: "Cancel this workflow?",
    body: h("p", {}, "The jobs created for it are cancelled, and no further step starts. This cannot be undone."),
    yes: "Cancel it",
    danger: true,
  });
  if (!done) return;
  try {
    await post(`workflows/${at(flow.id)}/cancel`);
    tell("The workflow is cancelled.");
  } catch (error) {
    tell(error.message);
  }
  refresh();
}
