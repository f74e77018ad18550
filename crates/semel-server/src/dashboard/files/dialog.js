// A modal question. Escape and “Back” mean no.

import { h } from "./dom.js";

/** Shows a question and resolves to whether the user said yes. `check` may reject a yes by returning a sentence. */
export function ask({ title, body, yes, danger, check }) {
  return new Promise((resolve) => {
    const wrong = h("p", { class: "wrong", role: "alert" });
    const answer = (event) => {
      event.preventDefault();
      const refusal = check?.();
      if (refusal) wrong.textContent = refusal;
      else dialog.close("yes");
    };
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
      h("form", { onsubmit: answer },
        h("h2", { id: "dialog-title" }, title),
        body,
        wrong,
        h("p", { class: "actions" },
          h("button", { type: "button", onclick: () => dialog.close("") }, "Back"),
          h("button", { type: "submit", class: danger ? "danger" : "main" }, yes))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
    dialog.querySelector("input, textarea, select")?.focus();
  });
}
