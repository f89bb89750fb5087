// Above the map: axes, colours, tools; and the legend, whose entries hide and show their points.

import { categoryColours, classColour, orderedStops } from "./colours.js";
import { everyFrame, fill, h, select } from "./dom.js";
import { SCALES, meaning, readable } from "./scales.js";

const TOOLS = [
  ["lasso", "Lasso", "L"],
  ["box", "Box", "B"],
  ["pan", "Pan", "P"],
];
const VIEWS = [
  ["Scores", "How wrong the model is, and how much it depends on each example", { x: "leverage", y: "error", xs: "log", ys: "linear" }],
  ["Features", "Examples that are close together are similar for the model", { x: "feature_1", y: "feature_2", xs: "linear", ys: "linear" }],
];
const MANY = 24; // classes beyond which a legend is no help

export class Legend {
  constructor(model, actions) {
    Object.assign(this, { model, actions });
    this.tools = h("div", { class: "axes" });
    this.keys = h("div", { class: "legend" });
    this.switches = h("div", { class: "switches" });
    this.element = h("div", { class: "above" }, this.tools, h("div", { class: "second" }, this.keys, this.switches));
    this.update = everyFrame(() => this.#update());
    model.on("view filter", this.update);
    this.#update();
  }

  #update() {
    const m = this.model,
      v = m.view,
      columns = m.numeric.map((name) => [name, readable(name)]);
    const colours = [
      ["category", "category"],
      ...(m.classes.length
        ? [
            ["label", "given label"],
            ["prediction", "prediction"],
          ]
        : []),
      [m.about.ranking, `suspicion (${readable(m.about.ranking)})`],
      ...columns.filter(([name]) => name !== m.about.ranking),
    ];
    const axis = (name, scale) =>
      h(
        "label",
        {},
        name === "x" ? "Horizontal " : "Vertical ",
        select(columns, v[name], (value) => m.set({ [name]: value, win: "" }), {
          "aria-label": name === "x" ? "Horizontal axis" : "Vertical axis",
          title: meaning(v[name]),
        }),
        select(SCALES, v[scale], (value) => m.set({ [scale]: value }), { "aria-label": "Scale" }),
      );
    if (!this.tools.contains(document.activeElement) || document.activeElement.tagName !== "SELECT")
      fill(
        this.tools,
        axis("y", "ys"),
        axis("x", "xs"),
        h(
          "label",
          {},
          "Colour ",
          select(colours, v.colour, (colour) => m.set({ colour, hide: "" }), { "aria-label": "Colour" }),
        ),
      );
    else document.activeElement.blur();
    fill(
      this.switches,
      m.about.beside &&
        h("button", {
          class: v.beside ? "quiet on" : "quiet",
          textContent: "Compare",
          title: `Beside it: ${m.about.beside}`,
          onclick: this.actions.compare,
        }),
      m.columns.has("feature_1") &&
        h(
          "span",
          { class: "switch", role: "group" },
          VIEWS.map(([text, title, axes]) =>
            h("button", {
              class: v.x === axes.x && v.y === axes.y ? "on" : "",
              textContent: text,
              title,
              onclick: () => m.set({ ...axes, win: "" }),
            }),
          ),
        ),
      h("button", {
        class: v.density ? "quiet on" : "quiet",
        textContent: "Density",
        title: "Shade dense areas",
        "aria-label": "Density",
        onclick: () => m.set({ density: !v.density }),
      }),
      h(
        "span",
        { class: "switch", role: "group" },
        TOOLS.map(([tool, text, key]) =>
          h("button", {
            class: v.tool === tool ? "on" : "",
            textContent: text,
            title: `${text} (${key})`,
            onclick: () => m.set({ tool }),
          }),
        ),
      ),
    );
    fill(this.keys, m.grouped ? this.#groups() : this.#ramp());
  }

  #groups() {
    const m = this.model,
      category = m.view.colour === "category",
      theme = document.documentElement.dataset.theme;
    const names = category ? m.categories : m.classes,
      hidden = new Set(m.view.hide.split(",").filter(Boolean).map(Number));
    if (names.length > MANY)
      return h("span", { class: "muted", textContent: `${names.length} classes; search for label:name to see one` });
    const groups = m.groups(),
      tally = new Uint32Array(names.length);
    for (let i = 0; i < m.rows; i++) tally[groups[i]]++;
    const toggle = (k, alone) => {
      const next = alone
        ? new Set(
            hidden.size === names.length - 1 && !hidden.has(k) ? [] : names.map((_, j) => j).filter((j) => j !== k),
          )
        : new Set(hidden.has(k) ? [...hidden].filter((j) => j !== k) : [...hidden, k]);
      m.set({ hide: [...next].sort((a, b) => a - b).join(",") });
    };
    return names.map((name, k) => {
      const dot = h("i", { class: "swatch" });
      dot.style.background = category ? categoryColours(theme)[k] : classColour(k, theme);
      return h(
        "button",
        {
          class: hidden.has(k) ? "key off" : "key",
          title: "Click: hide or show. Double click: only this.",
          onclick: () => toggle(k, false),
          ondblclick: () => toggle(k, true),
        },
        dot,
        name,
        h("small", { textContent: tally[k].toLocaleString("en") }),
      );
    });
  }

  #ramp() {
    const ramp = h("i", { class: "ramp" });
    ramp.style.background = `linear-gradient(90deg, ${orderedStops(document.documentElement.dataset.theme).join(", ")})`;
    return [
      h("span", { class: "muted", textContent: "smallest" }),
      ramp,
      h("span", { class: "muted", textContent: "largest (by rank)" }),
    ];
  }
}
