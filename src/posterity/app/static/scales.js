// Numbers to places: linear, logarithmic or rank axes onto [0, 1], with ticks and readable numbers.

export const SCALES = [
  ["linear", "linear"],
  ["log", "log"],
  ["rank", "rank"],
];

export function sorted(values) {
  return Float32Array.from(values)
    .filter((v) => !Number.isNaN(v))
    .sort();
}

export function quantile(order, q) {
  if (!order.length) return NaN;
  const place = q * (order.length - 1),
    low = Math.floor(place);
  return order[low] + (place - low) * ((order[low + 1] ?? order[low]) - order[low]);
}

// How many of the sorted numbers lie below one.
export function below(order, value) {
  let low = 0,
    high = order.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (order[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class Scale {
  constructor(kind, order) {
    this.order = order;
    const last = order[order.length - 1];
    const positive = order[below(order, Number.MIN_VALUE)] ?? 1;
    this.kind = kind === "log" && !(last > 0) ? "linear" : kind;
    // A few values that are practically zero should not take half of the axis.
    this.floor = Math.max(positive, last * 1e-12);
    this.low = this.kind === "log" ? Math.log10(this.floor) : (order[0] ?? 0);
    this.high = this.kind === "log" ? Math.log10(last) : (last ?? 1);
    if (this.kind === "rank") [this.low, this.high] = [0, 1];
    if (!(this.high > this.low)) this.high = this.low + 1;
  }

  place(value) {
    if (this.kind === "rank") return below(this.order, value) / Math.max(this.order.length - 1, 1);
    const v = this.kind === "log" ? Math.log10(Math.max(value, this.floor)) : value;
    return (v - this.low) / (this.high - this.low);
  }

  value(place) {
    if (this.kind === "rank") return quantile(this.order, Math.min(Math.max(place, 0), 1));
    const v = this.low + place * (this.high - this.low);
    return this.kind === "log" ? 10 ** v : v;
  }

  places(values, out, offset) {
    if (this.kind === "rank") return this.#ranks(values, out, offset);
    const width = 1 / (this.high - this.low),
      log = this.kind === "log",
      floor = this.floor,
      low = this.low;
    for (let i = 0; i < values.length; i++) {
      const v = values[i];
      out[2 * i + offset] = ((log ? Math.log10(v > floor ? v : floor) : v) - low) * width;
      if (v !== v) out[2 * i + offset] = NaN;
    }
  }

  #ranks(values, out, offset) {
    const order = Uint32Array.from(values, (_, i) => i).sort((a, b) => values[a] - values[b]);
    for (let r = 0; r < order.length; r++) {
      const v = values[order[r]];
      out[2 * order[r] + offset] = v === v ? r / Math.max(order.length - 1, 1) : NaN;
    }
  }

  // Ticks [place, text] between two places.
  ticks(from, to, count) {
    if (this.kind === "rank")
      return steps(from, to, count)
        .map((p) => [p, `${trim(100 * p)} %`])
        .filter(([p]) => p >= 0 && p <= 1);
    const a = this.low + from * (this.high - this.low),
      b = this.low + to * (this.high - this.low);
    const at = (v) => (v - this.low) / (this.high - this.low);
    if (this.kind === "linear") return steps(a, b, count).map((v) => [at(v), trim(v)]);
    if (b - a < 1)
      return steps(10 ** a, 10 ** b, count)
        .filter((v) => v > 0)
        .map((v) => [at(Math.log10(v)), trim(v)]);
    const stride = Math.max(1, Math.ceil((b - a) / count)),
      between = b - a < 2.2 ? [2, 5] : b - a < 3.2 ? [3] : [];
    const found = [];
    for (let v = Math.floor(a); v <= b; v++) {
      if (v % stride === 0) found.push([at(v), power(v)]);
      for (const k of between) found.push([at(v + Math.log10(k)), v < -3 ? `${k}·${power(v)}` : trim(k * 10 ** v)]);
    }
    return found.filter(([p]) => p >= from && p <= to);
  }
}

function steps(from, to, count) {
  const rough = (to - from) / Math.max(count, 1),
    size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((m) => m * size >= rough) * size;
  const found = [];
  for (let k = Math.ceil(from / step); k * step <= to + step * 1e-9; k++) found.push(k * step);
  return found;
}

function trim(v) {
  return String(Number(v.toPrecision(6)));
}

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

function power(v) {
  if (v >= -3 && v <= 3) return trim(10 ** v);
  return `10${v < 0 ? "⁻" : ""}${[...String(Math.abs(v))].map((d) => RAISED[d]).join("")}`;
}

export function short(v) {
  if (v === null || v === undefined || Number.isNaN(v)) return "–";
  if (Number.isInteger(v) && Math.abs(v) < 1e6) return String(v);
  const size = Math.abs(v);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return v.toExponential(1).replace("+", "");
  return size >= 1000 ? v.toFixed(0) : v.toPrecision(3);
}

export function count(n, what) {
  return `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
}

// What a column says, in plain words.
const MEANINGS = {
  error: "how wrong the model is about the example",
  leverage: "how much the model depends on this single example",
  variance: "how unsure the model is about the example",
  sensitivity: "how far its own prediction would move without it",
  loo_nll: "loss of the example when it is predicted without itself",
  self_influence: "how much its own loss would rise without it",
  tracked_self_influence: "how much its own loss would have risen without it, averaged over training",
  loss: "loss of the example",
  feature_1: "first principal component of what the last layer is given",
  feature_2: "second principal component of what the last layer is given",
};

export function meaning(name) {
  return MEANINGS[name] ?? readable(name);
}

export function readable(name) {
  const tracked = name.startsWith("tracked_"),
    plain = name.replace("tracked_", "").replace("loo_nll", "leave-one-out loss").replaceAll("_", " ");
  if (plain.startsWith("feature ")) return plain.replace("feature", "component");
  return tracked ? `${plain} in training` : plain;
}

export function percent(v) {
  return `${(100 * v).toFixed(1)} %`;
}

export function signed(v) {
  return `${v < 0 ? "−" : "+"}${short(Math.abs(v))}`;
}
