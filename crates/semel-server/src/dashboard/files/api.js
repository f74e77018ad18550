// Requests to the server's public API. The dashboard uses nothing else.

import { askForToken, headers, tenant } from "./session.js";

/** The server's base URL, taken from where this module was loaded, so it includes the prefix at which a host program mounts the routes. */
const ROOT = new URL("..", import.meta.url).href;

/** An error answer: the server's code, message, hint and details. */
export class Refusal extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
    this.hint = error?.hint ?? "";
    this.details = error?.details ?? {};
  }
}

/** Sends a request with the stored token, if any. If the server requires one, asks the user for it and sends the request
 * again, unless the user chose another tenant meanwhile: the request was not meant for that one. */
export async function send(method, path, { query, body, signal, extra } = {}) {
  // The browser would resolve such a part and ask another endpoint.
  if (path.split("/").some((part) => part === "." || part === "..")) throw new Error("Nothing can be named “.” or “..”.");
  const meant = tenant();
  const set = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(set).toString();
  const address = `${ROOT}${path.startsWith("/") ? path.slice(1) : `ojs/v1/${path}`}${text ? `?${text}` : ""}`;
  for (let attempt = 0; ; attempt++) {
    const response = await fetch(address, {
      method,
      signal,
      headers: { ...headers(), ...(body === undefined ? {} : { "content-type": "application/json" }), ...extra },
      body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
      // The server uses no cookies, but the program that mounts it may.
      credentials: "same-origin",
      cache: "no-store",
    });
    if (response.ok) return response;
    const told = await response.json().catch(() => null);
    const refusal = new Refusal(response.status, told?.error);
    if (response.status !== 401 || attempt > 3 || !(await askForToken(refusal.message))) throw refusal;
    if (tenant() !== meant) throw new Error("You changed the tenant, so this request was not sent again.");
  }
}

async function answer(method, path, options) {
  const response = await send(method, path, options);
  const text = await response.text();
  return text === "" ? null : JSON.parse(text, exact);
}

/** Keeps all digits of an integer that JavaScript would round, in browsers that can. */
function exact(_, value, context) {
  if (typeof value !== "number" || Number.isSafeInteger(value) || !context?.source || !JSON.rawJSON) return value;
  return /^-?\d+$/.test(context.source) ? JSON.rawJSON(context.source) : value;
}

export const get = (path, query, signal) => answer("GET", path, { query, signal });
export const post = (path, body, signal) => answer("POST", path, { body, signal });
export const put = (path, body) => answer("PUT", path, { body });
export const patch = (path, body) => answer("PATCH", path, { body });
export const remove = (path, body) => answer("DELETE", path, { body });
/** The answer, or null if the server refused with a status in `absent`: by default if it is not there or may not be seen. */
export async function maybe(answered, absent = [403, 404]) {
  try {
    return await answered;
  } catch (error) {
    if (error instanceof Refusal && absent.includes(error.status)) return null;
    throw error;
  }
}

/** Escapes a name for use as one part of a path. */
export const at = encodeURIComponent;
