// What lies over the points: axes, guides, trails, rings around single examples, and the shape being drawn.

import { css } from "./dom.js";
import { readable } from "./scales.js";

export const MARGIN = { left: 58, right: 14, top: 14, bottom: 46 };
const MARKS = { keep: "--keep", drop: "--drop", relabel: "--relabel" };
const SMALL = "11px system-ui, sans-serif",
  STRONG = "600 12px system-ui, sans-serif";

export function overlay(plot) {
  const c = plot.over.getContext("2d");
  c.setTransform(plot.ratio, 0, 0, plot.ratio, 0, 0);
  c.clearRect(0, 0, plot.over.width, plot.over.height);
  axes(plot, c);
  c.save();
  c.beginPath();
  c.rect(MARGIN.left, MARGIN.top, plot.width, plot.height);
  c.clip();
  guides(plot, c);
  trails(plot, c);
  rings(plot, c);
  shape(plot, c);
  c.restore();
}

// The grid lies under the points, on another canvas.
export function gridlines(plot) {
  const c = plot.under.getContext("2d"),
    [xs, ys] = ticks(plot);
  c.setTransform(plot.ratio, 0, 0, plot.ratio, -MARGIN.left * plot.ratio, -MARGIN.top * plot.ratio);
  c.lineWidth = 1;
  c.strokeStyle = css("--line");
  for (const [p] of xs) {
    const [x] = plot.toScreen(p, 0);
    segment(c, x, MARGIN.top, x, MARGIN.top + plot.height);
  }
  for (const [p] of ys) {
    const [, y] = plot.toScreen(0, p);
    segment(c, MARGIN.left, y, MARGIN.left + plot.width, y);
  }
  c.setTransform(1, 0, 0, 1, 0, 0);
}

export function guidePlaces(plot) {
  const { limits, guided, view } = plot.model,
    [x, y] = plot.toScreen(plot.xScale.place(limits[0]), plot.yScale.place(limits[1]));
  return [guided[0] === view.x ? x : NaN, guided[1] === view.y ? y : NaN]; // no guide across principal components
}

function ticks({ window: w, xScale, yScale, width, height }) {
  return [xScale.ticks(w.x0, w.x1, Math.max(2, width / 90)), yScale.ticks(w.y0, w.y1, Math.max(2, height / 60))];
}

function axes(plot, c) {
  const { x, y } = plot.model.view,
    [xs, ys] = ticks(plot),
    bottom = MARGIN.top + plot.height,
    left = MARGIN.left;
  c.font = SMALL;
  c.fillStyle = css("--muted");
  c.textAlign = "center";
  c.textBaseline = "top";
  for (const [p, text] of xs) c.fillText(text, plot.toScreen(p, 0)[0], bottom + 8);
  c.textAlign = "right";
  c.textBaseline = "middle";
  for (const [p, text] of ys) c.fillText(text, left - 8, plot.toScreen(0, p)[1]);
  c.fillStyle = css("--ink");
  c.font = STRONG;
  c.textAlign = "center";
  c.fillText(`${readable(x)} →`, left + plot.width / 2, bottom + 34);
  c.save();
  c.translate(12, MARGIN.top + plot.height / 2);
  c.rotate(-Math.PI / 2);
  c.fillText(`${readable(y)} →`, 0, 0);
  c.restore();
}

function guides(plot, c) {
  const { gx, gy } = plot.model.view,
    [x, y] = guidePlaces(plot),
    right = MARGIN.left + plot.width;
  c.setLineDash([5, 4]);
  c.lineWidth = 1.2;
  c.strokeStyle = c.fillStyle = css("--muted");
  if (x === x) segment(c, x, MARGIN.top, x, MARGIN.top + plot.height);
  if (y === y) segment(c, MARGIN.left, y, right, y);
  c.setLineDash([]);
  c.font = SMALL;
  c.textAlign = "left";
  c.textBaseline = "top";
  if (x === x) c.fillText(`${Math.round(100 * gx)} %`, x + 4, MARGIN.top + 3);
  c.textAlign = "right";
  c.textBaseline = "bottom";
  if (y === y) c.fillText(`${Math.round(100 * gy)} %`, right - 4, y - 3);
}

// The ways of selected examples through training, where the axes are those that were recorded.
function trails(plot, c) {
  const { x, y, tab } = plot.model.view,
    { trails: ways, rgba } = plot;
  if (!ways || plot.prefix || tab !== "training" || x !== "leverage" || y !== "error") return;
  c.lineWidth = 1.3;
  const opacity = Math.max(0.12, Math.min(0.75, 6 / ways.rows.length)); // many ways are a cloud
  ways.rows.forEach((row, k) => {
    c.strokeStyle = `rgb(${rgba[4 * row]} ${rgba[4 * row + 1]} ${rgba[4 * row + 2]} / ${opacity})`;
    c.beginPath();
    ways.leverage[k].forEach((leverage, epoch) => {
      const error = ways.error[k][epoch];
      if (leverage === null || error === null) return;
      c.lineTo(...plot.toScreen(plot.xScale.place(leverage), plot.yScale.place(error)));
    });
    c.stroke();
  });
}

function rings(plot, c) {
  const m = plot.model;
  const ring = (row, radius, style, width) => {
    const [x, y] = plot.toScreen(plot.xy[2 * row], plot.xy[2 * row + 1]);
    if (Number.isNaN(x + y)) return;
    c.strokeStyle = style;
    c.lineWidth = width;
    c.beginPath();
    c.arc(x, y, radius, 0, 7);
    c.stroke();
  };
  for (const [row, { decision }] of m.marks) if (m.shown[row]) ring(row, 5, css(MARKS[decision]), 1.8);
  if (m.hovered >= 0) ring(m.hovered, 7, css("--ink"), 1.6);
  if (m.focused >= 0) {
    ring(m.focused, 9, css("--panel"), 5);
    ring(m.focused, 9, css("--accent"), 2.4);
  }
}

function shape(plot, c) {
  if (!plot.shape) return;
  c.beginPath();
  for (const [x, y] of plot.shape) c.lineTo(...plot.toScreen(x, y));
  c.closePath();
  c.globalAlpha = 0.12;
  c.fillStyle = c.strokeStyle = css("--accent");
  c.fill();
  c.globalAlpha = 1;
  c.lineWidth = 1.5;
  c.stroke();
}

function segment(c, x0, y0, x1, y1) {
  c.beginPath();
  c.moveTo(x0, y0);
  c.lineTo(x1, y1);
  c.stroke();
}
