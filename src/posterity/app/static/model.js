// All that the page knows: columns, what is shown and selected, marks with undo, and its state in the address.

import { below, quantile, sorted } from "./scales.js";
import { parse } from "./query.js";

const DEFAULTS = {
  x: "leverage",
  y: "error",
  xs: "log",
  ys: "linear",
  colour: "category",
  tab: "table",
  tool: "lasso",
  gx: 0.9,
  gy: 0.9,
  q: "",
  hide: "",
  sort: "",
  up: false,
  focus: -1,
  theme: "",
  epoch: -1,
  beside: false,
  win: "",
  sel: "",
  test: -1,
  density: true,
};
const SELECTED_IDS = 150; // in the address; more than that are given by the shape that selected them
const DOUBT = 0.01; // probability of a wrong label below which an example needs no look
const SENT = 20_000; // marks in one request

export class Model {
  #listeners = new Map();
  #orders = new Map();
  #past = [];
  #keeping = false;
  unkept = ""; // why marks could not be saved
  loose = false; // whether marks are in this page alone, because no file keeps them

  constructor(data, backend) {
    Object.assign(this, { rows: data.rows, classes: data.classes, about: data.about, columns: data.columns, backend });
    this.ids = data.columns.get("id");
    this.rowOf = new Map(Array.from(this.ids, (id, row) => [id, row]));
    this.view = { ...DEFAULTS, sort: data.about.ranking };
    this.shown = new Uint8Array(this.rows).fill(1);
    this.selected = new Uint8Array(this.rows);
    this.marks = new Map();
    this.unsaved = new Map(); // marks that the server has not taken yet, by row; undefined takes one back
    this.epochs = new Map();
    this.#found(data.about.decisions);
    this.#fromAddress();
    this.categorise();
  }

  // Listening: "view", "filter", "select", "focus", "hover", "marks", "epoch", "test".
  on(names, listener) {
    for (const name of names.split(" ")) this.#listeners.set(name, [...(this.#listeners.get(name) ?? []), listener]);
  }

  emit(name) {
    for (const listener of this.#listeners.get(name) ?? []) listener();
  }

  set(changes) {
    Object.assign(this.view, changes);
    if (["x", "y", "gx", "gy"].some((name) => name in changes)) this.categorise();
    if (
      "q" in changes ||
      "hide" in changes ||
      (this.view.hide && this.view.colour === "category" && ("gx" in changes || "gy" in changes))
    )
      this.filter();
    this.emit("view");
    this.toAddress();
  }

  // Columns.
  get numeric() {
    return [...this.columns.keys()].filter(
      (name) => this.columns.get(name) instanceof Float32Array && !name.startsWith("beside."),
    );
  }

  column(name) {
    const epoch = this.epochs.get(this.view.epoch);
    return (epoch && epoch.columns.get(name)) ?? this.columns.get(name);
  }

  order(name) {
    if (!this.#orders.has(name)) this.#orders.set(name, sorted(this.columns.get(name)));
    return this.#orders.get(name);
  }

  share(name, row) {
    const order = this.order(name);
    return below(order, this.columns.get(name)[row]) / Math.max(order.length - 1, 1);
  }

  className(k) {
    return k >= 0 ? (this.classes[k] ?? String(k)) : "–";
  }

  labelOf(row, name = "label") {
    const v = this.columns.get(name)?.[row];
    return this.classes.length ? this.className(v ?? -1) : v === undefined ? "–" : Number(v.toPrecision(4)).toString();
  }

  suggestion(row) {
    const k = this.classes.length ? (this.columns.get("suspected_label")?.[row] ?? -1) : -1;
    return k >= 0 ? this.className(k) : "";
  }

  // The label to propose for an example that the user looks at: the likely one, or else the likeliest other one.
  guess(row) {
    const given = this.columns.get("label")?.[row];
    const other = (name) => {
      const k = this.classes.length ? (this.columns.get(name)?.[row] ?? -1) : -1;
      return k >= 0 && k !== given ? this.className(k) : "";
    };
    return this.suggestion(row) || other("suggested_label") || other("loo_prediction") || other("prediction");
  }

  action(row) {
    const c = this.category[row];
    if (c >= 2 && this.suggestion(row)) return `relabel as ${this.suggestion(row)}?`;
    const doubt = this.columns.get("label_error")?.[row] ?? 1;
    return ["fine", "collect more like it", "look at it", "look at it"][doubt < DOUBT ? c % 2 : c];
  }

  // Categories follow from the two guides.
  categorise() {
    const { gx, gy } = this.view,
      [x, y] = this.guided;
    const a = this.columns.get(x),
      b = this.columns.get(y);
    this.limits = [quantile(this.order(x), gx), quantile(this.order(y), gy)];
    this.category = new Uint8Array(this.rows);
    for (let i = 0; i < this.rows; i++)
      this.category[i] = (a[i] > this.limits[0] ? 1 : 0) + (b[i] > this.limits[1] ? 2 : 0);
    const usual = y === "error" && (x === "leverage" || x === "variance");
    this.categories = usual
      ? ["regular", "uncertain", "unpredictable", "unpredictable and uncertain"]
      : ["regular", `high ${x}`, `high ${y}`, "both high"];
  }

  // The columns that the guides divide: those of the axes, or the usual ones where these are principal components.
  get guided() {
    const { x, y } = this.view;
    return [x.startsWith("feature_") ? DEFAULTS.x : x, y.startsWith("feature_") ? DEFAULTS.y : y];
  }

  groups() {
    return this.view.colour === "category" ? this.category : this.columns.get(this.view.colour);
  }

  get grouped() {
    return this.view.colour === "category" || !(this.columns.get(this.view.colour) instanceof Float32Array);
  }

  // What is shown: groups that are not hidden, and the words of the search.
  async filter() {
    const asked = this.view.q,
      tests = [];
    try {
      for (const term of parse(asked)) tests.push(await this.#test(term));
    } catch (error) {
      this.problem = error.message;
      this.emit("filter");
      return;
    }
    if (asked !== this.view.q) return; // another question came meanwhile
    this.problem = "";
    const hidden = new Set(this.view.hide.split(",").filter(Boolean).map(Number)),
      groups = this.groups();
    for (let i = 0; i < this.rows; i++)
      this.shown[i] = !(this.grouped && hidden.has(groups[i])) && tests.every((t) => t(i)) ? 1 : 0;
    for (let i = 0; i < this.rows; i++) if (!this.shown[i]) this.selected[i] = 0;
    this.emit("filter");
    this.emit("select");
  }

  async #test(term) {
    if (term.text !== undefined) {
      const wanted = term.text.toLowerCase();
      const named = this.classes.map((name) => name.toLowerCase().includes(wanted));
      const label = this.columns.get("label"),
        found = this.about.searchable ? await this.backend.search(term.text, this.rows, this.ids) : null;
      return (i) => found?.[i] || named[label[i]] || String(this.ids[i]) === wanted;
    }
    if (term.name === "id") return (i) => term.compare(this.ids[i]);
    if (term.name === "mark") return (i) => (this.marks.get(i)?.decision ?? "none") === term.value;
    if (term.name === "suspect") return (i) => (this.suggestion(i) !== "") === (term.value !== "no");
    const name = { pred: "prediction", given: "label", class: "label" }[term.name] ?? term.name,
      values = this.columns.get(name);
    if (!values) throw new Error(`There is no column “${term.name}”.`);
    if (values instanceof Int16Array)
      return (i) => this.className(values[i]).toLowerCase() === term.value.toLowerCase();
    if (Number.isNaN(Number(term.value))) throw new Error(`“${term.value}” is no number.`);
    return (i) => term.compare(values[i]);
  }

  // Selection.
  get selection() {
    const found = [];
    for (let i = 0; i < this.rows; i++) if (this.selected[i]) found.push(i);
    return found;
  }

  select(mask, how = "replace", shape = "") {
    for (let i = 0; i < this.rows; i++) {
      if (how === "replace") this.selected[i] = mask[i];
      else if (how === "add") this.selected[i] |= mask[i];
      else if (mask[i]) this.selected[i] = 0;
    }
    const rows = this.selection;
    this.view.sel =
      rows.length === 0
        ? ""
        : rows.length <= SELECTED_IDS
          ? `i${rows.map((r) => this.ids[r]).join(".")}`
          : how === "replace"
            ? shape
            : "";
    this.emit("select");
    this.toAddress();
  }

  focus(row) {
    this.view.focus = row < 0 ? -1 : this.ids[row];
    this.emit("focus");
    this.toAddress();
  }

  get focused() {
    return this.rowOf.get(this.view.focus) ?? -1;
  }

  // The rows of table and gallery: the selection, or everything shown, ranked.
  ranked() {
    const some = this.selected.includes(1) ? this.selected : this.shown;
    const values = this.columns.get(this.view.sort) ?? this.ids,
      rows = new Uint32Array(this.rows);
    let n = 0;
    for (let i = 0; i < this.rows; i++) if (some[i]) rows[n++] = i;
    const sign = this.view.up ? 1 : -1,
      least = -Infinity * sign;
    const key = (i) => (values[i] === values[i] ? values[i] : -least);
    return rows.subarray(0, n).sort((a, b) => sign * (key(a) - key(b)) || a - b);
  }

  // Marks, each step remembered.
  mark(rows, decision, label = "") {
    const step = rows.map((row) => [row, this.marks.get(row)]);
    for (const row of rows) {
      const to = decision === "relabel" ? label || this.guess(row) : "";
      if (decision === "clear" || (decision === "relabel" && !to)) this.marks.delete(row);
      else this.marks.set(row, { decision, label: to });
    }
    this.#past.push(step);
    this.#marked(rows);
  }

  undo() {
    const step = this.#past.pop();
    if (!step) return 0;
    for (const [row, before] of step) before ? this.marks.set(row, before) : this.marks.delete(row);
    this.#marked(step.map(([row]) => row));
    return step.length;
  }

  #marked(rows) {
    for (const row of rows) this.unsaved.set(row, this.marks.get(row));
    this.loose = !this.about.keeps && this.marks.size > 0;
    this.emit("marks");
    this.keep();
  }

  // Only what changed is sent, so that marks of another page stay, and in turn, so that none overtakes a later one.
  async keep() {
    if (this.#keeping) return;
    this.#keeping = true;
    let news = false,
      unkept = "";
    try {
      while (this.unsaved.size) {
        const sent = [...this.unsaved].slice(0, SENT);
        const words = sent.map(([row, mark]) => ({ id: this.ids[row], ...(mark ?? { decision: "clear" }) }));
        const { decisions } = await this.backend.keep(words);
        for (const [row, mark] of sent) if (this.unsaved.get(row) === mark) this.unsaved.delete(row);
        if (decisions) news = this.#found(decisions) || news;
      }
    } catch (error) {
      unkept = `Not saved, unless you export: ${error.message}`;
    }
    this.#keeping = false;
    news ||= unkept !== this.unkept;
    this.unkept = unkept;
    if (news) this.emit("marks");
  }

  // The marks that the server knows, and those that it does not know yet; whether they are news.
  #found(decisions) {
    const before = this.marks;
    this.marks = new Map();
    for (const { id, decision, label } of decisions)
      if (this.rowOf.has(id)) this.marks.set(this.rowOf.get(id), { decision, label });
    for (const [row, mark] of this.unsaved) mark ? this.marks.set(row, mark) : this.marks.delete(row);
    const same = ([row, { decision, label }]) =>
      before.get(row)?.decision === decision && before.get(row).label === label;
    return before.size !== this.marks.size || ![...this.marks].every(same);
  }

  decisions() {
    return [...this.marks]
      .sort(([a], [b]) => a - b)
      .map(([row, { decision, label }]) => ({ id: this.ids[row], decision, label }));
  }

  // What the marks would change: a mask to remove, and new labels by id.
  wishes() {
    const remove = new Uint8Array(this.rows),
      relabel = {};
    for (const [row, { decision, label }] of this.marks) {
      if (decision === "drop") remove[row] = 1;
      if (decision === "relabel")
        relabel[this.ids[row]] = this.classes.length ? this.classes.indexOf(label) : Number(label);
    }
    return { remove, relabel };
  }

  async atEpoch(index) {
    if (index >= 0 && !this.epochs.has(index)) this.epochs.set(index, await this.backend.epoch(index));
    this.set({ epoch: index });
    this.emit("epoch");
  }

  // The address: everything that differs from the beginning.
  toAddress() {
    const parts = new URLSearchParams(),
      start = { ...DEFAULTS, sort: this.about.ranking };
    for (const [name, value] of Object.entries(this.view))
      if (value !== start[name]) parts.set(name, typeof value === "number" ? +value.toFixed(4) : value);
    const hash = parts.size ? `#${parts}` : " ";
    clearTimeout(this.writing);
    this.writing = setTimeout(() => history.replaceState(null, "", hash.trim() || location.pathname), 150);
  }

  #fromAddress() {
    for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
      if (!(name in DEFAULTS)) continue;
      const kind = typeof DEFAULTS[name];
      const value = kind === "number" ? Number(text) : kind === "boolean" ? text === "true" : text;
      if (kind !== "number" || Number.isFinite(value)) this.view[name] = value;
    }
    for (const axis of ["x", "y"]) if (!this.numeric.includes(this.view[axis])) this.view[axis] = DEFAULTS[axis];
    if (this.view.colour !== "category" && !this.columns.has(this.view.colour)) this.view.colour = "category";
    if (!this.columns.has(this.view.sort)) this.view.sort = this.about.ranking; // an address of another map
    this.view.epoch = -1; // its columns come when the slider is moved
    if (this.view.sel.startsWith("i"))
      for (const id of this.view.sel.slice(1).split("."))
        if (this.rowOf.has(Number(id))) this.selected[this.rowOf.get(Number(id))] = 1;
  }
}
