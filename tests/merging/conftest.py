"""Files to merge, for every test here."""

import pytest
import torch
from safetensors.torch import save_file

from merging.checkpoints import curvature_of, random_tree, save_plain, save_sharded


@pytest.fixture
def files(tmp_path):
    """A sharded base with a configuration, a plain model, a state dict, and curvatures of all three."""
    save_sharded(tmp_path / "base", random_tree(0))
    (tmp_path / "base" / "config.json").write_text('{"model_type": "any"}')
    save_plain(tmp_path / "a", random_tree(1))
    torch.save(random_tree(2), tmp_path / "b.pt")
    for seed, name in enumerate(("base", "a", "b")):
        save_file(curvature_of(10 + seed), tmp_path / f"{name}.fisher.safetensors")
    return tmp_path
