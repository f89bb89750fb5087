// Colours that colour-blind readers can tell apart, in a light and a dark version.

const CLASSES = {
  light: [
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#3DA5E0",
    "#9A8A00",
    "#7A5195",
    "#8C564B",
    "#5B8C2A",
    "#7F8790",
    "#E0457B",
  ],
  dark: [
    "#4FA8E0",
    "#F2B233",
    "#2CC79A",
    "#F07F3C",
    "#E39AC2",
    "#8CD0F7",
    "#D6C531",
    "#B08BD0",
    "#C08D80",
    "#94C85E",
    "#AAB2BC",
    "#F77BA5",
  ],
};
const CATEGORIES = {
  light: ["#8E99AB", "#E69F00", "#D55E00", "#9B3F93"],
  dark: ["#6F7C90", "#F2B233", "#F2703A", "#D27CCB"],
};
const ORDERED = {
  light: ["#C9D1DC", "#8FB4D0", "#E8B04A", "#D9582B", "#7A0F2B"],
  dark: ["#3A4350", "#4A7A9C", "#C99A3C", "#F07F3C", "#FFE08A"],
};

export function rgb(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

export function categoryColours(theme) {
  return CATEGORIES[theme];
}

export function classColour(k, theme) {
  const known = CLASSES[theme];
  if (k < known.length) return known[k];
  const hue = (k * 137.508) % 360,
    light = (theme === "dark" ? 0.68 : 0.45) + 0.08 * ((k % 3) - 1);
  return hsl(hue, 0.55, light);
}

// A colour for a share in [0, 1].
export function ordered(theme) {
  const stops = ORDERED[theme].map(rgb);
  return Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * (stops.length - 1),
      k = Math.min(Math.floor(place), stops.length - 2),
      t = place - k;
    return stops[k].map((v, c) => Math.round(v + t * (stops[k + 1][c] - v)));
  });
}

export function orderedStops(theme) {
  return ORDERED[theme];
}

function hsl(hue, saturation, light) {
  const a = saturation * Math.min(light, 1 - light);
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    const v = light - a * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(255 * v)
      .toString(16)
      .padStart(2, "0");
  };
  return `#${part(0)}${part(8)}${part(4)}`;
}
