// What the pointer does on a map: hover, click, lasso, box, pan, zoom, and moving the guides.

import { inside } from "./grid.js";
import { MARGIN, guidePlaces } from "./overlay.js";
import { below } from "./scales.js";

export const WHOLE = { x0: -0.025, x1: 1.025, y0: -0.03, y1: 1.03 };
const REACH = 12; // pixels around the pointer
const GRIP = 5; // pixels beside a guide
const STILL = 3; // pixels that a click may move
const LARGEST = 1.4,
  SMALLEST = 1e-3; // widths of the window
const CORNERS = 60; // of a shape in the address

export class Pointer {
  constructor(plot) {
    this.plot = plot;
    const on = (name, action, options) => plot.over.addEventListener(name, action, options);
    on("pointerdown", (event) => this.#down(event));
    on("pointermove", (event) => this.#move(event));
    on("pointerup", (event) => this.#up(event));
    on("pointercancel", () => this.#drop());
    on("pointerleave", () => this.#hover(-1));
    on("dblclick", () => plot.show(WHOLE));
    on("wheel", (event) => (event.preventDefault(), this.#zoom(event)), { passive: false });
  }

  #spot(event) {
    const box = this.plot.over.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  #guideAt([x, y]) {
    const [gx, gy] = guidePlaces(this.plot);
    if (Math.abs(x - gx) < GRIP && y > MARGIN.top && y < MARGIN.top + this.plot.height) return "gx";
    return Math.abs(y - gy) < GRIP && x > MARGIN.left ? "gy" : "";
  }

  #rowAt(spot) {
    const { window: w, width, height, grid, model } = this.plot,
      [x, y] = this.plot.toPlace(...spot);
    return grid.nearest(x, y, (REACH / width) * (w.x1 - w.x0), (REACH / height) * (w.y1 - w.y0), model.shown);
  }

  #down(event) {
    if (event.button !== 0) return;
    const { plot } = this,
      spot = this.#spot(event),
      from = plot.toPlace(...spot);
    const tool = this.#guideAt(spot) || (event.altKey ? "pan" : plot.model.view.tool);
    plot.over.setPointerCapture(event.pointerId);
    this.held = { tool, spot, from, window: { ...plot.window }, moved: false };
    if (tool === "lasso" || tool === "box") plot.shape = [from];
  }

  #move(event) {
    const { plot, held } = this,
      spot = this.#spot(event),
      [x, y] = plot.toPlace(...spot);
    if (!held) return this.#look(spot, event);
    held.moved ||= Math.hypot(spot[0] - held.spot[0], spot[1] - held.spot[1]) > STILL;
    if (!held.moved) return;
    const [fx, fy] = held.from;
    if (held.tool === "lasso") plot.shape.push([x, y]);
    if (held.tool === "box")
      plot.shape = [
        [fx, fy],
        [x, fy],
        [x, y],
        [fx, y],
      ];
    if (held.tool === "pan") this.#pan(spot);
    if (held.tool === "gx") this.#guide("gx", "x", plot.xScale.value(x));
    if (held.tool === "gy") this.#guide("gy", "y", plot.yScale.value(y));
    plot.overlay();
  }

  #up(event) {
    const { plot, held } = this,
      { model, shape, xy, prefix } = plot;
    this.#drop();
    if (!held || held.tool === "gx" || held.tool === "gy") return;
    if (!held.moved) {
      const row = this.#rowAt(held.spot);
      if (row >= 0) model.focus(row);
      else model.select(new Uint8Array(model.rows));
    } else if (shape) {
      const how = event.shiftKey ? "add" : event.ctrlKey || event.metaKey ? "remove" : "replace";
      model.select(inside(xy, shape, model.shown), how, `p${prefix}${written(shape)}`);
    }
  }

  #drop() {
    this.held = this.plot.shape = null;
    this.plot.overlay();
  }

  #look(spot, event) {
    const idle = this.plot.model.view.tool === "pan" ? "grab" : "crosshair";
    this.plot.over.style.cursor = { gx: "ew-resize", gy: "ns-resize" }[this.#guideAt(spot)] ?? idle;
    this.#hover(this.#rowAt(spot), event);
  }

  #hover(row, event) {
    const { model } = this.plot;
    if (row === model.hovered) return;
    model.hovered = row;
    model.pointer = event ? [event.clientX, event.clientY] : null;
    model.emit("hover");
  }

  #pan([x, y]) {
    const { plot, held } = this,
      w = held.window;
    const dx = ((held.spot[0] - x) / plot.width) * (w.x1 - w.x0),
      dy = ((y - held.spot[1]) / plot.height) * (w.y1 - w.y0);
    plot.show({ x0: w.x0 + dx, x1: w.x1 + dx, y0: w.y0 + dy, y1: w.y1 + dy });
  }

  #zoom(event) {
    const { plot } = this,
      w = plot.window,
      [x, y] = plot.toPlace(...this.#spot(event));
    const by = Math.exp(0.0025 * Math.max(-120, Math.min(120, event.deltaY))),
      width = (w.x1 - w.x0) * by;
    if (width > LARGEST || width < SMALLEST) return;
    plot.show({ x0: x + (w.x0 - x) * by, x1: x + (w.x1 - x) * by, y0: y + (w.y0 - y) * by, y1: y + (w.y1 - y) * by });
  }

  #guide(name, axis, value) {
    const { model } = this.plot,
      order = model.order(model.view[axis]);
    model.set({ [name]: Math.min(1, below(order, value) / Math.max(order.length - 1, 1)) });
  }
}

// The selection that an address describes by its shape.
export function reselect({ model, xy, prefix }, text) {
  if (!text.startsWith("p") || prefix) return;
  const numbers = text.slice(1).split("_").map(Number);
  const shape = Array.from({ length: numbers.length >> 1 }, (_, k) => [numbers[2 * k], numbers[2 * k + 1]]);
  if (shape.length < 3 || numbers.some(Number.isNaN)) return;
  model.select(inside(xy, shape, model.shown), "replace", text);
}

function written(shape) {
  const stride = Math.max(1, Math.ceil(shape.length / CORNERS));
  return shape
    .filter((_, k) => k % stride === 0)
    .flatMap((p) => p.map((v) => v.toFixed(3)))
    .join("_");
}
