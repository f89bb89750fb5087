// The bar on top: title, search, counts, and what concerns the whole page.

import { everyFrame, h } from "./dom.js";
import { count } from "./scales.js";

export class Bar {
  constructor(model, actions) {
    this.model = model;
    this.search = h("input", {
      type: "search",
      id: "search",
      placeholder: "Search: words, label:7, error>0.5 …",
      value: model.view.q,
      spellcheck: false,
      "aria-label": "Search",
    });
    let waiting = 0;
    this.search.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => model.set({ q: this.search.value }), 220);
    });
    this.counts = h("span", { class: "counts" });
    this.marks = h("span", { class: "counts" });
    this.problem = h("span", { class: "problem" });
    this.element = document.getElementById("bar");
    this.element.append(
      h(
        "h1",
        {},
        h("span", { class: "brand", textContent: "posterity" }),
        h("span", { class: "title", textContent: model.about.title }),
      ),
      this.search,
      this.problem,
      this.counts,
      h("span", { class: "stretch" }),
      this.marks,
      h("button", { class: "quiet", title: "Undo (U)", textContent: "↶ Undo", onclick: actions.undo }),
      h("button", {
        class: "strong",
        title: "Save the decisions as CSV (E)",
        textContent: "Export decisions",
        onclick: actions.save,
      }),
      h("button", {
        class: "quiet",
        title: "Light or dark (T)",
        textContent: "◐ Theme",
        "aria-label": "Light or dark",
        onclick: actions.theme,
      }),
      h("button", {
        class: "quiet",
        title: "Help (?)",
        textContent: "? Help",
        "aria-label": "Help",
        onclick: actions.help,
      }),
    );
    this.update = everyFrame(() => this.#update());
    model.on("filter select marks view", this.update);
    this.#update();
  }

  #update() {
    const m = this.model,
      shown = m.shown.reduce((a, b) => a + b, 0),
      chosen = m.selected.reduce((a, b) => a + b, 0);
    this.problem.textContent = m.unkept || m.problem || "";
    const some = shown === m.rows ? "" : `${shown.toLocaleString("en")} of `;
    const selected = chosen ? ` · ${chosen.toLocaleString("en")} selected` : "";
    this.counts.textContent = some + count(m.rows, "example") + selected;
    const tally = { keep: 0, drop: 0, relabel: 0 };
    for (const { decision } of m.marks.values()) tally[decision]++;
    this.marks.replaceChildren(
      ...Object.entries(tally)
        .filter(([, n]) => n)
        .map(([name, n]) => h("b", { class: `mark ${name}`, textContent: `${name} ${n}` })),
    );
    if (document.activeElement !== this.search) this.search.value = m.view.q;
  }
}
