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

/** Replaces the children of a node. */
export function put(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** A field with its label and an optional hint. */
export function field(label, input, hint) {
  return h("label", { class: "field" }, h("span", {}, label), input, hint ? h("small", {}, hint) : null);
}

/** A `select` whose options are each a text, or a pair of value and text. */
export function select(name, values, chosen) {
  const option = (item) => {
    const [value, text] = Array.isArray(item) ? item : [item, item];
    return h("option", { value, selected: value === chosen }, text);
  };
  return h("select", { name }, values.map(option));
}

/** A button that is disabled while its action runs. Disabling takes the focus from it, so it gets the focus back afterwards. */
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

/** A form that passes its non-empty fields to `submit` by name. Fields of one name are joined by commas. */
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

/** A list of names and values, without those whose value is missing. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** A section of a screen, with a heading. */
export function part(title, ...children) {
  return h("section", { class: "part" }, h("h2", {}, title), children);
}

/** JSON, indented for reading. */
export function json(value) {
  return h("pre", { class: "json", tabindex: "0" }, JSON.stringify(value, null, 2));
}

/** A sentence shown in place of missing content. */
export function none(text) {
  return h("p", { class: "none" }, text);
}
