// The data beside the plane: points, the lines that q draws through them, and hands to move them.

import { between } from "./frames.js";
import { axes, colours, disc, Plane } from "./scene.js";

export class Points {
  #plane;
  chosen = -1;

  constructor(film) {
    this.film = film;
    this.#plane = new Plane({ ...film, domain: film.dataDomain, surface: null, dataKind: "", axes: film.dataAxes });
  }

  map(width, height) {
    return this.#plane.map(width, height);
  }

  draw(context, width, height, position) {
    const c = colours(),
      to = this.map(width, height),
      { film } = this,
      frame = between(film, position);
    context.fillStyle = c.paper;
    context.fillRect(0, 0, width, height);
    axes(context, film.dataDomain, film.dataAxes, to, c);
    context.save();
    context.beginPath();
    context.rect(to.x(film.dataDomain[0][0]), to.y(film.dataDomain[1][1]), to.w, to.h);
    context.clip();
    if (frame.lines) this.#lines(context, to, frame.lines, c);
    const seen = frame.seen ?? film.data.length;
    film.data.forEach(([x, y, kind], k) => {
      context.globalAlpha = k < seen ? 1 : 0.15;
      context.fillStyle = kind === undefined ? c.ink : kind ? c.one : c.zero;
      context.strokeStyle = k === this.chosen ? c.ink : c.paper;
      context.lineWidth = k === this.chosen ? 3 : 1.5;
      mark(context, to.x(x), to.y(y), kind === 0, film.draggable ? 8 : 5);
    });
    context.globalAlpha = 1;
    context.restore();
  }

  #lines(context, to, lines, c) {
    const path = (line) => {
      const made = new Path2D();
      line.forEach(([x, y], k) => made[k ? "lineTo" : "moveTo"](to.x(x), to.y(y)));
      return made;
    };
    context.strokeStyle = context.fillStyle = c.q;
    if (this.film.lineKind === "band") {
      const area = path([...lines[1], ...lines[2].slice().reverse()]);
      context.globalAlpha = 0.2;
      context.fill(area);
      context.globalAlpha = 1;
      context.lineWidth = 3;
      context.stroke(path(lines[0]));
      return;
    }
    context.lineWidth = lines.length === 1 ? 3 : 2;
    context.globalAlpha = lines.length === 1 ? 1 : 0.4;
    for (const line of lines) context.stroke(path(line));
    context.globalAlpha = 1;
  }

  // The point under the pointer, or −1.
  under(px, py, width, height) {
    const to = this.map(width, height);
    let best = -1,
      least = 18 ** 2;
    this.film.data.forEach(([x, y], k) => {
      const d = (to.x(x) - px) ** 2 + (to.y(y) - py) ** 2;
      if (d < least) [least, best] = [d, k];
    });
    return best;
  }
}

function mark(context, x, y, square, radius) {
  if (!square) return disc(context, x, y, radius, true);
  context.beginPath();
  context.rect(x - radius * 0.88, y - radius * 0.88, radius * 1.76, radius * 1.76);
  context.fill();
  context.stroke();
}
