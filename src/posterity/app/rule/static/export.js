// The panels as an animated GIF: one picture a step, titles above, equations below.

import { Gif } from "./gif.js";
import { colours } from "./scene.js";

const WIDE = 420;
const TALL = 340;
const MOST = 60;

export async function gif(panels, onprogress) {
  const sizes = panels.map((panel) => (panel.plane && panel.points ? 1.85 : 1)),
    width = Math.round(WIDE * Math.min(2.6, sizes.reduce((a, b) => a + b, 0))),
    height = TALL + 62,
    canvas = Object.assign(document.createElement("canvas"), { width, height }),
    context = canvas.getContext("2d", { willReadFrequently: true }),
    steps = Math.max(...panels.map(({ film }) => film.steps)),
    count = Math.min(MOST, steps) + 1,
    made = new Gif(width, height);
  const at = (k) => (k / (count - 1)) * steps,
    shot = (k) => {
      compose(context, width, height, panels, sizes, at(k));
      return context.getImageData(0, 0, width, height);
    };
  made.learn([shot(0), shot(Math.floor(count / 2)), shot(count - 1)]);
  for (let k = 0; k < count; k++) {
    made.add(shot(k), k === count - 1 ? 160 : Math.max(5, Math.round(500 / count)));
    onprogress(k + 1, count);
    await new Promise((go) => setTimeout(go));
  }
  return made.end();
}

function compose(context, width, height, panels, sizes, position) {
  const c = colours(),
    total = sizes.reduce((a, b) => a + b, 0);
  context.fillStyle = c.paper;
  context.fillRect(0, 0, width, height);
  let left = 0;
  panels.forEach((panel, k) => {
    const wide = Math.floor((width * sizes[k]) / total),
      both = panel.plane && panel.points,
      here = Math.min(position, panel.film.steps);
    context.save();
    context.translate(left, 0);
    context.fillStyle = c.ink;
    context.textAlign = "left";
    context.font = "600 17px system-ui, sans-serif";
    context.fillText(panel.about.title, 14, 24);
    context.textAlign = "right";
    context.fillStyle = c.muted;
    context.font = "13px system-ui, sans-serif";
    context.fillText(`step ${Math.round(here)}`, wide - 14, 24);
    context.translate(0, 32);
    const share = both ? Math.round(wide / 2) : wide;
    for (const [part, x] of [[panel.plane, 0], [panel.points, both ? share : 0]]) {
      if (!part) continue;
      context.save();
      context.translate(x, 0);
      part.draw(context, share, TALL, here);
      context.restore();
    }
    context.textAlign = "left";
    context.fillStyle = c.ink;
    context.font = "italic 15px Georgia, serif";
    const lines = panel.film.equations ?? panel.about.equations;
    context.fillText(lines.slice(-1)[0]?.replace(/_\{?(\w|[μλ])\}?/g, "$1") ?? "", 14, TALL + 20);
    context.restore();
    left += wide;
  });
}
