"""The optimizer family through `fit`: accuracy beside scikit-learn's, the right posterior, and the loop's promises."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from torch import nn

from learning.problems import BINARY, blobs, digits, line, mlp
from posterity.errors import InvalidInput
from posterity.learning import fit
from posterity.learning.learners import METHODS
from posterity.optim import SAM, BayesianSAM
from posterity.posterior import Diagonal, Ensemble, Full, Mixture, Posterior, Rotated, Signs
from posterity.prediction import predict
from posterity.trees import to_vector, trainable

pytestmark = pytest.mark.filterwarnings("ignore:.* only .* of the Hessian has been learnt")

LEFT = {
    "evon": Rotated, "soba": Diagonal, "vadam": Diagonal, "vogn": Diagonal, "ogn": Diagonal, "bsam": Diagonal,
    "variational_newton": Full, "mixture_ivon": Mixture, "sam": Ensemble, "bayesbinn": Signs, "ste": Ensemble,
}  # fmt: skip


def binary_network(inputs, hidden, outputs):
    """What binary weights are made for: no biases, normalisation without scales."""
    torch.manual_seed(0)
    layers = (nn.Linear(inputs, hidden, bias=False), nn.BatchNorm1d(hidden, affine=False), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(hidden, outputs, bias=False), nn.BatchNorm1d(outputs, affine=False))


@pytest.fixture(scope="module")
def reference():
    """Test accuracy on the digits of scikit-learn's perceptron of the same width, and the data."""
    train, test = digits()
    network = MLPClassifier(32, max_iter=200, tol=1e-3, random_state=0).fit(*(t.numpy() for t in train))
    return network.score(*(t.numpy() for t in test)), train, test


@pytest.mark.parametrize("method", sorted(set(LEFT) - {"variational_newton"}))
def test_digits_beside_a_perceptron_of_scikit_learn(method, reference, tmp_path):
    score, train, test = reference
    model = binary_network(64, 128, 10) if method in BINARY else mlp(64, 32, 10)
    run = fit(model, train, method=method, epochs=18)
    assert type(run.posterior.structure) is LEFT[method]
    run.posterior.save(tmp_path / method)
    # The posterior of OGN is that of squared gradients at the mean, wide where the fit is good: it is asked there.
    samples = 0 if method == "ogn" else 16
    probs = predict(run.model, Posterior.load(tmp_path / method), test[0], samples=samples).probs
    assert (probs.argmax(-1) == test[1]).float().mean() > score - 0.04


def test_iris_by_a_dense_gaussian_beside_logistic_regression():
    x, y = load_iris(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    score = LogisticRegression().fit(x[::2], y[::2]).score(x[1::2], y[1::2])
    data = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    train, test = (data[0][::2], data[1][::2]), (data[0][1::2], data[1][1::2])
    run = fit(mlp(4, 6, 3), train, method="variational_newton", epochs=60, batch_size=25)
    assert isinstance(run.posterior.structure, Full)
    assert run.posterior.covariance().matrix.dtype == torch.float32  # the precision is kept in float64
    assert (
        predict(run.model, run.posterior, test[0], method="linearised").probs.argmax(-1) == test[1]
    ).float().mean() > 0.9
    assert (predict(run.model, run.posterior, test[0]).probs.argmax(-1) == test[1]).float().mean() > score - 0.04


@pytest.mark.parametrize("method", ["sam", "bsam"])
def test_both_passes_are_those_of_the_optimizer(method):
    """One full batch a step, in two unequal parts or in one, against the two contexts written out."""
    x, y = blobs(50)
    ours, theirs = mlp(), mlp()
    fit(ours, (x, y), method=method, lr=0.1, schedule="constant", epochs=4, batch_size=50, prior=2.0)
    parameters = trainable(theirs)
    if method == "sam":
        optimizer = SAM(parameters.values(), lr=0.1, weight_decay=2 / 50)
    else:
        prior = Diagonal.isotropic(parameters, 2.0)
        optimizer = BayesianSAM(parameters.items(), lr=0.1, ess=50, prior=prior, betas=(0.9, 1 - 5 / 10))
    for _ in range(4):
        optimizer.zero_grad()
        with optimizer.sampled_params(train=True):
            nn.functional.cross_entropy(theirs(x), y).backward()
        with optimizer.perturbed_params():
            nn.functional.cross_entropy(theirs(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(to_vector(trainable(ours)), to_vector(trainable(theirs)), rtol=1e-4, atol=1e-5)


def test_members_of_a_mixture_are_trained_together():
    run = fit(mlp(), blobs(), method="mixture_ivon", members=4, epochs=2, batch_size=20)
    components = run.posterior.structure.components
    assert len(components) == 4
    first = to_vector(components[0].mean)
    torch.testing.assert_close(to_vector(trainable(run.model)), first.float())
    assert all((to_vector(c.mean) - first).abs().max() > 0.1 for c in components[1:])


@pytest.mark.parametrize("method", ["evon", "soba", "vogn", "sam", "mixture_ivon"])
def test_regressions_learn_their_noise(method):
    run = fit(nn.Linear(3, 1), line(200), method=method, epochs=60, batch_size=50)
    assert run.posterior.likelihood.precision == pytest.approx(4.0, rel=0.35)  # drawn with noise 0.5


def test_an_ensemble_of_rotated_gaussians_is_a_mixture():
    run = fit(mlp(), blobs(), method="ensemble", base="evon", members=2, epochs=2)
    assert isinstance(run.posterior.structure, Mixture)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "bayesbinn"}, r"model: expected weight matrices alone.*got '0.bias'"),
        (
            {"method": "vogn", "accumulate": 2},
            "accumulate: expected its default, because method 'vogn' does not use it",
        ),
        ({"method": "ogn", "class_weights": [1.0, 1.0, 2.0]}, "class_weights: expected its default"),
        ({"method": "vogn", "draws": 2}, r"option of method 'vogn': expected one of \['prior', 'ess', "),
        ({"method": "evon", "prior": Diagonal.isotropic(trainable(mlp()), 1.0)}, "prior: expected a precision"),
        ({"method": "evon", "ess": 0}, "ess: expected a positive finite number"),
        ({"method": "sam", "prior": -1}, "prior: expected a precision >= 0, got -1"),
        ({"method": "mixture_ivon", "penalty": lambda _: 0.0}, "penalty: expected its default"),
        ({"method": "mixture_ivon", "members": 0}, "members: expected a whole number >= 1"),
        ({"method": "ensemble", "base": "mixture_ivon"}, "base: expected one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",  # no addresses: workers must agree
)
def test_bad_input(settings, message):
    with pytest.raises(InvalidInput, match=message):
        fit(mlp(), blobs(), epochs=1, **settings)


def test_mixtures_refuse_running_statistics():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(InvalidInput, match="no running statistics"):
        fit(model, blobs(), method="mixture_ivon", epochs=1)


def test_the_family_is_whole():
    """Every optimizer of the package has a method, and every method of the family is held to something here."""
    family = {name for name, learner in METHODS.items() if learner.__module__.endswith("optimizers")}
    assert family == set(LEFT)
