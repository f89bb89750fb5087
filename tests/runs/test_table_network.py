"""The network for tables: what a member answers, what all of them answer, and what the rest of the package sees."""

from dataclasses import replace

import torch
from torch.func import functional_call, jacrev

from posterity.adaptation.heads import find_head
from posterity.curvature import DiagonalCovariance, prediction_covariance
from posterity.learning.folds import OutOfFold
from posterity.runs import config, planning, probing
from posterity.runs.networks import network
from posterity.runs.table_settings import usual_batch
from posterity.trees import trainable
from runs.problems import flowers, plan

INPUTS, OUTPUTS, MEMBERS = 5, 3, 8


def made(seed=0):
    return network("tabular", (INPUTS,), OUTPUTS, hidden=(7, 6), seed=seed).double()


def rows(n=11):
    return torch.randn(n, INPUTS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def members(model, x):
    """What each member answers alone, (M, N, K)."""
    parts = model.head.weight.split(6, dim=1)
    return torch.stack([model.body(x * s) @ w.T + model.head.bias for s, w in zip(model.signs, parts)])


def test_members_answer_alone_in_training_and_together_otherwise():
    model, x = made(), rows()
    alone = members(model, x)
    assert not torch.allclose(alone[0], alone[1])
    wanted = alone[torch.arange(len(x)) % MEMBERS, torch.arange(len(x))]
    torch.testing.assert_close(model.train()(x), wanted)
    torch.testing.assert_close(model.eval()(x), alone.mean(0))


def test_the_seed_decides_signs_and_weights():
    first, again, other = made(), made(), made(1)
    torch.testing.assert_close(first.state_dict(), again.state_dict(), rtol=0, atol=0)
    assert not torch.equal(first.signs, other.signs)


def test_the_last_layer_is_found():
    assert find_head(made(), rows()).name == "head"


def test_its_curvature_has_a_closed_form():
    model, x = made().eval(), rows(4)
    parameters = trainable(model)
    generator = torch.Generator().manual_seed(2)
    variance = {name: torch.rand(p.shape, generator=generator, dtype=p.dtype) for name, p in parameters.items()}
    found = prediction_covariance(model, x, DiagonalCovariance(variance))
    jacobian = jacrev(lambda weights: functional_call(model, weights, (x,)))(dict(parameters))
    parts = [(j.flatten(2) * variance[name].flatten()) @ j.flatten(2).mT for name, j in jacobian.items()]
    torch.testing.assert_close(found, sum(parts))


def test_long_tables_have_one_wide_network(tmp_path, monkeypatch):
    flowers(tmp_path / "flowers.csv")
    short = plan(tmp_path / "run", tmp_path / "flowers.csv", model=None, lr=None, batch_size=None).config
    assert (short.model, short.hidden, short.method, short.batch_size) == ("tabular", None, "variational", 120)
    monkeypatch.setattr(config, "LONG", 100)
    long = plan(tmp_path / "run", tmp_path / "flowers.csv", model=None, lr=None, batch_size=None).config
    assert (long.model, long.hidden, long.lr) == ("mlp", (128, 128), short.lr)
    named = plan(tmp_path / "run", tmp_path / "flowers.csv", model="tabular").config
    assert named.model == "tabular"


def test_a_long_table_that_folds_memorise_learns_for_less_long(tmp_path, monkeypatch):
    flowers(tmp_path / "flowers.csv")
    asked = plan(tmp_path / "run", tmp_path / "flowers.csv", model="tabular", epochs=None, batch_size=None)
    given = []
    monkeypatch.setattr(planning, "fit", lambda *_, **about: given.append(about))
    found = {
        memorises: OutOfFold(torch.zeros(120, 3), torch.zeros(120, 3), 60, 0.1, memorises)
        for memorises in (True, False)
    }
    short = probing.length(asked, found[True])
    for module in (planning, probing):
        monkeypatch.setattr(module, "LONG", 100)
    assert (short, probing.length(asked, found[True])) == (150, 100)  # 2 and 4/3 times 60 steps on 5/4 of the rows
    for memorises in (True, False):
        planning.learn(replace(asked, folds=found[memorises]), asked.train)
    known, unknown = given
    assert [known["schedule"](t) for t in (0.1, 0.5, 0.75, 1.0)] == [1, 1, 0.5, 0]
    assert "schedule" not in unknown


def test_batches_of_a_table_are_of_one_size():
    for n in (100, 129, 133, 142, 426, 5000, 40_000, 700_000):
        size = usual_batch(n)
        batches = -(-n // size)
        assert size * batches - n < batches  # the last one lacks at most a row for each of the others
