// Elements from code: every text goes in as a text node, so that nothing in the data is ever markup.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-") || name === "role" || name === "for" || name === "list")
      element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(
    ...children.flat().filter((child) => child !== null && child !== undefined && child !== false),
  );
}

export function select(options, value, onchange, properties = {}) {
  const element = h("select", { ...properties, onchange: () => onchange(element.value) });
  for (const [key, text] of options) element.append(h("option", { value: key, textContent: text }));
  element.value = value;
  return element;
}

export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// At most one call a frame, however often it is asked for.
export function everyFrame(action) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      action();
    });
  };
}

let vanishing = 0;

export function toast(text, bad = false, lasts = bad ? 8000 : 2600) {
  const element = document.getElementById("toast");
  element.textContent = text;
  element.classList.toggle("bad", bad);
  element.hidden = false;
  clearTimeout(vanishing);
  vanishing = setTimeout(() => (element.hidden = true), lasts);
}
