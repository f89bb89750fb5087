"""Examples that are left out of training, to say how much noise the weights should get."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from networks import perceptron
from posterity import likelihoods
from posterity.adaptation import adapt
from posterity.batches import batches
from posterity.learning import fit
from posterity.learning.learners import TrainingPlan
from posterity.learning.learners.variational import VariationalLearner
from posterity.learning.objective import Objective
from posterity.learning.sentinels import FEWEST, ONE_IN, set_apart
from posterity.learning.settings import FitSettings
from posterity.optim.watch import START


def overlapping(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    return x, (x[:, 0] + torch.randn(n, generator=generator) > 0).long()


def trained(data, **options):
    torch.manual_seed(0)
    return fit(nn.Linear(4, 2), data, epochs=1, batch_size=190, progress=False, **options)


def test_one_in_twenty_is_left_out_of_many():
    run = trained(overlapping(FEWEST))
    assert run.steps == (FEWEST - FEWEST // ONE_IN) // 190 == 20
    assert run.posterior.n == FEWEST


def test_adapt_takes_all_data_of_such_a_training():
    data = overlapping(FEWEST)
    torch.manual_seed(0)
    run = fit(perceptron(4, 4, 2), data, epochs=1, batch_size=190, progress=False)
    assert run.steps == 20
    assert adapt(run.model, run.posterior, data=data, remove=[0, 1]).posterior.n == FEWEST - 2


@pytest.mark.parametrize(
    "options",
    [{"watch": False}, {"validation": overlapping(50, seed=1)}, {"budget": 0.01}, {"n": FEWEST}, {"method": "adamw"}],
    ids=lambda options: next(iter(options)),
)
def test_nothing_is_left_out_where_it_is_not_needed(options):
    assert trained(overlapping(FEWEST), **options).steps == 22


def test_nothing_is_left_out_of_few_examples_and_of_amounts():
    assert trained(overlapping(FEWEST - 1)).steps == 22
    x, _ = overlapping(FEWEST)
    torch.manual_seed(0)
    run = fit(nn.Linear(4, 1), (x, x[:, :1]), epochs=1, batch_size=190, progress=False)
    assert run.steps == 22


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_a_user_with_the_same_seed_does_not_draw_the_same_examples(seed):
    """Wrong labels planted by that user would all be watched, and nothing else."""
    planted = torch.randperm(FEWEST, generator=torch.Generator().manual_seed(seed))[: FEWEST // 10]
    data = batches(overlapping(FEWEST), shuffle=True)
    likelihood = Objective(likelihoods.likelihood("categorical"), None, 0.0, None)
    _, spared = set_apart(data, likelihood, FitSettings(seed=seed))
    both = set(planted.tolist()) & set(next(iter(spared)).ids.tolist())
    assert len(both) < 0.3 * len(next(iter(spared)))


def test_a_rare_class_is_learnt_from_whole():
    x, y = overlapping(FEWEST)
    y[:3] = 2
    data = batches((x, y), shuffle=True)
    likelihood = Objective(likelihoods.likelihood("categorical"), None, 0.0, None)
    for seed in range(5):
        rest, spared = set_apart(data, likelihood, FitSettings(seed=seed))
        assert len(rest.rows) + len(spared.rows) == FEWEST
        assert set(rest.rows.tolist()).isdisjoint(spared.rows.tolist())
        assert len(spared.rows) == FEWEST // ONE_IN
        assert {0, 1, 2} <= set(rest.rows.tolist())


def test_data_that_folds_predict_perfectly_leave_a_budget():
    plan = TrainingPlan(n=100, steps=10, lr=1e-3, seed=0, unseen_loss=0.0)
    learner = VariationalLearner(nn.Linear(4, 2), plan)
    assert learner.optimizer.meter.price.budget > 0


def test_examples_keep_their_ids():
    rows = torch.tensor([5, 2, 7])
    x = torch.arange(10.0).unsqueeze(1)
    for data in ((x, x), list(zip(x, x, strict=True))):
        (batch,) = batches(data, batch_size=4).only(rows)
        assert torch.equal(batch.inputs.flatten(), rows.float())
        assert torch.equal(batch.ids, rows)
        (some,) = batches(data, batch_size=4).only(rows).only(torch.tensor([2]))
        assert some.ids.tolist() == [7]


def test_a_network_that_memorises_gets_more_noise():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(FEWEST, 40, generator=generator), torch.randint(2, (FEWEST,), generator=generator)
    torch.manual_seed(0)
    model = perceptron(40, 200, 2, hidden=nn.ReLU)
    run = fit(model, (x, y), epochs=20, batch_size=200, lr=3e-3, progress=False)
    assert run.history[-1]["price"] > 3 * START
