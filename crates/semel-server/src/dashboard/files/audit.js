// What operators did by way of the answering server.

import { get } from "./api.js";
import { h } from "./dom.js";
import { clock, when } from "./format.js";
import { table } from "./table.js";

const SHOWN = 500;

export async function audit({ signal }) {
  const told = await get("admin/audit", { limit: SHOWN }, signal);
  return [
    h("h1", {}, "Audit"),
    h("p", { class: "lead" }, "What was changed by operators through this server since its start, ", when(told.since),
      told.is_whole ? ". " : "; older entries are no longer kept. ",
      "Its log has every line of it (target semel::audit), and lasts."),
    table([
      { label: "When", cell: (entry) => clock(entry.at) },
      { label: "By", cell: (entry) => entry.by || "–" },
      { label: "Did", cell: (entry) => entry.action },
      { label: "To", kind: "long", cell: (entry) => h("code", {}, `${entry.method} ${entry.path}`) },
      { label: "Answer", kind: "num", cell: (entry) => String(entry.status) },
      { label: "Reason", kind: "long", cell: (entry) => entry.reason || "–" },
    ], told.entries, { caption: "Acts, newest first", empty: "Nothing was changed by an operator." }),
  ];
}
