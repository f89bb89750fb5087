"""The network for amounts: the linear model it starts from, its curvature, and how folds and runs begin with it."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import BayesianRidge
from torch.func import functional_call, jacrev

from posterity.curvature import DiagonalCovariance, prediction_covariance
from posterity.errors import InvalidInput
from posterity.learning.folds import OutOfFold
from posterity.runs import probing, residual_network
from posterity.runs._folder import RunFolder
from posterity.runs.columns import BENT, BIN, LIMIT, OTHER
from posterity.runs.fitting import train
from posterity.runs.networks import network
from posterity.runs.probing import cross_validate, probe
from posterity.runs.residual_network import start_from_ridge
from posterity.trees import trainable
from runs.problems import flowers, plan

SORTS = [BENT, BIN, BIN, OTHER]


def made(sorts=SORTS):
    return network("residual", (len(sorts),), 1, hidden=(7, 6)).double()


def rows(n=40, inputs=len(SORTS)):
    """Numbers, the first of them bent, and targets that are linear in them but for some noise."""
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(n, inputs, generator=generator, dtype=torch.float64)
    y = z @ torch.linspace(-1, 2, inputs, dtype=torch.float64)[:, None]
    y += 0.1 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    x = z.clone()
    x[:, 0] = z[:, 0] / (1 + (z[:, 0] / LIMIT).square()).sqrt()
    return z, x, y


def test_numbers_are_straight_again():
    z, x, y = rows()
    model = made()
    start_from_ridge(model, SORTS, x, y)
    torch.testing.assert_close(model.unbent(x), z)
    far = torch.tensor([[LIMIT, 0.5, 0.5, 9.0]], dtype=torch.float64)  # what the largest of numbers is bent to
    torch.testing.assert_close(model.unbent(far), torch.tensor([[30.0, 0.5, 0.5, 9.0]], dtype=torch.float64))


def test_it_starts_as_a_ridge_regression():
    z, x, y = rows()
    model = made()
    start_from_ridge(model, SORTS, x, y)
    scaled = (z * torch.tensor([1.0, 0.3, 0.3, 1.0])).numpy()
    vague = dict.fromkeys(("alpha_1", "alpha_2", "lambda_1", "lambda_2"), 0.0)
    reference = BayesianRidge(max_iter=1000, tol=1e-9, **vague).fit(scaled, y[:, 0].numpy())
    # The prior's strength is found to a part in 10⁴, and the prior hardly shrinks weights that the data know.
    for answer in (model.train()(x), model.eval()(x)):
        np.testing.assert_allclose(answer.detach()[:, 0], reference.predict(scaled), atol=1e-4)


def test_wide_tables_start_from_the_numbers_alone_or_from_nothing(monkeypatch):
    _, x, y = rows()
    monkeypatch.setattr(residual_network, "_MOST", 3)
    model = made()
    start_from_ridge(model, SORTS, x, y)
    assert model.start[0, 1:3].tolist() == [0, 0]
    assert (model.start[0, [0, 3]] != 0).all()
    monkeypatch.setattr(residual_network, "_MOST", 1)
    nothing = made()
    start_from_ridge(nothing, SORTS, x, y)
    assert not nothing.start.any()


def test_its_curvature_has_a_closed_form():
    _, x, y = rows(9)
    model = made()
    start_from_ridge(model, SORTS, x, y)
    generator = torch.Generator().manual_seed(2)
    parameters = trainable(model)
    with torch.no_grad():
        for p in parameters.values():
            p += 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    variance = {name: torch.rand(p.shape, generator=generator, dtype=p.dtype) for name, p in parameters.items()}
    found = prediction_covariance(model.eval(), x, DiagonalCovariance(variance))
    jacobian = jacrev(lambda weights: functional_call(model, weights, (x,)))(dict(parameters))
    parts = [(j.flatten(2) * variance[name].flatten()) @ j.flatten(2).mT for name, j in jacobian.items()]
    torch.testing.assert_close(found, sum(parts))


@pytest.fixture
def prices(tmp_path):
    """Prices that are linear in two columns, one of which has a long tail."""
    draw = np.random.default_rng(0)
    size, rooms = draw.lognormal(0, 1, 120), draw.integers(1, 6, 120)
    table = pd.DataFrame({"size": size, "rooms": rooms, "price": 100 * size + 7 * rooms + draw.normal(0, 1, 120)})
    table.to_csv(tmp_path / "prices.csv", index=False)
    return table


def asked(folder, **config):
    settings = {"model": None, "epochs": None, "lr": None, "batch_size": None} | config
    return plan(folder / "run", folder / "prices.csv", target="price", **settings)


def test_amounts_that_are_linear_are_predicted_to_their_noise(tmp_path, prices):
    run = train(probe(asked(tmp_path)), progress=False)
    assert run.config["model"] == "residual"
    assert run.metrics["rmse"] < 2  # noise of 1; a network alone is off by tens where the tail is
    x = run.data("test")[0]
    torch.testing.assert_close(RunFolder.open(run.folder).model()(x), run.model()(x), rtol=0, atol=0)


def test_classes_have_no_linear_start(tmp_path):
    flowers(tmp_path / "flowers.csv")
    with pytest.raises(InvalidInput, match="model: expected another than 'residual', which learns amounts"):
        plan(tmp_path / "run", tmp_path / "flowers.csv", model="residual")


def predicted(plan, loss, steps=100):
    """What folds might have found."""
    nothing = torch.zeros(len(plan.train.ids), 1)
    return OutOfFold(nothing, nothing, steps, loss, True)


@pytest.mark.parametrize("best", ["residual", "tabular"])
def test_the_model_with_the_lower_loss_out_of_fold_is_taken(tmp_path, prices, monkeypatch, best):
    monkeypatch.setattr(probing, "_folds", lambda plan: predicted(plan, float(plan.config.model != best)))
    monkeypatch.setattr(probing, "shrunk", lambda found, *_: found)
    assert cross_validate(asked(tmp_path)).config.model == best
    assert cross_validate(asked(tmp_path, model="tabular")).config.model == "tabular"


def test_few_corrections_are_spread_over_enough_steps(tmp_path, prices):
    made = cross_validate(asked(tmp_path, model="residual"))
    steps = (made.config.epochs or 0) * -(-len(made.train.ids) // (made.config.batch_size or 1))
    assert steps >= 200
    given = cross_validate(asked(tmp_path, model="residual", lr=0.006)).config
    assert given.lr == 0.006
    assert given.epochs is not None


def test_weaker_decay_is_tried_where_decay_had_time_to_matter(tmp_path, prices, monkeypatch):
    asked_for = []

    def folds(plan):
        decay = plan.config.options["weight_decay"]
        asked_for.append(decay)
        return predicted(plan, {1.0: 0.5, 0.1: 0.4, 0.01: 0.45}[decay], steps=400)

    monkeypatch.setattr(probing, "_folds", folds)
    monkeypatch.setattr(probing, "shrunk", lambda found, *_: found)
    assert cross_validate(asked(tmp_path, model="tabular")).config.options["weight_decay"] == 0.1
    assert asked_for == [1.0, 0.1]  # 400 steps at a rate of 0.0006 are too few for another decay to matter
    asked_for.clear()
    given = cross_validate(asked(tmp_path, model="tabular", options={"weight_decay": 1.0}))
    assert asked_for == [1.0]
    assert given.config.options["weight_decay"] == 1.0
