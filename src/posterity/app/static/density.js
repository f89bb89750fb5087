// Where points are many: counts in cells, blurred, as a tint under them.

const CELL = 6; // pixels

export function density(canvas, xy, rows, window, ink, wanted) {
  const c = canvas.getContext("2d");
  c.clearRect(0, 0, canvas.width, canvas.height);
  if (!wanted || rows.length < 500) return;
  const width = Math.ceil(canvas.width / CELL),
    height = Math.ceil(canvas.height / CELL);
  const smooth = blur(blur(counts(xy, rows, window, width, height), width, height), width, height);
  const most = Math.log1p(smooth.reduce((a, b) => (a > b ? a : b), 0)) || 1;
  const image = new ImageData(width, height);
  smooth.forEach((v, i) => {
    const level = Math.floor((7 * Math.log1p(v)) / most) / 7; // steps read as contours
    image.data.set([...ink, 60 * level], 4 * i);
  });
  const small = new OffscreenCanvas(width, height);
  small.getContext("2d").putImageData(image, 0, 0);
  c.imageSmoothingEnabled = true;
  c.drawImage(small, 0, 0, width * CELL, height * CELL);
}

function counts(xy, rows, { x0, x1, y0, y1 }, width, height) {
  const found = new Float32Array(width * height),
    sx = width / (x1 - x0),
    sy = height / (y1 - y0);
  for (let k = 0; k < rows.length; k++) {
    const x = Math.floor((xy[2 * rows[k]] - x0) * sx),
      y = height - 1 - Math.floor((xy[2 * rows[k] + 1] - y0) * sy);
    if (x >= 0 && x < width && y >= 0 && y < height) found[y * width + x]++;
  }
  return found;
}

// The mean over a square of five by five cells, one direction after the other.
function blur(values, width, height) {
  const across = new Float32Array(values.length),
    both = new Float32Array(values.length);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) across[y * width + x] = mean(values, y * width, 1, x, width);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) both[y * width + x] = mean(across, x, width, y, height);
  return both;
}

function mean(values, start, stride, at, end) {
  let sum = 0;
  for (let k = Math.max(at - 2, 0); k <= Math.min(at + 2, end - 1); k++) sum += values[start + k * stride];
  return sum / 5;
}
