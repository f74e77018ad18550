// Outcomes as bar charts: second by second while the page is open, or by the minutes and hours that the server keeps.

import { get, maybe } from "./api.js";
import { bars } from "./chart.js";
import { h, none, put, select } from "./dom.js";
import { count, rate, when } from "./format.js";
import { GROUPS, History, metrics, totals, types } from "./metrics.js";
import { link } from "./router.js";
import { isOperator } from "./who.js";

const LOOKS_MAX = 61;
const LIVE = ["", "now"];
const SPANS = [["minute", "3 hours"], ["hour", "1 week"]];
const NOTES = {
  "": "Drawn from the server's counters while this page is open.",
  minute: "Averaged per minute, for this server since it started.",
  hour: "Averaged per hour, for this server since it started.",
};

/** Kept between visits to the screen, so that leaving it does not empty the charts. */
const history = new History(LOOKS_MAX);
let span = "";
let type = "";

/** The charts of the overview: `node` is shown, `look` fetches the current figures and redraws. */
export function charts(signal) {
  const chosen = h("span", {});
  const note = h("span", {});
  const drawn = h("div", { class: "charts" });
  const look = async () => {
    const [asked, of] = [span, type];
    const past = span ? await maybe(get("admin/stats/history", { step: span, type }, signal)) : null;
    const text = span ? null : await maybe(metrics(signal));
    // The user chose another span or type meanwhile: these figures are not for it.
    if (signal.aborted || asked !== span || of !== type) return;
    // A tenant's operator may not read the metrics, which cover the whole server, but has a history.
    if (!span && text === null && isOperator()) {
      span = SPANS[0][0];
      return look();
    }
    const names = past ? [...new Set(past.top.map((each) => each.type))].sort() : text === null ? [] : types(text);
    const hasLive = text !== null || past === null;
    if (!chosen.contains(document.activeElement)) put(chosen, text === null && past === null ? null : choices(names, hasLive));
    put(note, ` ${NOTES[span]}`);
    put(drawn, past ? ofPast(past) : text === null
      ? none("Metrics cover the whole server and are not shown to this token or tenant.")
      : ofNow(text));
  };
  const choices = (names, hasLive) => {
    const spans = [...(hasLive || isOperator() ? [LIVE] : []), ...(isOperator() ? SPANS : [])];
    const of = (name, values, value, keep) => {
      const node = select(name, values, value);
      node.setAttribute("aria-label", name);
      node.addEventListener("change", () => {
        keep(node.value);
        history.clear();
        node.blur();
        look().catch(() => {});
      });
      return node;
    };
    return [
      spans.length > 1 ? of("Span", spans, span, (value) => (span = value)) : null, " ",
      of("Type", [["", "all types"], ...new Set(type ? [type, ...names] : names)], type, (value) => (type = value)),
    ];
  };
  return { node: [h("p", { class: "note" }, chosen, note), drawn], look };
}

function ofNow(text) {
  const values = totals(text, type);
  history.add(Date.now(), values);
  return figures(values, (index) => history.rates(index), LOOKS_MAX - 1, "since startup");
}

function ofPast(past) {
  const step = past.step_s * 1_000;
  const start = Date.parse(past.since);
  const at = (time) => Math.floor((Date.parse(time) - start + 1) / step);
  const now = at(past.now);
  const first = Math.max(0, now - past.slots_max + 1);
  const slots = new Map(past.slots.map((slot) => [at(slot.at), slot.outcomes]));
  const sum = (outcomes, names) => names.reduce((all, name) => all + (outcomes?.[name] ?? 0), 0);
  const points = ({ outcomes }) => {
    const found = [];
    for (let slot = first; slot <= now; slot++) {
      // The current slot is not over yet.
      const seconds = slot === now ? Math.max(1, (Date.parse(past.now) - start - slot * step) / 1_000) : past.step_s;
      found.push({ at: start + slot * step, value: sum(slots.get(slot), outcomes) / seconds });
    }
    return found;
  };
  const values = GROUPS.map(({ outcomes }) => past.slots.reduce((all, slot) => all + sum(slot.outcomes, outcomes), 0));
  const whole = first === 0 ? ["since ", when(past.since)] : "in this period";
  return figures(values, (index) => points(GROUPS[index]), past.slots_max, whole);
}

/** `values`: the total of each group. `points`: the values of a group over time. */
function figures(values, points, slots, since) {
  const created = values[0] + values[2];
  const suppressed = values[1] + values[3];
  return [
    GROUPS.map(({ name, tone }, index) => {
      const drawn = points(index);
      const now = drawn.at(-1)?.value;
      return h("figure", {},
        h("figcaption", {}, h("span", {}, name), h("strong", {}, now === undefined ? "…" : `${rate(now)}/s`)),
        bars(drawn, slots, name, tone),
        h("small", {}, count(values[index]), " ", typeof since === "string" ? since : [since[0], since[1].cloneNode(true)]));
    }),
    h("p", { class: "ratio" },
      created + suppressed === 0 ? "No requests yet. " : h("span", {}, h("strong", {}, `${((100 * suppressed) / (created + suppressed)).toFixed(1)} %`), " of requests were duplicates. "),
      h("a", { href: link("duplicates", isOperator() ? { minutes: "start" } : {}) }, "Hottest keys →")),
  ];
}
