// The workers that the answering server has heard from, and the directives that operators give them.

import { at, get, put } from "./api.js";
import { ask } from "./dialog.js";
import { button, h } from "./dom.js";
import { count, when } from "./format.js";
import { tell } from "./notice.js";
import { refresh } from "./router.js";
import { pager, table } from "./table.js";

const WORDS = {
  running: "It fetches jobs again.",
  quiet: "It finishes its jobs and fetches no more.",
  terminate: "It finishes its jobs and exits.",
};

export async function workers({ query, signal }) {
  const page = Number(query.page ?? 1);
  const found = await get("admin/workers", { page, per_page: 100 }, signal);
  return [
    h("h1", {}, "Workers"),
    h("p", { class: "lead" }, "Workers that this server has heard from in the last ten minutes. A worker receives its directive at its next heartbeat."),
    table([
      { label: "Worker", cell: (worker) => worker.worker_id },
      { label: "State", cell: (worker) => worker.state },
      { label: "Directive", cell: (worker) => worker.directive },
      { label: "Queues", kind: "long", cell: (worker) => (worker.queues ?? []).join(", ") },
      { label: "Running", kind: "num", cell: (worker) => count(worker.active_jobs) },
      { label: "First seen", cell: (worker) => when(worker.first_seen_at) },
      { label: "Last seen", cell: (worker) => when(worker.last_heartbeat_at) },
      { label: "", cell: (worker) => h("span", { class: "actions" },
        worker.directive === "running" ? null : direct(worker, "running", "Resume"),
        worker.directive === "quiet" ? null : direct(worker, "quiet", "Quiet"),
        worker.directive === "terminate" ? null : direct(worker, "terminate", "Terminate…")) },
    ], found.items, { caption: "Workers", empty: "This server has not heard from any worker in the last ten minutes." }),
    pager("workers", page > 1 ? {} : null, found.pagination.has_more ? { page: page + 1 } : null),
  ];
}

function direct(worker, directive, text) {
  return button(text, async () => {
    const isSure = directive !== "terminate" || (await ask({
      title: `Terminate ${worker.worker_id}?`,
      body: h("p", {}, "It finishes its jobs and exits. Whether it starts again is up to its supervisor."),
      yes: "Terminate it",
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
