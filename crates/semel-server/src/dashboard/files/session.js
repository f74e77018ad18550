// The token and tenant of whoever looks. They are kept for this tab only, and sent as headers by this page alone: no
// cookie, so no other site can have a browser act with them.

import { ask } from "./dialog.js";
import { field, h } from "./dom.js";

const TOKEN = "semel.token";
const TENANT = "semel.tenant";

/** The headers of a request. */
export function headers() {
  const token = sessionStorage.getItem(TOKEN);
  const tenant = sessionStorage.getItem(TENANT);
  return {
    ...(token ? { authorization: `Bearer ${token}` } : {}),
    ...(tenant ? { "x-ojs-tenant": tenant } : {}),
  };
}

/** The tenant looked at, or nothing. */
export function tenant() {
  return sessionStorage.getItem(TENANT) ?? "";
}

/** Whether a token is sent. */
export function hasToken() {
  return sessionStorage.getItem(TOKEN) !== null;
}

let asking = null;

/** Asks for a token. Answers whether one was given; several who ask at once are answered together. */
export function askForToken(why) {
  asking ??= open(why).finally(() => (asking = null));
  return asking;
}

async function open(why) {
  const token = h("input", { type: "password", name: "token", autocomplete: "off", spellcheck: "false" });
  const named = h("input", { type: "text", name: "tenant", autocomplete: "off", spellcheck: "false", value: tenant() });
  const done = await ask({
    title: "Who is looking?",
    body: [
      h("p", {}, why),
      field("Token", token, "Kept in this tab until it is closed. Leave it empty to use none."),
      field("Tenant", named, "Empty for the default tenant."),
    ],
    yes: "Use it",
  });
  if (!done) return false;
  keep(TOKEN, token.value.trim());
  keep(TENANT, named.value.trim());
  dispatchEvent(new CustomEvent("session"));
  return true;
}

function keep(name, value) {
  if (value) sessionStorage.setItem(name, value);
  else sessionStorage.removeItem(name);
}
