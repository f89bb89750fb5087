// The keyboard: everything that is done a hundred times has a key.

import { h } from "./dom.js";

const HELP = [
  ["↑ ↓", "previous, next example in the table"],
  ["K  D  R", "keep, drop, relabel as suggested; with Shift, the whole selection"],
  ["X", "take the mark away"],
  ["U, Ctrl Z", "undo"],
  ["N", "nearest neighbours of the example"],
  ["W", "what if the selection were missing?"],
  ["L  B  P", "lasso, box, pan; Alt and drag pans, the wheel zooms, a double click shows all"],
  ["Shift, Ctrl", "while selecting: add to the selection, take away from it"],
  ["A, Esc", "select all that is shown; select nothing"],
  ["1, 2 …", "the tabs, from left to right"],
  ["/", "search: words, label:7, pred:3, id:12, suspect:yes, mark:drop, error>0.5, leverage<=0.01"],
  ["E", "export the decisions for “posterity adapt --decisions”"],
  ["T", "light or dark"],
];

export function listen(actions) {
  document.addEventListener("keydown", (event) => {
    const typing = /INPUT|SELECT|TEXTAREA/.test(event.target.tagName) && event.target.type !== "range";
    if (document.querySelector("dialog[open]")) return; // which closes itself
    if (event.key === "Escape") return actions.escape(event.target);
    if (typing) return;
    const control = event.ctrlKey || event.metaKey,
      key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (control && key === "z") return run(event, actions.undo);
    if (control || event.altKey) return;
    const action = actions.keys[key];
    if (action) run(event, () => action(event.shiftKey));
  });
}

function run(event, action) {
  event.preventDefault();
  action();
}

export function help() {
  const box = h(
    "dialog",
    { class: "help" },
    h("h2", { textContent: "The memory map" }),
    h("p", {
      textContent:
        "Every point is a training example. Vertical: how wrong the model is about it. Horizontal: how much the example decides its own prediction. Wrong labels gather at the top. Drag the dashed guides to change which examples count as regular.",
    }),
    h(
      "dl",
      {},
      HELP.map(([keys, what]) =>
        h("div", {}, h("dt", {}, h("kbd", { textContent: keys })), h("dd", { textContent: what })),
      ),
    ),
    h("button", { class: "strong", textContent: "Close", onclick: () => box.close() }),
  );
  box.addEventListener("close", () => box.remove());
  box.addEventListener("click", (event) => event.target === box && box.close());
  document.body.append(box);
  box.showModal();
}
