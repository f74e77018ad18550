// What a test does and sees on a page. Elements are found by their accessible names, as people and screen readers find them.

globalThis.hand = (() => {
  const PRESSED = "button, a[href], summary, label.chip, [role=tab]";
  const FIELDS = "input, textarea, select";
  const scope = () => document.querySelector("dialog[open]") ?? document.body;
  const isSeen = (node) => node.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && node.getClientRects().length > 0;
  const text = (node) => node.textContent.replace(/\s+/g, " ").trim();

  /** The element's accessible name: what a screen reader calls it. */
  const nameOf = (node) => {
    const given = node.getAttribute("aria-label");
    if (given) return given.trim();
    const by = node.getAttribute("aria-labelledby");
    if (by) return by.split(/\s+/).map((id) => text(document.getElementById(id))).join(" ");
    if (node.matches(FIELDS)) {
      const label = node.labels?.[0];
      return label ? text(label.querySelector("span") ?? label) : "";
    }
    return text(node) || node.getAttribute("title") || "";
  };
  const all = (selector) => [...scope().querySelectorAll(selector)].filter(isSeen);
  const middle = (node) => {
    node.scrollIntoView({ block: "center", inline: "center" });
    const box = node.getClientRects()[0];
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    const hit = document.elementFromPoint(x, y);
    // An element that another one covers cannot be pressed.
    return hit && (node.contains(hit) || hit.contains(node)) ? { x, y } : null;
  };

  /** Whether the screen that the address names is fully loaded, and no pressed button is still working. */
  const isSettled = () => {
    const main = document.querySelector("#main");
    if (document.readyState !== "complete" || !main.querySelector("h1") || main.dataset.place !== location.hash) return false;
    const isBusy = document.querySelector("[aria-busy]") !== null || main.textContent.includes("Reading the log");
    // The button that opened a dialog stays disabled until the dialog is answered.
    return !isBusy && (document.querySelector("dialog[open]") !== null || document.querySelector("button:disabled") === null);
  };

  const colours = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    colours.clearRect(0, 0, 1, 1);
    colours.fillStyle = colour;
    colours.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = colours.getImageData(0, 0, 1, 1).data;
    return { r, g, b, a: a / 255 };
  };
  const over = (top, below, alpha = top.a) => ({
    r: top.r * alpha + below.r * (1 - alpha), g: top.g * alpha + below.g * (1 - alpha), b: top.b * alpha + below.b * (1 - alpha), a: 1,
  });
  const light = ({ r, g, b }) => {
    const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ratio = (one, other) => {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  /** The background colour behind a node's text. */
  const ground = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), rgba("canvas"));
  };
  const opacity = (node) => {
    let share = 1;
    for (let at = node; at; at = at.parentElement) share *= Number(getComputedStyle(at).opacity);
    return share;
  };
  const contrast = (node, colour, below = ground(node)) => {
    const top = rgba(colour);
    return ratio(over(top, below, top.a * opacity(node)), below);
  };

  /** Texts whose contrast is below what WCAG 2 requires of small text (1.4.3, AA). */
  const faint = () => {
    const found = [];
    const check = (node, colour, words, below) => {
      const value = contrast(node, colour, below);
      if (value < 4.5) found.push(`contrast ${value.toFixed(2)}: ${words.slice(0, 40)} (${node.tagName.toLowerCase()}.${node.getAttribute("class") ?? ""})`);
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const done = new Set();
    for (let leaf = walker.nextNode(); leaf; leaf = walker.nextNode()) {
      const node = leaf.parentElement;
      if (leaf.data.trim() === "" || done.has(node) || !isSeen(node) || node.closest("noscript, title, datalist, option, :disabled")) continue;
      done.add(node);
      const style = getComputedStyle(node);
      const shape = node.closest("svg") ? node.parentElement.querySelector(":scope > rect") : null;
      if (node.closest("svg")) {
        if (node.tagName === "text") check(node, style.fill, leaf.data.trim(), shape ? over(rgba(getComputedStyle(shape).fill), ground(node.closest("svg"))) : undefined);
      } else check(node, style.color, leaf.data.trim());
    }
    for (const node of document.querySelectorAll("body *")) {
      if (!isSeen(node)) continue;
      for (const pseudo of ["::before", "::after"]) {
        const style = getComputedStyle(node, pseudo);
        const words = style.content;
        if (words && words !== "none" && words !== "normal" && words !== '""') check(node, style.color, words);
      }
      if (node.matches("input[placeholder]") && node.value === "") check(node, getComputedStyle(node, "::placeholder").color, node.placeholder);
      if (node.matches("input:not([type=checkbox]), textarea, select")) check(node, getComputedStyle(node).color, node.value || node.name);
    }
    return found;
  };

  /** Problems for users of a screen reader, a keyboard without a mouse, or a small screen. */
  const wrongs = () => {
    const found = faint();
    for (const node of document.querySelectorAll(FIELDS)) if (isSeen(node) && nameOf(node) === "") found.push(`a field without a label: ${node.outerHTML.slice(0, 80)}`);
    for (const node of document.querySelectorAll("button, a, summary, [role=img], [role=region], meter, progress, nav")) {
      if (isSeen(node) && nameOf(node) === "") found.push(`without a name: ${node.outerHTML.slice(0, 80)}`);
    }
    for (const node of document.querySelectorAll("[aria-labelledby]")) if (nameOf(node) === "") found.push("a label that names nothing");
    const names = all("button").map(nameOf);
    for (const name of new Set(names)) if (names.filter((other) => other === name).length > 1) found.push(`two buttons are called ${name}`);
    const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
    for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) found.push(`two things have the id ${id}`);
    if (all("h1").length !== 1 && !document.querySelector("dialog[open]")) found.push(`${all("h1").length} headings of the first order`);
    if (document.title.trim() === "" || document.documentElement.lang === "") found.push("no title or language");
    const page = document.documentElement;
    if (page.scrollWidth > innerWidth + 1) found.push(`the page is ${page.scrollWidth} wide in a window of ${innerWidth}`);
    for (const node of all("table, dialog, h1, .facts, .actions, form")) {
      const inside = node.closest(".scroll, #menu") ?? document.documentElement;
      if (inside === document.documentElement && node.getBoundingClientRect().right > innerWidth + 1) found.push(`cut off: ${nameOf(node).slice(0, 40)}`);
    }
    return found;
  };

  /** The elements that the keyboard must reach. */
  const reachable = () => all(`${FIELDS}, button, a[href], summary, [tabindex="0"]`).filter((node) => !node.disabled && !(node.type === "radio" && !node.checked));
  const focused = () => {
    const node = document.activeElement;
    if (!node || node === document.body) return null;
    const style = getComputedStyle(node);
    const isMarked = node.matches(":focus-visible") && ((style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0));
    return { at: reachable().indexOf(node), name: nameOf(node) || node.tagName, isMarked };
  };

  return {
    all, nameOf, isSettled, wrongs, focused,
    count: () => reachable().length,
    rest: () => (document.activeElement?.blur(), getSelection().removeAllRanges(), true),
    go: (place) => void (location.hash === place ? dispatchEvent(new HashChangeEvent("hashchange")) : (location.hash = place)),
    shows: (words) => scope().textContent.replace(/\s+/g, " ").includes(words) || (document.querySelector(".toast")?.textContent ?? "").includes(words),
    buttons: () => all("button:not(:disabled)").map(nameOf),
    links: () => [...new Set([...document.querySelectorAll("#main a[href^='#/']")].map((node) => node.getAttribute("href")))],
    problem: () => document.querySelector(".problem")?.textContent ?? "",
    spot: (name) => {
      const found = all(PRESSED).find((node) => nameOf(node) === name && !node.disabled);
      return found ? middle(found) : null;
    },
    take: (name) => {
      const found = all(FIELDS).find((node) => nameOf(node) === name && !node.disabled);
      if (!found) return null;
      found.focus();
      found.select?.();
      return true;
    },
    choose: (name, value) => {
      const found = all("select").find((node) => nameOf(node) === name);
      if (!found) return null;
      found.value = value;
      found.dispatchEvent(new Event("change", { bubbles: true }));
      return true;
    },
    // A closed dialog stays in the page until the browser has fired its event, so for a moment there could be two.
    dialog: () => document.querySelector("dialog h2")?.textContent ?? "",
    toast: () => document.querySelector(".toast")?.textContent ?? "",
  };
})();
