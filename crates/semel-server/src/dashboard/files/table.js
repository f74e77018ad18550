// Tables. On a narrow screen each row becomes a card whose cells name their columns.

import { h, none } from "./dom.js";
import { link } from "./router.js";

/** `columns`: `{ label, cell, kind }`, where kind is `num`, `long` or nothing. */
export function table(columns, rows, { caption, empty } = {}) {
  if (rows.length === 0) return none(empty ?? "There are none.");
  const head = columns.map((column) => h("th", { scope: "col", class: column.kind }, column.label));
  const line = (row) =>
    h("tr", {}, columns.map((column) => h("td", { class: column.kind, "data-label": column.label }, column.cell(row))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows.map(line))));
}

/** Links to the first page and to the next one, each a query of the current screen or null. */
export function pager(path, before, after) {
  if (!before && !after) return null;
  return h("nav", { class: "pager", "aria-label": "Pages" },
    before ? h("a", { href: link(path, before) }, "← Newest") : null,
    after ? h("a", { href: link(path, after), rel: "next" }, "Older →") : null);
}
