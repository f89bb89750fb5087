// Small charts in SVG: lines over epochs with a cursor, and points against the diagonal.

import { h, svg } from "./dom.js";
import { Scale, short } from "./scales.js";

const W = 480,
  H = 190,
  LEFT = 46,
  RIGHT = 10,
  TOP = 10,
  BOTTOM = 30;

function frame(x, y, xName, yName, height = H) {
  const px = (v) => LEFT + x.place(v) * (W - LEFT - RIGHT),
    py = (v) => height - BOTTOM - y.place(v) * (height - TOP - BOTTOM);
  const picture = svg("svg", { viewBox: `0 0 ${W} ${height}`, class: "chart", role: "img" });
  for (const [p, text] of y.ticks(0, 1, height / 45)) {
    const v = height - BOTTOM - p * (height - TOP - BOTTOM);
    picture.append(
      svg("line", { x1: LEFT, x2: W - RIGHT, y1: v, y2: v, class: "gridline" }),
      label(LEFT - 6, v + 4, text, "end"),
    );
  }
  for (const [p, text] of x.ticks(0, 1, 6))
    picture.append(label(LEFT + p * (W - LEFT - RIGHT), height - BOTTOM + 14, text, "middle"));
  picture.append(label((W + LEFT) / 2, height - 3, xName, "middle"), label(LEFT, TOP - 1, yName, "start"));
  return { picture, px, py };
}

function label(x, y, text, anchor) {
  const element = svg("text", { x, y, "text-anchor": anchor });
  element.textContent = text;
  return element;
}

export function lines(xs, series, colours, { x, y }) {
  const all = Float32Array.from(
    Object.values(series)
      .flat()
      .filter((v) => v !== null),
  ).sort();
  const { picture, px, py } = frame(
    new Scale("linear", Float32Array.from([xs[0], xs[xs.length - 1]])),
    new Scale("linear", all),
    x,
    y,
  );
  const cursor = svg("line", { y1: TOP, y2: H - BOTTOM, class: "cursor", x1: -9, x2: -9 });
  Object.entries(series).forEach(([, values], k) => {
    const points = values
      .map((v, i) => (v === null ? null : `${px(xs[i]).toFixed(1)},${py(v).toFixed(1)}`))
      .filter(Boolean);
    picture.append(svg("polyline", { points: points.join(" "), stroke: colours[k], class: "series" }));
  });
  picture.append(cursor);
  const legend = h(
    "div",
    { class: "keys" },
    Object.keys(series).map((name, k) => {
      const swatch = h("i", { class: "swatch" });
      swatch.style.background = colours[k];
      const last = series[name].findLast((v) => v !== null);
      return h("span", {}, swatch, `${name.replaceAll("_", "-")} ${short(last)}`);
    }),
  );
  const move = (v) => {
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, v === null ? -9 : px(v));
  };
  return { element: h("figure", {}, picture, legend), move };
}

export function against(xs, ys, { x, y }) {
  const all = Float32Array.from([...xs, ...ys].filter((v) => v !== null)).sort(),
    scale = new Scale("linear", all);
  const { picture, px, py } = frame(scale, scale, x, y, 320);
  picture.append(
    svg("line", { x1: px(scale.low), y1: py(scale.low), x2: px(scale.high), y2: py(scale.high), class: "diagonal" }),
  );
  xs.forEach(
    (v, i) =>
      v !== null && ys[i] !== null && picture.append(svg("circle", { cx: px(v), cy: py(ys[i]), r: 2.6, class: "dot" })),
  );
  return h("figure", {}, picture);
}

export function correlation(xs, ys) {
  const pairs = xs.map((v, i) => [v, ys[i]]).filter(([a, b]) => a !== null && b !== null),
    n = pairs.length;
  const [ma, mb] = [0, 1].map((k) => pairs.reduce((s, p) => s + p[k], 0) / n);
  const dot = (f) => pairs.reduce((s, [a, b]) => s + f(a - ma, b - mb), 0);
  return dot((a, b) => a * b) / Math.sqrt(dot((a) => a * a) * dot((_, b) => b * b));
}
