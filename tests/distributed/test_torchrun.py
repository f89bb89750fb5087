"""Under torchrun: a process that dies, and training hosts that know nothing of posteriors."""

import pytest
import torch
from safetensors.torch import load_file

from distributed import hosts
from distributed.launch import started


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Where two processes left what they trained, after a start in which one of them died."""
    folder = tmp_path_factory.mktemp("torchrun")
    started("survivor", folder)
    return folder


def test_when_one_process_dies_the_others_stop_and_a_restart_is_exact(trained):
    """The second start compares itself with a training that nobody interrupts."""
    assert load_file(trained / "resumed.safetensors").keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize("host", ["accelerate", "lightning"])
def test_hosts_take_the_steps_of_one_process(host, trained):
    expected = hosts.alone().state_dict()
    for rank in range(2):
        found = load_file(trained / f"{host}-{rank}.safetensors")
        for name, t in expected.items():
            torch.testing.assert_close(found[name], t, rtol=1e-9, atol=1e-11)
