// The ranked table of what is selected, or shown.

import { preview, verdict } from "./cards.js";
import { everyFrame, fill, h, select } from "./dom.js";
import { List } from "./list.js";
import { count, readable, short } from "./scales.js";

const PROBABILITY = "label_error"; // the one column that is a probability, and is shown as one

function shown(name, value) {
  if (name !== PROBABILITY || !Number.isFinite(value)) return short(value);
  return value < 0.005 ? "< 1 %" : `${Math.round(100 * value)} %`;
}

// What could be done, in a word or two: the whole of it is in the tooltip.
function brief(action) {
  return action.replace(/ as .*/, "?").replace("collect more like it", "collect more");
}

export class Table {
  constructor(model) {
    this.model = model;
    this.head = h("div", { class: "thead" });
    this.list = new List(34, (i) => this.#row(i));
    this.note = h("span", { class: "muted" });
    const rank = select(
      [["id", "id"], ...model.numeric.map((name) => [name, name === model.about.ranking ? `suspicion (${readable(name)})` : readable(name)])],
      model.view.sort,
      (sort) => model.set({ sort, up: false }),
      { "aria-label": "Rank by" },
    );
    this.rank = rank;
    this.element = h(
      "div",
      { class: "pane table" },
      h("div", { class: "tools" }, h("label", {}, "Rank by ", rank), this.note),
      this.head,
      this.list.element,
    );
    this.list.element.addEventListener("click", (event) => {
      const row = event.target.closest("[data-row]");
      if (row) model.focus(Number(row.dataset.row));
    });
    this.update = everyFrame(() => this.#update());
    model.on("view filter select", this.update);
    model.on("marks", () => this.list.reset(this.rows.length, true));
    model.on("focus", () => this.#focus());
    this.#update();
  }

  get columns() {
    const { x, y, sort } = this.model.view;
    const long = this.model.classes.some((name) => name.length > 3); // labels and texts need their place
    const room = this.model.about.kind === "text" ? 1 : long ? 2 : 3;
    return [...new Set([sort, y, x])].filter((name) => name !== "id").slice(0, room);
  }

  #update() {
    const m = this.model,
      look = [
        m.view.sort,
        m.view.up,
        m.view.x,
        m.view.y,
        document.documentElement.dataset.theme,
        m.view.gx,
        m.view.gy,
      ].join();
    this.rank.value = m.view.sort;
    this.rows = m.ranked();
    const some = m.selected.includes(1);
    this.note.textContent = some
      ? `${count(this.rows.length, "selected example")}`
      : count(this.rows.length, "example");
    if (look !== this.look) this.#heads();
    this.look = look;
    this.list.reset(this.rows.length);
    this.#focus();
  }

  #heads() {
    const m = this.model;
    fill(
      this.head,
      h("span", { class: "c-id", textContent: "id" }),
      h("span", { class: "c-label", textContent: m.classes.length ? "label" : "given" }),
      m.about.kind === "text" && h("span", { class: "c-text", textContent: "text" }),
      this.columns.map((name) =>
        h(
          "button",
          {
            class: name === m.view.sort ? "c-num sorted" : "c-num",
            title: name === PROBABILITY ? "Probability that the label is wrong" : `Rank by ${readable(name)}`,
            onclick: () => m.set({ sort: name, up: name === m.view.sort ? !m.view.up : false }),
          },
          name === m.about.ranking ? "suspicion" : readable(name),
          name === m.view.sort ? (m.view.up ? " ↑" : " ↓") : "",
        ),
      ),
      h("span", { class: "c-act", textContent: "mark" }),
    );
  }

  #row(i) {
    const m = this.model,
      row = this.rows[i],
      mark = m.marks.get(row),
      id = m.ids[row];
    return h(
      "div",
      { class: row === m.focused ? "tr focused" : "tr", data: { row, category: m.category[row] } },
      h("span", { class: "c-id" }, m.about.kind === "image" && preview(m, row), h("span", { textContent: id })),
      h("span", { class: "c-label" }, verdict(m, row)),
      m.about.kind === "text" && h("span", { class: "c-text" }, preview(m, row)),
      this.columns.map((name) => h("span", { class: "c-num", textContent: shown(name, m.columns.get(name)[row]) })),
      h(
        "span",
        { class: "c-act" },
        mark
          ? h("b", {
              class: `mark ${mark.decision}`,
              title: mark.decision === "relabel" ? `relabel as ${mark.label}` : mark.decision,
              textContent: mark.decision === "relabel" ? `→ ${mark.label}` : mark.decision,
            })
          : h("span", { class: "muted", title: m.action(row), textContent: m.category[row] ? brief(m.action(row)) : "" }),
      ),
    );
  }

  #focus() {
    for (const element of this.list.made.values())
      element.classList.toggle("focused", Number(element.dataset.row) === this.model.focused);
    const at = this.rows.indexOf(this.model.focused);
    if (at >= 0 && this.element.isConnected && this.element.offsetParent) this.list.reveal(at);
  }

  // The next or previous example in the order of the table.
  step(by) {
    const at = this.rows.indexOf(this.model.focused),
      next = at < 0 ? 0 : at + by;
    if (next >= 0 && next < this.rows.length) this.model.focus(this.rows[next]);
  }
}
