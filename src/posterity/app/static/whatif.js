// "What if these were missing, or labelled otherwise?": estimated, with a word on how far to trust it.

import { swatch } from "./cards.js";
import { fill, h } from "./dom.js";
import { Measurement } from "./measurement.js";
import { count, percent, short, signed } from "./scales.js";

export class WhatIf {
  constructor(model) {
    this.model = model;
    this.asked = h("div", { class: "asks" });
    this.answers = h("div", { class: "answers" });
    this.element = h(
      "div",
      { class: "pane whatif" },
      h("p", {
        class: "muted lead",
        textContent: model.backend.carried
          ? "This file has no server: estimates are sums of first-order effects of single examples, computed when it was written. Interactions between examples are missing; trust signs and rankings. “posterity map RUN --serve” answers with all cross terms."
          : "What would the model be without these examples, or with other labels? Estimated from the posterior; a measurement trains on from the old weights.",
      }),
      this.asked,
      this.answers,
    );
    model.on("select marks", () => this.#asks());
    model.on("select", () => model.selected.includes(1) || this.#forget());
    this.#asks();
  }

  get possible() {
    return this.model.about.whatIf || this.model.about.effects;
  }

  #asks() {
    const m = this.model,
      chosen = m.selection.length,
      suggested = m.selection.filter((r) => m.suggestion(r)).length;
    const drops = [...m.marks.values()].filter((k) => k.decision === "drop").length,
      relabels = [...m.marks.values()].filter((k) => k.decision === "relabel").length;
    const followed = [drops && `drop ${drops}`, relabels && `relabel ${relabels}`].filter(Boolean).join(", ");
    if (!this.possible)
      return fill(
        this.asked,
        h("p", {
          class: "problem",
          textContent: "This map has no model and no data, so it cannot estimate changes.",
        }),
      );
    fill(
      this.asked,
      ask(`Remove the ${chosen ? count(chosen, "selected example") : "selected examples"}`, chosen > 0, () => this.removal()),
      ask(
        suggested ? `Relabel ${count(suggested, "selected example")} as suggested` : "Relabel the selected examples as suggested",
        suggested > 0,
        () => this.relabelling(),
      ),
      ask(["Follow my marks", followed].filter(Boolean).join(": "), drops + relabels > 0, () => this.marked()),
      chosen + drops + relabels === 0 &&
        h("p", {
          class: "muted",
          textContent: "Select points on the map (lasso, or A for all that are shown), or mark examples to drop or relabel.",
        }),
    );
  }

  removal() {
    if (this.model.selection.length)
      return this.#estimate(`Without ${count(this.model.selection.length, "example")}`, this.model.selected, {});
  }

  relabelling() {
    const m = this.model,
      relabel = {};
    for (const row of m.selection) if (m.suggestion(row)) relabel[m.ids[row]] = m.classes.indexOf(m.suggestion(row));
    return this.#estimate(
      `${count(Object.keys(relabel).length, "example")} relabelled`,
      new Uint8Array(m.rows),
      relabel,
    );
  }

  marked() {
    const { remove, relabel } = this.model.wishes();
    return this.#estimate("With my marks", remove, relabel, "marks");
  }

  // What was asked about a selection goes with it; what was asked about marks stays.
  #forget() {
    for (const answer of this.answers.querySelectorAll("[data-of=selection]")) answer.remove();
  }

  async #estimate(title, remove, relabel, of = "selection") {
    const busy = h(
      "article",
      { class: "answer", data: { of } },
      h("h3", { textContent: title }),
      h("p", { class: "busy", textContent: "Estimating…" }),
    );
    this.answers.prepend(busy);
    const m = this.model,
      start = performance.now();
    try {
      const found = this.model.backend.carried
        ? this.#added(remove, relabel)
        : await this.model.backend.whatIf(remove, relabel);
      if (!busy.isConnected) return; // its selection was cleared meanwhile
      const took = performance.now() - start,
        tests = m.about.test && !m.backend.carried && found.moved.length ? await m.backend.test() : null;
      const answer = this.#answer(title, found, took, of, tests?.columns.get("id"));
      if (this.model.about.measure && !this.model.backend.carried)
        answer.append(new Measurement(this.model.backend, remove, relabel).element);
      busy.replaceWith(answer);
    } catch (error) {
      fill(busy, h("h3", { textContent: title }), h("p", { class: "problem", textContent: error.message }));
    }
  }

  // First-order effects add up; labels other than the suggested one are not known here.
  #added(remove, relabel) {
    const m = this.model,
      gone = m.columns.get("effect_remove"),
      other = m.columns.get("effect_relabel");
    let change = 0,
      unknown = 0;
    for (let i = 0; i < m.rows; i++) if (remove[i]) change += gone[i];
    for (const [id, k] of Object.entries(relabel)) {
      const row = m.rowOf.get(Number(id));
      if (m.columns.get("suspected_label")?.[row] === k && other) change += other[row];
      else unknown++;
    }
    const left = unknown ? `; ${unknown} labels other than the suggested ones are left out` : "";
    const warning = `sum of first-order effects${left}: trust signs and rankings`;
    return {
      examples: m.about.effects.examples,
      measured_on: "test examples",
      loss_before: m.about.effects.loss,
      loss_after: m.about.effects.loss + change,
      warning,
      moved: [],
    };
  }

  #answer(title, found, time, of, ids) {
    const m = this.model,
      change = found.loss_after - found.loss_before;
    return h(
      "article",
      { class: "answer", data: { change: String(change), of } },
      h(
        "h3",
        {},
        title,
        h("small", {
          textContent: ` · estimated on ${found.examples.toLocaleString("en")} ${found.measured_on} · ${(time / 1000).toFixed(time < 950 ? 2 : 1)} s`,
        }),
      ),
      h(
        "div",
        { class: "figures" },
        found.warning ? direction(change, found.direction ?? true) : figure(
          "mean loss",
          short(found.loss_before),
          short(found.loss_after),
          signed(change),
          Math.sign(-change),
        ),
        found.accuracy_before != null &&
          figure(
            "accuracy",
            percent(found.accuracy_before),
            percent(found.accuracy_after),
            `${signed(100 * (found.accuracy_after - found.accuracy_before))} points`,
            Math.sign(found.accuracy_after - found.accuracy_before),
          ),
        found.changed != null &&
          !found.warning &&
          h(
            "div",
            { class: "figure" },
            h("span", { textContent: "predictions that change" }),
            h("b", { textContent: found.changed }),
          ),
      ),
      h("p", {
        class: found.warning ? "flag care" : "flag fine",
        textContent: found.warning
          ? `The size is uncertain: ${found.warning}.`
          : "Reliable: sizes and rankings can be trusted.",
      }),
      found.moved.length > 0 &&
        h(
          "details",
          {},
          h("summary", { textContent: "Predictions that move most" }),
          h(
            "table",
            { class: "moved" },
            h(
              "tr",
              {},
              ["example", "label", "before", "after", "loss"].map((text) => h("th", { textContent: text })),
            ),
            found.moved.map((one) =>
              h(
                "tr",
                { onclick: () => m.about.influences && m.set({ test: one.id, tab: "test" }) },
                h("td", { textContent: `#${ids?.[one.id] ?? one.id}` }),
                ...["label", "before", "after"].map((k) => named(m, one[k])),
                h("td", { class: one.loss_change < 0 ? "down" : "up", textContent: signed(one.loss_change) }),
              ),
            ),
          ),
        ),
    );
  }
}

// The text of a flagged estimate.
function direction(change, known) {
  return h(
    "div",
    { class: "figure" },
    h("span", { textContent: "mean loss" }),
    h("b", { textContent: known ? (change < 0 ? "falls" : "rises") : "unknown" }),
  );
}

function ask(text, possible, action) {
  return h("button", { class: "ask", disabled: !possible, textContent: text, onclick: action });
}

function figure(name, before, after, change, good) {
  return h(
    "div",
    { class: "figure" },
    h("span", { textContent: name }),
    h("b", {}, before, " → ", after),
    h("em", { class: ["bad", "same", "good"][good + 1], textContent: good ? change : "no change" }),
  );
}

function named(model, value) {
  return model.classes.length
    ? h("td", {}, swatch(model, value), model.className(value))
    : h("td", { textContent: short(value) });
}
