// Packs of columns, as the server sends them: 16-bit codes become numbers through one look-up table a column.

const TOP = 65535;
const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, int32: Int32Array, float64: Float64Array };

export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const columns = new Map();
  for (const entry of header.columns) columns.set(entry.name, decode(entry, header.rows, buffer, 4 + length));
  return { rows: header.rows, classes: header.classes, about: header.about, columns };
}

function decode(entry, rows, buffer, start) {
  if (entry.kind === "range") return Int32Array.from({ length: rows }, (_, i) => i);
  const codes = new ARRAYS[entry.dtype](buffer, start + entry.offset, rows);
  if (entry.kind === "id") return codes;
  if (entry.kind === "class") return Int16Array.from(codes, (code) => code - 1);
  const table = entry.kind === "log" ? logarithmic(entry) : linear(entry);
  const values = new Float32Array(rows);
  for (let i = 0; i < rows; i++) values[i] = table[codes[i]];
  return values;
}

function logarithmic({ low, high }) {
  const table = new Float32Array(TOP + 1),
    span = Math.log(high / low);
  for (let code = 2; code <= TOP; code++) table[code] = low * Math.exp(((code - 2) / (TOP - 2)) * span);
  table[0] = NaN;
  return table;
}

function linear({ low, high }) {
  const table = new Float32Array(TOP + 1);
  for (let code = 1; code <= TOP; code++) table[code] = low + ((code - 1) / (TOP - 1)) * (high - low);
  table[0] = NaN;
  return table;
}

// Masks: eight rows a byte, the first row in the lowest bit.

export function maskBytes(mask) {
  const bytes = new Uint8Array(Math.ceil(mask.length / 8));
  for (let i = 0; i < mask.length; i++) if (mask[i]) bytes[i >> 3] |= 1 << (i & 7);
  return bytes;
}

export function maskOf(bytes, rows) {
  return Uint8Array.from({ length: rows }, (_, i) => (bytes[i >> 3] >> (i & 7)) & 1);
}

export function base64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}
