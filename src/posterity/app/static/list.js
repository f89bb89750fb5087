// A list of any length: only the rows in view exist.

import { everyFrame, h } from "./dom.js";

export class List {
  constructor(height, row) {
    Object.assign(this, { height, row, length: 0, made: new Map() });
    this.room = h("div", { class: "room" });
    this.element = h("div", { class: "list", tabIndex: -1 }, this.room);
    this.element.addEventListener(
      "scroll",
      everyFrame(() => this.render()),
    );
    new ResizeObserver(() => this.render()).observe(this.element);
  }

  // Show rows 0 .. length − 1 anew.
  reset(length, keepPlace = false) {
    this.length = length;
    this.room.style.height = `${length * this.height}px`;
    this.room.replaceChildren();
    this.made.clear();
    if (!keepPlace) this.element.scrollTop = 0;
    this.render();
  }

  render() {
    const top = this.element.scrollTop,
      from = Math.max(0, Math.floor(top / this.height) - 4);
    const to = Math.min(this.length, Math.ceil((top + this.element.clientHeight) / this.height) + 4);
    for (const [i, element] of this.made) if (i < from || i >= to) (element.remove(), this.made.delete(i));
    for (let i = from; i < to; i++) {
      if (this.made.has(i)) continue;
      const element = this.row(i);
      element.style.top = `${i * this.height}px`;
      element.style.height = `${this.height}px`;
      this.made.set(i, element);
      this.room.append(element);
    }
  }

  reveal(i) {
    const top = i * this.height,
      box = this.element;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + this.height > box.scrollTop + box.clientHeight) box.scrollTop = top + this.height - box.clientHeight;
    this.render();
  }
}
