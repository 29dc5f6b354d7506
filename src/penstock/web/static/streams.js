// The streams of the user's account.

import { live } from "./api.js";
import { address, field, h, link, values } from "./dom.js";
import { count, size, time, visible } from "./format.js";
import { Pager, Table } from "./table.js";

/** A search form that changes the address. */
export function searchForm(path, query, label) {
  const form = h("form", {
    class: "search", role: "search",
    onsubmit: (event) => {
      event.preventDefault();
      location.hash = address(path, { ...query, offset: "", filter: "", ...values(form) });
    },
  }, field(label, "filter", "search", { value: query.filter || "" }), h("button", {}, "Search"));
  return form;
}

export function mount(root, query, view) {
  const table = new Table("Streams", [
    { title: "Stream", fixed: true, cell: (row) => link("stream", { stream: row.name }, visible(row.name)) },
    { title: "Subjects", kind: "wrap", cell: (row) => row.subjects.map(visible).join(", ") + (row.subjects_total > row.subjects.length ? ` and ${row.subjects_total - row.subjects.length} more` : "") || "–" },
    { title: "Messages", number: true, cell: (row) => count(row.messages) },
    { title: "Size", number: true, cell: (row) => size(row.bytes) },
    { title: "Last sequence", number: true, cell: (row) => count(row.last_seq) },
    { title: "Consumers", number: true, cell: (row) => count(row.consumers) },
    { title: "Storage", cell: (row) => [row.storage, row.retention === "limits" ? "" : row.retention, row.replicas > 1 ? `${row.replicas} replicas` : ""].filter(Boolean).join(" · ") },
    { title: "Last message", cell: (row) => (row.messages ? time(row.last_time).slice(0, 19) : "–") },
    { title: "", fixed: true, cell: (row) => link("messages", { stream: row.name }, "Browse", { class: "button", "aria-label": `Browse ${row.name}` }) },
  ], (row) => row.name, "No streams.");
  const pager = new Pager("streams", query);
  root.append(searchForm("streams", query, "Name contains"), table.element, pager.element);
  return live("streams", query, {
    ...view,
    slice(found) {
      view.well();
      table.update(found.rows);
      pager.update(found);
    },
  });
}

/** Leader and replicas in words. */
export function replicaText(cluster) {
  if (!cluster || !(cluster.replicas || []).length) return "";
  const others = cluster.replicas.map((one) => `${visible(one.name)}${one.offline ? " (offline)" : one.current ? "" : ` (behind by ${count(one.lag || 0)})`}`);
  return `leader ${visible(cluster.leader || "none")}, replicas ${others.join(", ")}`;
}

