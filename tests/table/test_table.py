"""Every row of Table 1 runs within its tolerance; the registry and its page are complete."""

import dataclasses
import inspect
import math
from pathlib import Path

import pytest

from posterity import algorithms, graph, optim
from posterity.errors import InvalidInput, MissingExtra
from posterity.table import ROWS, markdown, row
from posterity.table.comparisons._data import furthest

PAGE = Path(__file__).parents[2] / "docs" / "table.md"


@pytest.mark.parametrize("line", ROWS, ids=lambda line: line.name)
def test_row_is_within_its_tolerance(line):
    result = line.run()
    assert type(result.deviation) is float
    assert result.holds, f"{line.name}: {result.deviation:.3g} > {line.tolerance:g}"


def test_names_are_unique():
    assert len({line.name for line in ROWS}) == len(ROWS)


def test_every_algorithm_has_a_row():
    functions = {name for name in algorithms.__all__ if name.islower()}
    functions |= {name for name in graph.__all__ if "Posterior: " in (getattr(graph, name).__doc__ or "")}
    functions |= {"ewc_kprior_fromp"}  # an identity
    assert {line.title for line in ROWS if not inspect.isclass(line.algorithm)} == functions


def test_every_optimizer_with_a_row_of_its_own_is_there():
    kinds = {name for name in optim.__all__ if name[0].isupper() and hasattr(getattr(optim, name), "posterior")}
    points, several = {"SAM", "STE"}, {"MixtureIVON"}  # without a width; several IVONs
    rows = {line.title.removeprefix("optim.") for line in ROWS if inspect.isclass(line.algorithm)}
    assert kinds - points - several - {"VariationalOptimizer"} == rows


@pytest.mark.parametrize("line", ROWS, ids=lambda line: line.name)
def test_derivations_name_the_posterior_and_the_update(line):
    assert "Posterior: " in line.derivation or inspect.isclass(line.algorithm)
    assert "\n    " in line.derivation  # an equation, set apart
    assert "Args:" not in line.derivation


def test_the_page_is_what_the_registry_says():
    assert markdown(ROWS) in PAGE.read_text(encoding="utf-8"), "run: posterity table --markdown"


@pytest.mark.parametrize("deviation", [1e-3, math.inf, math.nan])
def test_a_row_that_is_off_does_not_hold(deviation):
    broken = dataclasses.replace(row("newton"), measure=lambda: deviation)
    assert not broken.run().holds


def test_nothing_hides_behind_what_agrees():
    assert math.isnan(furthest((1.0, 1.0), ([0.0, math.nan], [0.0, 0.0])))
    with pytest.raises(InvalidInput, match="the shape"):
        furthest(([1.0, 1.0], [1.0]))


def test_a_missing_package_is_named_with_its_extra():
    def measure() -> float:
        import no_such_package

        return no_such_package.deviation

    lonely = dataclasses.replace(row("newton"), measure=measure)
    with pytest.raises(MissingExtra, match=r"'newton': .*'no_such_package'; pip install 'posterity\[table\]'"):
        lonely.run()
    assert dataclasses.replace(row("newton"), package="no_such_package").missing


def test_an_unknown_row_is_refused():
    with pytest.raises(InvalidInput, match="one of gradient-descent, sgd"):
        row("newtonn")
