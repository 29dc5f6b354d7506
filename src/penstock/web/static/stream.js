// One stream: its state, growth, consumers, and their lag over time.

import { live } from "./api.js";
import { Chart, Rate, sample } from "./chart.js";
import { card, figure, h, link, write } from "./dom.js";
import { compact, count, size, time, visible } from "./format.js";
import { replicaText } from "./streams.js";
import { Pager, Table } from "./table.js";

const CHARTS_MAX = 6;

export function mount(root, query, view) {
  const name = query.stream || "";
  view.heading.textContent = `Stream ${visible(name)}`;
  const stored = new Rate();
  const growth = new Chart("Messages stored per second", [{ series: `stored:${name}`, label: "stored" }], (value) => `${compact(value)}/s`);
  const lags = new Map();
  const lagGrid = h("div", { class: "grid" });
  const config = h("pre", { tabindex: 0 });
  const replicas = h("p", { class: "quiet" });
  const table = new Table(`Consumers of ${name}`, [
    { title: "Consumer", cell: (row) => visible(row.name) },
    { title: "Kind", cell: (row) => `${row.push ? "push" : "pull"}${row.durable ? "" : ", ephemeral"}${row.paused ? ", paused" : ""}` },
    { title: "Filter", kind: "wrap", cell: (row) => row.filters.map(visible).join(", ") || "all" },
    { title: "Lag", number: true, cell: (row) => count(row.pending) },
    { title: "Not acked", number: true, cell: (row) => `${count(row.ack_pending)}${row.max_ack_pending > 0 ? ` of ${count(row.max_ack_pending)}` : ""}` },
    { title: "Redelivered", number: true, cell: (row) => count(row.redelivered) },
    { title: "Waiting pulls", number: true, cell: (row) => count(row.waiting) },
    { title: "Delivered", number: true, cell: (row) => count(row.delivered_seq) },
    { title: "Ack floor", number: true, cell: (row) => count(row.ack_floor_seq) },
    { title: "Dead letters to", cell: (row) => visible(row.dead_letter || "–") },
  ], (row) => row.name, "No consumers.");
  const pager = new Pager("stream", query);
  root.append(
    h("p", {}, link("messages", { stream: name }, "Browse messages", { class: "button" }), " ", link("streams", {}, "All streams", { class: "button" })),
    h("div", { class: "grid" },
      card("State", h("dl", { class: "figures" },
        figure("Messages", "messages"), figure("Size", "bytes"),
        figure("First sequence", "first_seq"), figure("Last sequence", "last_seq"),
        figure("Subjects", "num_subjects"), figure("Deleted inside", "num_deleted"),
        figure("First message", "first_time"), figure("Last message", "last_time")), replicas),
      h("section", { class: "card", "aria-label": growth.title }, growth.element)),
    h("h2", {}, "Consumers"), table.element, pager.element,
    h("h2", {}, "Lag over time"), lagGrid,
    h("details", {}, h("summary", {}, "Configuration"), config),
  );

  function drawLag(rows, at) {
    for (const row of rows) {
      sample(`lag:${name}:${row.name}`, at, row.pending);
      sample(`acks:${name}:${row.name}`, at, row.ack_pending);
    }
    for (const row of rows.slice(0, CHARTS_MAX)) {
      if (!lags.has(row.name) && lags.size < CHARTS_MAX) {
        const made = new Chart(visible(row.name), [
          { series: `lag:${name}:${row.name}`, label: "lag" },
          { series: `acks:${name}:${row.name}`, label: "not acked" },
        ]);
        lags.set(row.name, made);
        lagGrid.append(h("section", { class: "card", "aria-label": `Lag of ${row.name}` }, made.element));
      }
      lags.get(row.name)?.draw();
    }
  }

  return live("stream", query, {
    ...view,
    slice(found) {
      view.well();
      const at = Date.now() / 1000;
      const one = found.stream;
      const rate = stored.of(at, one.last_seq);
      if (rate !== null) sample(`stored:${name}`, at, rate);
      growth.draw();
      table.update(found.rows);
      pager.update(found);
      drawLag(found.rows, at);
      const shown = JSON.stringify(one.config, null, 2);
      if (config.textContent !== shown) config.textContent = visible(shown).replaceAll("\\u000a", "\n");
      replicas.textContent = replicaText(one.cluster);
      write(root, {
        messages: count(one.messages), bytes: size(one.bytes), first_seq: count(one.first_seq),
        last_seq: count(one.last_seq), num_subjects: count(one.num_subjects), num_deleted: count(one.num_deleted),
        first_time: one.messages ? time(one.first_time) : "–", last_time: one.messages ? time(one.last_time) : "–",
      });
    },
  });
}

