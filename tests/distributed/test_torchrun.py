"""Under torchrun: a process that dies, and training hosts that know nothing of posteriors."""

import torch
from safetensors.torch import load_file

from distributed import hosts
from distributed.launch import torchrun


def test_when_one_process_dies_the_others_stop_and_a_restart_is_exact(tmp_path):
    killed = torchrun("survivor", 2, tmp_path, 5)
    assert killed.returncode != 0
    assert (tmp_path / "died").exists(), killed.stderr
    assert not (tmp_path / "resumed.safetensors").exists()
    again = torchrun("survivor", 2, tmp_path)  # compares itself with a training that nobody interrupts
    assert again.returncode == 0, again.stderr
    assert load_file(tmp_path / "resumed.safetensors").keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_accelerate_and_lightning_take_the_steps_of_one_process(tmp_path):
    done = torchrun("hosts", 2, tmp_path)
    assert done.returncode == 0, done.stderr
    expected = hosts.alone().state_dict()
    for host in ("accelerate", "lightning"):
        for rank in range(2):
            found = load_file(tmp_path / f"{host}-{rank}.safetensors")
            for name, t in expected.items():
                torch.testing.assert_close(found[name], t, rtol=1e-9, atol=1e-11, msg=lambda text: f"{host}: {text}")
