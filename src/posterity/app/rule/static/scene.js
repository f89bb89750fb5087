// Drawing: the plane of θ with the loss and q on it, in one dimension and in two.

import { levels, line, picture } from "./contours.js";
import { between } from "./frames.js";

const EDGE = { left: 44, right: 14, top: 14, bottom: 34 };

export function colours() {
  const dark = document.documentElement.dataset.theme === "dark";
  return dark
    ? { paper: "#14181e", high: [38, 50, 66], low: [20, 24, 30], line: "rgb(150 170 195 / 38%)", ink: "#e8eaed", muted: "#98a2b0", q: "#ff9d5c", parts: ["#ff9d5c", "#6db1ff", "#4cc38a", "#d08be6", "#f0c36a"], loss: "#c9d3df", zero: "#d08be6", one: "#6db1ff", soft: "#2a3038" }
    : { paper: "#ffffff", high: [208, 219, 232], low: [255, 255, 255], line: "rgb(70 95 125 / 38%)", ink: "#1b1e24", muted: "#667080", q: "#d9480f", parts: ["#d9480f", "#0b63c4", "#128a5a", "#8a3fa0", "#a87400"], loss: "#3d4b5c", zero: "#8a3fa0", one: "#0b63c4", soft: "#e6e6e2" };
}

export class Plane {
  #back = null;
  #key = "";

  constructor(film) {
    this.film = film;
    this.flat = film.domain.length === 1;
    if (this.flat) this.#heights();
  }

  // From θ to pixels, for a drawing of this size.
  map(width, height) {
    const [[x0, x1], [y0, y1] = [0, 1]] = this.film.domain,
      w = width - EDGE.left - EDGE.right,
      h = height - EDGE.top - EDGE.bottom;
    return {
      x: (v) => EDGE.left + ((v - x0) / (x1 - x0)) * w,
      y: (v) => EDGE.top + h - ((v - y0) / (y1 - y0)) * h,
      back: (px, py) => [x0 + ((px - EDGE.left) / w) * (x1 - x0), y0 + ((EDGE.top + h - py) / h) * (y1 - y0)],
      kx: w / (x1 - x0),
      ky: h / (y1 - y0),
      w,
      h,
    };
  }

  draw(context, width, height, position, scale = 1) {
    const c = colours(),
      key = [width, height, scale, c.paper].join();
    if (key !== this.#key) {
      this.#back = this.#background(width, height, scale, c);
      this.#key = key;
    }
    context.drawImage(this.#back, 0, 0, width, height);
    context.save();
    context.beginPath();
    context.rect(EDGE.left, EDGE.top, width - EDGE.left - EDGE.right, height - EDGE.top - EDGE.bottom);
    context.clip();
    const frame = between(this.film, position),
      to = this.map(width, height);
    if (this.flat) this.#drawFlat(context, to, frame, c);
    else this.#drawPlane(context, to, frame, position, c);
    context.restore();
  }

  #background(width, height, scale, c) {
    const canvas = document.createElement("canvas");
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.fillStyle = c.paper;
    context.fillRect(0, 0, width, height);
    const to = this.map(width, height);
    if (!this.flat && this.film.surface) this.#contours(context, to, c);
    if (this.film.dataKind === "cloud") this.#cloud(context, to, c);
    axes(context, this.film.domain, this.film.axes, to, c, this.flat);
    return canvas;
  }

  #contours(context, to, c) {
    const { surface, across, domain } = this.film,
      steps = levels(surface, 14),
      top = steps.at(-1),
      mix = (v) => c.low.map((low, k) => Math.round(low + (c.high[k] - low) * Math.sqrt(v)));
    context.save();
    context.beginPath();
    context.rect(EDGE.left, EDGE.top, to.w, to.h);
    context.clip();
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    const [w, h] = across,
      half = [to.w / (w - 1) / 2, to.h / (h - 1) / 2];
    const drawn = picture(surface, across, steps[0], top, (v) => [...mix(v), 255]);
    context.drawImage(drawn, EDGE.left - half[0], EDGE.top - half[1], to.w + 2 * half[0], to.h + 2 * half[1]);
    context.strokeStyle = c.line;
    context.lineWidth = 1;
    const place = (i, j) => [
      to.x(domain[0][0] + (i / (w - 1)) * (domain[0][1] - domain[0][0])),
      to.y(domain[1][0] + (j / (h - 1)) * (domain[1][1] - domain[1][0])),
    ];
    for (const level of steps) context.stroke(line(surface, across, level, place));
    context.restore();
  }

  #cloud(context, to, c) {
    context.fillStyle = c.muted;
    context.globalAlpha = 0.55;
    for (const [x, y] of this.film.data) disc(context, to.x(x), to.y(y), 3);
    context.globalAlpha = 1;
  }

  #drawPlane(context, to, frame, position, c) {
    if (this.film.density) this.#density(context, to, frame, c);
    if (frame.masses) this.#signs(context, to, frame, c);
    if (!frame.means) return;
    this.#trail(context, to, frame, position, c);
    frame.means.forEach((mean, k) => {
      const colour = c.parts[k % 5],
        weight = frame.weights?.[k] ?? 1,
        spread = frame.covariances?.[k];
      if (mean.includes(null)) return; // too far away to be drawn
      if (spread && spread[0] !== null) ellipses(context, to, mean, spread, colour, weight, this.film.hollow);
      context.fillStyle = colour;
      context.strokeStyle = c.paper;
      context.lineWidth = 2;
      context.globalAlpha = Math.min(1, 0.06 + 2.2 * weight);
      disc(context, to.x(mean[0]), to.y(mean[1]), 7, true);
      context.globalAlpha = 1;
    });
  }

  #trail(context, to, frame, position, c) {
    const { means } = this.film,
      until = Math.min(Math.floor(position), this.film.steps);
    context.lineWidth = 2;
    context.lineJoin = "round";
    frame.means.forEach((now, k) => {
      context.strokeStyle = context.fillStyle = c.parts[k % 5];
      context.globalAlpha = 0.75;
      context.beginPath();
      for (let t = 0; t <= until; t++) {
        const mean = means[t][k];
        if (mean && !mean.includes(null)) context[t ? "lineTo" : "moveTo"](to.x(mean[0]), to.y(mean[1]));
      }
      if (!now.includes(null)) context.lineTo(to.x(now[0]), to.y(now[1]));
      context.stroke();
      context.globalAlpha = 0.9;
      if (this.film.steps <= 100)
        for (let t = 0; t <= until; t++) if (means[t][k] && !means[t][k].includes(null)) disc(context, to.x(means[t][k][0]), to.y(means[t][k][1]), 2.6);
      context.globalAlpha = 1;
    });
  }

  #density(context, to, frame, c) {
    const [r, g, b] = [1, 3, 5].map((k) => parseInt(c.q.slice(k, k + 2), 16));
    const show = (k, alpha) => {
      const values = this.film.density[k];
      this.pictures ??= [];
      const key = `${c.paper}${k}`;
      this.pictures[key] ??= picture(values, this.film.across, 0, Math.max(...values), (v) => [r, g, b, Math.round(235 * v ** 0.7)]);
      context.globalAlpha = alpha;
      context.drawImage(this.pictures[key], EDGE.left, EDGE.top, to.w, to.h);
    };
    show(frame.step, frame.step === frame.next ? 1 : 1 - frame.share);
    if (frame.next !== frame.step && frame.share > 0) show(frame.next, frame.share);
    context.globalAlpha = 1;
  }

  #signs(context, to, frame, c) {
    context.strokeStyle = c.muted;
    context.setLineDash([5, 4]);
    context.lineWidth = 1.2;
    context.strokeRect(to.x(-1), to.y(1), to.x(1) - to.x(-1), to.y(-1) - to.y(1));
    context.setLineDash([]);
    const corners = [[-1, -1], [-1, 1], [1, -1], [1, 1]];
    context.font = "600 13px system-ui, sans-serif";
    context.textAlign = "center";
    corners.forEach(([x, y], k) => {
      const p = frame.masses[k];
      context.fillStyle = c.q;
      context.globalAlpha = 0.28;
      disc(context, to.x(x), to.y(y), 4 + 34 * Math.sqrt(p));
      context.globalAlpha = 1;
      context.fillStyle = c.ink;
      context.strokeStyle = c.paper;
      context.lineWidth = 3;
      context.strokeText(`${Math.round(100 * p)} %`, to.x(x), to.y(y) + 5); // the dashed line stays behind it
      context.fillText(`${Math.round(100 * p)} %`, to.x(x), to.y(y) + 5);
    });
  }

  #heights() {
    const { surface, curve, density } = this.film,
      values = [...(surface ?? []), ...(curve ?? []).flat().filter(Number.isFinite)].sort((a, b) => a - b);
    if (values.length) {
      const low = values[0],
        high = surface ? Math.max(...surface.slice().sort((a, b) => a - b).slice(0, Math.floor(0.93 * surface.length))) : values.at(-1);
      this.range = [low - 0.32 * (high - low), high + 0.04 * (high - low)];
    }
    this.tops = Array.from({ length: this.film.steps + 1 }, (_, k) => (density ? Math.max(...density[k]) : this.#peak(k)));
    this.top = Math.max(...this.tops.filter(Number.isFinite));
  }

  #peak(k) {
    const spreads = this.film.covariances?.[k];
    if (!spreads?.length || spreads[0][0] === null) return NaN;
    return Math.max(...spreads.map(([v], i) => (this.film.weights[k][i] ?? 1) / Math.sqrt(2 * Math.PI * v)));
  }

  #drawFlat(context, to, frame, c) {
    const { surface, domain, across } = this.film,
      count = across[0],
      x = (i) => to.x(domain[0][0] + (i / (count - 1)) * (domain[0][1] - domain[0][0])),
      [low, high] = this.range ?? [0, 1],
      y = (v) => EDGE.top + to.h * (1 - (v - low) / (high - low)),
      base = EDGE.top + to.h;
    this.#bell(context, to, frame, x, count, base, c);
    context.lineJoin = "round";
    if (surface) curveLine(context, surface, x, y, c.loss, 3, []);
    if (frame.curve) curveLine(context, frame.curve, x, y, c.q, 2.5, [7, 5]);
    if (!frame.means || !surface) return;
    frame.means.forEach(([mean], k) => {
      if (mean === null) return;
      const at = ((mean - domain[0][0]) / (domain[0][1] - domain[0][0])) * (count - 1),
        i = Math.max(0, Math.min(count - 2, Math.floor(at))),
        height = surface[i] + (surface[i + 1] - surface[i]) * (at - i);
      context.strokeStyle = c.parts[k % 5];
      context.globalAlpha = 0.6;
      context.setLineDash([3, 4]);
      context.lineWidth = 1.5;
      context.beginPath();
      context.moveTo(to.x(mean), y(height));
      context.lineTo(to.x(mean), base);
      context.stroke();
      context.setLineDash([]);
      context.globalAlpha = 1;
      context.fillStyle = c.parts[k % 5];
      context.strokeStyle = c.paper;
      context.lineWidth = 2;
      disc(context, to.x(mean), y(height), 8, true);
    });
  }

  #bell(context, to, frame, x, count, base, c) {
    const { density, domain } = this.film,
      left = domain[0][0],
      width = domain[0][1] - left;
    let values = null,
      top = 0;
    if (density) {
      values = density[frame.step].map((v, i) => v + (density[frame.next][i] - v) * frame.share);
      top = Math.max(...values);
    } else if (frame.covariances?.length && frame.covariances[0][0] !== null) {
      values = Array.from({ length: count }, (_, i) => {
        const at = left + (i / (count - 1)) * width;
        return frame.means.reduce((sum, [mean], k) => {
          const v = frame.covariances[k][0];
          return sum + ((frame.weights?.[k] ?? 1) * Math.exp((-0.5 * (at - mean) ** 2) / v)) / Math.sqrt(2 * Math.PI * v);
        }, 0);
      });
      top = Math.max(...values);
    }
    if (!values || !(top > 0)) return;
    const tall = to.h * (this.film.surface ? 0.42 : 0.9) * (top / this.top) ** (this.film.surface ? 0.4 : 0.6),
      path = new Path2D();
    path.moveTo(x(0), base);
    values.forEach((v, i) => path.lineTo(x(i), base - (tall * v) / top));
    path.lineTo(x(count - 1), base);
    context.fillStyle = c.q;
    context.globalAlpha = 0.25;
    context.fill(path);
    context.globalAlpha = 1;
    context.strokeStyle = c.q;
    context.lineWidth = 2.5;
    context.stroke(path);
  }
}

function curveLine(context, values, x, y, colour, width, dash) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.setLineDash(dash);
  context.beginPath();
  values.forEach((v, i) => v !== null && context[i ? "lineTo" : "moveTo"](x(i), Math.max(-1e4, Math.min(1e4, y(v)))));
  context.stroke();
  context.setLineDash([]);
}

export function disc(context, x, y, radius, rim = false) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
  if (rim) context.stroke();
}

// The lines of one and two standard deviations.
function ellipses(context, to, [mx, my], [a, b, d], colour, weight, hollow) {
  const half = (a + d) / 2,
    root = Math.sqrt(Math.max(0, ((a - d) / 2) ** 2 + b * b)),
    angle = 0.5 * Math.atan2(2 * b, a - d),
    long = Math.sqrt(Math.max(0, half + root)),
    short = Math.sqrt(Math.max(0, half - root));
  context.save();
  context.translate(to.x(mx), to.y(my));
  context.scale(to.kx, -to.ky);
  context.rotate(angle);
  context.fillStyle = colour;
  for (const [k, alpha] of hollow ? [] : [[2, 0.13], [1, 0.2]]) {
    context.beginPath();
    context.ellipse(0, 0, k * long, k * short, 0, 0, 2 * Math.PI);
    context.globalAlpha = alpha * Math.min(1, 2.2 * weight);
    context.fill();
  }
  context.restore();
  context.save();
  context.strokeStyle = colour;
  context.lineWidth = hollow ? 1.5 : 2.5;
  context.globalAlpha = hollow ? 0.7 : Math.min(1, 0.06 + 2.2 * weight);
  for (const k of hollow ? [1] : [1, 2]) {
    context.beginPath();
    for (let n = 0; n <= 72; n++) {
      const t = (n / 72) * 2 * Math.PI,
        u = k * long * Math.cos(t),
        v = k * short * Math.sin(t);
      context.lineTo(to.x(mx + u * Math.cos(angle) - v * Math.sin(angle)), to.y(my + u * Math.sin(angle) + v * Math.cos(angle)));
    }
    context.setLineDash(k === 2 || hollow ? [6, 5] : []);
    context.stroke();
  }
  context.restore();
}

export function axes(context, domain, names, to, c, flat = false) {
  context.strokeStyle = c.soft;
  context.lineWidth = 1;
  context.strokeRect(EDGE.left, EDGE.top, to.w, to.h);
  context.fillStyle = c.muted;
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "center";
  for (const v of ticks(domain[0])) context.fillText(text(v), to.x(v), EDGE.top + to.h + 15);
  context.textAlign = "right";
  if (!flat) for (const v of ticks(domain[1])) context.fillText(text(v), EDGE.left - 6, to.y(v) + 4);
  context.fillStyle = c.ink;
  context.font = "italic 14px Georgia, serif";
  context.textAlign = "center";
  context.fillText(names[0], EDGE.left + to.w / 2, EDGE.top + to.h + 30);
  if (flat) return;
  context.save();
  context.translate(13, EDGE.top + to.h / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(names[1], 0, 0);
  context.restore();
}

function ticks([low, high]) {
  const rough = (high - low) / 5,
    power = 10 ** Math.floor(Math.log10(rough)),
    step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough),
    found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + 1e-9; v += step) found.push(Math.abs(v) < 1e-9 ? 0 : v);
  return found;
}

function text(v) {
  return String(Math.round(v * 1e6) / 1e6).replace("-", "−");
}
