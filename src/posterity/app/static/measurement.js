// "Measure it": trained with and without a change, in the background, with an interval.

import { fill, h } from "./dom.js";
import { percent, short, signed } from "./scales.js";

export class Measurement {
  constructor(backend, remove, relabel) {
    this.backend = backend;
    this.change = [remove, relabel];
    this.button = h("button", {
      class: "ask measure",
      textContent: "Measure it",
      title: "Train on from the old weights, with and without the change",
      onclick: () => this.run(),
    });
    this.element = h("div", { class: "measured" }, this.button);
  }

  async run() {
    const bar = h("progress", { max: 1 }),
      words = h("p", { class: "busy", textContent: "Measuring…" });
    fill(this.element, words, bar);
    const progress = (done, total) => {
      if (!total) return;
      bar.max = total;
      bar.value = done;
      words.textContent = `Measuring: ${done} of ${total} trainings…`;
    };
    const start = performance.now();
    try {
      const found = await this.backend.measure(...this.change, progress, () => this.element.isConnected);
      if (found) this.#show(found, (performance.now() - start) / 1000);
    } catch (error) {
      fill(this.element, h("p", { class: "problem", textContent: error.message }), this.button);
    }
  }

  #show(found, seconds) {
    const how = found.repeats ? `${2 * found.repeats} trainings` : "solved exactly",
      clear = found.low > 0 || found.high < 0;
    this.element.dataset.change = String(found.change);
    fill(
      this.element,
      h(
        "h4",
        {},
        "Measured",
        h("small", { textContent: ` · ${how} · on ${found.examples.toLocaleString("en")} ${found.measured_on} · ${seconds.toFixed(1)} s` }),
      ),
      h(
        "div",
        { class: "figures" },
        figure("mean loss", short(found.loss), signed, found.change, found.low, found.high, -1),
        found.accuracy != null &&
          figure(
            "accuracy",
            percent(found.accuracy),
            (v) => `${signed(100 * v)} points`,
            found.accuracy_change,
            found.accuracy_low,
            found.accuracy_high,
            1,
          ),
      ),
      h("p", {
        class: clear ? "flag fine" : "flag care",
        textContent: clear ? "The direction is clear." : "The interval contains zero: there may be no effect.",
      }),
    );
  }
}

function figure(name, before, written, change, low, high, good) {
  const sure = low > 0 || high < 0,
    side = sure ? Math.sign(change) * good : 0;
  return h(
    "div",
    { class: "figure" },
    h("span", { textContent: `${name}, from ${before}` }),
    h("b", { class: ["bad", "same", "good"][side + 1], textContent: written(change) }),
    low !== high && h("em", { class: "same", textContent: `95 %: ${written(low)} to ${written(high)}` }),
  );
}
