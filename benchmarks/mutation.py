"""How many small edits of the source the tests notice: what a run of `tests/mutants.py` has left, as a table.

python tests/mutants.py optim posterior memory adaptation merging --out FOLDER
python benchmarks/mutation.py --results FOLDER --out docs/benchmarks
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import report

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from edits import chosen, known, places_of
from mutants import PACKAGES, Package


def results(options: argparse.Namespace) -> Iterator[report.Line]:
    """A line for each package whose mutants have all been judged."""
    equivalent = known()
    for name in PACKAGES:
        every = chosen(name, options.count, options.seed)
        counted = [mutant for mutant in every if mutant.name not in equivalent]
        states = Package(name, counted, Path(options.results), 0.0).states()
        missing = [mutant.key for mutant in counted if mutant.key not in states]
        if missing:
            sys.exit(f"{name}: expected results about every mutant of this source, got none about {missing[0]}")
        alive = [mutant.key for mutant in counted if states[mutant.key] == "alive"]
        yield {
            "package": name,
            "places": len(places_of(name)),
            "mutants": len(every),
            "equivalent": len(every) - len(counted),
            "died": len(counted) - len(alive),
            "alive": alive,
        }


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    rows = []
    for line in lines:
        counted = line["mutants"] - line["equivalent"]
        share = f"{100 * line['died'] / counted:.1f} %"
        rows.append((line["package"], line["places"], line["mutants"], line["equivalent"], line["died"], share))
    columns = ("package", "places for an edit", "mutants", "equivalent", "died", "of those that are not equivalent")
    text = report.header("What the tests notice", lines, seed=options.seed) + "\n" + report.table(columns, rows)
    text += "\nEquivalent mutants are listed with the reason in `tests/equivalent.txt`. Alive:\n\n"
    text += "".join(f"- `{mutant}`\n" for line in lines for mutant in line["alive"])
    report.publish("mutation", text, options.out)


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--results", required=True, help="the folder that the run wrote into")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report.study(options, results, publish)


if __name__ == "__main__":
    main()
