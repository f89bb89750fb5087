"""A training loads no compiler, computes what it would with it, and takes the threads it can use."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from posterity.startup import COMPILER, fitting_threads, step_of

ANSWERED = """
import sys
import torch
import posterity as po

def loaded(*names):
    print([name for name in names if name in sys.modules])

x, y = torch.randn(8, 3), torch.arange(8) % 2
for method in ("adamw", "sgd", "ivon", "variational"):
    found = po.fit(torch.nn.Linear(3, 2), (x, y), method=method, epochs=1, progress=False)
loaded("torch._dynamo")
po.memory_map(found.model, found.posterior, (x, y))
loaded("torch._dynamo", "sympy")
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
torch.compile(lambda x: x + 1)  # from here on torch's own way
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
"""


def test_training_loads_no_compiler_and_a_map_of_few_classes_no_symbolic_shapes():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ANSWERED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adam])
def test_a_step_without_the_compiler_is_the_same(kind, monkeypatch):
    def trained(how):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = kind(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            how(optimizer)
        return model.weight

    usual = trained(lambda optimizer: optimizer.step())
    monkeypatch.setattr(torch, "_dynamo", sys.modules[COMPILER])  # put back afterwards, if it is imported anew
    monkeypatch.delitem(sys.modules, COMPILER)
    assert torch.equal(usual, trained(lambda optimizer: step_of(optimizer)()))


def test_hooks_are_called():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    called = []
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    step_of(optimizer)()
    assert called == [1]


def test_a_scheduler_counts_the_step():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 3)
    step_of(optimizer)()
    scheduler.step()  # warns, and so fails here, where no step was counted


def test_small_networks_take_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with fitting_threads(nn.Linear(10, 2), 64):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        for large in (nn.Linear(2000, 2000), nn.Conv2d(1, 4, 3)):
            with fitting_threads(large, 64):
                assert torch.get_num_threads() == 2
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout(), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
        model[1].eval()
        for size, threads in (
            (8, 1),
            (40, 2),
        ):  # 64 (36 · 6² + 144 · 4²) multiplications, and 64 (36 · 38² + 144 · 36²)
            with fitting_threads(model, 64, torch.randn(2, 1, size, size)):
                assert torch.get_num_threads() == threads
        assert [module.training for module in model] == [True, False, True, True, True]
    finally:
        torch.set_num_threads(before)


def test_the_module_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "posterity", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip()
