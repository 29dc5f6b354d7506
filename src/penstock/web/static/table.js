// A table whose rows are updated in place, so that focus and selection survive a slice.

import { address, h } from "./dom.js";
import { count } from "./format.js";

/**
 * columns: {title, cell(row) -> text or node, number, fixed}. A fixed cell is built once for each row: links
 * and buttons keep the focus. key(row): identity of a row.
 */
export class Table {
  constructor(caption, columns, key, empty = "Nothing here.") {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.body = h("tbody", {});
    this.empty = h("p", { class: "empty", hidden: true }, empty);
    const heads = columns.map((one) => h("th", { scope: "col", class: one.number ? "number" : "" }, one.title));
    const table = h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, heads)), this.body);
    const scroller = { class: "scroll", tabindex: 0, role: "region", "aria-label": caption };
    this.scroller = h("div", { ...scroller, hidden: true }, table);
    this.element = h("div", { class: "list" }, this.scroller, this.empty);
  }

  update(rows) {
    const before = this.rows;
    this.rows = new Map();
    const elements = rows.map((row) => {
      const key = this.key(row);
      const known = before.get(key) || this.made(key);
      this.rows.set(key, known);
      this.show(known, row);
      return known.element;
    });
    const same = elements.length === this.body.children.length && elements.every((one, at) => one === this.body.children[at]);
    if (!same) this.body.replaceChildren(...elements);
    this.scroller.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
  }

  made(key) {
    const cells = this.columns.map((one) => h("td", { class: `${one.number ? "number" : ""} ${one.kind || ""}` }));
    return { element: h("tr", { "data-key": key }, cells), cells, text: "" };
  }

  show(known, row) {
    const text = JSON.stringify(row);
    if (known.text === text) return;
    const first = known.text === "";
    known.text = text;
    this.columns.forEach((column, at) => {
      if (column.fixed && !first) return;
      const found = column.cell(row);
      const cell = known.cells[at];
      if (found instanceof Node) cell.replaceChildren(found);
      else if (cell.textContent !== String(found)) cell.textContent = String(found);
    });
  }
}

/** Links to the slices before and after this one. */
export class Pager {
  constructor(path, query) {
    this.path = path;
    this.query = query;
    this.element = h("nav", { class: "pager", "aria-label": "Pages of the list" });
    this.shown = "";
  }

  update({ total, offset, limit }) {
    const shown = `${total} ${offset} ${limit}`;
    if (shown === this.shown) return;
    this.shown = shown;
    const to = (at, text, label) => h("a", { class: "button", href: address(this.path, { ...this.query, offset: at || "" }), "aria-label": label }, text);
    const last = Math.min(offset + limit, total);
    this.element.replaceChildren(
      ...[
        offset > 0 && to(Math.max(0, offset - limit), "‹ Back", "Previous page"),
        h("span", {}, total ? `${count(offset + 1)} to ${count(last)} of ${count(total)}` : "none"),
        last < total && to(offset + limit, "Next ›", "Next page"),
      ].filter(Boolean),
    );
  }
}
