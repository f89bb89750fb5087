// Points without a graphics card: discs blended into an image, pixel by pixel.

export class RasterPainter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.rows = new Uint32Array(0);
  }

  places(xy) {
    this.xy = xy;
  }

  colours(rgba) {
    this.rgba = rgba;
  }

  order(rows) {
    this.rows = rows;
  }

  draw({ x0, x1, y0, y1 }, size) {
    const { width, height } = this.canvas;
    if (!width || !height) return;
    const ink = new Float32Array(4 * width * height); // red, green, blue times alpha, and alpha
    const sx = width / (x1 - x0),
      sy = height / (y1 - y0),
      { xy, rgba, rows } = this;
    const radius = size / 2,
      reach = Math.ceil(radius + 0.5);
    for (let k = 0; k < rows.length; k++) {
      const i = rows[k],
        x = (xy[2 * i] - x0) * sx,
        y = height - (xy[2 * i + 1] - y0) * sy;
      if (!(x > -reach && x < width + reach && y > -reach && y < height + reach)) continue;
      disc(ink, width, height, x, y, radius, rgba, 4 * i);
    }
    this.context.putImageData(developed(ink, width, height), 0, 0);
  }
}

function disc(ink, width, height, x, y, radius, rgba, c) {
  const left = Math.max(Math.floor(x - radius), 0),
    right = Math.min(Math.ceil(x + radius), width - 1);
  const top = Math.max(Math.floor(y - radius), 0),
    bottom = Math.min(Math.ceil(y + radius), height - 1);
  const red = rgba[c],
    green = rgba[c + 1],
    blue = rgba[c + 2],
    alpha = rgba[c + 3] / 255;
  for (let py = top; py <= bottom; py++) {
    const dy = py + 0.5 - y;
    for (let px = left; px <= right; px++) {
      const dx = px + 0.5 - x,
        cover = radius + 0.5 - Math.sqrt(dx * dx + dy * dy);
      if (cover <= 0) continue;
      const a = cover < 1 ? cover * alpha : alpha,
        rest = 1 - a,
        p = 4 * (py * width + px);
      ink[p] = red * a + ink[p] * rest;
      ink[p + 1] = green * a + ink[p + 1] * rest;
      ink[p + 2] = blue * a + ink[p + 2] * rest;
      ink[p + 3] = a + ink[p + 3] * rest;
    }
  }
}

function developed(ink, width, height) {
  const image = new ImageData(width, height),
    out = image.data;
  for (let p = 0; p < ink.length; p += 4) {
    const a = ink[p + 3];
    if (a === 0) continue;
    out[p] = ink[p] / a;
    out[p + 1] = ink[p + 1] / a;
    out[p + 2] = ink[p + 2] / a;
    out[p + 3] = 255 * a;
  }
  return image;
}
