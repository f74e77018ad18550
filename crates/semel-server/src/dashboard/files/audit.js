// What operators did through the server that answers.

import { get } from "./api.js";
import { h } from "./dom.js";
import { clock, when } from "./format.js";
import { table } from "./table.js";

const SHOWN = 500;

export async function audit({ signal }) {
  const told = await get("admin/audit", { limit: SHOWN }, signal);
  return [
    h("h1", {}, "Audit"),
    h("p", { class: "lead" }, "Changes that operators made through this server since it started, ", when(told.since),
      told.is_whole ? ". " : "; older entries are no longer kept. ",
      "The server's log has every entry (target semel::audit) and is the lasting record."),
    table([
      { label: "When", cell: (entry) => clock(entry.at) },
      { label: "By", cell: (entry) => entry.by || "–" },
      { label: "Action", cell: (entry) => entry.action },
      { label: "Request", kind: "long", cell: (entry) => h("code", {}, `${entry.method} ${entry.path}`) },
      { label: "Status", kind: "num", cell: (entry) => String(entry.status) },
      { label: "Reason", kind: "long", cell: (entry) => entry.reason || "–" },
    ], told.entries, { caption: "Operator actions, newest first", empty: "No operator has changed anything yet." }),
  ];
}
