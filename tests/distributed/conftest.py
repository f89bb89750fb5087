"""What several processes found, which are started once for all tests of this folder."""

import warnings

import pytest

from distributed import training
from distributed.launch import started


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where one process left a checkpoint that others resume from, and they what they found."""
    folder = tmp_path_factory.mktemp("processes")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # the checkpoint of one process
        training.saved(0, 1, folder)
    started("forked", folder, "training:2", "training:4", "variational:2", "questions:3")
    return folder
