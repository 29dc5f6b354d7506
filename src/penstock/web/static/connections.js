// Connections with their pressure, and accounts with their traffic.

import { live } from "./api.js";
import { address, field, figure, h, link, values, write } from "./dom.js";
import { count, size, visible } from "./format.js";
import { searchForm } from "./streams.js";
import { Pager, Table } from "./table.js";

const SORTS = [
  ["pending", "pending bytes"], ["cid", "number"], ["subs", "subscriptions"], ["msgs_to", "messages sent"],
  ["msgs_from", "messages received"], ["bytes_to", "bytes sent"], ["bytes_from", "bytes received"], ["idle", "idle time"], ["rtt", "round trip"],
];

export function mount(root, query, view) {
  const form = h("form", { class: "search", onsubmit: (event) => event.preventDefault() },
    field("Most first, by", "sort", SORTS, {
      value: query.sort || "pending", onchange: () => { location.hash = address("connections", { account: query.account, ...values(form) }); },
    }));
  let pendingMax = 1;
  const table = new Table("Connections", [
    { title: "No.", number: true, cell: (row) => String(row.cid) },
    { title: "Client", kind: "wrap", cell: (row) => visible(row.name || row.lang || "–") },
    { title: "Address", cell: (row) => `${row.ip}:${row.port}` },
    { title: "Account / user", kind: "wrap", cell: (row) => visible([row.account, row.authorized_user].filter(Boolean).join(" / ") || "–") },
    { title: "Pending", number: true, cell: (row) => h("span", { class: "pressure" }, h("meter", { min: 0, max: pendingMax, high: pendingMax / 2, value: row.pending_bytes, "aria-label": "Pending bytes" }), size(row.pending_bytes)) },
    { title: "Stalls", number: true, cell: (row) => count(row.stalls || 0) },
    { title: "Sent", number: true, cell: (row) => `${count(row.out_msgs)} · ${size(row.out_bytes)}` },
    { title: "Received", number: true, cell: (row) => `${count(row.in_msgs)} · ${size(row.in_bytes)}` },
    { title: "Subscr.", number: true, cell: (row) => count(row.subscriptions) },
    { title: "Round trip", number: true, cell: (row) => row.rtt || "–" },
    { title: "Idle", cell: (row) => row.idle },
  ], (row) => row.cid, "No connections.");
  const pager = new Pager("connections", query);
  root.append(
    h("dl", { class: "figures card" }, figure("Connections", "total"), figure("Slow consumers so far", "slow"), figure("Pauses of publishers", "stalled"), figure("Most pending bytes", "limit")),
    form, query.account ? h("p", {}, `Of account ${visible(query.account)}. `, link("connections", {}, "Show all")) : "",
    table.element, pager.element);
  return live("connections", query, {
    ...view,
    slice(found) {
      view.well();
      pendingMax = found.max_pending || 1;
      table.update(found.rows);
      pager.update(found);
      write(root, { total: count(found.total), slow: count(found.slow_consumers), stalled: count(found.stalled_clients), limit: size(found.max_pending) });
    },
  });
}

export function mountAccounts(root, query, view) {
  const table = new Table("Accounts", [
    { title: "Account", fixed: true, cell: (row) => link("connections", { account: row.acc }, visible(row.name || row.acc)) },
    { title: "Connections", number: true, cell: (row) => count(row.conns) },
    { title: "Leaf nodes", number: true, cell: (row) => count(row.leafnodes) },
    { title: "Subscriptions", number: true, cell: (row) => count(row.num_subscriptions) },
    { title: "Messages sent", number: true, cell: (row) => count(row.sent.msgs) },
    { title: "Bytes sent", number: true, cell: (row) => size(row.sent.bytes) },
    { title: "Messages received", number: true, cell: (row) => count(row.received.msgs) },
    { title: "Bytes received", number: true, cell: (row) => size(row.received.bytes) },
    { title: "Slow consumers", number: true, cell: (row) => count(row.slow_consumers) },
  ], (row) => row.acc, "No accounts.");
  const pager = new Pager("accounts", query);
  root.append(searchForm("accounts", query, "Name contains"), table.element, pager.element);
  return live("accounts", query, {
    ...view,
    slice(found) {
      view.well();
      table.update(found.rows);
      pager.update(found);
    },
  });
}
