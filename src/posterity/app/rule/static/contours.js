// Level lines of values on a grid (marching squares), and the same values as a picture.

// Levels that are close together in the valley and far apart on the slopes.
export function levels(values, count) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b),
    low = sorted[0],
    high = sorted[Math.floor(0.9 * (sorted.length - 1))];
  return Array.from({ length: count }, (_, k) => low + (high - low) * ((k + 0.6) / count) ** 2);
}

// A path of all lines at a level, in grid coordinates mapped by `to`.
export function line(values, [width, height], level, to) {
  const path = new Path2D();
  for (let j = 0; j + 1 < height; j++)
    for (let i = 0; i + 1 < width; i++) {
      const k = j * width + i,
        a = values[k] - level,
        b = values[k + 1] - level,
        c = values[k + width + 1] - level,
        d = values[k + width] - level;
      const crossed = [];
      if (a < 0 !== b < 0) crossed.push([i + a / (a - b), j]);
      if (b < 0 !== c < 0) crossed.push([i + 1, j + b / (b - c)]);
      if (c < 0 !== d < 0) crossed.push([i + 1 - c / (c - d), j + 1]);
      if (d < 0 !== a < 0) crossed.push([i, j + 1 - d / (d - a)]);
      for (let n = 0; n + 1 < crossed.length; n += 2) {
        path.moveTo(...to(...crossed[n]));
        path.lineTo(...to(...crossed[n + 1]));
      }
    }
  return path;
}

// The values as a small picture that the canvas enlarges; `shade` maps 0..1 to [r, g, b, a].
export function picture(values, [width, height], low, high, shade) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d"),
    image = context.createImageData(width, height);
  for (let j = 0; j < height; j++)
    for (let i = 0; i < width; i++) {
      const v = (values[j * width + i] - low) / (high - low || 1),
        at = 4 * ((height - 1 - j) * width + i);
      image.data.set(shade(Math.min(1, Math.max(0, v))), at);
    }
  context.putImageData(image, 0, 0);
  return canvas;
}
