"""The proposed hyperparameters train, and mean what they say."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler
from torch import nn

from networks import perceptron
from optim.reference import network
from posterity.errors import InvalidInput
from posterity.optim import IVON, suggest


def blobs(n=600):
    torch.manual_seed(0)
    labels = torch.randint(3, (n,))
    return torch.randn(n, 4) + 2 * nn.functional.one_hot(labels, 4), labels


def test_the_suggestion_trains_and_leaves_the_model_alone():
    inputs, labels = blobs()
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    suggestion = suggest(model, (inputs, labels), batch_size=50)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert suggestion.ess == 600
    optimizer = IVON(model.parameters(), **suggestion._asdict())
    start = nn.functional.cross_entropy(model(inputs), labels).item()
    for k in range(100):
        picks = torch.arange(k * 50, k * 50 + 50) % 600
        with optimizer.sampled_params(train=True):
            nn.functional.cross_entropy(model(inputs[picks]), labels[picks]).backward()
        optimizer.step()
        optimizer.zero_grad()
    end = nn.functional.cross_entropy(model(inputs), labels).item()
    assert end < 0.4 * start
    with torch.no_grad():
        noisy = []
        for _ in range(20):
            with optimizer.sampled_params():
                noisy.append(nn.functional.cross_entropy(model(inputs), labels).item())
    assert sum(noisy) / 20 < 1.5 * end, "the noise does not drown what was learnt"


@pytest.mark.filterwarnings("ignore:suggest. samples raise")  # of a loss that is almost zero
@pytest.mark.parametrize("seed", range(3))
def test_the_rate_suits_a_regression_whose_gradients_are_large(seed):
    """Gradient descent on ½ mean (Xw − y)² converges below 2/λ_max(XᵀX/N), which is about 2 here."""
    torch.manual_seed(seed)
    inputs = torch.randn(200, 5)
    suggestion = suggest(nn.Linear(5, 1), (inputs, 2 * inputs[:, :1]), likelihood="gaussian")
    assert 0.02 < suggestion.lr < 2 / torch.linalg.eigvalsh(inputs.mT @ inputs / 200)[-1]


def test_more_noise_tolerance_means_a_wider_posterior():
    model = network()
    narrow, wide = (suggest(model, blobs(), tolerance=t).hess_init for t in (0.003, 0.5))
    assert narrow > wide


def test_a_loss_that_is_never_finite_is_said():
    inputs, labels = blobs(50)
    with pytest.raises(InvalidInput, match="finite loss"), pytest.warns(UserWarning, match="skipped"):
        suggest(network(), (inputs * torch.nan, labels))


@pytest.mark.parametrize("tolerance", ["a", None, -0.1])
def test_a_tolerance_is_a_number(tolerance):
    with pytest.raises(InvalidInput, match="tolerance: expected a number >= 0"):
        suggest(network(), blobs(50), tolerance=tolerance)


@pytest.mark.filterwarnings("ignore:suggest. samples raise")  # of a loss that is almost zero
def test_a_rate_that_only_a_sweep_survives_is_not_suggested():
    data = load_diabetes()
    rows = np.random.default_rng(12).permutation(len(data.data))[:30]
    x, y = (StandardScaler().fit_transform(part[rows]) for part in (data.data, data.target[:, None]))
    inputs, targets = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    torch.manual_seed(12)
    model = perceptron(10, 64, 64, 1, hidden=nn.ReLU)
    found = suggest(model, (inputs, targets), likelihood="gaussian", batch_size=64, seed=12)
    assert found.hess_init > 0.1  # a network that had diverged would not have minded any noise
    optimizer = torch.optim.SGD(model.parameters(), lr=found.lr, momentum=0.9, dampening=0.9)
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets) / 2
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def test_any_loss_can_be_probed():
    inputs, labels = blobs()
    by_name = suggest(network(), (inputs, labels), batch_size=50)

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets)

    assert suggest(network(), (inputs, labels), batch_size=50, loss=loss) == by_name


def test_the_proposal_does_not_diverge_on_its_own_probe():
    """With a Hessian that is learnt, steps are longer than those of the sweep, where it stands still."""
    inputs, labels = blobs()
    model = network()
    found = suggest(model, (inputs, labels), batch_size=50)
    optimizer = IVON(model.parameters(), **found._asdict())
    start = nn.functional.cross_entropy(model(inputs), labels).item()
    for rows in torch.arange(600).split(50):
        with optimizer.sampled_params(train=True):
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert nn.functional.cross_entropy(model(inputs), labels).item() < start


def test_a_tolerance_that_nothing_meets_is_said():
    torch.manual_seed(0)
    inputs = torch.randn(20, 5)
    with pytest.warns(UserWarning, match="samples raise the loss by more than 1e-06 at every hess_init up to 10"):
        suggest(nn.Linear(5, 1), (inputs, 2 * inputs[:, :1]), likelihood="gaussian", tolerance=1e-6)
