// The server at a glance: jobs by state, outcomes, queues and live events. It refreshes itself until it is paused.

import { at, get, post } from "./api.js";
import { charts } from "./charts.js";
import { button, h, part, put } from "./dom.js";
import { count, duration, when } from "./format.js";
import { tell } from "./notice.js";
import { LIVE, STATES } from "./policy.js";
import { link } from "./router.js";
import { follow, rest } from "./stream.js";
import { table } from "./table.js";
import { line } from "./timeline.js";
import { forAdmins } from "./who.js";

const LOOK_MS = 3_000;
const FEED_MAX = 30;
/** The most events per second that are streamed. Nobody could read more, so the stream then rests to spare the server. */
const BURST_MAX = 100;

let isPaused = false;

export async function overview({ signal }) {
  const tiles = h("ul", { class: "tiles" });
  const outcomes = charts(signal);
  const queues = h("div", {});
  const feed = h("ol", { class: "timeline feed" });
  const status = h("span", { class: "dim", role: "status" });
  const view = { tiles, outcomes, queues };
  const toggle = button("", () => {
    isPaused = !isPaused;
    label();
    stir();
    if (!isPaused) look(view, signal).catch(() => {});
  }, { "data-key": "p" });
  const label = () => {
    put(toggle, isPaused ? "Resume" : "Pause");
    toggle.setAttribute("aria-pressed", String(isPaused));
    put(status, isPaused ? "Paused" : status.dataset.live ?? "");
  };
  await look(view, signal);
  label();
  keepLooking(view, signal);
  const stir = watch(feed, status, label, signal);
  return [
    h("div", { class: "head" }, h("h1", {}, "Overview"), h("p", { class: "actions" }, status, toggle)),
    tiles,
    part("Outcomes per second", outcomes.node),
    part("Queues", queues),
    part("Live events", feed),
  ];
}

/** Refreshes the figures while the page is visible and not paused. */
async function keepLooking(view, signal) {
  while (!signal.aborted) {
    await rest(LOOK_MS, signal);
    if (signal.aborted || isPaused || document.hidden) continue;
    try {
      await look(view, signal);
    } catch (error) {
      // A user who declined to give a token is not asked again every few seconds.
      if (error.status === 401) return;
    }
  }
}

/** Shows live events while the page is visible and not paused. Returns the function to call when that may have changed. */
function watch(feed, status, label, signal) {
  let following = null;
  let isRefused = false;
  let isResting = false;
  let burst = { began: 0, count: 0 };
  let heard = [];
  const draw = () => {
    // Taken first, so that the next ones are drawn even if drawing these fails.
    const taken = heard;
    heard = [];
    feed.prepend(...taken.map((event) => line(event, "full")));
    while (feed.children.length > FEED_MAX) feed.lastChild.remove();
  };
  // Events that arrive between two frames are drawn together, and only as many as are shown.
  const hear = (event) => {
    if (heard.unshift(event) === 1) requestAnimationFrame(draw);
    heard.splice(FEED_MAX);
    const now = performance.now();
    if (now - burst.began > 1_000) burst = { began: now, count: 0 };
    if (++burst.count > BURST_MAX && !isResting) calm();
  };
  const calm = async () => {
    isResting = true;
    stir();
    status.dataset.live = "Live: more events than are shown";
    if (!isPaused) label();
    await rest(LOOK_MS, signal);
    isResting = false;
    stir();
  };
  const changed = (isLive, refusal) => {
    isRefused = Boolean(refusal);
    status.dataset.live = isLive ? "Live" : refusal ? "Not live: the token may not read events" : "Connecting…";
    if (!isPaused) label();
  };
  const stir = () => {
    const isWanted = !signal.aborted && !isPaused && !document.hidden && !isRefused && !isResting;
    if (isWanted === (following !== null)) return;
    following?.abort();
    following = isWanted ? new AbortController() : null;
    if (!isWanted) return;
    if (burst.count <= BURST_MAX) changed(false);
    const own = following.signal;
    follow({ after: "end" }, hear, (isLive, refusal) => own.aborted || changed(isLive, refusal), own);
  };
  document.addEventListener("visibilitychange", stir, { signal });
  signal.addEventListener("abort", stir);
  stir();
  return stir;
}

async function look(view, signal) {
  const [stored] = await Promise.all([get("queues", {}, signal), view.outcomes.look()]);
  if (signal.aborted) return;
  const all = Object.fromEntries(STATES.map((state) => [state, stored.queues.reduce((sum, queue) => sum + queue[state], 0)]));
  put(view.tiles, STATES.map((state) => h("li", { class: state },
    h("a", { href: link("jobs", { state }) }, h("strong", {}, count(all[state])), h("span", {}, state)))));
  // A table whose button has the focus or is working is not replaced.
  if (!view.queues.contains(document.activeElement)) put(view.queues, queueTable(stored.queues, () => look(view, signal), stored.pagination));
}

/** The recent median and 99th percentile. */
function took(spread) {
  if (!spread?.count) return "–";
  const words = [spread.p50_ms, spread.p99_ms].map((ms) => (ms < 10 ? `${ms.toFixed(1)} ms` : duration(ms)));
  return h("span", { title: `Half took at most ${words[0]}, 99 % at most ${words[1]}; ${count(spread.count)} measured by this server in ten minutes` }, words.join(" / "));
}

function queueTable(queues, again, { has_more: hasMore, total }) {
  const top = Math.max(1, ...queues.map((queue) => LIVE.reduce((sum, state) => sum + queue[state], 0)));
  const depth = (queue) => {
    const live = LIVE.reduce((sum, state) => sum + queue[state], 0);
    return h("meter", { min: "0", max: String(top), value: live, title: `${count(live)} live`, "aria-label": `${count(live)} live jobs` });
  };
  const change = (queue) => button(queue.paused ? "Resume" : "Pause", async () => {
    try {
      await post(`queues/${at(queue.name)}/${queue.paused ? "resume" : "pause"}`);
      tell(queue.paused ? `Workers may take jobs from ${queue.name} again.` : `No worker takes jobs from ${queue.name}. Running jobs go on.`);
    } catch (error) {
      tell(error.message);
    }
    document.activeElement?.blur();
    await again();
  }, { "aria-label": `${queue.paused ? "Resume" : "Pause"} ${queue.name}` });
  const of = (state) => ({ label: state, kind: "num", cell: (queue) => h("a", { class: queue[state] === 0 ? "zero" : "", href: link("jobs", { queue: queue.name, state }) }, count(queue[state])) });
  return table([
    { label: "Queue", cell: (queue) => [h("a", { href: link("jobs", { queue: queue.name }) }, queue.name), queue.paused ? h("span", { class: "badge failed" }, "paused") : null] },
    { label: "Live", cell: depth },
    ...STATES.map(of),
    { label: "Waited", kind: "num", cell: (queue) => took(queue.latency?.wait) },
    { label: "Ran", kind: "num", cell: (queue) => took(queue.latency?.run) },
    { label: "Oldest available", cell: (queue) => when(queue.oldest_available_at) ?? "–" },
    { label: "", cell: (queue) => forAdmins(() => change(queue)) },
  ], queues, { caption: hasMore ? `The first ${count(queues.length)} of ${count(total)} queues by name; the numbers above cover only these` : "Queues and the jobs in them", empty: "No queue has had a job yet." });
}
