// The map: points over a density, axes, guides that can be moved, lasso and box, zoom and pan, trails.

import { categoryColours, classColour, ordered, rgb } from "./colours.js";
import { density } from "./density.js";
import { css, everyFrame, h } from "./dom.js";
import { GlPainter } from "./gl.js";
import { Grid, inside } from "./grid.js";
import { RasterPainter } from "./raster.js";
import { Scale, below, readable, sorted } from "./scales.js";

const MARGIN = { left: 58, right: 14, top: 14, bottom: 46 };
const WHOLE = { x0: -0.025, x1: 1.025, y0: -0.03, y1: 1.03 };
const REACH = 12; // pixels around the pointer
const MARKS = { keep: "--keep", drop: "--drop", relabel: "--relabel" };

export class Plot {
  constructor(model, { prefix = "", caption = "" } = {}) {
    Object.assign(this, { model, prefix, hover: -1, shape: null, trails: null });
    this.window = this.#windowOf(model.view.win);
    this.under = h("canvas");
    [this.painter, this.points] = painter();
    this.over = h("canvas", { class: "over", tabIndex: 0, "aria-label": `Map of ${model.rows} examples` });
    this.element = h("div", { class: "plot" }, this.under, this.points, this.over, caption && h("div", { class: "caption", textContent: caption }));
    this.element.dataset.painter = this.painter instanceof GlPainter ? "webgl" : "raster";
    this.draw = everyFrame(() => this.#draw());
    this.overlay = everyFrame(() => this.#overlay());
    new ResizeObserver(() => this.resize()).observe(this.element);
    this.#listen();
    model.on("view", () => this.refresh());
    model.on("epoch", () => this.refresh());
    model.on("filter select", () => (this.#paintOrder(), this.draw()));
    model.on("focus marks hover", () => this.overlay());
    this.refresh();
  }

  // Work out again only what the view has changed.
  refresh() {
    const { x, y, xs, ys, colour, theme, epoch, gx, gy } = this.model.view;
    const axes = [x, y, xs, ys, epoch].join(), look = [colour, theme, document.documentElement.dataset.theme, colour === "category" && [x, y, gx, gy]].join();
    if (axes !== this.axes) this.#place();
    if (look !== this.look) this.#colour();
    [this.axes, this.look] = [axes, look];
    this.draw();
  }

  #place() {
    const m = this.model, { x, y, xs, ys } = m.view;
    const values = (name) => (m.columns.has(this.prefix + name) ? (this.prefix ? m.columns.get(this.prefix + name) : m.column(name)) : new Float32Array(m.rows).fill(NaN));
    this.xScale = new Scale(xs, this.#domain(x));
    this.yScale = new Scale(ys, this.#domain(y));
    this.xy = new Float32Array(2 * m.rows);
    this.xScale.places(values(x), this.xy, 0);
    this.yScale.places(values(y), this.xy, 1);
    this.grid = new Grid(this.xy);
    this.painter.places(this.xy);
    if (!this.rows) this.#paintOrder();
  }

  // One domain for both runs and for all epochs, so that places can be compared.
  #domain(name) {
    const m = this.model, other = m.columns.get(`beside.${name}`), extent = m.view.epoch >= 0 && m.about.extents?.[name];
    let order = m.order(name);
    if (m.view.beside && other) order = sorted([...order, ...other]);
    return extent ? sorted([...order, ...extent]) : order;
  }

  #colour() {
    const m = this.model, theme = document.documentElement.dataset.theme, rgba = new Uint8Array(4 * m.rows);
    const alpha = Math.round(255 * (m.rows < 5000 ? 0.85 : m.rows < 30000 ? 0.65 : 0.45));
    const pick = m.grouped ? this.#byGroup(theme) : this.#byRank(theme);
    for (let i = 0; i < m.rows; i++) {
      const c = pick(i);
      rgba[4 * i] = c[0];
      rgba[4 * i + 1] = c[1];
      rgba[4 * i + 2] = c[2];
      rgba[4 * i + 3] = alpha;
    }
    this.rgba = rgba;
    this.#paintOrder();
  }

  #byGroup(theme) {
    const groups = this.model.groups(), count = this.model.view.colour === "category" ? 4 : this.model.classes.length;
    const colours = Array.from({ length: count }, (_, k) => rgb(this.model.view.colour === "category" ? categoryColours(theme)[k] : classColour(k, theme)));
    const none = rgb(theme === "dark" ? "#48505C" : "#C4CAD2");
    return (i) => colours[groups[i]] ?? none;
  }

  #byRank(theme) {
    const values = this.model.groups(), order = this.model.order(this.model.view.colour), scale = ordered(theme);
    return (i) => scale[Math.round((255 * below(order, values[i])) / Math.max(order.length - 1, 1)) || 0];
  }

  // Hidden points are not drawn; what is not selected steps back; the selection comes last.
  #paintOrder() {
    const m = this.model, any = m.selected.includes(1), back = [], front = [];
    for (let i = 0; i < m.rows; i++) if (m.shown[i]) (m.selected[i] ? front : back).push(i);
    this.rows = Uint32Array.from(back.concat(front));
    if (!this.rgba) return;
    const colours = this.rgba.slice();
    if (any) for (const i of back) colours[4 * i + 3] *= 0.18;
    if (any) for (const i of front) colours[4 * i + 3] = Math.max(colours[4 * i + 3], 215);
    this.painter.colours(colours);
    this.painter.order(this.rows);
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !height) return;
    this.ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.width = width - MARGIN.left - MARGIN.right;
    this.height = height - MARGIN.top - MARGIN.bottom;
    for (const canvas of [this.under, this.points]) place(canvas, MARGIN.left, MARGIN.top, this.width, this.height, this.ratio);
    place(this.over, 0, 0, width, height, this.ratio);
    this.#draw();
  }

  #draw() {
    if (!this.width) return;
    const n = this.model.rows, size = (n < 3000 ? 7 : n < 20000 ? 5 : 3.4) * Math.min(2, Math.sqrt(1.05 / (this.window.x1 - this.window.x0)) || 1);
    this.painter.draw(this.window, size * this.ratio);
    density(this.under, this.xy, this.rows, this.window, rgb(css("--ink")), this.model.view.density);
    this.#gridlines();
    this.#overlay();
    if (!this.drawn) {
      this.drawn = true;
      performance.mark("posterity-drawn");
      document.documentElement.dataset.drawn = String(Math.round(performance.now()));
    }
  }

  toScreen(px, py) {
    const w = this.window;
    return [MARGIN.left + ((px - w.x0) / (w.x1 - w.x0)) * this.width, MARGIN.top + (1 - (py - w.y0) / (w.y1 - w.y0)) * this.height];
  }

  toPlace(sx, sy) {
    const w = this.window;
    return [w.x0 + ((sx - MARGIN.left) / this.width) * (w.x1 - w.x0), w.y0 + (1 - (sy - MARGIN.top) / this.height) * (w.y1 - w.y0)];
  }

  #overlay() {
    if (!this.width) return;
    const c = this.over.getContext("2d");
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.clearRect(0, 0, this.over.width, this.over.height);
    this.#axes(c);
    c.save();
    c.beginPath();
    c.rect(MARGIN.left, MARGIN.top, this.width, this.height);
    c.clip();
    this.#guides(c);
    this.#ways(c);
    this.#rings(c);
    this.#drawShape(c);
    c.restore();
  }

  #ticks() {
    const w = this.window;
    return [this.xScale.ticks(w.x0, w.x1, Math.max(2, this.width / 90)), this.yScale.ticks(w.y0, w.y1, Math.max(2, this.height / 60))];
  }

  #gridlines() {
    const c = this.under.getContext("2d"), [xs, ys] = this.#ticks();
    c.setTransform(this.ratio, 0, 0, this.ratio, -MARGIN.left * this.ratio, -MARGIN.top * this.ratio);
    c.lineWidth = 1;
    c.strokeStyle = css("--line");
    for (const [p] of xs) segment(c, this.toScreen(p, 0)[0], MARGIN.top, this.toScreen(p, 0)[0], MARGIN.top + this.height);
    for (const [p] of ys) segment(c, MARGIN.left, this.toScreen(0, p)[1], MARGIN.left + this.width, this.toScreen(0, p)[1]);
    c.setTransform(1, 0, 0, 1, 0, 0);
  }

  #axes(c) {
    const m = this.model, [xs, ys] = this.#ticks(), bottom = MARGIN.top + this.height, left = MARGIN.left;
    c.font = "11px system-ui, sans-serif";
    c.fillStyle = css("--muted");
    c.textAlign = "center";
    c.textBaseline = "top";
    for (const [p, text] of xs) c.fillText(text, this.toScreen(p, 0)[0], bottom + 8);
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const [p, text] of ys) c.fillText(text, left - 8, this.toScreen(0, p)[1]);
    c.fillStyle = css("--ink");
    c.font = "600 12px system-ui, sans-serif";
    c.textAlign = "center";
    c.fillText(`${readable(m.view.x)} →`, left + this.width / 2, bottom + 34);
    c.save();
    c.translate(12, MARGIN.top + this.height / 2);
    c.rotate(-Math.PI / 2);
    c.fillText(`${readable(m.view.y)} →`, 0, 0);
    c.restore();
  }

  #guides(c) {
    const m = this.model, [gx, gy] = this.guidePlaces(), muted = css("--muted");
    c.setLineDash([5, 4]);
    c.lineWidth = 1.2;
    c.strokeStyle = muted;
    segment(c, gx, MARGIN.top, gx, MARGIN.top + this.height);
    segment(c, MARGIN.left, gy, MARGIN.left + this.width, gy);
    c.setLineDash([]);
    c.font = "10.5px system-ui, sans-serif";
    c.fillStyle = muted;
    c.textAlign = "left";
    c.textBaseline = "top";
    c.fillText(`${Math.round(100 * m.view.gx)} %`, gx + 4, MARGIN.top + 3);
    c.textAlign = "right";
    c.textBaseline = "bottom";
    c.fillText(`${Math.round(100 * m.view.gy)} %`, MARGIN.left + this.width - 4, gy - 3);
  }

  guidePlaces() {
    const [x, y] = this.model.limits;
    return this.toScreen(this.xScale.place(x), this.yScale.place(y));
  }

  #ways(c) {
    const m = this.model;
    if (!this.trails || m.view.tab !== "training" || m.view.x !== "leverage" || m.view.y !== "error" || this.prefix) return;
    c.lineWidth = 1.3;
    this.trails.rows.forEach((row, k) => {
      c.strokeStyle = `rgb(${this.rgba[4 * row]} ${this.rgba[4 * row + 1]} ${this.rgba[4 * row + 2]} / 0.75)`;
      c.beginPath();
      let going = false;
      this.trails.leverage[k].forEach((v, e) => {
        if (v === null || this.trails.error[k][e] === null) return;
        const [x, y] = this.toScreen(this.xScale.place(v), this.yScale.place(this.trails.error[k][e]));
        going ? c.lineTo(x, y) : c.moveTo(x, y);
        going = true;
      });
      c.stroke();
    });
  }

  #rings(c) {
    const m = this.model, ring = (row, radius, style, width) => {
      const [x, y] = this.toScreen(this.xy[2 * row], this.xy[2 * row + 1]);
      if (x !== x || y !== y) return;
      c.strokeStyle = style;
      c.lineWidth = width;
      c.beginPath();
      c.arc(x, y, radius, 0, 7);
      c.stroke();
    };
    for (const [row, { decision }] of m.marks) if (m.shown[row]) ring(row, 5, css(MARKS[decision]), 1.8);
    if (m.hovered >= 0) ring(m.hovered, 7, css("--ink"), 1.6);
    if (m.focused >= 0) {
      ring(m.focused, 9, css("--panel"), 5);
      ring(m.focused, 9, css("--accent"), 2.4);
    }
  }

  #drawShape(c) {
    if (!this.shape) return;
    c.beginPath();
    for (const [x, y] of this.shape) c.lineTo(...this.toScreen(x, y));
    c.closePath();
    c.globalAlpha = 0.12;
    c.fillStyle = css("--accent");
    c.fill();
    c.globalAlpha = 1;
    c.strokeStyle = css("--accent");
    c.lineWidth = 1.5;
    c.stroke();
  }

  // Hands.
  #listen() {
    const on = (name, action, options) => this.over.addEventListener(name, action, options);
    on("pointerdown", (event) => this.#down(event));
    on("pointermove", (event) => this.#move(event));
    on("pointerup", (event) => this.#up(event));
    on("pointercancel", () => ((this.hand = null), (this.shape = null), this.overlay()));
    on("pointerleave", () => this.#hovering(-1));
    on("dblclick", () => this.show(WHOLE));
    on("wheel", (event) => (event.preventDefault(), this.#zoom(event)), { passive: false });
  }

  #spot(event) {
    const box = this.over.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  #guideAt([x, y]) {
    const [gx, gy] = this.guidePlaces();
    if (Math.abs(x - gx) < 5 && y > MARGIN.top && y < MARGIN.top + this.height) return "gx";
    return Math.abs(y - gy) < 5 && x > MARGIN.left ? "gy" : "";
  }

  #down(event) {
    if (event.button !== 0) return;
    const spot = this.#spot(event), tool = this.#guideAt(spot) || (event.altKey ? "pan" : this.model.view.tool);
    this.over.setPointerCapture(event.pointerId);
    this.hand = { tool, spot, from: this.toPlace(...spot), window: { ...this.window }, moved: false };
    if (tool === "lasso" || tool === "box") this.shape = [this.hand.from];
  }

  #move(event) {
    const spot = this.#spot(event), place = this.toPlace(...spot);
    if (!this.hand) {
      this.over.style.cursor = { gx: "ew-resize", gy: "ns-resize" }[this.#guideAt(spot)] ?? (this.model.view.tool === "pan" ? "grab" : "crosshair");
      return this.#hovering(this.at(...spot), event);
    }
    const hand = this.hand;
    hand.moved ||= Math.hypot(spot[0] - hand.spot[0], spot[1] - hand.spot[1]) > 3;
    if (!hand.moved) return;
    if (hand.tool === "lasso") this.shape.push(place);
    if (hand.tool === "box") this.shape = [hand.from, [place[0], hand.from[1]], place, [hand.from[0], place[1]]];
    if (hand.tool === "pan") this.#pan(spot);
    if (hand.tool === "gx" || hand.tool === "gy") this.#guide(hand.tool, place);
    this.overlay();
  }

  #up(event) {
    const hand = this.hand, shape = this.shape;
    this.hand = this.shape = null;
    if (!hand) return;
    if (!hand.moved && (hand.tool !== "gx" && hand.tool !== "gy")) {
      const row = this.at(...hand.spot);
      if (row >= 0) this.model.focus(row);
      else this.model.select(new Uint8Array(this.model.rows), "replace");
    } else if (hand.moved && shape) {
      const how = event.shiftKey ? "add" : event.ctrlKey || event.metaKey ? "remove" : "replace";
      this.model.select(inside(this.xy, shape, this.model.shown), how, `p${this.prefix}${simplified(shape)}`);
    }
    this.overlay();
  }

  // The selection that an address describes by its shape.
  reselect(text) {
    const prefix = text.startsWith("pbeside.") ? "beside." : "";
    if (!text.startsWith("p") || prefix !== this.prefix) return;
    const numbers = text.slice(1 + prefix.length).split("_").map(Number);
    const shape = Array.from({ length: numbers.length >> 1 }, (_, k) => [numbers[2 * k], numbers[2 * k + 1]]);
    if (shape.length > 2 && !numbers.some(Number.isNaN)) this.model.select(inside(this.xy, shape, this.model.shown), "replace", text);
  }

  at(sx, sy) {
    const w = this.window, [x, y] = this.toPlace(sx, sy);
    return this.grid.nearest(x, y, (REACH / this.width) * (w.x1 - w.x0), (REACH / this.height) * (w.y1 - w.y0), this.model.shown);
  }

  #hovering(row, event) {
    if (row === this.model.hovered) return;
    this.model.hovered = row;
    this.model.pointer = event ? [event.clientX, event.clientY] : null;
    this.model.emit("hover");
  }

  #pan(spot) {
    const { window: w, spot: from } = this.hand;
    const dx = ((from[0] - spot[0]) / this.width) * (w.x1 - w.x0), dy = ((spot[1] - from[1]) / this.height) * (w.y1 - w.y0);
    this.show({ x0: w.x0 + dx, x1: w.x1 + dx, y0: w.y0 + dy, y1: w.y1 + dy });
  }

  #zoom(event) {
    const w = this.window, [x, y] = this.toPlace(...this.#spot(event)), by = Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 120) * 0.0025);
    if ((w.x1 - w.x0) * by > 1.4 || (w.x1 - w.x0) * by < 1e-3) return;
    this.show({ x0: x + (w.x0 - x) * by, x1: x + (w.x1 - x) * by, y0: y + (w.y0 - y) * by, y1: y + (w.y1 - y) * by });
  }

  #guide(name, [x, y]) {
    const axis = name === "gx" ? "x" : "y", value = name === "gx" ? this.xScale.value(x) : this.yScale.value(y);
    const order = this.model.order(this.model.view[axis]);
    this.model.set({ [name]: Math.min(1, Math.max(0, below(order, value) / Math.max(order.length - 1, 1))) });
  }

  show(window) {
    this.window = { ...window };
    const text = window === WHOLE ? "" : [window.x0, window.x1, window.y0, window.y1].map((v) => v.toFixed(4)).join("_");
    this.model.view.win = text;
    this.model.toAddress();
    this.draw();
  }

  #windowOf(text) {
    const [x0, x1, y0, y1] = text.split("_").map(Number);
    return text && x1 > x0 && y1 > y0 ? { x0, x1, y0, y1 } : { ...WHOLE };
  }
}

// WebGL2 where there is a graphics card, otherwise discs drawn by hand; "?painter=" decides for tests.
function painter() {
  const wanted = new URLSearchParams(location.search).get("painter"), canvas = () => h("canvas", { class: "points" });
  try {
    const surface = canvas();
    if (wanted !== "raster") return [new GlPainter(surface, wanted === "webgl"), surface];
  } catch (error) {
    if (wanted === "webgl") throw error;
  }
  const surface = canvas();
  return [new RasterPainter(surface), surface];
}

function place(canvas, left, top, width, height, ratio) {
  Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
}

function segment(c, x0, y0, x1, y1) {
  c.beginPath();
  c.moveTo(x0, y0);
  c.lineTo(x1, y1);
  c.stroke();
}

function simplified(shape) {
  const stride = Math.max(1, Math.ceil(shape.length / 60));
  return shape.filter((_, k) => k % stride === 0).map((p) => p.map((v) => v.toFixed(3)).join("_")).join("_");
}
