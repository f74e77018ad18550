// Keyboard shortcuts. They are ignored while the user types.

import { ask } from "./dialog.js";
import { h } from "./dom.js";
import { go, refresh } from "./router.js";

const TYPING = "input, textarea, select, [contenteditable], dialog *";

/** Listens for shortcuts. `offered` returns the screens, each with a letter, a path and a title; `g` and the letter go there. */
export function listen(offered) {
  let isGoing = false;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.(TYPING)) return;
    if (document.querySelector("dialog[open]")) return;
    const pressed = event.key;
    const screens = offered();
    const screen = isGoing && screens.find(({ letter }) => letter === pressed);
    isGoing = pressed === "g" && !isGoing;
    if (screen) return take(event, () => go(screen.path));
    if (pressed === "r") return take(event, refresh);
    if (pressed === "?") return take(event, () => help(screens));
    const marked = document.querySelector(`[data-key="${CSS.escape(pressed)}"]`);
    if (marked) take(event, () => (marked.matches("input, textarea") ? marked.focus() : marked.click()));
  });
}

function take(event, act) {
  event.preventDefault();
  act();
}

/** Shows the list of shortcuts. */
export function help(screens) {
  const row = (keys, text) => h("div", {}, h("dt", {}, keys.map((key) => h("kbd", {}, key))), h("dd", {}, text));
  return ask({
    title: "Keyboard shortcuts",
    body: h("dl", { class: "help" },
      screens.map(({ letter, title }) => row(["g", letter], title)),
      row(["/"], "Search or filter"),
      row(["r"], "Reload"),
      row(["p"], "Pause or resume the overview"),
      row(["?"], "This list")),
    yes: "Close",
  });
}
