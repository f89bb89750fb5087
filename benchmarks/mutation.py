"""How many small edits of the source the tests notice: what a run of `tests/mutants.py` has left, as a table.

python tests/mutants.py optim posterior memory adaptation merging --out FOLDER
python benchmarks/mutation.py --results FOLDER --out docs/benchmarks
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

import report

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from edits import Mutant, chosen, known
from mutants import PACKAGES, Package, is_interpreted


def results(options: argparse.Namespace) -> Iterator[report.Line]:
    """A line for each package; those kernels of `optim` that Triton's interpreter runs have a line of their own."""
    equivalent = known()
    for name in PACKAGES:
        every = chosen(name, options.count, options.seed)
        states = Package(name, every, Path(options.results), 0.0).states()
        kernels = [mutant for mutant in every if is_interpreted(mutant)]
        others = [mutant for mutant in every if mutant not in kernels]
        for label, mutants in ((name, others), (f"{name}, kernels of Triton", kernels)):
            judged = list(_judged(mutants, states, equivalent))
            counted = [mutant for mutant in judged if mutant.name not in equivalent]
            alive = [mutant.key for mutant in counted if states[mutant.key] == "alive"]
            if mutants:
                yield {
                    "package": label,
                    "mutants": len(judged),
                    "left": len(mutants) - len(judged),
                    "equivalent": {m.key: equivalent[m.name] for m in judged if m.name in equivalent},
                    "died": len(counted) - len(alive),
                    "alive": alive,
                }


def _judged(mutants: Iterable[Mutant], states: Mapping[str, str], equivalent: Container[str]) -> Iterator[Mutant]:
    """Those up to the first that has not been run: their order is random, so that they are a fair sample."""
    for mutant in mutants:
        if mutant.name not in equivalent and mutant.key not in states:
            return
        yield mutant


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    rows = []
    for line in lines:
        died, all_, same = line["died"], line["mutants"], len(line["equivalent"])
        shares = (f"{100 * died / of:.1f} %" if of else "" for of in (all_, all_ - same))
        rows.append((line["package"], all_, died, same, len(line["alive"]), *shares, line["left"]))
    columns = (
        "package",
        "mutants",
        "died",
        "equivalent",
        "survived",
        "died, of all",
        "of those not equivalent",
        "not run",
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
