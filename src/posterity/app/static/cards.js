// Examples for the eye: an image, a text, or a row with its distance from the mean; and small cards of them.

import { classColour } from "./colours.js";
import { fill, h } from "./dom.js";
import { short } from "./scales.js";

const CELLS = 40;

// An element that shows an example as soon as it is known; `find` gives the preview or a promise of it.
export function preview(find, path, backend) {
  const element = h("div", { class: "preview", data: { kind: document.documentElement.dataset.kind } });
  const show = (found) => fill(element, render(found, element, path, backend));
  const fail = (error) => (
    fill(element, h("div", { class: "gone", textContent: error.message })),
    element.classList.add("missing")
  );
  try {
    const found = find();
    found instanceof Promise ? found.then(show, fail) : show(found);
  } catch (error) {
    fail(error);
  }
  return element;
}

function render(found, element, path, backend) {
  element.dataset.kind = found.kind;
  if (found.kind === "text") return h("p", { textContent: found.text });
  if (found.kind === "row") return cells(found.cells);
  const image = h("img", { src: found.src, alt: "", loading: "lazy", decoding: "async", draggable: false });
  image.addEventListener("error", () =>
    backend
      .why(found.src)
      .then(
        () => "The image cannot be shown.",
        (e) => e.message,
      )
      .then((text) => {
        element.classList.add("missing");
        fill(element, h("div", { class: "gone", textContent: text }));
      }),
  );
  return image;
}

// The most unusual values first.
function cells(row) {
  const entries = Object.entries(row).sort(([, a], [, b]) => Math.abs(b.z ?? 0) - Math.abs(a.z ?? 0));
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
        h("dd", {}, h("span", { textContent: typeof value === "number" ? short(value) : value }), bar),
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
export function card(model, row, note = "", value = null) {
  const id = model.ids[row],
    mark = model.marks.get(row)?.decision ?? "";
  const element = h(
    "button",
    { class: "card", data: { row, mark }, title: `#${id}`, onclick: () => model.focus(row) },
    model.about.kind
      ? preview(() => model.backend.preview(id, model.about.kind), `/api/preview/${id}`, model.backend)
      : null,
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
