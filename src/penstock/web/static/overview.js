// The server at a glance: health, rates, memory, processor, connections, JetStream.

import { live } from "./api.js";
import { Chart, Rate, sample } from "./chart.js";
import { badge, card, figure, h, link, write } from "./dom.js";
import { compact, count, size, visible } from "./format.js";

const perSecond = (value) => `${compact(value)}/s`;
const bytesPerSecond = (value) => `${size(Math.round(value))}/s`;
const COUNTERS = ["in_msgs", "out_msgs", "in_bytes", "out_bytes"];

export function mount(root, query, view) {
  const rates = Object.fromEntries(COUNTERS.map((name) => [name, new Rate()]));
  const charts = [
    new Chart("Messages per second", [{ series: "rate:in_msgs", label: "in" }, { series: "rate:out_msgs", label: "out" }], perSecond),
    new Chart("Bytes per second", [{ series: "rate:in_bytes", label: "in" }, { series: "rate:out_bytes", label: "out" }], bytesPerSecond),
    new Chart("Memory", [{ series: "mem", label: "process" }], size),
    new Chart("Processor", [{ series: "cpu", label: "of one core" }], (value) => `${compact(value)} %`),
  ];
  const health = h("div", { class: "health", id: "health" });
  root.append(
    health,
    h("div", { class: "grid" }, charts.map((one) => h("section", { class: "card", "aria-label": one.title }, one.element))),
    h("div", { class: "grid" },
      card("Clients", h("dl", { class: "figures" },
        figure("Connections", "connections"), figure("Since the start", "total_connections"),
        figure("Subscriptions", "subscriptions"), figure("Slow consumers", "slow_consumers"),
        figure("Accounts", "accounts"), figure("Leaf nodes", "leafnodes"))),
      card("Traffic", h("dl", { class: "figures" },
        figure("Messages in", "in_msgs"), figure("Messages out", "out_msgs"),
        figure("Bytes in", "in_bytes"), figure("Bytes out", "out_bytes"),
        figure("Routes", "routes"), figure("Largest message", "max_payload"))),
      card("JetStream, all accounts", h("dl", { class: "figures" },
        figure("Streams", "js_streams"), figure("Consumers", "js_consumers"),
        figure("Messages", "js_messages"), figure("Bytes", "js_bytes"),
        figure("Memory used", "js_memory"), figure("Storage used", "js_storage"),
        figure("API requests", "js_api"), figure("API errors", "js_errors"))),
      card("Server", h("dl", { class: "figures" },
        figure("Up for", "uptime"), figure("NATS version", "version"),
        figure("Memory", "mem"), figure("Cores", "cores"))),
    ),
    h("p", { class: "quiet" }, "See also ", link("connections", {}, "connections"), ", ", link("streams", {}, "streams"), " and ", link("cluster", {}, "the cluster"), "."),
  );

  return live("overview", {}, {
    ...view,
    slice(found) {
      view.well();
      const at = Date.parse(found.now) / 1000;
      for (const name of COUNTERS) {
        const rate = rates[name].of(at, found[name]);
        if (rate !== null) sample(`rate:${name}`, at, rate);
      }
      sample("mem", at, found.mem);
      sample("cpu", at, found.cpu);
      charts.forEach((one) => one.draw());
      showHealth(health, found.health);
      const js = found.jetstream || {};
      const api = js.api || {};
      write(root, {
        ...Object.fromEntries(["connections", "total_connections", "subscriptions", "slow_consumers", "accounts", "leafnodes", "in_msgs", "out_msgs", "routes", "cores"].map((name) => [name, count(found[name])])),
        in_bytes: size(found.in_bytes), out_bytes: size(found.out_bytes), max_payload: size(found.max_payload),
        js_streams: count(js.streams), js_consumers: count(js.consumers), js_messages: count(js.messages),
        js_bytes: size(js.bytes), js_memory: size(js.memory), js_storage: size(js.storage),
        js_api: count(api.total || 0), js_errors: count(api.errors || 0),
        uptime: found.uptime, version: found.version, mem: size(found.mem),
      });
    },
  });
}

function showHealth(element, health) {
  const text = JSON.stringify(health);
  if (element.dataset.shown === text) return;
  element.dataset.shown = text;
  const good = health.status === "ok";
  const errors = health.errors || (health.error ? [{ error: health.error }] : []);
  element.replaceChildren(
    badge(good ? "Healthy" : "Not healthy", good ? "good" : "bad"),
    ...errors.slice(0, 20).map((one) => h("p", {}, visible([one.account, one.stream, one.consumer, one.error].filter(Boolean).join(" · ")))),
  );
}
