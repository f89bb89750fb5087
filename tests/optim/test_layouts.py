"""Parameters keep their storage and their layout, and the noise does not depend on it."""

import pytest
import torch
from torch import nn

from optim.reference import data, loss, network
from posterity.optim import IVON
from posterity.optim.kernels import _pieces

pytestmark = pytest.mark.usefixtures("arithmetic")

SETTINGS = {"lr": 0.2, "ess": 50, "betas": (0.9, 0.99)}


def train(parameters, function, steps=4, **options):
    optimizer = IVON(parameters, **SETTINGS, **options)
    for _ in range(steps):
        with optimizer.sampled_params(train=True):
            function().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def test_storage_is_never_exchanged():
    model = network()
    model.share_memory()
    pointers = [p.data_ptr() for p in model.parameters()]
    storages = [p.untyped_storage().nbytes() for p in model.parameters()]
    train(model.parameters(), lambda: loss(model, *data()))
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert [p.untyped_storage().nbytes() for p in model.parameters()] == storages
    assert all(p.is_shared() for p in model.parameters())


def test_channels_last_is_kept_and_trains_like_contiguous():
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=layout)
        image = torch.randn(2, 3, 4, 4).contiguous(memory_format=layout)
        optimizer = train(model.parameters(), lambda m=model, x=image: m(x).square().mean())
        assert model[0].weight.is_contiguous(memory_format=layout)
        assert optimizer.state[model[0].weight]["hessian"].is_contiguous(memory_format=layout)
        results.append([p.detach().contiguous() for p in model.parameters()])
    for p, q in zip(*results, strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("layout", ["transposed", "strided", "offset"])
def test_views_train_like_contiguous_tensors(layout):
    torch.manual_seed(0)
    values = torch.randn(5, 7)
    if layout == "transposed":
        weight = torch.empty(7, 5).T.copy_(values)
    elif layout == "strided":
        weight = torch.empty(5, 7, 2)[..., 0].copy_(values)
    else:
        weight = torch.empty(36)[1:].view(5, 7).copy_(values)
    plain, odd = nn.Parameter(values.clone()), nn.Parameter(weight)
    for p in (plain, odd):
        train([p], lambda p=p: ((p - 1) ** 2).mean())
    torch.testing.assert_close(odd, plain)


def test_blocks_of_any_size_give_the_same_numbers(monkeypatch):
    results = []
    for size in (1024, 1 << 17):
        monkeypatch.setattr(_pieces, "BLOCK", size)
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(5000))
        train([weight], lambda w=weight: (w**3).mean(), clip_radius=1.0)
        results.append(weight.detach())
    assert torch.equal(*results)


@pytest.mark.parametrize("options", [{}, {"clip_radius": 0.1}, {"betas": (0.9, "auto"), "total_steps": 50}], ids=str)
def test_small_parameters_are_worked_on_together_and_change_alike(options, monkeypatch):
    results = []
    for small in (0, 1 << 14):
        monkeypatch.setattr(_pieces, "SMALL", small)
        torch.manual_seed(0)
        shapes = [(3,), (2, 5), (), (600,), (1500,), (4, 3)]
        weights = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        weights += [nn.Parameter(torch.randn(7, 2).T), nn.Parameter(torch.randn(9, dtype=torch.float64))]
        optimizer = IVON(weights, **{"lr": 0.2, "ess": 50, "betas": (0.9, 0.99), **options})
        for k in range(12):
            used = weights[k % 2 :]  # the first one is there only now and then, and so falls behind in steps
            with optimizer.sampled_params(train=True):
                sum((w**2).sum() + w.sin().sum() for w in used).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([w.detach() for w in weights])
    for p, q in zip(*results, strict=True):
        torch.testing.assert_close(p, q)


def test_numbers_of_groups_have_the_precision_of_their_parameters():
    torch.manual_seed(0)
    start = [torch.randn(5, dtype=torch.float64) for _ in range(2)]
    together, apart = ([nn.Parameter(t.clone()) for t in start] for _ in range(2))
    for chosen in ([0, 1], [0]):
        weights = [(together if len(chosen) > 1 else apart)[i] for i in chosen]
        groups = [{"params": [w], "lr": (0.1, 0.03)[i]} for w, i in zip(weights, chosen, strict=True)]
        optimizer = IVON(groups, lr=0.1, ess=100)
        for _ in range(5):
            with optimizer.sampled_params(train=True):
                sum((w**2).sum() for w in weights).backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(together[0], apart[0], rtol=1e-14, atol=1e-14)


def test_scalar_and_empty_parameters():
    scalar, empty = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.zeros(0, 3))
    optimizer = train([scalar, empty], lambda: scalar**2 + empty.sum(), steps=20)
    assert abs(scalar.item()) < 2.0
    assert optimizer.diagnostics().parameters == 1
