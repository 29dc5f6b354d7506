// The message browser: filters, a list, and each message whole.

import { view as ask } from "./api.js";
import { address, field, h, link, values } from "./dom.js";
import { count, size, time, visible } from "./format.js";
import { preview, wholeMessage } from "./payload.js";

const NUMBERS = new Set(["Sequence", "Size"]);
const TIMES = ["since", "until"];

/** The same moment for an input of type datetime-local. */
function localTime(text) {
  const date = new Date(text);
  if (!text || Number.isNaN(date.getTime())) return "";
  return new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

function chosen(form) {
  const found = values(form);
  for (const name of TIMES) if (found[name]) found[name] = new Date(found[name]).toISOString();
  return found;
}

export function mount(root, query, view) {
  let stopped = false;
  const known = h("datalist", { id: "known-streams" });
  const form = h("form", {
    class: "filters", "aria-label": "Filters",
    onsubmit: (event) => {
      event.preventDefault();
      const next = address("messages", chosen(form));
      if (location.hash === next) load({});
      else location.hash = next;
    },
  },
  field("Stream", "stream", "text", { value: query.stream || "", list: "known-streams", required: true }), known,
  field("Subject", "subject", "text", { value: query.subject || "", placeholder: "orders.*.eu" }),
  field("Header", "header", "text", { value: query.header || "", placeholder: "Name: text" }),
  field("Payload contains", "text", "text", { value: query.text || "" }),
  field("Since", "since", "datetime-local", { value: localTime(query.since), step: 1 }),
  field("Until", "until", "datetime-local", { value: localTime(query.until), step: 1 }),
  field("Sequence", "seq", "number", { value: query.seq || "", min: 1 }),
  field("Order", "order", [["newest", "newest first"], ["oldest", "oldest first"]], { value: query.order || "newest" }),
  h("button", { class: "primary" }, "Show"));
  const summary = h("p", { class: "quiet", role: "status" });
  const body = h("tbody", {});
  const heads = ["Sequence", "Time", "Subject", "Size", "Payload"].map((text) => h("th", { scope: "col", class: NUMBERS.has(text) ? "number" : "" }, text));
  const scroller = { class: "scroll", tabindex: 0, role: "region", "aria-label": "Messages" };
  const list = h("div", scroller, h("table", { class: "messages" }, h("caption", { class: "unseen" }, "Messages"), h("thead", {}, h("tr", {}, heads)), body));
  const more = h("button", { hidden: true }, "Show more");
  root.append(form, summary, list, more);
  list.hidden = true;

  async function load(from) {
    const asked = { ...query, ...from };
    summary.textContent = "Reading…";
    try {
      const found = await ask("messages", asked);
      if (stopped) return;
      view.well();
      list.hidden = false;
      if (!from.seq) body.replaceChildren();
      for (const row of found.rows) body.append(...messageRows(found.stream, row));
      const range = found.messages ? `${count(found.messages)} messages, sequences ${count(found.first_seq)} to ${count(found.last_seq)}` : "The stream is empty";
      summary.textContent = `${range}. ${count(body.children.length / 2)} shown, ${count(found.read)} read in the last step.`;
      more.hidden = !found.more;
      more.onclick = () => load({ seq: found.more });
    } catch (refused) {
      summary.textContent = "";
      view.failed(refused.message);
    }
  }

  ask("streams", { limit: 200 }).then((found) => known.append(...found.rows.map((row) => h("option", {}, row.name))), () => {});
  if (query.stream) load({});
  return () => {
    stopped = true;
  };
}

/** The row of a message, and the row below with all of it. */
function messageRows(stream, row) {
  const { button, below } = wholeMessage(stream, row.seq, "Message", 5);
  const line = h("tr", {},
    h("td", { class: "number" }, button), h("td", {}, time(row.time)),
    h("td", { class: "subject" }, link("messages", { stream, subject: row.subject }, visible(row.subject))),
    h("td", { class: "number" }, size(row.size)), h("td", { class: "preview" }, preview(row)));
  return [line, below];
}
