// Dead letters: jobs that failed for good. Lists, retries and deletes them.

import { at, get, post, remove } from "./api.js";
import { BULK_MAX, bulk } from "./bulk.js";
import { ask } from "./dialog.js";
import { button, field, form, h } from "./dom.js";
import { count, jobLink, when } from "./format.js";
import { tell } from "./notice.js";
import { go, refresh } from "./router.js";
import { pager, table } from "./table.js";
import { forAdmins, isAdmin } from "./who.js";

const PER_PAGE = 50;
const AT_LEAST = `${count(BULK_MAX)} or more`;

export async function deadLetters({ query, signal }) {
  const filter = { queue: query.queue, type: query.type };
  const offset = Number(query.offset ?? 0);
  const found = await get("dead-letter", { ...filter, limit: PER_PAGE, offset }, signal);
  const { total, has_more: more, is_lower_bound: isLeast } = found.pagination;
  return [
    h("h1", {}, "Dead letters"),
    h("p", { class: "lead" }, "A retry is a new admission: if another job holds the key by now, it is refused and the dead letter stays here."),
    form({ class: "row", role: "search" }, (fields) => go("dead", fields),
      field("Queue", h("input", { name: "queue", value: query.queue ?? "", "data-key": "/" })),
      field("Type", h("input", { name: "type", value: query.type ?? "" })),
      h("button", { type: "submit", class: "main" }, "Filter"),
      (total > 0 || isLeast) && isAdmin() ? button(`Retry ${total >= BULK_MAX ? AT_LEAST : isLeast ? "all" : `all ${count(total)}`}…`, () => all("retry", filter, total, isLeast)) : null,
      (total > 0 || isLeast) && isAdmin() ? button("Delete all…", () => all("delete", filter, total, isLeast), { class: "danger" }) : null),
    table([
      { label: "Job", cell: (job) => jobLink(job.id) },
      { label: "Type", cell: (job) => job.type },
      { label: "Queue", cell: (job) => job.queue },
      { label: "Attempts", kind: "num", cell: (job) => job.attempt },
      { label: "Ended", cell: (job) => when(job.discarded_at ?? job.completed_at) ?? "–" },
      { label: "Error", kind: "long", cell: (job) => job.error?.message ?? "–" },
      { label: "", cell: (job) => forAdmins(() => h("span", { class: "actions" },
        button("Retry", () => act(post(`dead-letter/${at(job.id)}/retry`), "The retry was admitted."), { "aria-label": `Retry ${job.id}` }),
        button("Delete…", () => removeOne(job), { class: "danger", "aria-label": `Delete ${job.id}` }))) },
    ], found.jobs, { caption: "Dead letters, newest first", empty: "None. A discarded job is kept here if its retry policy says on_exhaustion: dead_letter." }),
    pager("dead", offset > 0 ? filter : null, more ? { ...filter, offset: offset + PER_PAGE } : null),
  ];
}

async function removeOne(job) {
  const done = await ask({ title: "Delete this dead letter?", body: h("p", {}, `${job.type} · ${job.id}. This cannot be undone.`), yes: "Delete it", danger: true });
  if (done) await act(remove(`dead-letter/${at(job.id)}`), "The dead letter is deleted.");
}

async function all(verb, filter, total, isLeast) {
  const many = `${isLeast && total < BULK_MAX ? "at least " : ""}${count(total)}`;
  const isDelete = verb === "delete";
  const done = await ask({
    title: isDelete ? `Delete ${many} dead letters?` : `Retry ${many} dead letters?`,
    body: h("ul", {},
      h("li", {}, `Queue: ${filter.queue ?? "all"}; type: ${filter.type ?? "all"}.`),
      h("li", {}, isDelete ? "This cannot be undone." : "Each retry is a new admission. Dead letters whose key another job holds stay here and are counted."),
      total >= BULK_MAX ? h("li", {}, `${AT_LEAST} match, and one request handles ${count(BULK_MAX)}. Repeat it for the rest.`) : null),
    yes: isDelete ? "Delete them" : "Retry them",
    danger: isDelete,
  });
  if (!done) return;
  const chosen = Object.fromEntries(Object.entries(filter).filter(([, value]) => value));
  await act(bulk(verb, chosen),
    (told) => `${count(told.succeeded)} of ${count(told.matched)} done; ${count(told.failed)} left unchanged.${told.isMore ? " There may be more: repeat for the rest." : ""}`);
}

async function act(answered, words) {
  try {
    const told = await answered;
    tell(typeof words === "function" ? words(told) : words);
  } catch (error) {
    tell(error.message);
  }
  refresh();
}
