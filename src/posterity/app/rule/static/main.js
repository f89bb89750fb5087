// The page: up to three panels with one clock.

import { backend } from "./backend.js";
import { everyFrame, fill, h, select, toast } from "./dom.js";
import { equation } from "./equation.js";
import { gif } from "./export.js";
import { Panel } from "./panel.js";
import { read, write } from "./state.js";

const RULE = "λ ← λ − ρ ∇_μ ( E_q[ℓ] − τ H(q) )";
const RECIPE = "Choose a family for q, an approximation of the gradient and a step size, and the rule becomes an algorithm.";
const HELP = [
  ["Space", "play, pause"],
  ["← →", "one step back, one step on"],
  ["Home, End", "the first step, the last"],
  ["↑ ↓", "faster, slower"],
  ["1 – 9, 0", "a comparison to begin with"],
  ["A", "add a panel"],
  ["S", "settings of the panels"],
  ["L", "copy a link to exactly this"],
  ["G", "save a GIF"],
  ["T", "light or dark"],
  ["Tab, then N, P and arrows", "choose a data point and move it"],
];

const stacked = matchMedia("(max-width: 820px)"); // as in the style: panels below each other

class App {
  panels = [];
  position = 0;
  playing = false;
  speed = 8; // steps a second
  look = "";

  constructor() {
    this.backend = backend();
    this.draw = everyFrame(() => this.#draw());
  }

  async start() {
    this.catalogue = await this.backend.catalogue();
    const wanted = read(this.catalogue.presets);
    this.theme = wanted.theme;
    this.#theme();
    this.#bar();
    this.#rule();
    this.#transport();
    this.#keys();
    const first = this.catalogue.tours[0];
    this.look = wanted.panels.length ? wanted.look : first.title;
    await this.open(wanted.panels.length ? wanted.panels : first.presets.map((preset) => ({ preset, changes: {} })), wanted.step);
    addEventListener("hashchange", () => this.#follow());
    addEventListener("resize", everyFrame(() => this.level()));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#theme());
  }

  async open(panels, step = 0) {
    this.playing = false;
    this.panels = panels.map(({ preset, changes }) => new Panel(this, preset, changes));
    fill(document.getElementById("panels"), this.panels.map(({ element }) => element));
    this.position = step;
    await Promise.all(this.panels.map((panel) => panel.load()));
    this.position = Math.min(step, this.steps);
    this.changed();
    document.documentElement.dataset.drawn = "yes";
  }

  get steps() {
    return Math.max(1, ...this.panels.map(({ film }) => film?.steps ?? 1));
  }

  tour(index) {
    const tour = this.catalogue.tours[index];
    if (!tour) return;
    this.look = tour.title;
    return this.open(tour.presets.map((preset) => ({ preset, changes: {} }))).then(() => this.play(true));
  }

  async add() {
    if (this.panels.length === 3) return toast("Three panels fit side by side.");
    const used = new Set(this.panels.map(({ preset }) => preset)),
      preset = ["newton", "adam", "gradient-descent", "vi-logistic"].find((name) => !used.has(name));
    const panel = new Panel(this, preset, {});
    this.panels.push(panel);
    document.getElementById("panels").append(panel.element);
    await Promise.all(this.panels.map((one) => one.load()));
  }

  remove(panel) {
    this.panels = this.panels.filter((one) => one !== panel);
    panel.element.remove();
    this.panels.forEach((one) => one.load());
  }

  rewind() {
    this.position = 0;
    this.play(true);
  }

  // Something that the address keeps has changed.
  changed() {
    const hash = write(this.panels, this.position, this.theme, this.look);
    this.written = hash;
    if (location.hash !== hash) history.replaceState(null, "", hash);
    const shown = this.panels.map(({ preset }) => preset).join(),
      tour = this.catalogue.tours.find(({ title, presets }) => title === this.look && presets.join() === shown);
    this.tours.value = tour ? tour.title : "";
    fill(this.message, tour?.look ?? RECIPE);
    this.level();
    this.draw();
  }

  // Words of the same height: drawings that are compared have the same size.
  level() {
    const words = this.panels.map((panel) => panel.words);
    for (const one of words) one.style.minHeight = "";
    const tallest = Math.max(...words.map((one) => one.offsetHeight));
    if (!stacked.matches) for (const one of words) one.style.minHeight = `${tallest}px`;
  }

  play(on = !this.playing) {
    if (on && this.position >= this.steps) this.position = 0;
    this.playing = on;
    this.last = null;
    fill(this.button, on ? "❚❚" : "▶");
    this.button.title = on ? "Pause (Space)" : "Play (Space)";
    if (on) requestAnimationFrame((now) => this.#tick(now));
    else this.changed();
  }

  #tick(now) {
    if (!this.playing) return;
    if (this.last !== null) this.position += (Math.min(100, now - this.last) / 1000) * this.speed;
    this.last = now;
    this.frames = (this.frames ?? 0) + 1;
    if (this.position >= this.steps) {
      this.position = this.steps;
      this.#draw();
      return this.play(false);
    }
    this.#draw();
    requestAnimationFrame((next) => this.#tick(next));
  }

  step(by) {
    if (this.playing) this.play(false);
    const here = by > 0 ? Math.floor(this.position + 1e-6) : Math.ceil(this.position - 1e-6);
    this.position = Math.max(0, Math.min(this.steps, here + by));
    this.changed();
  }

  #draw() {
    for (const panel of this.panels) panel.draw(this.position);
    const shown = this.playing ? Math.round(this.position) : this.position, // a laid-out page costs more than a drawing
      key = `${shown} / ${this.steps}`;
    if (key === this.shown) return;
    this.shown = key;
    this.slider.max = this.steps;
    this.slider.value = shown;
    this.count.textContent = `${Math.round(shown)} / ${this.steps}`;
  }

  #bar() {
    const { tours } = this.catalogue;
    this.tours = select([["", "Begin with …"], ...tours.map(({ title }, k) => [title, `${k < 10 ? (k + 1) % 10 : "·"}  ${title}`])], "", (value) => this.tour(tours.findIndex(({ title }) => title === value)), { "aria-label": "Comparisons" });
    fill(
      document.getElementById("bar"),
      h("h1", {}, h("span", { class: "brand", textContent: "posterity" }), " the Bayesian learning rule"),
      this.tours,
      h("span", { class: "stretch" }),
      h("button", { class: "quiet", textContent: "Add panel", onclick: () => this.add() }),
      h("button", { class: "quiet", textContent: "Link", onclick: () => this.#link() }),
      h("button", { class: "quiet", textContent: "GIF", onclick: () => this.#gif() }),
      h("button", { class: "quiet icon", title: "Light or dark (T)", textContent: "◐", onclick: () => this.#flip() }),
      h("button", { class: "quiet icon", title: "Keys (?)", textContent: "?", onclick: () => this.#help() }),
    );
  }

  #rule() {
    this.message = h("p", { class: "look", role: "status" }, RECIPE);
    fill(document.getElementById("rule"), equation(RULE), this.message);
  }

  #transport() {
    this.button = h("button", { class: "play", textContent: "▶", title: "Play (Space)", onclick: () => this.play() });
    this.slider = h("input", { type: "range", min: 0, max: 1, step: 0.01, value: 0, class: "time", "aria-label": "Step", oninput: () => {
      if (this.playing) this.play(false);
      this.position = Number(this.slider.value);
      this.draw();
    }, onchange: () => this.changed() });
    this.count = h("output", { class: "count" });
    this.pace = select([2, 4, 8, 16, 32].map((v) => [String(v), `${v} steps/s`]), "8", (value) => (this.speed = Number(value)), { "aria-label": "Speed" });
    fill(
      document.getElementById("transport"),
      h("button", { class: "quiet icon", title: "First step (Home)", textContent: "|◀", onclick: () => this.#to(0) }),
      h("button", { class: "quiet icon", title: "One step back (←)", textContent: "◀", onclick: () => this.step(-1) }),
      this.button,
      h("button", { class: "quiet icon", title: "One step on (→)", textContent: "▶", onclick: () => this.step(1) }),
      this.slider,
      this.count,
      this.pace,
    );
  }

  #to(position) {
    if (this.playing) this.play(false);
    this.position = position;
    this.changed();
  }

  #keys() {
    const keys = {
      " ": () => this.play(),
      ArrowLeft: () => this.step(-1),
      ArrowRight: () => this.step(1),
      Home: () => this.#to(0),
      End: () => this.#to(this.steps),
      ArrowUp: () => this.#pace(2),
      ArrowDown: () => this.#pace(0.5),
      a: () => this.add(),
      s: () => this.panels.forEach((panel) => panel.toggle()),
      l: () => this.#link(),
      g: () => this.#gif(),
      t: () => this.#flip(),
      "?": () => this.#help(),
    };
    for (let k = 0; k < 10; k++) keys[String((k + 1) % 10)] = () => this.tour(k);
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      const { tagName, type } = event.target;
      if (/SELECT|TEXTAREA/.test(tagName) || (tagName === "INPUT" && type !== "range" && type !== "checkbox")) return;
      if (tagName === "INPUT" && event.target !== this.slider && /^(Arrow|Home|End)/.test(event.key)) return;
      if (tagName === "BUTTON" && event.key === " " && event.target !== this.button) return;
      const action = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!action) return;
      event.preventDefault();
      action();
    });
  }

  #pace(by) {
    this.speed = Math.max(2, Math.min(32, this.speed * by));
    this.pace.value = String(this.speed);
  }

  async #link() {
    this.changed();
    const link = this.backend.carried || location.protocol === "file:" ? location.href : location.origin + "/" + location.hash;
    try {
      await navigator.clipboard.writeText(link);
      toast("The link is copied; it reproduces this page.");
    } catch {
      toast("The address of this page reproduces it.");
    }
  }

  async #gif() {
    if (this.saving || this.panels.some(({ film }) => !film)) return;
    this.saving = true;
    if (this.playing) this.play(false);
    try {
      const blob = await gif(this.panels, (k, count) => toast(`GIF: picture ${k} of ${count}`)),
        link = h("a", { href: URL.createObjectURL(blob), download: this.panels.map(({ preset }) => preset).join("-") + ".gif" });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
      toast(`Saved: ${Math.round(blob.size / 1024)} KB.`);
    } finally {
      this.saving = false;
    }
  }

  #theme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    document.documentElement.dataset.theme = this.theme ?? dark;
    if (this.slider) this.draw();
  }

  #flip() {
    this.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    this.#theme();
    this.changed();
  }

  #follow() {
    if (location.hash === this.written) return;
    const wanted = read(this.catalogue.presets);
    if (wanted.theme) this.theme = wanted.theme;
    this.#theme();
    this.look = wanted.look;
    if (wanted.panels.length) this.open(wanted.panels, wanted.step);
  }

  #help() {
    const box = h(
      "dialog",
      { class: "help" },
      h("h2", { textContent: "The Bayesian learning rule, step by step" }),
      h("p", { textContent: "The shaded plane is the loss; q is drawn in colour, one and two standard deviations wide. Drag in the plane to start elsewhere. Drag data points to change the loss. Posterity computes every step; between two steps the picture interpolates." }),
      h("dl", {}, HELP.map(([keys, what]) => h("div", {}, h("dt", {}, h("kbd", { textContent: keys })), h("dd", { textContent: what })))),
      h("button", { class: "strong", textContent: "Close", onclick: () => box.close() }),
    );
    box.addEventListener("close", () => box.remove());
    box.addEventListener("click", (event) => event.target === box && box.close());
    document.body.append(box);
    box.showModal();
  }
}

const app = new App();
window.posterity = app;
app.start().catch((error) => {
  fill(document.getElementById("panels"), h("div", { class: "sorry" }, h("h2", { textContent: "The page could not be loaded" }), h("p", { textContent: error.message })));
});
