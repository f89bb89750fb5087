"""One progress bar: silent unless somebody looks, and never in the way of the items."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from posterity.errors import InvalidInput, require_positive
from posterity.progress import Rate, track


def test_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track(range(3), "counting")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_a_bar_when_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track(iter("ab"), "counting", total=2, show=True)) == ["a", "b"]
    out, err = capsys.readouterr()
    assert out == ""
    assert "counting" in err


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), None, "3"])
def test_positive_numbers(value: object) -> None:
    with pytest.raises(InvalidInput, match="lr: expected a positive finite number, got"):
        require_positive("lr", value)
    require_positive("lr", 1e-3)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_what_is_printed_meanwhile_goes_where_it_was_sent() -> None:
    """With the bar on a terminal and standard output in a pipe, prints inside the loop reach the pipe."""
    terminal, side = os.openpty()
    code = "from posterity.progress import Rate, track\nfor i in track('ab', 'counting'): print(i)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=side, text=True, check=True)
    os.close(side)
    shown = os.read(terminal, 65536).decode()
    os.close(terminal)
    assert done.stdout.split() == ["a", "b"]
    assert "counting" in shown


def test_a_line_every_few_seconds_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 100, 3))
    monkeypatch.setattr("posterity.progress.time.monotonic", lambda: next(clock))
    assert list(track(range(6), "counting", note=lambda: "bound 1")) == [0, 1, 2, 3, 4, 5]
    # One call a step, three seconds each: the first line after five seconds, the next after ten more.
    assert capsys.readouterr().err.splitlines() == [
        "counting: 2 of 6, about 12 s left, bound 1",
        "counting: 6 of 6, about 0 s left, bound 1",
    ]
    clock = iter(range(0, 100, 3))
    list(track(iter("abc"), "counting"))
    assert capsys.readouterr().err.splitlines() == ["counting: 2"]
    clock = iter([0, 60, 61, 71])  # a first step that loads libraries for a minute
    list(track(range(3), "counting"))
    assert capsys.readouterr().err.splitlines() == ["counting: 1 of 3", "counting: 3 of 3, about 0 s left"]


def test_the_rate_counts_what_was_processed_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 14.0])
    monkeypatch.setattr("posterity.progress.time.monotonic", lambda: next(clock))
    rate = Rate(1000)  # of a resumed training
    rate.done += 2000  # in four seconds
    assert rate.words() == "500 examples/s"
