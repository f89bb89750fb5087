// Training: curves of loss, the epoch slider, trails of the selection; and what adaptation did against what was said.

import { against, correlation, lines } from "./chart.js";
import { classColour } from "./colours.js";
import { everyFrame, fill, h, toast } from "./dom.js";
import { short } from "./scales.js";

export class Training {
  constructor(model, plot) {
    Object.assign(this, { model, plot });
    this.element = h("div", { class: "pane training" });
    model.on(
      "view",
      everyFrame(() => this.#redraw()),
    );
    model.on("select", () => this.#trails());
    this.#build();
  }

  #redraw() {
    const theme = document.documentElement.dataset.theme;
    if (theme !== this.theme) this.#build();
  }

  #build() {
    const { curves, epochs, outcome } = this.model.about,
      theme = (this.theme = document.documentElement.dataset.theme);
    const colours = [0, 3, 2, 4, 1].map((k) => classColour(k, theme));
    fill(this.element);
    if (curves) {
      const { epoch, ...series } = curves;
      this.chart = lines(epoch, series, colours, { x: "epoch", y: "" });
      this.element.append(h("h3", { textContent: "Loss over training" }), this.chart.element);
    }
    if (epochs.length) this.element.append(h("h3", { textContent: "The map over training" }), this.#slider(epochs));
    if (outcome)
      this.element.append(
        h("h3", { textContent: "Predicted against actual change of test losses" }),
        this.#outcome(outcome),
      );
  }

  #slider(epochs) {
    const m = this.model,
      said = h("output", { textContent: "at the end" });
    const slider = h("input", {
      type: "range",
      min: 0,
      max: epochs.length,
      value: m.view.epoch < 0 ? epochs.length : m.view.epoch,
      "aria-label": "Epoch",
    });
    slider.addEventListener("input", async () => {
      const index = Number(slider.value) === epochs.length ? -1 : Number(slider.value);
      said.textContent = index < 0 ? "at the end" : `epoch ${epochs[index]}`;
      this.chart?.move(index < 0 ? null : epochs[index]);
      try {
        await m.atEpoch(index);
      } catch (error) {
        toast(error.message, true);
      }
    });
    const play = h("button", {
      class: "quiet",
      textContent: "▶",
      title: "Play",
      onclick: () => this.#play(slider, epochs.length),
    });
    return h(
      "div",
      {},
      h("div", { class: "slider" }, play, slider, said),
      h("p", { class: "muted", textContent: "Select points to see their trails (axes: leverage and error)." }),
    );
  }

  #play(slider, end) {
    clearInterval(this.playing);
    slider.value = 0;
    slider.dispatchEvent(new Event("input"));
    this.playing = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      slider.dispatchEvent(new Event("input"));
      if (Number(slider.value) >= end) clearInterval(this.playing);
    }, 450);
  }

  async #trails() {
    const m = this.model;
    if (!m.about.epochs.length) return;
    try {
      this.plot.trails = m.selection.length ? await m.backend.trails(m.selected) : null;
    } catch (error) {
      toast(error.message, true);
    }
    this.plot.overlay();
  }

  #outcome({ predicted, actual }) {
    const sum = (values) => values.reduce((s, v) => s + (v ?? 0), 0) / values.length;
    return h(
      "div",
      {},
      against(predicted, actual, { x: "predicted change", y: "actual change" }),
      h(
        "p",
        {},
        `Mean change of loss: predicted ${short(sum(predicted))}, actual ${short(sum(actual))}. Correlation over ${predicted.length} examples: ${correlation(predicted, actual).toFixed(3)}.`,
      ),
    );
  }
}
