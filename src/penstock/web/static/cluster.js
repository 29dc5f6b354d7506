// The other servers, and the replicated groups of this one.

import { live } from "./api.js";
import { h } from "./dom.js";
import { count, size, visible } from "./format.js";
import { searchForm } from "./streams.js";
import { Pager, Table } from "./table.js";

export function mount(root, query, view) {
  const intro = h("p", { class: "quiet" });
  const meta = new Table("Members of the cluster's meta group", [
    { title: "Server", cell: (row) => visible(row.name) },
    { title: "Role", cell: (row) => row.role },
    { title: "State", cell: (row) => (row.offline ? "offline" : row.current ? "up to date" : "behind") },
    { title: "Lag", number: true, cell: (row) => count(row.lag || 0) },
  ], (row) => row.name, "No cluster.");
  const routes = new Table("Routes to other servers", [
    { title: "Server", cell: (row) => visible(row.remote_name || row.remote_id || "–") },
    { title: "Address", cell: (row) => `${row.ip}:${row.port}` },
    { title: "Account", cell: (row) => visible(row.account || "all others") },
    { title: "Round trip", number: true, cell: (row) => row.rtt || "–" },
    { title: "Pending", number: true, cell: (row) => size(row.pending_size || 0) },
    { title: "Messages in", number: true, cell: (row) => count(row.in_msgs) },
    { title: "Messages out", number: true, cell: (row) => count(row.out_msgs) },
    { title: "Subscriptions", number: true, cell: (row) => count(row.subscriptions) },
  ], (row) => row.rid, "No routes.");
  const links = new Table("Gateways and leaf nodes", [
    { title: "Kind", cell: (row) => row.kind },
    { title: "Name", cell: (row) => visible(row.name) },
    { title: "Round trip", number: true, cell: (row) => row.rtt || "–" },
    { title: "Messages in", number: true, cell: (row) => count(row.in_msgs) },
    { title: "Messages out", number: true, cell: (row) => count(row.out_msgs) },
  ], (row) => `${row.kind} ${row.name} ${row.id}`, "None.");
  const groups = new Table("Replicated groups on this server", [
    { title: "Group", kind: "wrap", cell: (row) => visible(row.group) },
    { title: "Account", cell: (row) => visible(row.account) },
    { title: "State", cell: (row) => visible(String(row.state || "–").toLowerCase()) },
    { title: "Leader", cell: (row) => visible(row.leader || "none") },
    { title: "Term", number: true, cell: (row) => count(row.term) },
    { title: "Committed", number: true, cell: (row) => count(row.committed) },
    { title: "Applied", number: true, cell: (row) => count(row.applied) },
    { title: "Behind", number: true, cell: (row) => count(Math.max(0, (row.committed || 0) - (row.applied || 0))) },
  ], (row) => `${row.account} ${row.group}`, "No replicated groups.");
  const pager = new Pager("cluster", query);
  root.append(intro, h("h2", {}, "Members"), meta.element, h("h2", {}, "Routes"), routes.element,
    h("h2", {}, "Gateways and leaf nodes"), links.element,
    h("h2", {}, "Replicated groups"), searchForm("cluster", query, "Group contains"), groups.element, pager.element);
  return live("cluster", query, {
    ...view,
    slice(found) {
      view.well();
      const name = (found.cluster || {}).name;
      intro.textContent = name ? `Server ${visible(found.server)} of cluster ${visible(name)}.` : "This server is not a member of a cluster.";
      meta.update(members(found.meta, found.server));
      routes.update(found.routes);
      links.update([...gateways("gateway, out", found.outbound_gateways), ...gateways("gateway, in", found.inbound_gateways), ...found.leafs.map(leaf)]);
      groups.update(found.groups);
      pager.update(found);
    },
  });
}

function members(meta, own) {
  if (!meta) return [];
  const others = (meta.replicas || []).map((one) => ({ ...one, role: one.name === meta.leader ? "leader" : "follower" }));
  const names = new Set(others.map((one) => one.name));
  const missing = [meta.leader, own].filter((one, at, all) => one && !names.has(one) && all.indexOf(one) === at);
  return [...missing.map((one) => ({ name: one, role: one === meta.leader ? "leader" : "follower", current: true, lag: 0 })), ...others];
}

function gateways(kind, found) {
  return Object.entries(found || {}).flatMap(([name, one]) => (Array.isArray(one) ? one : [one]).map((entry) => ({ ...(entry.connection || {}), kind, name, id: (entry.connection || {}).cid })));
}

function leaf(one) {
  return { kind: "leaf node", name: one.name || one.ip, id: one.id || one.port, rtt: one.rtt, in_msgs: one.in_msgs, out_msgs: one.out_msgs };
}
