"""`Variational` on one process and two: replicas (DDP), shards (FSDP2), accumulation, a sample on each process."""

import torch
from safetensors.torch import load_file

from distributed import variational
from distributed.launch import assert_same, case


def test_one_process_and_two_take_the_same_steps_at_the_same_lambda(folder):
    alone = variational.everything(0, 1)
    many = load_file(folder / "variational-2.safetensors")
    for name in ("contexts", "accumulation", "sharded"):
        assert_same(case(many, name), case(alone, name), name, rtol=1e-7, atol=1e-9)
        assert min(float(case(many, name)[f"meter.{number}"]) for number in ("taught", "looks")) > 0, name
        assert float(case(many, name)["meter.growing"]) != 0, name
    for name in ("contexts, kernels", "contexts, no kernels"):
        assert_same(case(many, name), case(alone, "contexts, no kernels"), name, rtol=1e-3, atol=1e-5)
    assert float(case(many, "contexts")["meter.ess"]) != float(case(many, "per rank")["meter.ess"])
    found, wanted = case(many, "per rank")["prices"].unbind(1)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
