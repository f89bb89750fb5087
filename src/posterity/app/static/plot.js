// The map: points over a density, with axes and guides. Two of them stand side by side to compare runs.

import { categoryColours, classColour, ordered, rgb } from "./colours.js";
import { density } from "./density.js";
import { css, everyFrame, h } from "./dom.js";
import { GlPainter } from "./gl.js";
import { Grid } from "./grid.js";
import { Pointer, WHOLE } from "./pointer.js";
import { MARGIN, gridlines, overlay } from "./overlay.js";
import { RasterPainter } from "./raster.js";
import { Scale, below, sorted } from "./scales.js";

const UNKNOWN = { light: "#C4CAD2", dark: "#48505C" };

export class Plot {
  constructor(model, { prefix = "", caption = "" } = {}) {
    Object.assign(this, { model, prefix, shape: null, trails: null });
    this.window = windowOf(model.view.win);
    this.under = h("canvas");
    [this.painter, this.points] = painter();
    this.over = h("canvas", { class: "over", tabIndex: 0, "aria-label": `Map of ${model.rows} examples` });
    const title = caption && h("div", { class: "caption", textContent: caption });
    this.element = h("div", { class: "plot" }, this.under, this.points, this.over, title);
    this.element.dataset.painter = this.painter instanceof GlPainter ? "webgl" : "raster";
    this.draw = everyFrame(() => this.#draw());
    this.overlay = everyFrame(() => this.width && overlay(this));
    new ResizeObserver(() => this.#resize()).observe(this.element);
    new Pointer(this);
    model.on("view epoch", () => this.#refresh());
    model.on("filter select", () => (this.#order(), this.draw()));
    model.on("focus marks hover", () => this.overlay());
    this.#refresh();
  }

  show(window) {
    this.window = { ...window };
    const corners = [window.x0, window.x1, window.y0, window.y1];
    this.model.view.win = window === WHOLE ? "" : corners.map((v) => v.toFixed(4)).join("_");
    this.model.toAddress();
    this.draw();
  }

  // Places are shares of the axes, from 0 to 1; the screen has pixels.
  toScreen(px, py) {
    const w = this.window,
      x = (px - w.x0) / (w.x1 - w.x0),
      y = (py - w.y0) / (w.y1 - w.y0);
    return [MARGIN.left + x * this.width, MARGIN.top + (1 - y) * this.height];
  }

  toPlace(sx, sy) {
    const w = this.window,
      x = (sx - MARGIN.left) / this.width,
      y = 1 - (sy - MARGIN.top) / this.height;
    return [w.x0 + x * (w.x1 - w.x0), w.y0 + y * (w.y1 - w.y0)];
  }

  // Work out again only what the view has changed.
  #refresh() {
    const { x, y, xs, ys, colour, epoch, gx, gy, beside } = this.model.view;
    const axes = [x, y, xs, ys, epoch, beside].join();
    const look = [colour, document.documentElement.dataset.theme, colour === "category" && [x, y, gx, gy]].join();
    if (axes !== this.axes) this.#place();
    if (look !== this.look) this.#colour();
    Object.assign(this, { axes, look });
    this.draw();
  }

  #place() {
    const { x, y, xs, ys } = this.model.view;
    this.xScale = new Scale(xs, this.#domain(x));
    this.yScale = new Scale(ys, this.#domain(y));
    this.xy = new Float32Array(2 * this.model.rows);
    this.xScale.places(this.#values(x), this.xy, 0);
    this.yScale.places(this.#values(y), this.xy, 1);
    this.grid = new Grid(this.xy);
    this.painter.places(this.xy);
  }

  #values(name) {
    const m = this.model,
      found = this.prefix ? m.columns.get(this.prefix + name) : m.column(name);
    return found ?? new Float32Array(m.rows).fill(NaN);
  }

  // One domain for both runs and for all epochs, so that places can be compared.
  #domain(name) {
    const { view, about, columns } = this.model,
      order = this.model.order(name);
    const other = (view.beside && columns.get(`beside.${name}`)) || [];
    const extent = (view.epoch >= 0 && about.extents?.[name]) || [];
    return other.length + extent.length ? sorted([...order, ...other, ...extent]) : order;
  }

  #colour() {
    const m = this.model,
      pick = m.grouped ? this.#byGroup() : this.#byRank();
    const alpha = Math.round(255 * (m.rows < 5000 ? 0.85 : m.rows < 30000 ? 0.65 : 0.45));
    this.rgba = new Uint8Array(4 * m.rows);
    for (let i = 0; i < m.rows; i++) {
      const c = pick(i);
      this.rgba[4 * i] = c[0];
      this.rgba[4 * i + 1] = c[1];
      this.rgba[4 * i + 2] = c[2];
      this.rgba[4 * i + 3] = alpha;
    }
    this.#order();
  }

  #byGroup() {
    const m = this.model,
      theme = document.documentElement.dataset.theme,
      groups = m.groups(),
      none = rgb(UNKNOWN[theme]);
    const named =
      m.view.colour === "category" ? categoryColours(theme) : m.classes.map((_, k) => classColour(k, theme));
    const colours = named.map(rgb);
    return (i) => colours[groups[i]] ?? none;
  }

  #byRank() {
    const m = this.model,
      values = m.groups(),
      order = m.order(m.view.colour);
    const scale = ordered(document.documentElement.dataset.theme),
      last = Math.max(order.length - 1, 1);
    return (i) => scale[Math.round((255 * below(order, values[i])) / last) || 0];
  }

  // Hidden points are not drawn; what is not selected steps back; the selection comes last.
  #order() {
    const m = this.model,
      back = [],
      front = [],
      colours = this.rgba.slice();
    for (let i = 0; i < m.rows; i++) if (m.shown[i]) (m.selected[i] ? front : back).push(i);
    if (front.length) for (const i of back) colours[4 * i + 3] *= 0.18;
    for (const i of front) colours[4 * i + 3] = Math.max(colours[4 * i + 3], 215);
    this.rows = Uint32Array.from(back.concat(front));
    this.painter.colours(colours);
    this.painter.order(this.rows);
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !height) return;
    this.ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.width = width - MARGIN.left - MARGIN.right;
    this.height = height - MARGIN.top - MARGIN.bottom;
    for (const canvas of [this.under, this.points])
      lay(canvas, MARGIN.left, MARGIN.top, this.width, this.height, this.ratio);
    lay(this.over, 0, 0, width, height, this.ratio);
    this.#draw();
  }

  #draw() {
    if (!this.width) return;
    const { rows, view } = this.model,
      zoom = Math.min(2, Math.sqrt(1.05 / (this.window.x1 - this.window.x0)));
    const size = rows < 3000 ? 7 : rows < 20000 ? 5 : 3.4;
    this.painter.draw(this.window, size * zoom * this.ratio);
    density(this.under, this.xy, this.rows, this.window, rgb(css("--ink")), view.density);
    gridlines(this);
    overlay(this);
    document.documentElement.dataset.drawn ??= String(Math.round(performance.now()));
  }
}

// WebGL2 where there is a graphics card, otherwise discs drawn by hand; "?painter=" decides for tests.
function painter() {
  const wanted = new URLSearchParams(location.search).get("painter"),
    canvas = () => h("canvas", { class: "points" });
  try {
    const surface = canvas();
    if (wanted !== "raster") return [new GlPainter(surface, wanted === "webgl"), surface];
  } catch (error) {
    if (wanted === "webgl") throw error;
  }
  const surface = canvas();
  return [new RasterPainter(surface), surface];
}

function windowOf(text) {
  const [x0, x1, y0, y1] = text.split("_").map(Number);
  return text && x1 > x0 && y1 > y0 ? { x0, x1, y0, y1 } : { ...WHOLE };
}

function lay(canvas, left, top, width, height, ratio) {
  Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
}
