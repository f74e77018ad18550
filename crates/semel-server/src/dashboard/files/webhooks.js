// Webhook subscriptions: whether each is active, and whether a signed test request arrives.

import { at, get, patch, post } from "./api.js";
import { button, h } from "./dom.js";
import { when } from "./format.js";
import { tell } from "./notice.js";
import { refresh } from "./router.js";
import { pager, table } from "./table.js";

export async function webhooks({ query, signal }) {
  const found = await get("webhooks/subscriptions", { limit: 100, cursor: query.cursor }, signal);
  return [
    h("h1", {}, "Webhooks"),
    h("p", { class: "lead" }, "Add and remove subscriptions with semel webhooks or the API; the secret is shown only there."),
    table([
      { label: "URL", kind: "long", cell: (hook) => hook.url },
      { label: "Events", kind: "long", cell: (hook) => hook.events.join(", ") },
      { label: "Filter", kind: "long", cell: (hook) => only(hook.filter) },
      { label: "Active", cell: (hook) => (hook.active ? "yes" : "paused") },
      { label: "Created", cell: (hook) => when(hook.created_at) },
      { label: "", cell: (hook) => h("span", { class: "actions" },
        button("Test", () => test(hook), { "aria-label": `Test ${hook.url}` }),
        button(hook.active ? "Pause" : "Resume", () => change(hook), { "aria-label": `${hook.active ? "Pause" : "Resume"} ${hook.url}` })) },
    ], found.subscriptions, { caption: "Subscriptions, oldest first" }),
    pager("webhooks", query.cursor ? {} : null, found.pagination.next_cursor ? { cursor: found.pagination.next_cursor } : null),
  ];
}

function only(filter) {
  const parts = [...(filter?.queues ?? []).map((name) => `queue ${name}`), ...(filter?.job_types ?? [])];
  return parts.join(", ") || "–";
}

async function test(hook) {
  try {
    const told = await post(`webhooks/subscriptions/${at(hook.id)}/test`);
    tell(told.delivered ? `The test arrived in ${told.took_ms} ms.` : `The test did not arrive: ${told.error}`);
  } catch (error) {
    tell(error.message);
  }
}

async function change(hook) {
  try {
    await patch(`webhooks/subscriptions/${at(hook.id)}`, { active: !hook.active });
    tell(hook.active ? "Paused: events that happen until you resume it are never sent." : "Resumed: events from now on are sent.");
  } catch (error) {
    tell(error.message);
  }
  refresh();
}
