// Where films come from: the server, or what a stand-alone file carries with it.

export function backend() {
  return document.getElementById("films") ? new Carried() : new Server();
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin" });
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  throw new Error(body.error ?? `The server answered ${response.status}.`);
}

class Server {
  carried = false;

  catalogue() {
    return ask("/api/catalogue");
  }

  film(preset, changes) {
    const headers = { "content-type": "application/json" };
    return ask("/api/film", { method: "POST", headers, body: JSON.stringify({ preset, changes }) });
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
