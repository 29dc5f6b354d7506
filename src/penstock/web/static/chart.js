// Lines over time, as SVG. The page samples the numbers it shows; a chart begins when the page is opened.

import { h, svg } from "./dom.js";
import { compact } from "./format.js";

const SAMPLES_MAX = 300;
const SERIES_MAX = 500;
const WIDTH = 600;
const HEIGHT = 120;
const TOP = 8;
const kept = new Map(); // samples by series, least recently written first

/** Adds a sample to a series that outlives the view. at: seconds. */
export function sample(series, at, value) {
  const samples = kept.get(series) || [];
  kept.delete(series);
  kept.set(series, samples);
  if (!samples.length || at > samples[samples.length - 1][0]) samples.push([at, value]);
  if (samples.length > SAMPLES_MAX) samples.shift();
  if (kept.size > SERIES_MAX) kept.delete(kept.keys().next().value);
  return samples;
}

export function forgetSamples() {
  kept.clear();
}

/** Changes per second of a counter that grows. */
export class Rate {
  constructor() {
    this.last = null;
  }

  of(at, value) {
    const before = this.last;
    this.last = [at, value];
    if (!before || at <= before[0] || value < before[1]) return null;
    return (value - before[1]) / (at - before[0]);
  }
}

/** lines: [{series, label}], at most four, in the colours of the style sheet. */
export class Chart {
  constructor(title, lines, format = compact) {
    this.title = title;
    this.lines = lines;
    this.format = format;
    this.paths = lines.map((_, at) => svg("path", { class: `line line-${at}`, fill: "none" }));
    this.areas = lines.map((_, at) => svg("path", { class: `area area-${at}` }));
    this.top = h("span", { class: "chart-top" });
    this.span = h("span", { class: "chart-span" });
    this.labels = lines.map((one, at) => h("span", { class: `legend legend-${at}` }, one.label));
    this.plot = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title },
      [0.25, 0.5, 0.75, 1].map((part) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part })),
      this.areas,
      this.paths,
    );
    this.element = h("figure", { class: "chart" },
      h("figcaption", {}, h("span", { class: "chart-title" }, title), ...this.labels), this.plot,
      h("div", { class: "chart-foot" }, this.span, this.top));
  }

  draw() {
    const series = this.lines.map((one) => kept.get(one.series) || []);
    const points = series.flat();
    if (!points.length) return;
    const begin = Math.min(...points.map((one) => one[0]));
    const end = Math.max(...points.map((one) => one[0]), begin + 10);
    const most = Math.max(...points.map((one) => one[1]), 1);
    const x = (at) => ((at - begin) / (end - begin)) * WIDTH;
    const y = (value) => HEIGHT - (value / most) * (HEIGHT - TOP);
    series.forEach((samples, at) => {
      const path = samples.map(([when, value], index) => `${index ? "L" : "M"}${x(when).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      this.paths[at].setAttribute("d", path);
      const ends = samples.length ? [x(samples[0][0]), x(samples[samples.length - 1][0])] : [];
      this.areas[at].setAttribute("d", path ? `${path}L${ends[1].toFixed(1)} ${HEIGHT}L${ends[0].toFixed(1)} ${HEIGHT}Z` : "");
      const latest = samples.length ? this.format(samples[samples.length - 1][1]) : "–";
      this.labels[at].textContent = `${this.lines[at].label} ${latest}`;
    });
    this.top.textContent = `max ${this.format(most)}`;
    this.span.textContent = `last ${Math.round(end - begin)} s`;
    this.plot.setAttribute("aria-label", `${this.title}: ${this.labels.map((one) => one.textContent).join(", ")}`);
  }
}
