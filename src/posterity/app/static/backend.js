// Where answers come from: the server, or what a stand-alone file carries with it.

import { ask, tell } from "./ask.js";
import { base64, fromBase64, maskBytes, maskOf, unpack } from "./codec.js";

const POLL = 300; // milliseconds between questions about a measurement

export function backend() {
  return document.getElementById("columns") ? new Carried() : new Server();
}

async function shown(path) {
  const response = await ask(path),
    kind = response.headers.get("content-type") ?? "";
  if (kind.startsWith("image/")) return { kind: "image", src: path };
  if (kind.startsWith("text/plain")) return { kind: "text", text: await response.text() };
  return { kind: "row", cells: await response.json() };
}

class Server {
  carried = false;

  async columns() {
    return unpack(await (await ask("/api/columns")).arrayBuffer());
  }

  async test() {
    return unpack(await (await ask("/api/test")).arrayBuffer());
  }

  // Images are left to the browser, which loads them when they come into view.
  preview(id, kind) {
    return kind === "image" ? { kind, src: `/api/preview/${id}` } : shown(`/api/preview/${id}`);
  }

  testPreview(id, kind) {
    return kind === "image" ? { kind, src: `/api/test/preview/${id}` } : shown(`/api/test/preview/${id}`);
  }

  // Why an image did not appear.
  async why(path) {
    await ask(path);
    return new Error("The image cannot be shown.");
  }

  async search(text, rows) {
    const answer = await ask(`/api/search?q=${encodeURIComponent(text)}`);
    return maskOf(new Uint8Array(await answer.arrayBuffer()), rows);
  }

  async neighbours(id, k) {
    return (await ask(`/api/neighbours/${id}?k=${k}`)).json();
  }

  async influences(id, k) {
    return (await ask(`/api/influences/${id}?k=${k}`)).json();
  }

  async epoch(index) {
    return unpack(await (await ask(`/api/epoch/${index}`)).arrayBuffer());
  }

  trails(mask) {
    return tell("/api/trails", { mask: base64(maskBytes(mask)) });
  }

  whatIf(remove, relabel) {
    return tell("/api/what-if", { remove: base64(maskBytes(remove)), relabel });
  }

  // Measured in the background: asked about again and again until there is an answer.
  async measure(remove, relabel, progress, wanted = () => true) {
    const { job } = await tell("/api/measure", { remove: base64(maskBytes(remove)), relabel });
    while (wanted()) {
      const { done, total, result, error } = await (await ask(`/api/measure/${job}`)).json();
      if (error) throw new Error(error);
      if (result) return result;
      progress(done, total);
      await new Promise((later) => setTimeout(later, POLL));
    }
  }

  keep(decisions) {
    return tell("/api/decisions", { decisions });
  }
}

class Carried {
  carried = true;
  #previews = JSON.parse(document.getElementById("previews").textContent);

  async columns() {
    return unpack(await inflate(document.getElementById("columns").textContent));
  }

  preview(id) {
    const found = this.#previews[id];
    if (found === undefined) throw new Error("This file carries no preview of this example.");
    if (found.png) return { kind: "image", src: `data:image/png;base64,${found.png}` };
    if (found.text !== undefined) return { kind: "text", text: found.text };
    return { kind: "row", cells: found.row };
  }

  // Words in what the file carries of the examples; ids name them.
  async search(text, rows, ids) {
    const wanted = text.toLowerCase(),
      mask = new Uint8Array(rows);
    for (let i = 0; i < rows; i++) {
      const { text: words, row } = this.#previews[ids[i]] ?? {};
      const said = words ?? (row ? Object.values(row).map(({ value }) => value).join(" ") : "");
      mask[i] = said.toLowerCase().includes(wanted) ? 1 : 0;
    }
    return mask;
  }

  async neighbours(id) {
    this.near ??= JSON.parse(document.getElementById("neighbours").textContent);
    const found = this.near[id];
    if (!found) throw new Error("This file carries neighbours of the first suspects alone.");
    return found;
  }

  async epoch(index) {
    this.epochs ??= JSON.parse(document.getElementById("epochs").textContent);
    return unpack(await inflate(this.epochs[index]));
  }

  async trails(mask) {
    this.epochs ??= JSON.parse(document.getElementById("epochs").textContent);
    const all = await Promise.all(this.epochs.map((_, k) => this.epoch(k)));
    const rows = Array.from(mask.keys())
      .filter((i) => mask[i])
      .slice(0, 300);
    const ways = (name) => rows.map((row) => all.map(({ columns }) => columns.get(name)[row]));
    return { rows, error: ways("error"), leverage: ways("leverage") };
  }

  async why() {
    return new Error("The image cannot be shown.");
  }

  async keep() {
    return { kept: "", decisions: null };
  }
}

async function inflate(text) {
  const stream = new Blob([fromBase64(text.trim())]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
