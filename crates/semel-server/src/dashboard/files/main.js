// The entry point: the screens and the menu.

import { h, put } from "./dom.js";
import { help, listen } from "./keyboard.js";
import { overview } from "./overview.js";
import { link, place, refresh, start } from "./router.js";
import { askForToken, hasToken, tenant } from "./session.js";
import { isOperator, learn, mayProduce, mayRead, mayReadAll } from "./who.js";

/** The screens in the menu. `for`: whether the token may see what is on one. */
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
/** The modules that the first screen does not need. */
const LATER = {
  audit: () => import("./audit.js"),
  crons: () => import("./crons.js"),
  deadLetters: () => import("./deadletters.js"),
  duplicates: () => import("./duplicates.js"),
  health: () => import("./health.js"),
  job: () => import("./job.js"),
  jobs: () => import("./jobs.js"),
  key: () => import("./key.js"),
  keys: () => import("./keys.js"),
  policies: () => import("./policies.js"),
  webhooks: () => import("./webhooks.js"),
  why: () => import("./whynot.js"),
  workers: () => import("./workers.js"),
  workflows: () => import("./workflows.js"),
};
/** A screen of such a module, which is loaded when the screen is first shown, if not before. */
const later = (module, name) => async (context) => (await LATER[module]())[name](context);

const SCREENS = [
  ["keys", later("keys", "keys"), "Keys"],
  ["keys/:key", later("key", "key"), "Key"],
  ["why", later("why", "why"), "Why not?"],
  ["jobs", later("jobs", "jobs"), "Jobs"],
  ["jobs/:id", later("job", "job"), "Job"],
  ["overview", overview, "Overview"],
  ["duplicates", later("duplicates", "duplicates"), "Duplicates"],
  ["policies", later("policies", "policies"), "Policies"],
  ["workflows", later("workflows", "workflows"), "Workflows"],
  ["workflows/:id", later("workflows", "workflow"), "Workflow"],
  ["crons", later("crons", "crons"), "Crons"],
  ["crons/:name", later("crons", "cron"), "Cron"],
  ["dead", later("deadLetters", "deadLetters"), "Dead letters"],
  ["workers", later("workers", "workers"), "Workers"],
  ["webhooks", later("webhooks", "webhooks"), "Webhooks"],
  ["audit", later("audit", "audit"), "Audit"],
  ["health", later("health", "health"), "Health"],
];

/** The screens that the token may see. */
const offered = () => MENU.filter((screen) => (screen.for ?? mayRead)());
const menu = document.querySelector("#menu");
const who = document.querySelector("#who");

function drawMenu() {
  const here = place();
  // On a narrow screen the menu scrolls; keep the current entry in view.
  requestAnimationFrame(() => menu.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }));
  put(menu, offered().map(({ path, title, letter }) =>
    h("a", { href: link(path), title: `g ${letter}`, "aria-current": path === here ? "page" : null }, title)));
}

function drawWho() {
  const open = () => askForToken("Requests are sent with this token and tenant.");
  put(who,
    tenant() ? h("span", { class: "dim" }, `tenant ${tenant()}`) : null,
    h("button", { type: "button", onclick: open }, hasToken() ? "Token ✓" : "Token"),
    h("button", { type: "button", onclick: () => help(offered()), "aria-label": "Keyboard shortcuts" }, "?"));
}

// The skip link moves the focus but not the address, which names the screen.
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
await start(SCREENS, document.querySelector("#main"), "overview");
// Load the other modules too, so that an open page has all its screens, of one version, even when the server is away.
for (const load of Object.values(LATER)) load().catch(() => {});
