"""`torch.set_default_dtype` changes what users make without a dtype, and nothing that the package computes."""

import pytest
import torch
from torch import nn

import posterity as po
from optim.conformance import Problem, all_optimizers, at_the_mean
from posterity import native, noise

OTHERS = [torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(params=OTHERS, ids=str)
def under(request):
    """Call a function under another default dtype."""

    def call(function):
        torch.set_default_dtype(request.param)
        try:
            return function()
        finally:
            torch.set_default_dtype(torch.float32)

    return call


def test_large_draws(under):
    """C writes floats into the tensor: any other dtype was garbage, or memory of somebody else."""

    def draws():
        return native.draw((1, 2), 0, 5000, noise.HALF, noise.ROUNDS), noise.normal(noise.Key(3), noise.LARGE)

    for found, wanted in zip(under(draws), draws(), strict=True):
        assert found is wanted is None or torch.equal(found, wanted)


@all_optimizers
@at_the_mean
def test_optimizers(make, under):
    def trained():
        problem = Problem()
        optimizer = make(problem.parameters)
        for _ in range(4):
            optimizer.step(problem.closure(optimizer))
        return problem, optimizer

    (problem, optimizer), (wanted, _) = under(trained), trained()
    torch.testing.assert_close(problem.parameters, wanted.parameters)
    for p in problem.parameters:
        assert all(t.dtype == torch.float32 for t in optimizer.state[p].values())  # a step in half ends at 2048


def test_verbs(under):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    y = (x.sum(1) > 0).long()

    def asked():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6, dtype=torch.float32), nn.Tanh(), nn.Linear(6, 2, dtype=torch.float32))
        run = po.fit(model, (x, y), method="variational", epochs=4, batch_size=16, progress=False)
        adapted = po.adapt(run.model, run.posterior, data=(x, y), remove=[1, 2, 3])
        merged = po.merge({"a": run.posterior, "b": adapted.posterior}, base=run.posterior)
        return {
            "fit": run.posterior.mean,
            "predict": po.predict(run.model, run.posterior, x, samples=8).probs,
            "map": torch.as_tensor(
                po.memory_map(run.model, run.posterior, (x, y)).table["sensitivity"].to_numpy(copy=True)
            ),
            "adapt": adapted.posterior.structure.precision,
            "merge": merged.mean,
            "acquire": po.acquire(run.model, run.posterior, x, k=5, criterion="random").ids,
        }

    torch.testing.assert_close(under(asked), asked(), rtol=1e-4, atol=1e-6)
