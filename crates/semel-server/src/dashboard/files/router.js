// Which screen is shown: the part of the address after `#` names it, so every view can be bookmarked and shared, and the
// server need not know the screens.

import { h, put } from "./dom.js";
import { problem } from "./notice.js";

let current = null;

/** The address of a screen. */
export function link(path, query) {
  const set = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(set).toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

/** Goes to a screen. */
export function go(path, query) {
  const address = link(path, query);
  if (location.hash === address) show();
  else location.hash = address;
}

/** Reloads the current screen. */
export function refresh() {
  // A token may be entered before the first screen is shown.
  if (outlet) show();
}

let routes = [];
let outlet = null;
let first = "";

/** Shows in `node` the screen that the address names, now and whenever the address changes; resolves once the first one is
 * shown. `table`: the paths of the screens; `:name` binds a part. */
export function start(table, node, home) {
  routes = table.map(([pattern, screen, title]) => ({ parts: pattern.split("/"), screen, title }));
  outlet = node;
  first = home;
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#/") || location.hash === "") show();
  });
  return show();
}

/** The first part of the current address. */
export function place() {
  return location.hash.slice(2).split(/[/?]/)[0];
}

async function show() {
  // An address that names no screen means the first one.
  if (!/^#\/[^?]/.test(location.hash)) history.replaceState(null, "", link(first));
  const [path, query] = location.hash.slice(2).split("?", 2);
  current?.abort();
  const leaving = (current = new AbortController());
  dispatchEvent(new CustomEvent("screen"));
  const view = h("div", { class: "screen" });
  const isSame = outlet.dataset.place === location.hash;
  outlet.dataset.place = location.hash;
  // The old view stays until the new one has something to show, so that nothing flickers.
  outlet.setAttribute("aria-busy", "true");
  let found = null;
  try {
    const parts = path.split("/").map(decodeURIComponent);
    found = routes.map((route) => [route, match(route.parts, parts)]).find(([, params]) => params);
    if (!found) throw new Error("There is no such screen.");
    const context = { params: found[1], query: Object.fromEntries(new URLSearchParams(query)), signal: leaving.signal };
    document.title = `${found[0].title} · Semel`;
    put(view, await found[0].screen(context));
  } catch (error) {
    if (leaving.signal.aborted) return;
    put(view, h("h1", {}, found?.[0].title ?? "Semel"), problem(error, show));
  }
  if (leaving.signal.aborted) return;
  outlet.removeAttribute("aria-busy");
  put(outlet, view);
  if (!isSame) {
    scrollTo(0, 0);
    if (!view.contains(document.activeElement)) outlet.focus({ preventScroll: true });
  }
}

function match(pattern, parts) {
  if (pattern.length !== parts.length) return null;
  const params = {};
  for (const [index, name] of pattern.entries()) {
    if (name.startsWith(":")) params[name.slice(1)] = parts[index];
    else if (name !== parts[index]) return null;
  }
  return params;
}
