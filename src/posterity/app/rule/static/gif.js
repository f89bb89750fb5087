// An animated GIF from canvases: one palette of the commonest colours, LZW, no library.

export class Gif {
  #bytes = [];
  #palette = null;

  constructor(width, height) {
    this.width = width;
    this.height = height;
  }

  // The 256 commonest colours of some frames, at five bits a channel.
  learn(images) {
    const counts = new Map();
    for (const { data } of images)
      for (let k = 0; k < data.length; k += 4) {
        const key = code(data, k);
        const entry = counts.get(key);
        if (entry) entry.n++;
        else counts.set(key, { n: 1, rgb: [data[k], data[k + 1], data[k + 2]] });
      }
    const best = [...counts.values()].sort((a, b) => b.n - a.n).slice(0, 256);
    this.#palette = { colours: best.map(({ rgb }) => rgb), near: new Map() };
    const table = new Array(768).fill(0);
    best.forEach(({ rgb }, k) => rgb.forEach((v, c) => (table[3 * k + c] = v)));
    this.#text("GIF89a");
    this.#short(this.width, this.height);
    this.#bytes.push(0xf7, 0, 0, ...table);
    this.#bytes.push(0x21, 0xff, 11);
    this.#text("NETSCAPE2.0");
    this.#bytes.push(3, 1, 0, 0, 0);
  }

  // One frame, shown for so many hundredths of a second.
  add({ data }, hundredths) {
    this.#bytes.push(0x21, 0xf9, 4, 0);
    this.#short(hundredths);
    this.#bytes.push(0, 0, 0x2c);
    this.#short(0, 0, this.width, this.height);
    this.#bytes.push(0, 8);
    const indices = new Uint8Array(this.width * this.height);
    for (let k = 0; k < indices.length; k++) indices[k] = this.#nearest(data, 4 * k);
    const packed = lzw(indices);
    for (let k = 0; k < packed.length; k += 255) {
      const block = packed.slice(k, k + 255);
      this.#bytes.push(block.length);
      for (const byte of block) this.#bytes.push(byte);
    }
    this.#bytes.push(0);
  }

  end() {
    this.#bytes.push(0x3b);
    return new Blob([new Uint8Array(this.#bytes)], { type: "image/gif" });
  }

  #nearest(data, k) {
    const { colours, near } = this.#palette,
      key = code(data, k);
    let found = near.get(key);
    if (found !== undefined) return found;
    let least = Infinity;
    colours.forEach(([r, g, b], index) => {
      const d = (r - data[k]) ** 2 + (g - data[k + 1]) ** 2 + (b - data[k + 2]) ** 2;
      if (d < least) [least, found] = [d, index];
    });
    near.set(key, found);
    return found;
  }

  #text(text) {
    for (const c of text) this.#bytes.push(c.charCodeAt(0));
  }

  #short(...values) {
    for (const v of values) this.#bytes.push(v & 255, v >> 8);
  }
}

function code(data, k) {
  return ((data[k] >> 3) << 10) | ((data[k + 1] >> 3) << 5) | (data[k + 2] >> 3);
}

function lzw(indices) {
  const CLEAR = 256,
    END = 257,
    out = [];
  let table = new Map(),
    next = 258,
    size = 9,
    bits = 0,
    held = 0;
  const put = (value) => {
    held |= value << bits;
    bits += size;
    while (bits >= 8) {
      out.push(held & 255);
      held >>>= 8;
      bits -= 8;
    }
  };
  put(CLEAR);
  let prefix = indices[0];
  for (let k = 1; k < indices.length; k++) {
    const pair = (prefix << 8) | indices[k],
      known = table.get(pair);
    if (known !== undefined) {
      prefix = known;
      continue;
    }
    put(prefix);
    if (next === 4096) {
      put(CLEAR);
      table = new Map();
      next = 258;
      size = 9;
    } else {
      if (next === 1 << size) size++;
      table.set(pair, next++);
    }
    prefix = indices[k];
  }
  put(prefix);
  put(END);
  if (bits > 0) out.push(held & 255);
  return out;
}
