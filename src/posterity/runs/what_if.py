"""What decisions about training rows would do to a run: estimated, and measured."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.adaptation import Measured, measure
from posterity.errors import InvalidInput
from posterity.memory import Outcome
from posterity.runs._folder import RunFolder
from posterity.runs.adapting import check_known, targets_of
from posterity.runs.decisions import RowDecisions


@dataclass(frozen=True, eq=False)
class RunWhatIf:
    """The effect of decisions on held-out rows, or on the changed rows where none are held out.

    Args:
        held_out: Whether there are held-out rows.
        outcome: The estimate.
        measured: The measurement, where it was asked for.
    """

    held_out: bool
    outcome: Outcome
    measured: Measured | None


def what_if_run(
    run: RunFolder,
    decisions: RowDecisions,
    *,
    measured: bool = False,
    repeats: int = 3,
    seed: int = 0,
) -> RunWhatIf:
    """Estimate the effect of decisions; the run is not changed.

    Args:
        run: The run.
        decisions: Rows to drop and to relabel.
        measured: Also train with and without the change.
        repeats: Pairs of trainings.
        seed: Of everything random in them.
    """
    check_known(run, run.data("train"), decisions)
    if measured and run.forgets:
        raise InvalidInput(
            "what-if: expected --measure for a run that has kept all its rows, got one that has forgotten a part of "
            "them; leave --measure out, or train again with `posterity fit`"
        )
    relabel = targets_of(decisions, run.preprocessing)
    m = run.memory_map()
    if m.trained is None:
        raise InvalidInput("what-if: expected a run with its model and data, got a table alone")
    test = run.data("test") if run.record.rows.test else None
    change = m.what_if(remove=decisions.dropped, relabel=relabel)
    found = None
    if measured:
        found = measure(m, remove=decisions.dropped, relabel=relabel, on=test, repeats=repeats, seed=seed)
    return RunWhatIf(test is not None, change.on(test), found)
