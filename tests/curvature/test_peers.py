"""Gauss-Newton matrices and their Kronecker factors against curvlinops, from recorded small cases."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from posterity.batches import batches
from posterity.curvature import full_ggn, kronecker_ggn
from posterity.likelihoods import likelihood

HERE = Path(__file__).parent
SCRIPT = HERE.parent.parent / "benchmarks" / "peers_curvature.py"
RECORDED = json.loads((HERE / "curvlinops.json").read_text(encoding="utf-8"))


def tensor(numbers: list) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['network']}-{case['likelihood']}")
def test_ggn_and_kfac_equal_curvlinops(case: dict) -> None:
    spec = importlib.util.spec_from_file_location("peers_curvature", SCRIPT)
    peers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peers)
    model = peers.NETWORKS[case["network"]][0]().double()
    model.load_state_dict({name: tensor(p) for name, p in case["parameters"].items()})
    classes = case["likelihood"] == "categorical"
    law = likelihood("categorical") if classes else likelihood("gaussian", precision=2.0)  # its loss is Σ(f − y)²
    targets = torch.tensor(case["targets"]) if classes else tensor(case["targets"])
    data = batches((tensor(case["inputs"]), targets), batch_size=2)
    matrix = full_ggn(model, data, law)
    probe = torch.linspace(-1, 1, len(matrix), dtype=torch.float64)
    torch.testing.assert_close(matrix @ probe, tensor(case["ggn_times_probe"]), rtol=1e-9, atol=1e-10)
    for sharing in ("expand", "reduce"):
        found = kronecker_ggn(model, data, law, sharing=sharing)
        for factors, block in zip(found.values(), case[sharing], strict=True):
            dense = factors[0] if len(factors) == 1 else torch.kron(*factors)
            torch.testing.assert_close(dense, tensor(block), rtol=1e-9, atol=1e-10)
