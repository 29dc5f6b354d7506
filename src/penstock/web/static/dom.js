// Elements from plain values. Text always becomes a text node: nothing here, or anywhere on the page, turns a
// string into markup, because subjects, names, headers and payloads are written by others.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

/** An element: tag, attributes (`onclick` and such are listeners), children (strings or nodes). */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** A labelled input. kind: text, password, number, search, datetime-local, or a list of [value, text]. */
export function field(label, name, kind = "text", props = {}) {
  const id = `field-${name}`;
  let input;
  if (Array.isArray(kind)) {
    input = h("select", { id, name, ...props, value: undefined },
      kind.map(([value, text]) => h("option", { value, selected: value === props.value }, text)));
  } else if (kind === "textarea") {
    input = h("textarea", { id, name, rows: 8, spellcheck: "false", ...props });
  } else {
    input = h("input", { id, name, type: kind, autocomplete: "off", spellcheck: "false", ...props });
  }
  return h("div", { class: "field" }, h("label", { for: id }, label), input);
}

export function checkbox(label, name, checked, props = {}) {
  return h("label", { class: "check" }, h("input", { type: "checkbox", name, checked, ...props }), label);
}

/** The values of a form, without the empty ones. */
export function values(form) {
  const found = {};
  for (const [name, value] of new FormData(form)) if (value !== "") found[name] = value;
  return found;
}

export function link(path, query, text, props = {}) {
  return h("a", { href: address(path, query), ...props }, text);
}

/** The address of a view: `#/path?query`. */
export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const text = new URLSearchParams(given).toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

export function problem(text) {
  return h("p", { class: "problem", role: "alert" }, text);
}

/** A card with a heading. */
export function card(title, ...children) {
  return h("section", { class: "card", "aria-label": title }, h("h2", {}, title), ...children);
}

/** A number with its label. The number's node has the id, so that it can be updated. */
export function figure(label, id) {
  return h("div", { class: "figure" }, h("dt", {}, label), h("dd", { id }, "–"));
}

/** Writes texts into elements by id, where they changed. */
export function write(root, texts) {
  for (const [id, text] of Object.entries(texts)) {
    const element = root.querySelector(`#${id}`);
    if (element && element.textContent !== text) element.textContent = text;
  }
}
