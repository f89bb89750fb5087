"""How many small edits of the source the tests notice: what a run of `tests/mutants.py` has left, as a table.

python tests/mutants.py optim posterior memory adaptation merging --out FOLDER
python benchmarks/mutation.py --results FOLDER --out docs/benchmarks
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
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
            "equivalent": {mutant.key: equivalent[mutant.name] for mutant in every if mutant.name in equivalent},
            "died": len(counted) - len(alive),
            "alive": alive,
        }


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    rows = []
    for line in lines:
        died, all_, same = line["died"], line["mutants"], len(line["equivalent"])
        shares = (f"{100 * died / of:.1f} %" for of in (all_, all_ - same))
        rows.append((line["package"], line["places"], all_, died, same, len(line["alive"]), *shares))
    columns = (
        "package",
        "places",
        "mutants",
        "died",
        "equivalent",
        "survived",
        "died, of all",
        "of those not equivalent",
    )
    text = report.header("What the tests notice", lines, seed=options.seed) + "\n" + report.table(columns, rows)
    text += "\nSurvived:\n\n" + _list(f"`{mutant}`" for line in lines for mutant in line["alive"])
    known = (f"`{mutant}`: {why}" for line in lines for mutant, why in line["equivalent"].items())
    report.publish("mutation", f"{text}\nEquivalent, and why:\n\n{_list(known)}", options.out)


def _list(items: Iterable[str]) -> str:
    return "".join(f"- {item}\n" for item in items) or "- none\n"


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--results", required=True, help="the folder that the run wrote into")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report.study(options, results, publish)


if __name__ == "__main__":
    main()
