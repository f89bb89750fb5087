"""The Triton kernels, run by Triton's interpreter in a process of its own: see `interpreted.py` and its twin."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HALF = "several or closures or half or nan or looks"  # of the tests, by the time they take
ADAM = "the_steps and (until_step or ahead) or nothing_known or cannot and ahead and nan"  # what has its own equations


@pytest.mark.timeout(1800)  # dozens of tests, each with a limit of its own, on machines that others use too
@pytest.mark.parametrize(
    ("name", "part"),
    [("interpreted", HALF), ("interpreted", f"not ({HALF})"), ("interpreted_adam", ADAM)],
    ids=["one half", "the other", "over Adam"],
)
def test_the_kernels_in_the_interpreter(name, part):
    here = Path(__file__).parent
    options = ["-q", "-p", "no:cacheprovider", "-x", "-k", part]
    command = [sys.executable, "-m", "pytest", str(here / f"{name}.py"), *options]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=here.parents[1], check=False)
    assert found.returncode == 0, found.stdout + found.stderr
