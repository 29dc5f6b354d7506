// A payload as text, JSON or hex, and the headers of a message.

import { view as ask } from "./api.js";
import { h, problem } from "./dom.js";
import { bytesOf, hexDump, prettyJson, size, textOf, time, visible, visibleLines } from "./format.js";

/** The beginning of a payload in one line. */
export function preview(row, chars = 120) {
  const bytes = bytesOf(row.data);
  if (!row.size) return "(empty)";
  const text = textOf(bytes, bytes.length < row.size);
  if (text === null) return `${[...bytes.subarray(0, 32)].map((one) => one.toString(16).padStart(2, "0")).join(" ")}${row.size > 32 ? " …" : ""}`;
  const line = visible(text.replace(/\s+/g, " "));
  return line.length > chars || bytes.length < row.size ? `${line.slice(0, chars)}…` : line;
}

/** A payload with the choice of its form. */
export function payloadView(row) {
  const bytes = bytesOf(row.data);
  const text = textOf(bytes, bytes.length < row.size);
  const json = text === null ? null : prettyJson(text);
  const forms = { json: json === null ? null : visibleLines(json), text: text === null ? null : visibleLines(text), hex: hexDump(bytes) };
  const names = { json: "JSON", text: "Text", hex: "Hex" };
  const box = h("pre", { class: "payload", tabindex: 0 });
  const group = `form-${row.seq}-${Math.random().toString(36).slice(2)}`;
  const first = json !== null && /^\s*[[{]/.test(text) ? "json" : text !== null ? "text" : "hex";
  box.textContent = forms[first];
  const choice = (name) => h("label", {}, h("input", {
    type: "radio", name: group, value: name, checked: name === first, disabled: forms[name] === null,
    onchange: () => { box.textContent = forms[name]; },
  }), names[name]);
  const cut = bytes.length < row.size ? h("p", { class: "quiet" }, `The first ${size(bytes.length)} of ${size(row.size)}.`) : null;
  return h("div", {}, h("fieldset", { class: "forms" }, h("legend", {}, `Payload, ${size(row.size)}`), Object.keys(names).map(choice)), cut, box);
}

export function headersView(row) {
  if (!row.headers.length) return h("p", { class: "quiet" }, "No headers.");
  const more = row.headers_total - row.headers.length;
  return h("div", {}, h("table", { class: "headers" },
    h("caption", {}, "Headers"),
    h("tbody", {}, row.headers.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, visible(name)), h("td", {}, visible(value)))))),
  more > 0 && h("p", { class: "quiet" }, `and ${more} more`));
}

/** All of a message. */
export function messageView(row) {
  return h("div", { class: "message" },
    h("p", {}, h("strong", {}, visible(row.subject)), ` · sequence ${row.seq} · ${time(row.time)}`),
    headersView(row), payloadView(row));
}

/** The button of a row that shows all of its message, and the row below, which is asked for when it opens. */
export function wholeMessage(stream, seq, label, columns) {
  const id = `${label.toLowerCase()}-${seq}`;
  const inside = h("td", { colspan: columns });
  const below = h("tr", { id, hidden: true, class: "whole" }, inside);
  const toggle = async () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    below.hidden = !open;
    if (!open || inside.children.length) return;
    try {
      inside.replaceChildren(messageView(await ask("message", { stream, seq })));
    } catch (refused) {
      inside.replaceChildren(problem(refused.message));
    }
  };
  const button = h("button", { class: "toggle", "aria-expanded": "false", "aria-controls": id, onclick: toggle, "aria-label": `${label} ${seq}` }, String(seq));
  return { button, below };
}
