// One example: what it is, what the model makes of it, its neighbours, and what to do with it.

import { card, labelled, preview, swatch } from "./cards.js";
import { fill, h, select } from "./dom.js";
import { meaning, quantile, readable, short, sorted } from "./scales.js";

const NUMBERS = ["error", "leverage", "variance", "sensitivity", "loo_nll", "tracked_self_influence"];
const NEIGHBOURS = 12;
const LABELS = 3; // of them that are counted in words
const PAUSE = 250; // milliseconds that the user stays with an example before its neighbours are looked for

export class Detail {
  marked = () => {}; // what follows a mark

  constructor(model) {
    this.model = model;
    this.element = h("section", { class: "detail", "aria-label": "Example" });
    model.on("focus", () => {
      this.element.hidden = false;
      this.#show();
    });
    model.on("marks", () => this.#buttons());
    model.on("view", () => {
      if (model.view.tab !== this.tab) this.element.hidden = model.view.tab === "test"; // whose examples take no marks
      this.tab = model.view.tab;
      this.#verdictOnly();
    });
    model.on("test", () => (this.element.hidden = true)); // what is below belongs to another example
    this.#show();
  }

  #show() {
    const m = this.model,
      row = m.focused;
    if (row < 0) {
      fill(this.element, h("p", { class: "empty" }, "Click a point, or walk through the table with ↑ and ↓."));
      return;
    }
    const id = m.ids[row];
    this.close = h("div", { class: "close" });
    this.actions = h("div", { class: "actions" });
    this.verdict = h("p", { class: "say" });
    fill(
      this.element,
      h(
        "div",
        { class: "about" },
        preview(m, row),
        h(
          "div",
          { class: "facts" },
          h(
            "h2",
            {},
            `#${id}`,
            h("span", { class: "given" }, "given ", labelled(m, row)),
            h("span", { class: "given" }, "predicted ", labelled(m, row, "prediction")),
          ),
          m.about.names && h("p", { class: "given file", textContent: m.about.names[row] }),
          this.verdict,
          this.#numbers(row),
        ),
      ),
      this.actions,
      this.close,
    );
    this.#buttons();
    this.#verdictOnly();
    this.#evidence(row);
  }

  // Beside a suspect stands what it is like, without being asked for: the best reason to believe in a wrong label.
  #evidence(row) {
    clearTimeout(this.waiting);
    if (this.#unasked(row)) this.waiting = setTimeout(() => this.model.focused === row && this.neighbours(), PAUSE);
  }

  #unasked(row) {
    const m = this.model;
    return m.about.neighbours && (m.suggestion(row) || m.category[row] >= 2);
  }

  #verdictOnly() {
    const m = this.model,
      row = m.focused;
    if (row < 0 || !this.verdict) return;
    const without = m.columns.get("loo_prediction")?.[row],
      says = m.columns.get("prediction")[row],
      other = m.suggestion(row) ? "suspected_label" : without === undefined || without === says ? "" : "loo_prediction";
    const agrees = !m.classes.length
      ? ". The prediction would be the same without it."
      : says === m.columns.get("label")[row]
        ? ". The model agrees with its label, even without it."
        : [". The prediction is ", ended(labelled(m, row, "prediction"), ","), " with or without it."];
    const said = other ? m.columns.get(other)[row] : says,
      unsure = !m.suggestion(row) && m.category[row] >= 2 && (m.columns.get("suggested_label")?.[row] ?? said) !== said;
    const category = m.categories[m.category[row]];
    fill(
      this.verdict,
      h("b", { textContent: category[0].toUpperCase() + category.slice(1) }),
      other
        ? [". Without it, the prediction would be ", ended(labelled(m, row, other))]
        : without === undefined
          ? "."
          : agrees,
      unsure && [" If its label is wrong, it is most likely ", ended(labelled(m, row, "suggested_label"))],
    );
  }

  #numbers(row) {
    const m = this.model,
      names = NUMBERS.filter((name) => m.columns.get(name) instanceof Float32Array);
    return h(
      "dl",
      { class: "numbers" },
      names.slice(0, 5).map((name) => {
        const bar = h("i"),
          share = m.share(name, row);
        bar.style.width = `${100 * share}%`;
        return h(
          "div",
          { title: `${meaning(name)}; larger than for ${Math.round(100 * share)} % of the examples` },
          h("dt", { textContent: readable(name) }),
          h("dd", {}, h("span", { class: "track" }, bar), h("span", { textContent: short(m.columns.get(name)[row]) })),
        );
      }),
    );
  }

  #buttons() {
    const m = this.model,
      row = m.focused;
    if (row < 0 || !this.actions) return;
    const mark = m.marks.get(row),
      suggested = m.guess(row);
    const button = (decision, text, key) =>
      h(
        "button",
        {
          class: `act ${decision} ${mark?.decision === decision ? "on" : ""}`,
          onclick: () => this.#mark(row, decision),
        },
        text,
        h("kbd", { textContent: key }),
      );
    const other =
      m.classes.length > 0 &&
      select(
        [["", "Relabel as…"], ...m.classes.map((name) => [name, name])],
        mark?.decision === "relabel" ? mark.label : "",
        (label) => label && (m.mark([row], "relabel", label), this.marked()),
        { "aria-label": "New label" },
      );
    const shownLabel = mark?.decision === "relabel" ? mark.label : suggested;
    fill(
      this.actions,
      button("keep", "Keep", "K"),
      button("drop", "Drop", "D"),
      shownLabel
        ? h(
            "button",
            {
              class: `act relabel ${mark?.decision === "relabel" ? "on" : ""}`,
              onclick: () => this.#mark(row, "relabel"),
            },
            "Relabel as ",
            swatch(m, m.classes.indexOf(shownLabel)),
            shownLabel,
            h("kbd", { textContent: "R" }),
          )
        : null,
      other,
      m.about.neighbours &&
        !this.#unasked(row) &&
        h(
          "button",
          { class: "act", title: "The examples that the model treats most alike", onclick: () => this.neighbours() },
          "Neighbours",
          h("kbd", { textContent: "N" }),
        ),
    );
  }

  // A mark, or the same mark again, which takes it away; after a mark the next example is shown, as with the keys.
  #mark(row, decision) {
    const again = this.model.marks.get(row)?.decision === decision;
    this.model.mark([row], again ? "clear" : decision);
    if (!again) this.marked();
  }

  // How similar examples are labelled: the first thing to know about them.
  #labels(rows) {
    const m = this.model,
      counts = new Map(),
      label = m.columns.get("label");
    if (!m.classes.length) return rows.length ? `: median ${short(quantile(sorted(rows.map((row) => label[row])), 0.5))}` : "";
    for (const row of rows) counts.set(label[row], (counts.get(label[row]) ?? 0) + 1);
    const most = [...counts].sort((a, b) => b[1] - a[1]).slice(0, LABELS);
    return most.flatMap(([k, n], i) => [i ? ", " : ": ", h("span", { class: "label" }, `${n} `, swatch(m, k), m.className(k))]);
  }

  async neighbours() {
    const m = this.model,
      row = m.focused;
    clearTimeout(this.waiting);
    if (row < 0 || !m.about.neighbours) return;
    fill(this.close, h("span", { class: "busy", textContent: "Looking for neighbours…" }));
    try {
      const found = await m.backend.neighbours(m.ids[row], NEIGHBOURS);
      if (m.focused !== row) return;
      fill(
        this.close,
        h("h3", {}, "The most similar examples, for this model", this.#labels(found.map(([id]) => m.rowOf.get(id)))),
        h(
          "div",
          { class: "strip" },
          found.map(([id, value]) => card(m, m.rowOf.get(id), value.toFixed(2), null, row)),
        ),
      );
      m.neighbours = found.map(([id]) => m.rowOf.get(id));
    } catch (error) {
      fill(this.close, h("span", { class: "problem", textContent: error.message }));
    }
  }
}

// A label and the stop behind it, on the same line.
function ended(label, stop = ".") {
  return h("span", { class: "ended" }, label, stop);
}
