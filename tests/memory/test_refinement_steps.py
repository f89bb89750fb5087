"""The steps of a refinement, and a table written as parquet."""

import pandas as pd
import torch

from posterity.memory.refinement import _quasi_newton
from posterity.memory.store import to_parquet


def test_steps_obey_the_secant_equation_and_have_the_size_of_the_last_change():
    generator = torch.Generator().manual_seed(0)
    s, y, g = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    y = y * torch.sign(s @ y)
    sigma = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(_quasi_newton(y, [(s, y)], lambda v: sigma * v), s)
    apart = g - (g @ s) / (s @ s) * s
    first = (s @ y) / (y @ (sigma * y)) * sigma * apart  # the first H has the curvature of the last change
    wanted = first - (y @ first) / (s @ y) * s
    torch.testing.assert_close(_quasi_newton(apart, [(s, y)], lambda v: sigma * v), wanted)
    assert torch.equal(_quasi_newton(g, [], lambda v: sigma * v), sigma * g)


def test_parquet_holds_the_columns_alone(tmp_path):
    table = pd.DataFrame({"id": [4, 2], "loss": [0.5, 0.25]}, index=[7, 3])
    to_parquet(table, tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), table.reset_index(drop=True))
