"""Predictions, Laplace and Fisher passes and memory maps, shared by three processes, equal those of one."""

import torch
from safetensors.torch import load_file

from distributed.questions import answers


def test_processes_that_share_their_passes_agree_with_one(folder):
    alone, found = answers(), load_file(folder / "answers.safetensors")
    assert found.keys() == alone.keys()
    for name, t in alone.items():
        torch.testing.assert_close(found[name], t, rtol=1e-9, atol=1e-12, msg=lambda text: f"{name}: {text}")
    assert len(found["map, id"].unique()) == 50
