// Examples for the eye: an image, a text, or a row with its distance from the mean; and small cards of them.

import { classColour } from "./colours.js";
import { fill, h } from "./dom.js";
import { short } from "./scales.js";

const CELLS = 40;

// An element that shows a training example as soon as it is known; nothing where there are no previews.
// Columns of a row come in the order of another row, `like`, where there is one.
export function preview(model, row, like = -1) {
  if (!model.about.kind) return null;
  const find = (one) => model.backend.preview(model.ids[one], model.about.kind);
  return shownWhenKnown(
    model,
    () => find(row),
    () => (like < 0 ? null : find(like)),
  );
}

export function testPreview(model, row) {
  if (!model.about.kind) return null;
  return shownWhenKnown(model, () => model.backend.testPreview(row, model.about.kind));
}

// `find` gives a preview, a promise of one, or an error that says why there is none.
function shownWhenKnown(model, find, findLike = () => null) {
  const element = h("div", { class: "preview", data: { kind: model.about.kind } });
  const fail = (error) => {
    element.classList.add("missing");
    fill(element, h("div", { class: "gone", textContent: error.message }));
  };
  const show = ([found, like]) => {
    element.dataset.kind = found.kind;
    if (found.kind === "text") fill(element, h("p", { textContent: found.text }));
    else if (found.kind === "row") fill(element, cells(found.cells, like?.cells ?? found.cells));
    else
      fill(
        element,
        picture(found.src, () => model.backend.why(found.src).then(fail, fail)),
      );
  };
  try {
    const found = [find(), findLike()];
    found.some((one) => one instanceof Promise) ? Promise.all(found).then(show, fail) : show(found);
  } catch (error) {
    fail(error);
  }
  return element;
}

function picture(src, onerror) {
  return h("img", { src, alt: "", loading: "lazy", decoding: "async", draggable: false, onerror });
}

// The most unusual values of `like` first, which is the row itself or one that it is compared with.
function cells(row, like) {
  const unusual = ([name]) => Math.abs(like[name]?.z ?? 0);
  const entries = Object.entries(row).sort((a, b) => unusual(b) - unusual(a));
  return h(
    "dl",
    {},
    entries.slice(0, CELLS).map(([name, { value, z }]) => {
      const bar = h("i", { class: z === null ? "" : z < 0 ? "z low" : "z high" });
      if (z !== null) bar.style.width = `${Math.min(Math.abs(z), 4) * 10}px`;
      return h(
        "div",
        { title: z === null ? name : `${name}: ${short(z)} standard deviations from the mean` },
        h("dt", { textContent: name }),
        h("dd", {}, h("span", { textContent: typeof value === "number" ? short(value) : value || "–" }), bar),
      );
    }),
  );
}

export function swatch(model, k) {
  const element = h("i", { class: "swatch" });
  if (k >= 0) element.style.background = classColour(k, document.documentElement.dataset.theme);
  return element;
}

export function labelled(model, row, name = "label") {
  const value = model.columns.get(name)?.[row];
  return h(
    "span",
    { class: "label" },
    model.classes.length ? swatch(model, value ?? -1) : null,
    model.labelOf(row, name),
  );
}

export function verdict(model, row) {
  const suggested = model.suggestion(row);
  if (suggested)
    return h(
      "span",
      { class: "verdict" },
      labelled(model, row),
      h("span", { class: "arrow", textContent: "→" }),
      labelled(model, row, "suspected_label"),
    );
  return labelled(model, row);
}

// A card of a training example; a click looks at it.
export function card(model, row, note = "", value = null, like = -1) {
  const id = model.ids[row],
    mark = model.marks.get(row)?.decision ?? "";
  const element = h(
    "button",
    { class: "card", data: { row, mark }, title: `#${id}`, onclick: () => model.focus(row) },
    preview(model, row, like),
    h(
      "span",
      { class: "foot" },
      verdict(model, row),
      note && h("span", { class: value === null ? "note" : value > 0 ? "note up" : "note down", textContent: note }),
    ),
  );
  element.classList.toggle("focused", row === model.focused);
  return element;
}
