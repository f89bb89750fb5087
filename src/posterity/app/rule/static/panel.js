// One panel: a preset with its changes, its film, and what stands below it.

import { controls } from "./controls.js";
import { fill, h, select, toast } from "./dom.js";
import { equation, python } from "./equation.js";
import { number, vector } from "./frames.js";
import { Points } from "./points.js";
import { colours, Plane } from "./scene.js";

const EDGE = 0.03; // of the data's plane that no point is moved onto: it would be cut
const OPAQUE = { alpha: false }; // the plane covers its canvas: nothing behind it has to be blended

export class Panel {
  changes = {};
  film = null;
  open = false;
  #asked = 0;
  #waiting = null;
  #busy = false;

  constructor(app, preset, changes) {
    Object.assign(this, { app, preset, changes, backend: app.backend });
    this.plot = h("canvas", { class: "plane", tabIndex: 0, "aria-label": "The loss and q" });
    this.beside = h("canvas", { class: "data", tabIndex: 0, "aria-label": "The data" });
    this.spark = h("canvas", { class: "spark" });
    this.value = h("span", { class: "value" });
    this.head = h("div", { class: "head" });
    this.drawings = h("div", { class: "drawings" }, this.plot, this.beside);
    this.words = h("div", { class: "words" });
    this.readout = h("div", { class: "readout" });
    this.settings = h("div", { class: "settings", hidden: true });
    const energy = h("div", { class: "energy" }, this.spark, this.value);
    this.element = h("section", { class: "panel", data: { state: "waiting" } }, this.head, this.drawings, this.settings, this.words, h("div", { class: "below" }, this.readout, energy));
    this.#hands();
    new ResizeObserver(() => this.app.draw()).observe(this.drawings);
  }

  get about() {
    return this.app.catalogue.presets[this.preset];
  }

  get choice() {
    return this.film?.choice ?? (Object.keys(this.changes).length ? { ...this.about.choice, ...this.changes } : this.about.choice);
  }

  async load() {
    const mine = ++this.#asked,
      chosen = this.beside.chosen;
    try {
      const film = await this.backend.film(this.preset, this.changes);
      if (mine !== this.#asked) return;
      film.draggable = !this.backend.carried && this.about.choice && ["classes", "line", "counts"].includes(film.dataKind);
      this.film = film;
      this.element.dataset.state = "ready";
      this.plane = film.domain.length ? new Plane(film) : null;
      this.points = film.dataDomain.length ? new Points(film) : null;
      if (this.points && chosen !== undefined) this.points.chosen = chosen;
      this.#show();
      this.app.changed();
    } catch (error) {
      if (mine !== this.#asked) return;
      const smaller = this.gentle?.({ ...this.about.choice, ...this.changes });
      this.gentle = null;
      if (smaller && smaller.lr < (this.changes.lr ?? this.about.choice.lr)) {
        this.changes = { ...this.changes, ...smaller };
        toast(`These steps were too large: shown with ρ = ${smaller.lr}.`);
        return this.load();
      }
      if (!this.film && Object.keys(this.changes).length) {
        this.changes = {}; // a link with a setting that is not possible
        await this.load();
      } else if (this.good) this.changes = this.good;
      toast(spoken(error.message), true);
      this.#show();
      for (const input of this.settings.querySelectorAll("input[type=range]")) input.restore(this.choice);
    }
  }

  // A setting changes: the film is computed again, one request at a time while a slider or a point moves.
  // Where its steps leave the family or diverge, `gentle` gives smaller ones, which are tried instead.
  async change(changes, { moving = false, gentle = null } = {}) {
    this.good ??= { ...this.changes };
    this.changes = { ...this.changes, ...changes };
    Object.assign(this, { moving, gentle });
    if (this.#busy) {
      this.#waiting = true;
      return;
    }
    this.#busy = true;
    this.element.dataset.busy = "yes";
    do {
      this.#waiting = null;
      await this.load();
    } while (this.#waiting);
    this.#busy = false;
    delete this.element.dataset.busy;
    this.good = { ...this.changes };
    this.moving = false;
  }

  async choose(preset) {
    Object.assign(this, { preset, changes: {}, good: null, film: null });
    this.element.dataset.state = "waiting";
    await this.load();
    this.app.rewind();
  }

  reset() {
    this.changes = {};
    this.good = null;
    return this.load();
  }

  #show() {
    const { presets } = this.app.catalogue,
      groups = Map.groupBy ? Map.groupBy(Object.entries(presets), ([, p]) => p.group) : grouped(Object.entries(presets));
    const menu = select([], "", (value) => this.choose(value), { class: "preset", "aria-label": "Preset" });
    for (const [group, members] of groups) {
      const box = h("optgroup", { label: group });
      for (const [name, p] of members) box.append(h("option", { value: name, textContent: p.title }));
      menu.append(box);
    }
    menu.value = this.preset;
    const altered = Object.keys(this.changes).length > 0;
    fill(
      this.head,
      menu,
      altered && h("span", { class: "altered", textContent: "changed" }),
      h("span", { class: "family", textContent: altered && this.choice ? this.app.catalogue.families[this.choice.family].title : this.about.posterior }),
      h("span", { class: "stretch" }),
      h("button", { class: "quiet", textContent: "Settings", "aria-expanded": String(this.open), onclick: () => this.toggle() }),
      this.app.panels.length > 1 && h("button", { class: "quiet icon", title: "Remove this panel", textContent: "×", onclick: () => this.app.remove(this) }),
    );
    const moving = this.moving && this.settings.contains(document.activeElement);
    if (!moving) fill(this.settings, this.open && controls(this.app.catalogue, this));
    this.settings.hidden = !this.open;
    const lines = this.film?.equations ?? this.about.equations;
    const formula = this.choice ? this.app.catalogue.losses[this.choice.loss].formula : "";
    fill(
      this.words,
      h("div", { class: "equations" }, lines.slice(0, 4).map(equation)),
      h("div", { class: "formula", textContent: formula }),
      h("pre", {}, python(this.film?.code ?? this.about.code)),
    );
    this.beside.hidden = !this.points;
    this.plot.hidden = !this.plane;
    this.drawings.classList.toggle("both", Boolean(this.points && this.plane));
    this.app.draw();
  }

  toggle() {
    this.open = !this.open;
    this.#show();
  }

  draw(position) {
    if (!this.film) return;
    const at = Math.min(position, this.film.steps);
    if (this.plane) onto(this.plot, (context, w, ht, scale) => this.plane.draw(context, w, ht, at, scale), OPAQUE);
    if (this.points) onto(this.beside, (context, w, ht) => this.points.draw(context, w, ht, at));
    this.#numbers(Math.round(at));
    this.#energy(at);
  }

  #numbers(k) {
    if (k === this.shownStep && this.film === this.shownFilm) return;
    Object.assign(this, { shownStep: k, shownFilm: this.film });
    const { means, covariances, note, energy, steps, weights } = this.film,
      lines = [[`step ${k} of ${steps}`, note?.[k]].filter(Boolean).join("  ·  ")],
      parts = means?.[k] ?? [];
    const lost = parts.length === 1 && parts[0].includes(null);
    if (parts.length === 1) lines.push(lost ? "diverged: choose a smaller ρ" : `m = ${vector(parts[0])}`);
    if (parts.length === 1 && !lost && covariances?.[k]?.length) lines.push(deviation(covariances[k][0]));
    if (parts.length === 2) lines.push(...parts.map((m, i) => `${number(weights[k][i], 2)} of q at ${vector(m)}`));
    fill(this.readout, lines.map((line) => h("div", { textContent: line })));
    fill(this.value, energy?.some((v) => v !== null) ? [h("b", { textContent: number(energy[k], 3) }), h("small", { textContent: this.film.measure })] : null);
    this.element.dataset.step = String(k);
  }

  #energy(at) {
    const values = this.film.energy;
    this.spark.hidden = !values;
    if (!values) return;
    onto(this.spark, (context, w, ht) => {
      const c = colours(),
        known = values.filter((v) => v !== null),
        low = Math.min(...known),
        sorted = known.slice().sort((a, b) => a - b),
        high = Math.max(sorted[Math.floor(0.95 * (sorted.length - 1))], low + 1e-9),
        x = (k) => 4 + (k / Math.max(1, values.length - 1)) * (w - 8),
        y = (v) => ht - 5 - (Math.min(1, (v - low) / (high - low))) * (ht - 10);
      context.clearRect(0, 0, w, ht);
      context.strokeStyle = c.muted;
      context.lineWidth = 2;
      context.beginPath();
      values.forEach((v, k) => v !== null && context.lineTo(x(k), y(v)));
      context.stroke();
      const k = Math.floor(at),
        v = values[k] ?? values[k + 1];
      if (v === null || v === undefined) return;
      context.fillStyle = c.q;
      context.beginPath();
      context.arc(x(at), y(v + ((values[Math.min(k + 1, values.length - 1)] ?? v) - v) * (at - k)), 4.5, 0, 2 * Math.PI);
      context.fill();
    });
  }

  // Hands: the start of q is dragged in the plane, data points beside it; keys do the same.
  #hands() {
    this.#drag(this.plot, (x, y, w, ht) => {
      if (!this.about.choice || !this.plane) return null;
      const dims = this.film.domain.length;
      return (px, py) => this.change({ start: this.plane.map(w, ht).back(px, py).slice(0, dims).map(tidy) }, { moving: true });
    });
    this.#drag(this.beside, (x, y, w, ht) => {
      if (!this.film?.draggable) return null;
      const k = this.points.under(x, y, w, ht);
      this.points.chosen = this.beside.chosen = k;
      return k < 0 ? null : (px, py) => this.#move(k, this.points.map(w, ht).back(px, py));
    });
    this.beside.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[event.key];
      if (!this.film?.draggable) return;
      if (event.key === "n" || event.key === "p") {
        const count = this.film.data.length;
        this.points.chosen = this.beside.chosen = (this.points.chosen + (event.key === "n" ? 1 : count - 1) + count) % count;
        this.app.draw();
      } else if (way && this.points.chosen >= 0) {
        const [x, y] = this.film.data[this.points.chosen],
          scale = this.film.dataKind === "counts" ? [1, 10] : [1, 1];
        this.#move(this.points.chosen, [x + way[0] * scale[0], y + way[1] * scale[1]]);
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  #move(k, [x, y]) {
    const points = this.film.data.map((point) => point.slice()),
      [[x0, x1], [y0, y1]] = this.film.dataDomain,
      inside = (v, low, high) => tidy(Math.max(low + EDGE * (high - low), Math.min(high - EDGE * (high - low), v)));
    const up = this.film.dataKind === "counts" ? Math.max(0, Math.round(y)) : inside(y, y0, y1);
    points[k].splice(0, 2, inside(x, x0, x1), up);
    this.film.data[k] = points[k]; // at once; the film follows
    this.app.draw();
    this.change({ points }, { moving: true });
  }

  #drag(canvas, begin) {
    canvas.addEventListener("pointerdown", (event) => {
      if (this.backend.carried) {
        if (this.about.choice) toast("Dragging needs the server: run “posterity rule”.");
        return;
      }
      const box = canvas.getBoundingClientRect(),
        at = (e) => [e.clientX - box.left, e.clientY - box.top],
        move = begin(...at(event), box.width, box.height);
      if (!move) return;
      canvas.setPointerCapture(event.pointerId);
      canvas.focus();
      const follow = (e) => move(...at(e)),
        end = () => {
          canvas.removeEventListener("pointermove", follow);
          canvas.removeEventListener("pointerup", end);
          canvas.removeEventListener("pointercancel", end);
        };
      follow(event);
      canvas.addEventListener("pointermove", follow);
      canvas.addEventListener("pointerup", end);
      canvas.addEventListener("pointercancel", end);
      event.preventDefault();
    });
  }
}

// What the library says of its arguments, in the words of the settings.
function spoken(message) {
  return message.replaceAll(/\blr\b/g, "ρ").replace("retracted=True", "“retraction”");
}

function tidy(v) {
  return Number(v.toFixed(3));
}

function deviation(spread) {
  if (!spread?.length || spread.includes(null)) return "σ → ∞";
  const diagonal = spread.length === 1 ? [spread[0]] : [spread[0], spread[2]];
  return `σ = ${vector(diagonal.map(Math.sqrt))}`;
}

function grouped(entries) {
  const groups = new Map();
  for (const entry of entries) groups.set(entry[1].group, [...(groups.get(entry[1].group) ?? []), entry]);
  return groups;
}

// Draw on a canvas at the resolution of the screen.
export function onto(canvas, action, settings = {}) {
  const { clientWidth: w, clientHeight: ht } = canvas,
    scale = Math.min(2, window.devicePixelRatio || 1);
  if (!w || !ht) return;
  if (canvas.width !== Math.round(w * scale) || canvas.height !== Math.round(ht * scale)) {
    canvas.width = Math.round(w * scale);
    canvas.height = Math.round(ht * scale);
  }
  const context = canvas.getContext("2d", settings);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  action(context, w, ht, scale);
}
