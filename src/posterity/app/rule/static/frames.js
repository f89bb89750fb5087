// q between two steps: the picture glides from one to the next; every number that is shown is a step's own.

export function between(film, position) {
  const last = film.steps,
    at = Math.max(0, Math.min(last, position)),
    k = Math.min(Math.floor(at), last),
    next = Math.min(k + 1, last),
    f = ease(at - k);
  const mix = (name) => (film[name] ? lerp(film[name][k], film[name][next], f) : null);
  return {
    step: k,
    nearest: Math.round(at),
    share: f,
    next,
    weights: mix("weights"),
    means: mix("means"),
    covariances: mix("covariances"),
    masses: mix("masses"),
    curve: mix("curve"),
    lines: film.lines ? lerp(film.lines[k], film.lines[next], f) : null,
    seen: film.seen ? film.seen[Math.round(at)] : null,
  };
}

function ease(f) {
  return f * f * (3 - 2 * f);
}

function lerp(a, b, f) {
  if (Array.isArray(a) && Array.isArray(b)) {
    if (a.length !== b.length) return f < 0.5 ? a : b;
    return a.map((value, k) => lerp(value, b[k], f));
  }
  if (a === null || b === null || a === undefined || b === undefined) return f < 0.5 ? a : b;
  return a + (b - a) * f;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e4 || Math.abs(value) < 1e-3)) return value.toExponential(1).replace("-", "−");
  return value.toFixed(digits).replace("-", "−");
}

export function vector(values, digits = 2) {
  return values.length === 1 ? number(values[0], digits) : `(${values.map((v) => number(v, digits)).join(", ")})`;
}
