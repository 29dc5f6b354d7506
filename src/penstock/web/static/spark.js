// Spark's streaming queries, by the progress reports they publish.

import { live } from "./api.js";
import { Chart, sample } from "./chart.js";
import { h } from "./dom.js";
import { compact, count, time, visible } from "./format.js";
import { Table } from "./table.js";

const CHARTS_MAX = 6;

export function mount(root, query, view) {
  const hint = h("p", { class: "quiet" });
  const charts = new Map();
  const grid = h("div", { class: "grid" });
  const table = new Table("Spark queries", [
    { title: "Query", kind: "wrap", cell: (row) => visible(row.name || row.id) },
    { title: "Reads", kind: "wrap", cell: (row) => row.sources.map(visible).join(", ") || "–" },
    { title: "Batch", number: true, cell: (row) => count(row.batch) },
    { title: "Rows in it", number: true, cell: (row) => count(row.rows) },
    { title: "Lag", number: true, cell: (row) => count(row.lag) },
    { title: "Rows in per second", number: true, cell: (row) => compact(row.in_per_s) },
    { title: "Rows processed per second", number: true, cell: (row) => compact(row.done_per_s) },
    { title: "Batch took", number: true, cell: (row) => `${count(row.batch_ms)} ms` },
    { title: "Reported", cell: (row) => time(row.time) },
  ], (row) => row.id, "No query has reported since this view was opened.");
  root.append(hint, table.element, grid);
  return live("spark", {}, {
    ...view,
    slice(found) {
      view.well();
      const strange = found.unreadable ? ` ${count(found.unreadable)} messages there were no reports.` : "";
      hint.textContent = `Queries report to ${found.subject}.${strange}`;
      table.update(found.rows);
      const at = Date.now() / 1000;
      for (const row of found.rows.slice(0, CHARTS_MAX)) {
        sample(`spark:${row.id}`, at, row.lag);
        if (!charts.has(row.id) && charts.size < CHARTS_MAX) {
          const title = `Lag of ${visible(row.name || row.id)}`;
          const made = new Chart(title, [{ series: `spark:${row.id}`, label: "messages" }]);
          charts.set(row.id, made);
          grid.append(h("section", { class: "card", "aria-label": title }, made.element));
        }
        charts.get(row.id)?.draw();
      }
    },
  });
}
