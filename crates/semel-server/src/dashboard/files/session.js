// The user's token and tenant. They are kept for this tab only and sent as headers by this page alone. There is no cookie,
// so no other site can make the browser act with them.

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

/** The current tenant, or an empty text for the default one. */
export function tenant() {
  return sessionStorage.getItem(TENANT) ?? "";
}

/** Whether a token is sent. */
export function hasToken() {
  return sessionStorage.getItem(TOKEN) !== null;
}

let asking = null;

/** Asks the user for a token; resolves to false if the user cancels. Callers that ask at the same time share one dialog. */
export function askForToken(why) {
  asking ??= open(why).finally(() => (asking = null));
  return asking;
}

async function open(why) {
  const token = h("input", { type: "password", name: "token", autocomplete: "off", spellcheck: "false" });
  const named = h("input", { type: "text", name: "tenant", autocomplete: "off", spellcheck: "false", value: tenant() });
  const done = await ask({
    title: "Token and tenant",
    body: [
      h("p", {}, why),
      field("Token", token, "Kept in this tab until you close it. Leave it empty to use none."),
      field("Tenant", named, "Leave it empty for the default tenant."),
    ],
    yes: "Apply",
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
