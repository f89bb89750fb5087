"""Networks: a new class, a removed class, another architecture; held to retraining and to doing nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import posterity as po
from adaptation.problems import logistic, tanh_network
from networks import perceptron
from posterity.adaptation import adapt, remember, select
from posterity.adaptation.heads import find_head, grown
from posterity.adaptation.penalties.combined import labels_of
from posterity.adaptation.penalties.kprior import FunctionDivergence
from posterity.adaptation.penalties.penalty import gradient
from posterity.batches import Batch
from posterity.trees import to_vector
from small_data import handwritten_digits


def network(outputs, hidden=(40,)):
    torch.manual_seed(0)
    sizes = (64, *hidden)
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


@pytest.fixture(scope="module")
def digits():
    x, y = handwritten_digits()
    return (x[:1000], y[:1000]), (x[1000:], y[1000:])


def trained(outputs, data):
    model = po.fit(network(outputs), data, method="adamw", epochs=15, lr=5e-3).model
    return model, po.laplace(model, data, structure="diag", prior_precision=1.0)


@pytest.fixture(scope="module")
def ten(digits):
    return trained(10, digits[0])


def accuracy(model, data, keep):
    x, y = data[0][keep(data[1])], data[1][keep(data[1])]
    return (model(x).argmax(1) == y).float().mean().item()


def test_a_new_class(digits):
    (x, y), test = digits
    old = y < 9
    model, posterior = trained(9, (x[old], y[old]))
    new = (x[~old], y[~old])
    result = adapt(model, posterior, data=(x[old], y[old]), add=new, classes=10, epochs=20, lr=3e-3)
    naive = adapt(model, posterior, add=new, classes=10, method="ewc", epochs=60, lr=3e-3)
    assert accuracy(result.model, test, lambda y: y < 9) > 0.9
    assert accuracy(result.model, test, lambda y: y == 9) > 0.75
    assert accuracy(result.model, test, lambda y: y >= 0) > accuracy(naive.model, test, lambda y: y >= 0)
    table = result.report.table
    assert table.loc["no adaptation", "accuracy on added"] < 0.2 < table.loc["adapted", "accuracy on added"]
    assert result.posterior.n == 1000
    assert result.posterior.memory.weights.sum().item() == pytest.approx(1000, rel=1e-3)
    assert result.report.memory[0] == -(-int(old.sum()) // 10)


def test_a_new_class_is_learnt_without_being_told_for_how_long(digits):
    (x, y), test = digits
    old = y < 9
    model, posterior = trained(9, (x[old], y[old]))
    result = adapt(model, posterior, data=(x[old], y[old]), add=(x[~old], y[~old]), classes=10)
    assert (result.report.method, result.report.steps) == ("warm_start", 500)
    assert accuracy(result.model, test, lambda y: y == 9) > 0.9
    assert accuracy(result.model, test, lambda y: y < 9) > 0.9


def test_large_memories_are_looked_at_in_parts(ten, digits):
    (x, y), _ = digits
    model, posterior = ten
    largest = 0

    def watch(module, args):
        nonlocal largest
        largest = max(largest, len(args[0]))

    many = torch.cat((x, x, x)), torch.cat((y, y, y))
    memory = remember(model, many)
    handle = model.register_forward_pre_hook(watch)
    adapt(model, posterior, memory=memory, prior_precision=2.0, method="combined", epochs=1, batch_size=100)
    handle.remove()
    assert 100 <= largest <= 1024 < len(memory)


def test_the_same_seed_gives_the_same_bits(ten, digits):
    model, posterior = ten
    first, again = (
        adapt(model, posterior, data=digits[0], remove=[0], epochs=2, seed=3).model.state_dict() for _ in range(2)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_removed_class_is_forgotten_and_the_rest_is_not(ten, digits):
    (x, y), test = digits
    model, posterior = ten
    wanted, _ = trained(10, (x[y != 3], y[y != 3]))

    def away(other, keep):
        inputs = test[0][keep(test[1])]
        p, q = torch.log_softmax(wanted(inputs), 1), torch.log_softmax(other(inputs), 1)
        return (p.exp() * (p - q)).sum(1).mean().item()

    def masked(inputs):
        return model(inputs).index_fill(1, torch.tensor([3]), -30.0)

    result = adapt(model, posterior, data=(x, y), remove=lambda batch: batch.targets == 3, method="kprior", epochs=60)
    assert away(result.model, lambda y: y == 3) < away(masked, lambda y: y == 3) < away(model, lambda y: y == 3)
    assert away(result.model, lambda y: y != 3) < away(model, lambda y: y != 3)
    assert accuracy(result.model, test, lambda y: y == 3) == 0
    assert accuracy(result.model, test, lambda y: y != 3) > 0.9
    assert not (result.posterior.memory.targets == 3).any()
    assert result.posterior.n == int((y != 3).sum())


def test_one_class_goes_while_another_comes(digits):
    (x, y), test = digits
    old = y < 9
    model, posterior = trained(9, (x[old], y[old]))
    change = {"add": (x[~old], y[~old]), "classes": 10, "remove": lambda batch: batch.targets == 3}
    result = adapt(model, posterior, data=(x[old], y[old]), epochs=20, lr=3e-3, **change)
    assert accuracy(result.model, test, lambda y: (y < 9) & (y != 3)) > 0.9
    assert accuracy(result.model, test, lambda y: y == 9) > 0.75
    assert accuracy(result.model, test, lambda y: y == 3) == 0
    assert result.posterior.n == int((y != 3).sum())


def test_a_removed_class_is_silent_among_outputs_of_any_level(digits):
    (x, y), test = digits
    model = trained(10, digits[0])[0]
    with torch.no_grad():
        model[-1].bias -= 100.0  # which a softmax does not see
    posterior = po.laplace(model, digits[0], structure="diag", prior_precision=1e-3)
    result = adapt(model, posterior, data=(x, y), remove=lambda batch: batch.targets == 3, epochs=20)
    assert result.report.notes == ()  # a silent output is far from the prior, and no reason to worry
    assert result.model(test[0]).softmax(1)[:, 3].max() < 1e-6
    assert accuracy(result.model, test, lambda y: y != 3) > 0.9


def test_a_class_of_which_one_example_stays_is_not_lost(ten, digits):
    model, posterior = ten
    ids = (digits[0][1] == 3).nonzero()[1:, 0].tolist()
    result = adapt(model, posterior, data=digits[0], memory=1000, remove=ids, epochs=1)
    assert result.model(digits[0][0])[:, 3].min() > -29


def test_a_class_that_the_memory_has_no_example_of_is_not_lost(ten, digits):
    ((x, y), test), (model, posterior) = digits, ten
    others, threes = (y != 3).nonzero()[:200, 0], (y == 3).nonzero()[:, 0]
    memory = remember(model, (x[others], y[others], others))
    result = adapt(model, posterior, data=(x, y), remove=threes[:1].tolist(), memory=memory, epochs=1)
    assert accuracy(result.model, test, lambda y: y == 3) > 0.8


def test_relabelled_examples_are_learnt(ten, digits):
    (x, y), _ = digits
    model, posterior = ten
    ids = (y == 1).nonzero()[:20, 0].tolist()
    result = adapt(model, posterior, data=(x, y), relabel=dict.fromkeys(ids, 7), epochs=20, lr=3e-3)
    before, after = (m(x[ids]).softmax(1)[:, 7].mean() for m in (model, result.model))
    assert after > 10 * before
    assert result.posterior.n == 1000


def test_knowledge_moves_into_another_architecture(ten, digits):
    train, test = digits
    model, posterior = ten
    deeper = network(10, hidden=(50, 30))
    untouched = to_vector(dict(deeper.named_parameters())).clone()
    memory = select(model, posterior, train, 300)
    result = adapt(model, posterior, memory=memory, into=deeper, epochs=60, lr=1e-2)
    assert accuracy(result.model, test, lambda y: y >= 0) > 0.9
    assert torch.equal(to_vector(dict(deeper.named_parameters())), untouched)
    assert result.posterior.n == 1000
    result.posterior.check(result.model)


@pytest.mark.parametrize("by", ["random", "curvature", "leverage", "k-centre"])
def test_memories_stand_for_all_data(ten, digits, by):
    (x, y), _ = digits
    model, posterior = ten
    memory = select(model, posterior, (x[:300], y[:300]), 40, by=by)
    assert len(memory) == 40 == len(memory.ids.unique())
    assert torch.equal(memory.inputs, x[memory.ids])
    assert torch.equal(memory.targets, y[memory.ids])
    counts = torch.bincount(y[:300], minlength=10).float()
    for label in range(10):
        assert memory.weights[memory.targets == label].sum().item() == pytest.approx(counts[label].item(), rel=1e-5)
    assert torch.allclose(memory.predictions, model(memory.inputs), atol=1e-5)
    if by == "curvature":  # the top of each class by Σ p(1 − p)
        p = model(x[:300]).softmax(1)
        score = (p * (1 - p)).sum(1)
        for label in range(10):
            chosen = memory.ids[memory.targets == label]
            others = [i for i in (y[:300] == label).nonzero()[:, 0].tolist() if i not in chosen]
            assert score[chosen].min() >= score[others].max()


def test_fewer_memories_than_classes_leave_no_class_out_for_good(ten, digits):
    (x, y), _ = digits
    model, posterior = ten
    found = [select(model, posterior, (x[:300], y[:300]), 5, seed=seed) for seed in range(20)]
    assert {label for memory in found for label in memory.targets.tolist()} == set(range(10))
    assert all(memory.weights.sum().item() == pytest.approx(300) for memory in found)


def test_k_centre_is_greedy_and_unweighted_memories_count_once():
    model = nn.Linear(1, 1)
    x = torch.tensor([[0.0], [1.0], [10.0], [4.0]])
    posterior = po.laplace(model, (x, x), prior_precision=1.0, noise_precision=1.0)
    memory = select(model, posterior, (x, x), 3, by="k-centre", weighted=False)
    assert memory.ids.tolist() == [0, 2, 3]
    assert memory.weights.tolist() == [1, 1, 1]
    for bad in ({"size": 9}, {"size": 2, "by": "magic"}):
        with pytest.raises(po.PosterityError):
            select(model, posterior, (x, x), **bad)


def test_a_single_example_and_a_wholly_other_network():
    torch.manual_seed(0)
    x, y = torch.randn(60, 3), torch.randint(0, 3, (60,))
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()
    posterior = po.laplace(model, (x, y), structure="diag", prior_precision=1.0)
    result = adapt(model, posterior, data=(x, y), add=(x[:1], y[:1]), lr=1e-2)
    table = result.report.table["loss on added"]
    assert table["adapted"] < table["no adaptation"]
    assert result.report.passes == result.report.steps == 100 + round(150 / (0.08 * 61))  # all data in every batch
    divergence = FunctionDivergence(remember(model, (x, y)), posterior.likelihood)
    for other in (
        perceptron(3, 4, 3),  # no parameter of it has an ancestor
        nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)),  # the same, but wider
    ):
        carried = adapt(model, posterior, data=(x, y), memory=60, into=other.eval(), epochs=200, lr=1e-2)
        assert divergence.total(carried.model) < 0.2 * divergence.total(other)
        assert np.isnan(carried.report.table.loc["no adaptation", "gradient"])


def test_statistics_of_all_data_are_not_those_of_a_few_new_ones(digits):
    train, (x_test, y_test) = digits
    model = nn.Sequential(nn.Linear(64, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 10))
    po.fit(model, train, method="adamw", epochs=15, lr=5e-3)
    posterior = po.laplace(model, train, structure="diag", prior_precision=1.0)
    new = train[0][:64] + 0.5, train[1][:64]
    result = adapt(model, posterior, data=train, add=new, epochs=10)
    before, after = ((m(x_test + 0.5).argmax(1) == y_test).float().mean() for m in (model, result.model))
    assert after > 0.9 > before + 0.3
    assert (result.model(x_test).argmax(1) == y_test).float().mean() > 0.9
    assert torch.equal(result.posterior.buffers["1.running_mean"], model[1].running_mean)


def test_batches_of_mappings_can_be_adapted():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, a, b):
            """Logits from two inputs."""
            return self.linear(torch.cat((a, b), 1))

    torch.manual_seed(0)
    x, y = torch.randn(40, 3), torch.randint(0, 2, (40,))
    data = ({"a": x[:, :1], "b": x[:, 1:]}, y)
    model = Named()
    posterior = po.laplace(model, data, structure="full", prior_precision=1.0)
    result = adapt(model, posterior, data=data, remove=lambda batch: batch.inputs["a"][:, 0] > 1)
    assert isinstance(result.posterior.memory.batch(), Batch)
    assert result.posterior.n == int((x[:, 0] <= 1).sum())


def test_labels_keep_their_balance_when_the_head_grows(digits):
    x, y = digits[0][0][:40].double(), digits[0][1][:40] % 9
    model = network(9).double()
    labels = labels_of(model, remember(model, (x, y)), po.laplace(model, (x, y), prior_precision=1.0))
    wide = grown(model, find_head(model, x), 10)
    assert max(g.abs().max().item() for g in gradient(labels, wide).values()) < 1e-12
    for one in (model, wide):
        with torch.no_grad():
            one[0].weight.mul_(1.1)
    old, new = gradient(labels, model), gradient(labels, wide)
    torch.testing.assert_close(new["0.weight"], old["0.weight"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(new["2.weight"][:9], old["2.weight"], rtol=1e-12, atol=1e-12)
    assert old["0.weight"].abs().max() > 1e-3


def test_true_labels_count_when_a_class_is_new(digits):
    (x, y), _ = digits
    old = y < 9
    model, posterior = trained(9, (x[old], y[old]))
    asked = {"data": (x[old], y[old]), "add": (x[~old], y[~old]), "classes": 10, "epochs": 5}
    one, other = (adapt(model, posterior, method=method, **asked).model for method in ("kprior", "combined"))
    assert not torch.equal(one[0].weight, other[0].weight)


def test_a_sharp_posterior_stays_sharp(digits):
    (x, y), (x_test, y_test) = digits
    train = (x[:400], y[:400])
    run = po.fit(network(10, (16,)), train, method="ivon", epochs=20, lr=0.5, seed=0)
    result = adapt(run.model, run.posterior, data=train, remove=[3, 5], memory=400, epochs=2, lr=1e-3)
    before, after = (
        po.metrics.nll(po.predict(model, posterior, x_test, 32).probs, y_test)
        for model, posterior in ((run.model, run.posterior), (result.model, result.posterior))
    )
    assert after < before + 0.02


@pytest.mark.parametrize(("memory", "worse"), [(6, True), (60, False)])
def test_an_objective_that_rises_is_reported(memory, worse):
    x, y = logistic(60)
    model = tanh_network(x, y)
    posterior = po.laplace(model, (x, y), likelihood="bernoulli", structure="diag", prior_precision=1.0)
    kept = torch.arange(60) >= 10
    retrained = tanh_network(x[kept], y[kept], start=model)

    def objective(model):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x[kept]), y[kept], reduction="sum")
        return (loss + 0.5 * sum(p.square().sum() for p in model.parameters())).item()

    def away(model):
        return (torch.sigmoid(model(x)) - torch.sigmoid(retrained(x))).norm().item()

    result = adapt(model, posterior, data=(x, y), remove=range(10), memory=memory, method="kprior", epochs=100, lr=1e-2)
    found = result.report.table["objective"]
    assert found["no adaptation"] == pytest.approx(objective(model))
    assert found["adapted"] == pytest.approx(objective(result.model))
    assert (away(result.model) > away(model)) == worse
    assert [note[:33] for note in result.report.notes] == ["the objective of retraining rose "] * worse


def test_an_exact_solution_from_no_optimum_asks_for_one():
    x, y = logistic(60)
    torch.manual_seed(0)
    model = nn.Linear(x.shape[1], 1, dtype=x.dtype)
    far = po.laplace(model, (x, y), likelihood="bernoulli", structure="diag", prior_precision=1.0)
    result = adapt(model, far, data=(x, y), remove=range(10))
    assert result.report.exact
    assert result.report.table["objective"].is_monotonic_increasing
    assert result.report.notes[-1].endswith("train the old one to its optimum, or retrain")
