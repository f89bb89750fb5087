// Where films come from: the server, or what a stand-alone file carries with it.

import { ask, tell } from "./ask.js";

export function backend() {
  return document.getElementById("films") ? new Carried() : new Server();
}

class Server {
  carried = false;

  async catalogue() {
    return (await ask("/api/catalogue")).json();
  }

  film(preset, changes) {
    return tell("/api/film", { preset, changes });
  }
}

class Carried {
  carried = true;
  #films = JSON.parse(document.getElementById("films").textContent);

  async catalogue() {
    return JSON.parse(document.getElementById("catalogue").textContent);
  }

  async film(preset, changes) {
    if (Object.keys(changes).length) throw new Error("This file carries presets only; changes need “posterity rule”.");
    const bytes = Uint8Array.from(atob(this.#films[preset]), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }
}
