// Finding points: the nearest one to the pointer, and those inside a shape.

const CELLS = 200;

// Points by cell of a regular grid over [0, 1]², so that a look at the pointer costs a few cells.
export class Grid {
  constructor(xy) {
    this.xy = xy;
    const rows = xy.length / 2,
      cell = new Int32Array(rows);
    this.start = new Uint32Array(CELLS * CELLS + 1);
    for (let i = 0; i < rows; i++) {
      cell[i] = this.#cell(xy[2 * i], xy[2 * i + 1]);
      if (cell[i] >= 0) this.start[cell[i] + 1]++;
    }
    for (let c = 0; c < CELLS * CELLS; c++) this.start[c + 1] += this.start[c];
    this.items = new Uint32Array(rows);
    const next = this.start.slice();
    for (let i = 0; i < rows; i++) if (cell[i] >= 0) this.items[next[cell[i]]++] = i;
  }

  #cell(x, y) {
    if (x !== x || y !== y) return -1;
    return clamp(Math.floor(y * CELLS)) * CELLS + clamp(Math.floor(x * CELLS));
  }

  // The nearest visible point within (rx, ry); the last drawn wins a tie.
  nearest(x, y, rx, ry, visible) {
    let best = -1,
      least = 1;
    const [x0, x1] = [clamp(Math.floor((x - rx) * CELLS)), clamp(Math.floor((x + rx) * CELLS))];
    const [y0, y1] = [clamp(Math.floor((y - ry) * CELLS)), clamp(Math.floor((y + ry) * CELLS))];
    for (let cy = y0; cy <= y1; cy++) {
      for (let k = this.start[cy * CELLS + x0]; k < this.start[cy * CELLS + x1 + 1]; k++) {
        const i = this.items[k];
        if (!visible[i]) continue;
        const dx = (this.xy[2 * i] - x) / rx,
          dy = (this.xy[2 * i + 1] - y) / ry,
          d = dx * dx + dy * dy;
        if (d <= least) [least, best] = [d, i];
      }
    }
    return best;
  }
}

function clamp(c) {
  return c < 0 ? 0 : c >= CELLS ? CELLS - 1 : c;
}

// Which visible points lie inside a polygon [[x, y], ...], by the even-odd rule.
export function inside(xy, polygon, visible) {
  const mask = new Uint8Array(xy.length / 2);
  const xs = polygon.map((p) => p[0]),
    ys = polygon.map((p) => p[1]);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  for (let i = 0; i < mask.length; i++) {
    const x = xy[2 * i],
      y = xy[2 * i + 1];
    if (!visible[i] || !(x >= x0 && x <= x1 && y >= y0 && y <= y1)) continue;
    let odd = 0;
    for (let a = 0, b = xs.length - 1; a < xs.length; b = a++) {
      if (ys[a] > y !== ys[b] > y && x < ((xs[b] - xs[a]) * (y - ys[a])) / (ys[b] - ys[a]) + xs[a]) odd ^= 1;
    }
    mask[i] = odd;
  }
  return mask;
}
