"""The Triton kernels, run by Triton's interpreter in a process of its own: see `interpreted.py` and its twin."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

# What has equations or addresses of its own in Triton. Everything around the kernels is shared with those in C, which
# take all of these tests; `make nightly` gives all of them to the interpreter too.
IVON = (
    "normals or the_same_integers or launched_again or shards_that_begin or first_beta or equal_to and ahead "
    "or all_equations and (until_step and not prior or several and prior) "
    "or half_precisions and (dtype0 and context or dtype1 and several) "
    "or cannot_be_used and (dtype1 or dtype4 or dtype5) or another_rank and several-per_rank"
)
ADAM = (
    "the_steps and (until_step or ahead) or nothing_known or cannot and ahead and nan or is_believed "
    "or the_gap_is_worth or far_from_fitted or matrices_alone and L2 or less_curvature and watched "
    "or without_a_gradient and (ahead or until_step)"
)


@pytest.mark.timeout(1800)  # dozens of tests, each with a limit of its own, on machines that others use too
def test_the_kernels_in_the_interpreter():
    here = Path(__file__).parent
    part = f"interpreted_adam and ({ADAM}) or not interpreted_adam and ({IVON})"
    files = [str(here / name) for name in ("interpreted.py", "interpreted_adam.py")]
    command = [sys.executable, "-m", "pytest", *files, "-q", "-p", "no:cacheprovider", "-x", "-k", part]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=here.parents[1], check=False)
    assert found.returncode == 0, found.stdout + found.stderr
