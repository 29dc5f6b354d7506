// Dead letters: messages that consumers gave up. A list, and replay to their original subjects.

import { act, session, view as ask } from "./api.js";
import { address, checkbox, field, h, link, problem, values } from "./dom.js";
import { count, time, visible } from "./format.js";
import { wholeMessage } from "./payload.js";
import { READ_ONLY } from "./publish.js";

const NUMBERS = new Set(["Sequence", "Deliveries"]);
const REPLAYS_MAX = 100;

export function mount(root, query, view) {
  let stopped = false;
  const picked = new Set();
  const outcome = h("div", { role: "status" });
  const body = h("tbody", {});
  const all = h("input", { type: "checkbox", "aria-label": "Select all shown letters", onchange: () => pickAll(all.checked) });
  const button = h("button", { class: "primary", disabled: true, onclick: replay }, "Replay selected");
  const remove = checkbox("and delete them here", "remove", true);
  const more = h("button", { hidden: true }, "Show more");
  const heads = ["Sequence", "Given up by", "Original subject", "Reason", "Deliveries", "Given up at"].map((text) => h("th", { scope: "col", class: NUMBERS.has(text) ? "number" : "" }, text));
  const chooser = h("div", {});
  const scroller = { class: "scroll", tabindex: 0, role: "region", "aria-label": "Dead letters" };
  root.append(
    chooser,
    session.writes ? h("div", { class: "actions" }, button, remove) : h("p", { class: "quiet" }, READ_ONLY),
    outcome,
    h("div", scroller, h("table", {}, h("caption", { class: "unseen" }, "Dead letters"), h("thead", {}, h("tr", {}, session.writes && h("th", {}, all), heads)), body)),
    more);
  let stream = query.stream || "";

  function pickAll(checked) {
    for (const box of body.querySelectorAll("input[type=checkbox].pick")) {
      box.checked = checked;
      if (checked) picked.add(Number(box.value));
      else picked.delete(Number(box.value));
    }
    showPicked();
  }

  function showPicked() {
    button.disabled = !picked.size;
    button.textContent = picked.size ? `Replay selected (${picked.size})` : "Replay selected";
  }

  async function replay() {
    button.disabled = true;
    const sequences = [...picked].sort((one, other) => one - other);
    const results = [];
    try {
      for (let at = 0; at < sequences.length; at += REPLAYS_MAX) {
        const part = sequences.slice(at, at + REPLAYS_MAX);
        results.push(...(await act("replay", { stream, sequences: part, remove: remove.firstChild.checked })).results);
      }
      const failed = results.filter((one) => one.error || one.kept);
      outcome.replaceChildren(
        h("p", { class: "done" }, `${count(results.filter((one) => !one.error).length)} of ${count(results.length)} letters replayed.`),
        ...failed.slice(0, 20).map((one) => problem(`Letter ${one.seq}: ${visible(one.error || `replayed, but kept: ${one.kept}`)}`)));
    } catch (refused) {
      outcome.replaceChildren(problem(refused.message));
    }
    picked.clear();
    all.checked = false;
    showPicked();
    await load({});
  }

  async function load(from) {
    try {
      const found = await ask("dead-letters", { ...query, ...from });
      if (stopped) return;
      view.well();
      stream = found.stream;
      showChooser(chooser, found);
      if (!from.seq) body.replaceChildren();
      for (const row of found.rows) body.append(...letterRows(stream, row, picked, showPicked));
      if (!body.children.length) body.append(h("tr", {}, h("td", { colspan: 7, class: "empty" }, stream ? "No dead letters in this stream." : "No consumer sends its dead letters to a stream.")));
      more.hidden = !found.more;
      more.onclick = () => load({ seq: found.more });
    } catch (refused) {
      view.failed(refused.message);
    }
  }

  load({});
  return () => {
    stopped = true;
  };
}

function showChooser(root, found) {
  if (!found.streams.length && !found.stream) {
    root.replaceChildren(h("p", { class: "quiet" }, "A consumer moves the messages it gives up when its metadata names a subject: penstock.dead_letter."));
    return;
  }
  const names = found.streams.map((one) => one.name);
  if (!names.includes(found.stream)) names.unshift(found.stream);
  const form = h("form", { class: "search", onsubmit: (event) => event.preventDefault() },
    field("Stream of dead letters", "stream", names.map((name) => [name, visible(name)]), {
      value: found.stream, onchange: () => { location.hash = address("dead-letters", values(form)); },
    }));
  const sources = (found.streams.find((one) => one.name === found.stream) || { sources: [] }).sources;
  root.replaceChildren(form,
    sources.length ? h("p", { class: "quiet" }, `Letters of ${sources.slice(0, 8).map(visible).join(", ")}${sources.length > 8 ? ` and ${sources.length - 8} more` : ""}.`) : "",
    found.complete ? "" : h("p", { class: "quiet" }, "There are more consumers than this page asks; name other streams in the address."));
}

function letterRows(stream, row, picked, changed) {
  const { button, below } = wholeMessage(stream, row.seq, "Letter", 7);
  const box = h("input", {
    type: "checkbox", class: "pick", value: row.seq, "aria-label": `Select letter ${row.seq}`,
    onchange: () => { if (box.checked) picked.add(row.seq); else picked.delete(row.seq); changed(); },
  });
  const line = h("tr", {}, session.writes && h("td", {}, box),
    h("td", { class: "number" }, button),
    h("td", {}, link("stream", { stream: row.stream }, visible(row.stream)), ` › ${visible(row.consumer)}`),
    h("td", { class: "subject" }, visible(row.subject)),
    h("td", { class: "wrap" }, visible(row.reason)),
    h("td", { class: "number" }, visible(row.deliveries)),
    h("td", {}, time(row.time)));
  return [line, below];
}
