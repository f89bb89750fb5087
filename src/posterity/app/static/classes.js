// Class by class: how many labels are suspected, and what they look like instead.

import { swatch } from "./cards.js";
import { everyFrame, fill, h } from "./dom.js";

export class Classes {
  constructor(model) {
    this.model = model;
    this.element = h("div", { class: "pane classes" });
    this.update = everyFrame(() => this.element.offsetParent && this.#update());
    model.on("view marks", this.update);
    new ResizeObserver(this.update).observe(this.element);
  }

  #update() {
    const m = this.model,
      tally = m.classes.map((name, k) => ({ name, k, rows: 0, suspects: 0, decided: 0, others: new Map() })),
      label = m.columns.get("label"),
      other = m.columns.get("suspected_label");
    for (let i = 0; i < m.rows; i++) {
      const one = tally[label[i]];
      if (!one) continue;
      one.rows++;
      if (other[i] < 0) continue;
      one.suspects++;
      one.decided += m.marks.has(i);
      one.others.set(other[i], (one.others.get(other[i]) ?? 0) + 1);
    }
    tally.sort((a, b) => b.suspects - a.suspects || b.rows - a.rows);
    fill(
      this.element,
      h("p", {
        class: "muted lead",
        textContent: `${
          m.columns.has("label_error")
            ? "Suspected: labels that are more likely wrong than right."
            : "Suspected: labels that the model does not predict when the example is left out."
        } Click a class to show its suspects.`,
      }),
      h(
        "table",
        { class: "moved" },
        h(
          "tr",
          {},
          ["given label", "examples", "suspected", "decided", "most look like"].map((text) =>
            h("th", { scope: "col", textContent: text }),
          ),
        ),
        tally.filter((one) => one.rows).map((one) => this.#line(one)),
      ),
    );
  }

  #line(one) {
    const m = this.model,
      [most, count] = [...one.others].sort((a, b) => b[1] - a[1])[0] ?? [-1, 0],
      show = () => m.set({ q: `label:"${one.name}" suspect:yes`, tab: "table" });
    return h(
      "tr",
      { onclick: show },
      h("td", {}, swatch(m, one.k), one.name),
      h("td", { textContent: one.rows.toLocaleString("en") }),
      h("td", { textContent: `${one.suspects} (${Math.round((100 * one.suspects) / one.rows)} %)` }),
      h("td", { textContent: String(one.decided) }),
      most >= 0
        ? h("td", {}, swatch(m, most), `${m.className(most)} (${count})`)
        : h("td", { class: "muted", textContent: "–" }),
    );
  }
}
