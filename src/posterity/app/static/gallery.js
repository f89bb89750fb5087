// The same examples as cards, in the order of the table.

import { card } from "./cards.js";
import { everyFrame, h } from "./dom.js";
import { List } from "./list.js";
import { readable, short } from "./scales.js";

const WIDTHS = { image: 92, text: 200, row: 200, "": 130 };
const HEIGHTS = { image: 126, text: 156, row: 178, "": 44 };

export class Gallery {
  constructor(model) {
    this.model = model;
    const kind = model.about.kind;
    const lines = kind === "image" && model.classes.some((name) => name.length > 3) ? 18 : 0; // long labels take two
    this.list = new List(HEIGHTS[kind] + lines + 8, (i) => this.#line(i));
    this.element = h(
      "div",
      { class: `pane gallery ${kind}` },
      h("div", { class: "tools muted" }, (this.note = h("span"))),
      this.list.element,
    );
    this.update = everyFrame(() => this.#update());
    model.on("view filter select marks", this.update);
    model.on("focus", () =>
      this.element
        .querySelectorAll(".card")
        .forEach((c) => c.classList.toggle("focused", Number(c.dataset.row) === model.focused)),
    );
    new ResizeObserver(this.update).observe(this.element);
  }

  #update() {
    if (!this.element.offsetParent) return;
    const m = this.model,
      per = Math.max(1, Math.floor((this.element.clientWidth - 24) / (WIDTHS[m.about.kind] + 8)));
    const look = [m.view.sort, m.view.up, per].join(),
      rows = m.ranked();
    const same = look === this.look && rows.length === this.rows?.length && rows.every((r, i) => r === this.rows[i]);
    [this.look, this.rows, this.per] = [look, rows, per];
    this.note.textContent = `Ranked by ${readable(m.view.sort)}, ${m.view.up ? "smallest" : "largest"} first`;
    this.list.reset(Math.ceil(rows.length / per), same);
  }

  #line(i) {
    const m = this.model,
      rows = Array.from(this.rows.subarray(i * this.per, (i + 1) * this.per));
    return h(
      "div",
      { class: "line" },
      rows.map((row) => card(m, row, short((m.columns.get(m.view.sort) ?? m.ids)[row]))),
      Array.from({ length: this.per - rows.length }, () => h("i", { class: "filler" })), // the last line may be short
    );
  }
}
