// The screens and the menu.

import { audit } from "./audit.js";
import { cron, crons } from "./crons.js";
import { deadLetters } from "./deadletters.js";
import { h, put } from "./dom.js";
import { duplicates } from "./duplicates.js";
import { health } from "./health.js";
import { job } from "./job.js";
import { jobs } from "./jobs.js";
import { key } from "./key.js";
import { help, listen } from "./keyboard.js";
import { keys } from "./keys.js";
import { overview } from "./overview.js";
import { policies } from "./policies.js";
import { link, place, refresh, start } from "./router.js";
import { askForToken, hasToken, tenant } from "./session.js";
import { webhooks } from "./webhooks.js";
import { workers } from "./workers.js";
import { isOperator, learn, mayProduce, mayRead, mayReadAll } from "./who.js";
import { why } from "./whynot.js";
import { workflow, workflows } from "./workflows.js";

/** The screens of the menu; `for`: who may see what is on them. */
const MENU = [
  { path: "overview", title: "Overview", letter: "o" },
  { path: "keys", title: "Keys", letter: "k", for: isOperator },
  { path: "why", title: "Why not?", letter: "y", for: mayProduce },
  { path: "jobs", title: "Jobs", letter: "j" },
  { path: "duplicates", title: "Duplicates", letter: "u" },
  { path: "policies", title: "Policies", letter: "p", for: mayReadAll },
  { path: "workflows", title: "Workflows", letter: "f", for: mayReadAll },
  { path: "crons", title: "Crons", letter: "c" },
  { path: "dead", title: "Dead letters", letter: "d" },
  { path: "workers", title: "Workers", letter: "w", for: isOperator },
  { path: "webhooks", title: "Webhooks", letter: "b", for: isOperator },
  { path: "audit", title: "Audit", letter: "a", for: isOperator },
  { path: "health", title: "Health", letter: "h", for: () => true },
];
const SCREENS = [
  ["keys", keys, "Keys"],
  ["keys/:key", key, "Key"],
  ["why", why, "Why not?"],
  ["jobs", jobs, "Jobs"],
  ["jobs/:id", job, "Job"],
  ["overview", overview, "Overview"],
  ["duplicates", duplicates, "Duplicates"],
  ["policies", policies, "Policies"],
  ["workflows", workflows, "Workflows"],
  ["workflows/:id", workflow, "Workflow"],
  ["crons", crons, "Crons"],
  ["crons/:name", cron, "Cron"],
  ["dead", deadLetters, "Dead letters"],
  ["workers", workers, "Workers"],
  ["webhooks", webhooks, "Webhooks"],
  ["audit", audit, "Audit"],
  ["health", health, "Health"],
];

/** The screens that whoever looks may see. */
const offered = () => MENU.filter((screen) => (screen.for ?? mayRead)());
const menu = document.querySelector("#menu");
const who = document.querySelector("#who");

function drawMenu() {
  const here = place();
  // On a narrow screen the menu scrolls, and must show where one is.
  requestAnimationFrame(() => menu.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }));
  put(menu, offered().map(({ path, title, letter }) =>
    h("a", { href: link(path), title: `g ${letter}`, "aria-current": path === here ? "page" : null }, title)));
}

function drawWho() {
  const open = () => askForToken("Requests are sent with this token and tenant.");
  put(who,
    tenant() ? h("span", { class: "dim" }, `tenant ${tenant()}`) : null,
    h("button", { type: "button", onclick: open }, hasToken() ? "Token ✓" : "Token"),
    h("button", { type: "button", onclick: () => help(offered()), "aria-label": "Keys of the keyboard" }, "?"));
}

// The skip link moves the focus; the address stays the screen's.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.querySelector("#main").focus();
});
addEventListener("screen", drawMenu);
addEventListener("session", async () => {
  await learn();
  drawWho();
  refresh();
});
await learn();
drawWho();
listen(offered);
start(SCREENS, document.querySelector("#main"), "overview");
