// What the address says: panels with their changes, the step, the theme. A link reproduces the page.

export function read(presets) {
  const query = new URLSearchParams(location.hash.slice(1)),
    panels = [];
  for (const text of query.getAll("p").slice(0, 3)) {
    const [preset, changes] = split(text);
    if (preset in presets) panels.push({ preset, changes });
  }
  const step = Number(query.get("t"));
  return {
    panels,
    step: Number.isFinite(step) && step > 0 ? step : 0,
    theme: ["light", "dark"].includes(query.get("theme")) ? query.get("theme") : null,
    look: query.get("look") ?? "",
  };
}

function split(text) {
  const cut = text.indexOf("~");
  if (cut < 0) return [text, {}];
  try {
    const changes = JSON.parse(text.slice(cut + 1));
    return [text.slice(0, cut), changes && typeof changes === "object" ? changes : {}];
  } catch {
    return [text.slice(0, cut), {}];
  }
}

export function write(panels, step, theme, look) {
  const query = new URLSearchParams();
  for (const { preset, changes } of panels)
    query.append("p", Object.keys(changes).length ? `${preset}~${JSON.stringify(changes)}` : preset);
  if (step >= 0.5) query.set("t", String(Math.round(step)));
  if (theme) query.set("theme", theme);
  if (look) query.set("look", look);
  return "#" + query.toString();
}
