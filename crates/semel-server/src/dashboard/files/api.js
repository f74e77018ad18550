// The server's public API, as anybody could ask it.

import { askForToken, headers, tenant } from "./session.js";

/** Where the server is, as this module was loaded from it: below the prefix of the program that it is mounted in, if it is in one. */
const ROOT = new URL("..", import.meta.url).href;

/** A refusal: the server's code, sentence, hint and details. */
export class Refusal extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
    this.hint = error?.hint ?? "";
    this.details = error?.details ?? {};
  }
}

/** Sends a request, with the token there is. When the server wants one, it is asked for, and the request sent again: but
 * not to a tenant that was chosen meanwhile, for which it was not meant. */
export async function send(method, path, { query, body, signal, extra } = {}) {
  // A browser would go up by such a part, to another endpoint.
  if (path.split("/").some((part) => part === "." || part === "..")) throw new Error("There is nothing of that name.");
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
      // The server knows no cookies; the program that it is mounted in may.
      credentials: "same-origin",
      cache: "no-store",
    });
    if (response.ok) return response;
    const told = await response.json().catch(() => null);
    const refusal = new Refusal(response.status, told?.error);
    if (response.status !== 401 || attempt > 3 || !(await askForToken(refusal.message))) throw refusal;
    if (tenant() !== meant) throw new Error("Another tenant is looked at now, so this was not asked again.");
  }
}

async function answer(method, path, options) {
  const response = await send(method, path, options);
  const text = await response.text();
  return text === "" ? null : JSON.parse(text, exact);
}

/** Keeps the digits of an integer that a number of the browser would round, where the browser can. */
function exact(_, value, context) {
  if (typeof value !== "number" || Number.isSafeInteger(value) || !context?.source || !JSON.rawJSON) return value;
  return /^-?\d+$/.test(context.source) ? JSON.rawJSON(context.source) : value;
}

export const get = (path, query, signal) => answer("GET", path, { query, signal });
export const post = (path, body, signal) => answer("POST", path, { body, signal });
export const put = (path, body) => answer("PUT", path, { body });
export const patch = (path, body) => answer("PATCH", path, { body });
export const remove = (path, body) => answer("DELETE", path, { body });
/** The answer, or nothing where there is none or, unless `absent` says otherwise, it may not be seen. */
export async function maybe(answered, absent = [403, 404]) {
  try {
    return await answered;
  } catch (error) {
    if (error instanceof Refusal && absent.includes(error.status)) return null;
    throw error;
  }
}

/** A name as a part of a path. */
export const at = encodeURIComponent;
