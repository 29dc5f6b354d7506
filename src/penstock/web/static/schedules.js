// Scheduled messages that wait in streams.

import { act, session, view as ask } from "./api.js";
import { address, field, h, problem, values } from "./dom.js";
import { size, visible } from "./format.js";
import { preview } from "./payload.js";
import { Table } from "./table.js";

export function mount(root, query, view) {
  let stopped = false;
  const outcome = h("div", { role: "status" });
  const chooser = h("div", {});
  const columns = [
    { title: "When", cell: (row) => visible(row.pattern) },
    { title: "Publishes to", kind: "subject", cell: (row) => visible(row.target) },
    { title: "Schedule's subject", kind: "subject", cell: (row) => visible(row.subject) },
    { title: "Sequence", number: true, cell: (row) => String(row.seq) },
    { title: "Size", number: true, cell: (row) => size(row.size) },
    { title: "Payload", kind: "preview", cell: (row) => preview(row) },
  ];
  if (session.writes) {
    columns.push({ title: "", fixed: true, cell: (row) => h("button", { onclick: () => cancel(row), "aria-label": `Cancel schedule ${row.seq}` }, "Cancel") });
  }
  const table = new Table("Schedules", columns, (row) => `${row.seq} ${row.subject}`, "No schedules.");
  root.append(chooser, outcome, table.element);
  let stream = "";

  async function cancel(row) {
    try {
      const found = await act("cancel-schedule", { stream, subject: row.subject, seq: row.seq });
      outcome.replaceChildren(h("p", { class: "done" }, found.cancelled ? "Cancelled." : "It has fired already."));
    } catch (refused) {
      outcome.replaceChildren(problem(refused.message));
    }
    await load();
  }

  async function load() {
    try {
      const found = await ask("schedules", query);
      if (stopped) return;
      view.well();
      stream = found.stream;
      table.update(found.rows);
      showChooser(found);
    } catch (refused) {
      view.failed(refused.message);
    }
  }

  function showChooser(found) {
    if (!found.stream) {
      chooser.replaceChildren(h("p", { class: "quiet" }, "No stream of this account takes schedules (allow_msg_schedules)."));
      return;
    }
    if (chooser.children.length) return;
    const names = found.streams.includes(found.stream) ? found.streams : [found.stream, ...found.streams];
    const form = h("form", {
      class: "search",
      onsubmit: (event) => {
        event.preventDefault();
        const next = address("schedules", values(form));
        if (location.hash === next) load();
        else location.hash = next;
      },
    },
    field("Stream", "stream", names.map((name) => [name, visible(name)]), { value: found.stream }),
    field("Schedule's subject", "subject", "text", { value: query.subject || "", placeholder: "all" }),
    h("button", {}, "Show"));
    chooser.replaceChildren(form, found.complete ? "" : h("p", { class: "quiet" }, "The stream has more subjects than this page looks through: narrow the subject."));
  }

  load();
  const timer = setInterval(load, 5000);
  return () => {
    stopped = true;
    clearInterval(timer);
  };
}
