"""Under torchrun: a process that dies, and training hosts that know nothing of posteriors."""

import pytest
import torch
from safetensors.torch import load_file

from distributed import hosts
from distributed.launch import torchrun


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where two processes left what they trained. They are started twice for all tests: that is what takes the time."""
    folder = tmp_path_factory.mktemp("torchrun")
    killed = torchrun("survivor", 2, folder, 5)
    assert killed.returncode != 0
    assert (folder / "died").exists(), killed.stderr
    assert not (folder / "resumed.safetensors").exists()
    again = torchrun("survivor", 2, folder)
    assert again.returncode == 0, again.stderr
    return folder


def test_when_one_process_dies_the_others_stop_and_a_restart_is_exact(folder):
    """The second start compares itself with a training that nobody interrupts."""
    assert load_file(folder / "resumed.safetensors").keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize("host", ["accelerate", "lightning"])
def test_hosts_take_the_steps_of_one_process(host, folder):
    expected = hosts.alone().state_dict()
    for rank in range(2):
        found = load_file(folder / f"{host}-{rank}.safetensors")
        for name, t in expected.items():
            torch.testing.assert_close(found[name], t, rtol=1e-9, atol=1e-11)
