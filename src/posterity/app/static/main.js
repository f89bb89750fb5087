// The page: columns once, then views that listen to one model.

import { backend } from "./backend.js";
import { Bar } from "./bar.js";
import { Classes } from "./classes.js";
import { labelled, preview, verdict } from "./cards.js";
import { Detail } from "./detail.js";
import { everyFrame, fill, h, toast } from "./dom.js";
import { Gallery } from "./gallery.js";
import { reselect } from "./pointer.js";
import { hint } from "./hint.js";
import { help, listen } from "./keys.js";
import { Legend } from "./legend.js";
import { Model } from "./model.js";
import { Plot } from "./plot.js";
import { count, short } from "./scales.js";
import { Table } from "./table.js";
import { Tests } from "./tests.js";
import { Training } from "./training.js";
import { WhatIf } from "./whatif.js";

function theme(model, next) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = ["light", "dark"].includes(next) ? next : dark;
  if (model) model.set({ theme: next });
}

function csv(model) {
  const formula = /^'*[=+\-@\t\r]/; // a spreadsheet would run it; as in posterity.cells
  const number = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-](inf|nan)$/;
  const text = (v) => (formula.test(v) && !number.test(v) ? `'${v}` : v);
  const cell = (v) => (/[",\r\n]/.test(v) ? `"${String(v).replaceAll('"', '""')}"` : v);
  const rows = model.decisions().map(({ id, decision, label }) => [id, decision, text(label)].map(cell).join(","));
  return ["id,decision,label", ...rows, ""].join("\n");
}

function save(model) {
  if (!model.marks.size) return toast("Nothing is marked yet. Click a point or a row, then Keep, Drop or Relabel it.");
  const link = h("a", {
    href: URL.createObjectURL(new Blob([csv(model)], { type: "text/csv" })),
    download: "decisions.csv",
  });
  link.click();
  model.loose = false;
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000); // not every browser has begun by now
  const next = model.about.adapt || `posterity adapt ${model.about.title} --decisions decisions.csv`;
  toast(`${count(model.marks.size, "decision")} in decisions.csv. Next: ${next}`, false, 20_000);
}

// What follows the pointer.
function tip(model) {
  const element = document.getElementById("tip");
  model.on("hover", () => {
    const row = model.hovered;
    element.hidden = row < 0 || !model.pointer;
    if (element.hidden) return;
    const id = model.ids[row];
    fill(
      element,
      preview(model, row),
      h("div", { class: "tipline" }, h("b", { textContent: `#${id}` }), verdict(model, row)),
      model.about.names && h("div", { class: "muted file", textContent: model.about.names[row] }),
      h("div", { class: "muted" }, "predicted ", labelled(model, row, "prediction")),
      h("div", {
        class: "muted",
        textContent: `${model.view.y} ${short(model.column(model.view.y)[row])} · ${model.view.x} ${short(model.column(model.view.x)[row])}`,
      }),
    );
    const [x, y] = model.pointer,
      box = element.getBoundingClientRect();
    element.style.left = `${Math.min(x + 16, innerWidth - box.width - 8)}px`;
    element.style.top = `${Math.max(8, Math.min(y + 16, innerHeight - box.height - 8))}px`;
  });
}

function tabs(model, panes) {
  const bar = h("div", { class: "tabs", role: "tablist" }),
    room = h(
      "div",
      { class: "panes" },
      panes.map(([, , pane]) => pane.element),
    );
  const show = () => {
    if (!panes.some(([name]) => name === model.view.tab)) model.view.tab = "table";
    fill(
      bar,
      panes.map(([name, text], k) =>
        h("button", {
          role: "tab",
          class: name === model.view.tab ? "on" : "",
          title: `${text} (${k + 1})`,
          textContent: text,
          onclick: () => model.set({ tab: name }),
        }),
      ),
    );
    for (const [name, , pane] of panes) pane.element.hidden = name !== model.view.tab;
  };
  model.on("view", everyFrame(show));
  show();
  return [bar, room];
}

function compare(model, map) {
  const element = map.querySelector(".plots");
  const show = () => {
    const second = element.children[1];
    if (model.view.beside && !second)
      element.append(new Plot(model, { prefix: "beside.", caption: model.about.beside }).element);
    else if (!model.view.beside && second) second.remove();
  };
  model.on("view", show);
  show();
}

function start(data, answers) {
  const model = new Model(data, answers);
  theme(null, model.view.theme);
  document.documentElement.dataset.kind = model.about.kind;
  document.title = `${model.about.title} · Posterity`;
  const actions = {
    undo: () => toast(model.undo() ? "Undone" : "Nothing to undo"),
    save: () => save(model),
    theme: () => theme(model, document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
    help,
    compare: () => model.set({ beside: !model.view.beside }),
  };
  const plot = new Plot(model, { caption: model.about.beside ? model.about.title : "" });
  const map = document.getElementById("map"),
    side = document.getElementById("side");
  map.append(new Legend(model, actions).element, hint(), h("div", { class: "plots" }, plot.element));
  if (model.about.reliability)
    map.append(h("p", { class: "flag care", textContent: `Estimates: ${model.about.reliability}.` }));
  if (model.about.beside) compare(model, map);
  new Bar(model, actions);
  const table = new Table(model),
    whatIf = new WhatIf(model),
    detail = new Detail(model),
    about = model.about;
  const panes = [
    ["table", "Table", table],
    ["gallery", "Gallery", new Gallery(model)],
    ["whatif", "What if?", whatIf],
  ];
  if (about.test) panes.push(["test", "Test", new Tests(model)]);
  const suspects = model.classes.length > 0 && model.columns.has("suspected_label");
  if (about.curves || about.epochs.length || about.outcome)
    panes.push(["training", about.curves || about.epochs.length ? "Training" : "Adapted", new Training(model, plot)]);
  if (suspects) panes.push(["classes", "Classes", new Classes(model)]);
  side.append(...tabs(model, panes), detail.element);
  tip(model);
  addEventListener("beforeunload", (event) => (model.unsaved.size || model.loose) && event.preventDefault());
  addEventListener("focus", () => model.unsaved.size && model.keep()); // the server may be back meanwhile
  detail.marked = () => table.step(1);
  keyboard(model, actions, { table, whatIf, detail, panes });
  model.set({});
  if (model.view.q || model.view.hide) model.filter();
  reselect(plot, model.view.sel);
  if (model.view.focus >= 0) model.emit("focus");
  window.posterity = model; // for the curious, and for tests
}

function keyboard(model, actions, { table, whatIf, detail, panes }) {
  const mark = (decision) => (all) => {
    const rows = all ? model.selection : [model.focused].filter((row) => row >= 0);
    if (!rows.length) return toast(all ? "Nothing is selected" : "Choose an example first");
    const propose = (row) => (all ? model.suggestion(row) : model.guess(row)); // of many rows only the likely ones
    if (decision === "relabel" && !rows.some(propose)) return toast("No other label is suggested; choose one in the list");
    model.mark(decision === "relabel" ? rows.filter(propose) : rows, decision);
    if (!all && decision !== "clear") table.step(1);
  };
  const keys = {
    ArrowDown: () => table.step(1),
    ArrowUp: () => table.step(-1),
    k: mark("keep"),
    d: mark("drop"),
    r: mark("relabel"),
    x: mark("clear"),
    u: actions.undo,
    e: actions.save,
    t: actions.theme,
    "?": help,
    n: () => detail.neighbours(),
    l: () => model.set({ tool: "lasso" }),
    b: () => model.set({ tool: "box" }),
    p: () => model.set({ tool: "pan" }),
    a: () => model.select(model.shown.slice()),
    "/": () => document.getElementById("search").focus(),
    w: () => (model.set({ tab: "whatif" }), whatIf.removal()),
  };
  panes.forEach(([name], k) => (keys[k + 1] = () => model.set({ tab: name })));
  const escape = (target) => (target.id === "search" ? target.blur() : model.select(new Uint8Array(model.rows)));
  listen({ keys, undo: actions.undo, escape });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  const model = window.posterity;
  theme(null, model?.view.theme ?? "");
  model?.set({}); // colours of points follow
});
theme(null, new URLSearchParams(location.hash.slice(1)).get("theme") ?? "");
const answers = backend();
answers
  .columns()
  .then((data) => start(data, answers))
  .catch((error) => {
    console.error(error);
    fill(
      document.querySelector("main"),
      h(
        "section",
        { class: "sorry", role: "alert" },
        h("h2", { textContent: "The map cannot be shown" }),
        h("p", { textContent: error.message }),
      ),
    );
  });
