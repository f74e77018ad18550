// Elements. Text always goes in as a text node, so nothing that a job carries can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Properties beginning with `on` are listeners; false and null leave an attribute out. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** An SVG element. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Puts children in the place of what is in a node. */
export function put(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** A label and its field, joined. */
export function field(label, input, hint) {
  return h("label", { class: "field" }, h("span", {}, label), input, hint ? h("small", {}, hint) : null);
}

/** A `select` of values, each a text or a pair of value and text. */
export function select(name, values, chosen) {
  const option = (item) => {
    const [value, text] = Array.isArray(item) ? item : [item, item];
    return h("option", { value, selected: value === chosen }, text);
  };
  return h("select", { name }, values.map(option));
}

/** A button that does something; while it does, it cannot be pressed again. Afterwards it has the focus that it lost by that. */
export function button(text, act, props) {
  const press = async (event) => {
    node.disabled = true;
    try {
      await act(event);
    } finally {
      node.disabled = false;
      if (node.isConnected && document.activeElement === document.body) node.focus({ preventScroll: true });
    }
  };
  const node = h("button", { type: "button", ...props, onclick: press }, text);
  return node;
}

/** A form whose fields, by name and without the empty ones, go to `submit`. */
export function form(props, submit, ...children) {
  const send = (event) => {
    event.preventDefault();
    const fields = {};
    for (const [name, value] of new FormData(event.currentTarget)) {
      const text = value.trim();
      if (text !== "") fields[name] = name in fields ? `${fields[name]},${text}` : text;
    }
    submit(fields);
  };
  return h("form", { ...props, onsubmit: send }, children);
}

/** Names and what they stand for. Values that are missing are left out. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** A part of a screen with a heading. */
export function part(title, ...children) {
  return h("section", { class: "part" }, h("h2", {}, title), children);
}

/** JSON for people. */
export function json(value) {
  return h("pre", { class: "json", tabindex: "0" }, JSON.stringify(value, null, 2));
}

/** A sentence instead of something that is not there. */
export function none(text) {
  return h("p", { class: "none" }, text);
}
