// Times, numbers and ids as people read them.

import { at } from "./api.js";
import { h } from "./dom.js";
import { link } from "./router.js";
import { isOperator } from "./who.js";

const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
const numbers = new Intl.NumberFormat("en");

/** A count with thousands separators. */
export function count(value) {
  return numbers.format(value ?? 0);
}

/** A number with at most one decimal place. */
export function rate(value) {
  return value >= 100 || Number.isInteger(value) ? count(Math.round(value)) : value.toFixed(1);
}

/** A duration, given in milliseconds, in its largest one or two units. */
export function duration(ms) {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  let rest = Math.round(ms / 1_000);
  const parts = [];
  for (const [unit, seconds] of UNITS) {
    const whole = Math.floor(rest / seconds);
    if (whole > 0 && parts.length < 2) parts.push(`${whole} ${unit}`);
    else if (parts.length > 0) break;
    rest -= whole * seconds;
  }
  return parts.join(" ");
}

/** A time relative to now; its title is the exact time. */
export function when(text) {
  if (!text) return null;
  const ms = Date.parse(text) - Date.now();
  const words = Math.abs(ms) < 1_000 ? "now" : ms < 0 ? `${duration(-ms)} ago` : `in ${duration(ms)}`;
  return h("time", { datetime: text, title: text }, words);
}

/** A time in the browser's time zone, with the date unless it is today. */
export function clock(text) {
  if (!text) return null;
  const moment = new Date(text);
  const day = moment.toDateString() === new Date().toDateString() ? "" : `${moment.toLocaleDateString()} `;
  const ms = String(moment.getMilliseconds()).padStart(3, "0");
  return h("time", { datetime: text, title: text }, `${day}${moment.toLocaleTimeString([], { hour12: false })}.${ms}`);
}

/** The beginning and end of a long id. */
export function short(id) {
  return id.length > 20 ? `${id.slice(0, 8)}…${id.slice(-6)}` : id;
}

/** A job's id, linked to its page. */
export function jobLink(id, whole = false) {
  return h("a", { class: "mono", href: link(`jobs/${at(id)}`), title: id }, whole ? id : short(id));
}

/** A unique key, linked to its page if the token may see that page, which covers all queues. */
export function keyLink(key, whole = false) {
  const text = whole ? key : short(key);
  return isOperator()
    ? h("a", { class: "mono", href: link(`keys/${at(key)}`), title: key }, text)
    : h("span", { class: "mono", title: key }, text);
}

/** A state's name, coloured. */
export function badge(state) {
  return h("span", { class: `badge ${state}` }, state);
}

/** Text in the monospaced font. */
export function mono(text) {
  return h("span", { class: "mono" }, text);
}
