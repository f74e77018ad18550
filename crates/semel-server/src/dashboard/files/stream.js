// Live events. The browser's EventSource cannot send a token, so this module reads the stream from the response body.

import { send } from "./api.js";

const AGAIN_MS = 2_000;

/** Calls `tell` with each event until `signal` aborts, and `changed` with whether there is a connection. */
export async function follow(query, tell, changed, signal) {
  let last = null;
  while (!signal.aborted) {
    try {
      const extra = { accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) };
      const response = await send("GET", "events/stream", { query, signal, extra });
      changed(true);
      for await (const message of messages(response.body)) {
        if (message.event === "gap") {
          last = null;
          break;
        }
        // The server failed to read the log: reconnect and continue after the last event.
        if (message.event === "error") break;
        if (message.id) last = message.id;
        if (message.data) tell(JSON.parse(message.data));
      }
    } catch (error) {
      if (signal.aborted) return;
      if ([401, 403].includes(error.status)) return changed(false, error);
      // The log may have dropped the last event: continue with new ones.
      if (error.status === 410) last = null;
    }
    changed(false);
    await rest(AGAIN_MS, signal);
  }
}

/** Waits, but no longer than until `signal` aborts. */
export function rest(ms, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done);
  });
}

async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) yield parse(block);
  }
}

function parse(block) {
  const message = {};
  for (const line of block.split("\n")) {
    const found = /^(\w+): ?(.*)$/.exec(line);
    if (found) message[found[1]] = found[1] === "data" && message.data ? `${message.data}\n${found[2]}` : found[2];
  }
  return message;
}
