// The language of the search box: words, label:cat, pred:dog, id:17, mark:drop, suspect:yes, error>0.5.

const TERM = /"([^"]*)"|([A-Za-z_]\w*)(:|>=|<=|>|<|=)("[^"]*"|\S+)|(\S+)/g;
const COMPARE = {
  ":": (a, b) => a === b,
  "=": (a, b) => a === b,
  ">": (a, b) => a > b,
  "<": (a, b) => a < b,
  ">=": (a, b) => a >= b,
  "<=": (a, b) => a <= b,
};

export function parse(text) {
  return [...text.matchAll(TERM)]
    .map(([, quoted, name, operator, value, word]) => {
      if (name === undefined) return { text: quoted ?? word };
      const wanted = value.replace(/^"|"$/g, "");
      return { name, value: wanted, compare: (v) => COMPARE[operator](v, Number(wanted)) };
    })
    .filter((term) => term.text !== "");
}
