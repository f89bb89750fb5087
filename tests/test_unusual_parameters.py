"""Every verb on networks whose parameters are not a list of plain matrices."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import posterity as po
from networks import perceptron

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


class Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(torch.tanh(self.first(x)))))


class Token(nn.Module):
    """Parameters of its own, which no `reset_parameters` draws."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale, self.token = nn.Linear(6, 2), nn.Parameter(torch.tensor(1.0)), nn.Parameter(X[:1] / 9)

    def forward(self, x):
        return self.scale * self.layer(x + self.token)


def tied():
    model = perceptron(6, 6, 6, 2)
    model[2].weight = model[0].weight
    return model


def transposed():
    model = perceptron(6, 8, 2)
    model[0].weight = nn.Parameter(torch.randn(6, 8).t() / 3)
    return model


def partly_frozen():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    model[1].eval()
    return model


def with_nothing():
    model = perceptron(6, 8, 2)
    model.register_parameter("empty", nn.Parameter(torch.zeros(0, 3)))
    model.register_parameter("none", None)
    return model


def with_buffers():
    model = perceptron(6, 8, 2)
    model.register_buffer("whole", torch.arange(5))
    model.register_buffer("truth", torch.tensor(True))
    model.register_buffer("passing", torch.ones(3), persistent=False)
    return model


def unused():
    model = perceptron(6, 8, 2)
    model.unused = nn.Parameter(torch.ones(4))
    return model


NETWORKS = {
    "tied": tied,
    "a layer called twice": Twice,
    "parameters of a module of its own": Token,
    "not contiguous": transposed,
    "partly frozen": partly_frozen,
    "half precision": lambda: perceptron(6, 8, 2).to(torch.bfloat16),
    "empty and none": with_nothing,
    "buffers of all kinds": with_buffers,
    "unused": unused,
    "weight norm": lambda: nn.Sequential(weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 2)),
    "spectral norm": lambda: nn.Sequential(spectral_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 2)),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(2)),
}


@pytest.mark.filterwarnings("ignore")  # of short trainings, and of what a curvature leaves out
@pytest.mark.parametrize("method", ["ivon", "variational", "laplace"])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_every_verb(make, method, tmp_path):
    model = make()
    x = X.to(next((p.dtype for p in model.parameters() if not nn.parameter.is_lazy(p)), torch.float32))
    run = po.fit(model, (x, Y), method=method, epochs=2, batch_size=10, progress=False)
    run.posterior.save(tmp_path)
    posterior = po.Posterior.load(tmp_path)
    assert all(torch.equal(m, run.posterior.mean[name]) for name, m in posterior.mean.items())
    assert po.predict(run.model, posterior, x, samples=4).probs.isfinite().all()
    assert len(po.memory_map(run.model, posterior, (x, Y)).table) == len(x)
    adapted = po.adapt(run.model, posterior, data=(x, Y), remove=[1, 2, 3]).posterior
    merged = po.merge({"a": posterior, "b": adapted}, base=posterior)
    for found in (adapted, merged):
        assert found.names == posterior.names
        assert all(m.isfinite().all() for m in found.mean.values())
    assert len(po.acquire(run.model, posterior, x, k=3).ids) == 3
