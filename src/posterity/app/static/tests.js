// Test examples, and for a chosen one the training examples that most move its prediction.

import { card, swatch, testPreview } from "./cards.js";
import { fill, h } from "./dom.js";
import { List } from "./list.js";
import { short } from "./scales.js";

const MOST = 24;

export class Tests {
  constructor(model) {
    this.model = model;
    this.list = new List(34, (i) => this.#row(i));
    this.answer = h(
      "div",
      { class: "influences" },
      h("p", {
        class: "empty",
        textContent: "Choose a test example: which training examples move its prediction most?",
      }),
    );
    this.element = h(
      "div",
      { class: "pane tests" },
      h("div", { class: "tools muted", textContent: "Largest loss first. The model has not learnt these: correct a wrong label in the data, then fit again." }),
      h(
        "div",
        { class: "thead" },
        h("span", { class: "c-id", textContent: "id" }),
        h("span", { class: "c-label", textContent: "label" }),
        model.about.kind === "text" && h("span", { class: "c-text", textContent: "text" }),
        h("span", { class: "c-label", textContent: "prediction" }),
        h("span", { class: "c-num", textContent: "loss" }),
      ),
      this.list.element,
      this.answer,
    );
    this.list.element.addEventListener("click", (event) => {
      const row = event.target.closest("[data-test]");
      if (row) this.choose(Number(row.dataset.test));
    });
    model.on("view", () => model.view.tab === "test" && this.open());
  }

  async open() {
    try {
      this.loading ??= this.model.backend.test();
      this.data = await this.loading;
    } catch (error) {
      this.loading = null; // to be asked for again
      return fill(this.answer, h("p", { class: "problem", textContent: error.message }));
    }
    if (!this.rows) {
      const loss = this.data.columns.get("loss");
      this.rows = Uint32Array.from(loss, (_, i) => i).sort((a, b) => loss[b] - loss[a]);
      this.list.reset(this.rows.length);
    }
    if (this.model.view.test >= 0 && this.model.view.test !== this.chosen) this.choose(this.model.view.test);
  }

  // What the data call it; the page counts.
  id(row) {
    return this.data.columns.get("id")[row];
  }

  #name(name, row) {
    const m = this.model,
      v = this.data.columns.get(name)[row];
    return m.classes.length
      ? h("span", { class: "label" }, swatch(m, v), m.className(v))
      : h("span", { textContent: short(v) });
  }

  #row(i) {
    const m = this.model,
      row = this.rows[i],
      label = this.data.columns.get("label")[row],
      said = this.data.columns.get("prediction")[row];
    return h(
      "div",
      { class: row === this.chosen ? "tr focused" : "tr", data: { test: row } },
      h("span", { class: "c-id" }, m.about.kind === "image" && testPreview(m, row), h("span", { textContent: this.id(row) })),
      h("span", { class: "c-label" }, this.#name("label", row)),
      m.about.kind === "text" && h("span", { class: "c-text" }, testPreview(m, row)),
      h(
        "span",
        { class: m.classes.length && label !== said ? "c-label wrong" : "c-label" },
        this.#name("prediction", row),
      ),
      h("span", { class: "c-num", textContent: short(this.data.columns.get("loss")[row]) }),
    );
  }

  async choose(row) {
    if (row >= this.rows.length) return;
    this.chosen = row;
    const m = this.model;
    if (m.view.test !== row) m.set({ test: row });
    m.emit("test");
    for (const element of this.list.made.values())
      element.classList.toggle("focused", Number(element.dataset.test) === row);
    this.list.reveal(this.rows.indexOf(row));
    const head = h(
      "div",
      { class: "chosen" },
      testPreview(m, row),
      h(
        "p",
        {},
        h("b", { textContent: `Test example #${this.id(row)}` }),
        m.about.testNames && [" ", h("span", { class: "muted file", textContent: m.about.testNames[row] })],
        h("br"),
        "true ",
        this.#name("label", row),
        ", predicted ",
        this.#name("prediction", row),
        `, loss ${short(this.data.columns.get("loss")[row])}`,
      ),
    );
    const body = h("div", {}, h("p", { class: "busy", textContent: "Computing the influence of every training example…" }));
    fill(this.answer, head, body);
    if (!m.about.influences) return fill(body);
    try {
      const found = await m.backend.influences(row, MOST);
      if (this.chosen !== row) return;
      const group = (title, some) =>
        some.length > 0 && [
          h("h3", { textContent: title }),
          h(
            "div",
            { class: "strip" },
            some.map(([id, v]) => card(m, m.rowOf.get(id), `${v > 0 ? "+" : "−"}${short(Math.abs(v))}`, v)),
          ),
        ];
      fill(
        body,
        group(
          "They hold it back: its loss would fall without them",
          found.filter(([, v]) => v < 0),
        ),
        group(
          "They help it: its loss would rise without them",
          found.filter(([, v]) => v >= 0),
        ),
      );
    } catch (error) {
      fill(body, h("p", { class: "problem", textContent: error.message }));
    }
  }
}
