// Equations as elements: subscripts and superscripts that the text only hints at, and ρ in colour.

import { h } from "./dom.js";

const HINT = /_\{([^}]*)\}|_([\wμλ])|(ρ)/g;

export function equation(text) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(HINT)) {
    parts.push(text.slice(end, found.index));
    if (found[3]) parts.push(h("b", { class: "rate", textContent: "ρ" }));
    else parts.push(h("sub", { textContent: (found[1] ?? found[2]).replace("_", "") }));
    end = found.index + found[0].length;
  }
  parts.push(text.slice(end));
  return h("div", { class: "equation" }, parts);
}

// Python with its names, numbers and texts in colour; enough for one line.
export function python(source) {
  const parts = [];
  let end = 0;
  for (const found of source.matchAll(/("[^"]*")|\b(\d[\d.e+-]*)\b|\b(True|False|None)\b|([A-Za-z_]\w*)(?=\()/g)) {
    parts.push(source.slice(end, found.index));
    const kind = found[1] ? "text" : found[2] ? "digits" : found[3] ? "word" : "call";
    parts.push(h("span", { class: kind, textContent: found[0] }));
    end = found.index + found[0].length;
  }
  parts.push(source.slice(end));
  return h("code", {}, parts);
}
