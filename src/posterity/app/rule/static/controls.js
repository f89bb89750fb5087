// The settings of a panel: what is chosen here the server computes.

import { h, select } from "./dom.js";

// Name, label, and range; some belong to certain estimators alone.
const SLIDERS = [
  ["lr", "step size ρ", { low: 0.002, high: 2, log: true }],
  ["momentum", "momentum β", { low: 0, high: 0.98, step: 0.01 }],
  ["temperature", "temperature τ", { low: 0, high: 5, step: 0.05 }],
  ["radius", "radius r", { low: 0.02, high: 1.5, step: 0.02, of: ["sam", "bsam"] }],
  ["keep", "kept π", { low: 0.1, high: 1, step: 0.05, of: ["dropout"] }],
  ["samples", "samples", { low: 1, high: 64, step: 1, of: ["monte-carlo", "relaxed", "ivon", "evon", "vadam"] }],
  ["steps", "steps", { low: 1, high: 200, step: 1 }],
];

const WIDE = ["bsam", "ivon", "evon", "vadam"]; // optimizers that take an effective sample size of 1/τ

export function controls(catalogue, panel) {
  const choice = panel.choice;
  if (!choice) return h("p", { class: "fixed", textContent: "The data and the model of this preset are fixed." });
  const { losses, families, estimators, curvatures } = catalogue,
    off = panel.backend.carried,
    able = families[choice.family].estimators;
  const menu = (label, options, name) =>
    h("label", {}, label, select(options, choice[name], (value) => panel.change(fitting(catalogue, choice, name, value), { gentle }), { disabled: off }));
  const shown = SLIDERS.filter(([, , { of }]) => !of || of.includes(choice.estimator)).map(([name, label, range]) =>
    name === "temperature" && WIDE.includes(choice.estimator) ? [name, label, { ...range, low: 0.05 }] : [name, label, range],
  );
  const exact = h("label", { class: "tick" }, h("input", { type: "checkbox", checked: choice.retracted, disabled: off || !/diagonal|full|mixture/.test(choice.family), onchange: (event) => panel.change({ retracted: event.target.checked }) }), "retraction");
  return h(
    "div",
    { class: "controls" },
    off && h("p", { class: "fixed", textContent: "This file carries presets only. To change them, run “posterity rule”." }),
    menu("loss", Object.entries(losses).map(([k, v]) => [k, v.title]), "loss"),
    menu("family", Object.entries(families).map(([k, v]) => [k, v.title]), "family"),
    menu("gradient", able.map((k) => [k, estimators[k]]), "estimator"),
    /delta|monte/.test(choice.estimator) && /diagonal|full/.test(choice.family) && menu("curvature", Object.entries(curvatures), "curvature"),
    shown.map(([name, label, range]) => slider(panel, name, label, range, choice[name], off)),
    exact,
    h("button", { class: "quiet", textContent: "New seed", disabled: off, onclick: () => panel.change({ seed: (choice.seed + 1) % 1000 }) }),
    h("button", { class: "quiet", textContent: "Reset", disabled: !Object.keys(panel.changes).length, onclick: () => panel.reset() }),
  );
}

function slider(panel, name, label, range, value, off) {
  const to = (v) => (range.log ? Math.log(v) : v),
    from = (v) => (range.log ? Number(Math.exp(v).toPrecision(2)) : Number(v)),
    shown = h("output", { textContent: String(value) });
  const input = h("input", {
    type: "range",
    min: to(range.low),
    max: to(range.high),
    step: range.log ? 0.01 : range.step,
    disabled: off,
    "aria-label": label,
    oninput: () => {
      shown.textContent = String(from(input.value));
      panel.change({ [name]: from(input.value) }, { moving: true });
    },
  });
  input.value = to(value);
  // After a refusal: the setting that is shown is the one that the film has.
  input.restore = (choice) => {
    input.value = to(choice[name]);
    shown.textContent = String(choice[name]);
  };
  return h("label", { class: "slider" }, label, input, shown);
}

// Smaller steps for a choice whose own were too large: what is picked from a menu should move.
function gentle({ family, estimator, lr }) {
  const most = estimator === "dropout" ? 0.004 : family === "point" ? 0.02 : 0.1;
  return { lr: Math.min(lr, most), retracted: /diagonal|full|mixture/.test(family) };
}

// A change and what has to follow from it: estimators belong to families, signs to two dimensions.
function fitting({ families, losses }, choice, name, value) {
  const changes = { [name]: value };
  if (name === "family") {
    if (!families[value].estimators.includes(choice.estimator)) changes.estimator = families[value].estimators[0];
    if (!/diagonal|full|mixture/.test(value)) Object.assign(changes, { retracted: false, slow_scale: null, decay: 0 });
    if (value !== "diagonal") Object.assign(changes, { square_root: false, debias: false, slow_scale: null });
    if (value === "mixture") Object.assign(changes, { curvature: "hessian", retracted: true });
    if (value === "signs") changes.loss = "signs";
    else if (choice.loss === "signs") changes.loss = "two-modes"; // nothing bounds the other between its corners
  }
  if (name === "loss" && value === "signs" && choice.family !== "signs") return fitting({ families, losses }, choice, "family", "signs");
  if (name === "loss") {
    Object.assign(changes, { start: null, points: null, minibatch: 0 });
    if (!losses[value].data && /per-example|gauss/.test(choice.curvature)) changes.curvature = "hessian";
    if (choice.estimator === "variational" && !losses[value].data) changes.estimator = "ivon";
    if (choice.estimator === "evon" && losses[value].dims === 1) changes.estimator = "delta";
    if (choice.family === "signs" && losses[value].dims === 1) Object.assign(changes, { family: "full", estimator: "delta" });
  }
  return changes;
}
