// The workers that the answering server has heard of, and what they are told.

import { at, get, put } from "./api.js";
import { ask } from "./dialog.js";
import { button, h } from "./dom.js";
import { count, when } from "./format.js";
import { tell } from "./notice.js";
import { refresh } from "./router.js";
import { pager, table } from "./table.js";

const WORDS = {
  running: "It goes on.",
  quiet: "It finishes what it has and fetches no more.",
  terminate: "It finishes what it has and ends.",
};

export async function workers({ query, signal }) {
  const page = Number(query.page ?? 1);
  const found = await get("admin/workers", { page, per_page: 100 }, signal);
  return [
    h("h1", {}, "Workers"),
    h("p", { class: "lead" }, "Those that this server has heard of in the last ten minutes. What they are told they hear at their next heartbeat."),
    table([
      { label: "Worker", cell: (worker) => worker.worker_id },
      { label: "State", cell: (worker) => worker.state },
      { label: "Told", cell: (worker) => worker.directive },
      { label: "Queues", kind: "long", cell: (worker) => (worker.queues ?? []).join(", ") },
      { label: "Running", kind: "num", cell: (worker) => count(worker.active_jobs) },
      { label: "First heard", cell: (worker) => when(worker.first_seen_at) },
      { label: "Last heard", cell: (worker) => when(worker.last_heartbeat_at) },
      { label: "", cell: (worker) => h("span", { class: "actions" },
        worker.directive === "running" ? null : direct(worker, "running", "Go on"),
        worker.directive === "quiet" ? null : direct(worker, "quiet", "Quiet"),
        worker.directive === "terminate" ? null : direct(worker, "terminate", "End…")) },
    ], found.items, { caption: "Workers", empty: "No worker has been heard of in the last ten minutes." }),
    pager("workers", page > 1 ? {} : null, found.pagination.has_more ? { page: page + 1 } : null),
  ];
}

function direct(worker, directive, text) {
  return button(text, async () => {
    const isSure = directive !== "terminate" || (await ask({
      title: `End ${worker.worker_id}?`,
      body: h("p", {}, "It finishes what it has, and ends. Whether it is started again is its supervisor's matter."),
      yes: "End it",
      danger: true,
    }));
    if (!isSure) return;
    try {
      await put(`admin/workers/${at(worker.worker_id)}/directive`, { directive });
      tell(WORDS[directive]);
    } catch (error) {
      tell(error.message);
    }
    refresh();
  }, { class: directive === "terminate" ? "danger" : "", "aria-label": `${text} ${worker.worker_id}` });
}
