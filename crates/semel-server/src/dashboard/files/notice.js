// Errors and notifications, shown on the page and announced to screen readers.

import { h } from "./dom.js";

/** An error, with the server's hint on what to do about it. */
export function problem(error, again) {
  const retry = () => again();
  return h("div", { class: "problem", role: "alert" },
    h("p", {}, h("strong", {}, error.title ?? "This did not work. "), error.message),
    error.hint ? h("p", {}, error.hint) : null,
    error.status === 403 ? h("p", {}, "Another token may be allowed to: press “Token” above.") : null,
    again ? h("button", { type: "button", onclick: retry }, "Try again") : null);
}

/** Shows a notification for a few seconds. */
export function tell(text) {
  document.querySelector(".toast")?.remove();
  const toast = h("div", { class: "toast", role: "status" }, text);
  document.body.append(toast);
  setTimeout(() => toast.remove(), 6_000);
}
