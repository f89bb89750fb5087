// A word on how to read the map, until the user has read it.

import { h } from "./dom.js";

const READ = "posterity.hint";

export function hint() {
  const element = h(
    "p",
    { class: "flag hint", role: "note" },
    h("b", { textContent: "How to read it. " }),
    "Each point is a training example. Higher up, the model is more wrong about it; further right, the model depends on " +
      "it more. Wrong labels gather at the top, and at the top of the table: go down it until ten rows in a row are right. " +
      "Click a point or a row, then Keep, Drop or Relabel it. At the end, press Export decisions.",
    h("button", { class: "quiet", textContent: "Got it", onclick: () => (remember(), element.remove()) }),
  );
  element.hidden = seen();
  return element;
}

// A file that is opened from a disk may have no storage.
function seen() {
  try {
    return localStorage.getItem(READ) !== null;
  } catch {
    return false;
  }
}

function remember() {
  try {
    localStorage.setItem(READ, "1");
  } catch {
    // shown again the next time
  }
}
