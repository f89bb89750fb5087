"""The active learner: adaptation against retraining, and going on after a stop."""

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from networks import perceptron
from posterity.errors import PosterityError
from posterity.exploration import ActiveLearner

START = torch.arange(30)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    coarse = x.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16) / 4  # 4 x 4 pixels
    return torch.tensor(coarse)[order], torch.tensor(y)[order]


def refit(x, y):
    """Ridge softmax regression by scikit-learn."""
    found = LogisticRegression(C=1.0, fit_intercept=False, solver="newton-cholesky", tol=1e-10).fit(
        x.numpy(), y.numpy()
    )
    return torch.tensor(found.coef_)


def started(digits, **settings):
    x, y = digits
    model = nn.Linear(16, 10, bias=False).double()
    model.weight.data.copy_(refit(x[START], y[START]))
    posterior = po.laplace(model, (x[START], y[START]), structure="full", prior_precision=1.0)
    return ActiveLearner(model, posterior, x[:200], labelled=(x[START], y[START], START), **settings)


def test_ends_where_retraining_ends(digits):
    x, y = digits
    learner = started(digits, criterion="margin", asking={"samples": 4})
    for _ in range(3):
        picks = learner.ask(5)
        learner.tell(picks.ids, y[picks.ids])
    assert len(learner.labelled) == len(learner.labelled.unique()) == 45
    wanted = refit(x[learner.labelled], y[learner.labelled])
    torch.testing.assert_close(learner.model.weight.detach(), wanted, atol=1e-4, rtol=0)
    assert learner.posterior.n == 45


def test_labels_may_come_late_and_in_part(digits):
    y = digits[1]
    learner = started(digits, criterion="entropy", asking={"samples": 4})
    first = learner.ask(6).ids
    second = learner.ask(6).ids
    assert not set(first.tolist()) & set(second.tolist())
    learner.tell(second[:2], y[second[:2]])
    assert learner.pending.tolist() == [*first.tolist(), *second[2:].tolist()]
    others = [i for i in range(200) if i not in {*learner.labelled.tolist(), *learner.pending.tolist()}][:3]
    learner.tell(others, y[others])
    assert set(others) <= set(learner.labelled.tolist())


@pytest.mark.parametrize("criterion", ["random", "bald"])
def test_goes_on_after_a_stop(digits, tmp_path, criterion):
    y = digits[1]
    settings = {"criterion": criterion, "asking": {"samples": 4, "power": 1.0}}
    straight, stopped = started(digits, **settings), started(digits, **settings, folder=tmp_path)
    for _ in range(2):
        picks = straight.ask(4)
        straight.tell(picks.ids, y[picks.ids])
    picks = stopped.ask(4)
    again = ActiveLearner.resume(tmp_path, nn.Linear(16, 10, bias=False).double(), digits[0][:200], **settings)
    assert again.pending.tolist() == picks.ids.tolist()
    again.tell(again.pending, y[again.pending])
    later = ActiveLearner.resume(tmp_path, nn.Linear(16, 10, bias=False).double(), digits[0][:200], **settings)
    picks = later.ask(4)
    later.tell(picks.ids, y[picks.ids])
    assert later.labelled.tolist() == straight.labelled.tolist()
    torch.testing.assert_close(later.model.weight, straight.model.weight, atol=1e-10, rtol=0)


def test_killed_between_two_files(digits, tmp_path, monkeypatch):
    y, fresh = digits[1], nn.Linear(16, 10, bias=False).double()
    learner = started(digits, criterion="random", folder=tmp_path)
    picks = learner.ask(5)
    with monkeypatch.context() as patched:
        patched.setattr("posterity.exploration._active_learner.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            learner.tell(picks.ids[:3], y[picks.ids[:3]])
    again = ActiveLearner.resume(tmp_path, fresh, digits[0][:200], criterion="random")
    assert set(picks.ids[:3].tolist()) <= set(again.labelled.tolist())
    assert again.pending.tolist() == picks.ids[3:].tolist()


def killed(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [TensorDataset, lambda *columns: DataLoader(TensorDataset(*columns), 7)])
def test_labelled_examples_of_a_data_set_keep_their_ids(digits, kind):
    x, y = digits
    model = nn.Linear(16, 10, bias=False).double()
    posterior = po.laplace(model, (x[START], y[START]), structure="full", prior_precision=1.0)
    learner = ActiveLearner(model, posterior, x[:40], labelled=kind(x[START], y[START], START), criterion="random")
    assert learner.labelled.tolist() == START.tolist()
    assert sorted(learner.ask(10).ids.tolist()) == list(range(30, 40))


def test_ids_that_are_never_asked_for(digits, tmp_path):
    settings = {"criterion": "random", "asking": {"exclude": range(30, 190)}}
    learner = started(digits, **settings, folder=tmp_path)
    assert sorted(learner.ask(10).ids.tolist()) == list(range(190, 200))
    known = (digits[0][START], digits[1][START], START)
    learner.tell([190], [3])
    again = ActiveLearner.resume(tmp_path, learner.model, digits[0][:200], labelled=known, **settings)
    assert again.labelled.tolist() == [*START.tolist(), 190]


def test_a_posterior_is_not_written_over(digits, tmp_path):
    started(digits).posterior.save(tmp_path)
    before = (tmp_path / "posterior.json").read_bytes()
    with pytest.raises(PosterityError, match="folder: expected one without a posterior"):
        started(digits, folder=tmp_path)
    assert (tmp_path / "posterior.json").read_bytes() == before


def test_labels_are_not_written_over(digits, tmp_path):
    started(digits, folder=tmp_path)
    with pytest.raises(PosterityError, match="folder: expected one without an active learner"):
        started(digits, folder=tmp_path)


def test_a_network_keeps_learning(digits):
    x, y = digits
    torch.manual_seed(0)
    model = perceptron(16, 32, 10, hidden=nn.ReLU).double()
    known = (x[START], y[START])
    run = po.fit(model, known, method="adamw", epochs=60, lr=1e-2, seed=0)
    posterior = po.laplace(run.model, known, structure="diag", prior_precision=1.0)
    learner = ActiveLearner(
        run.model, posterior, x[:200], labelled=(*known, START), asking={"samples": 8},
        adapting={"method": "combined", "epochs": 20, "lr": 3e-3},
    )  # fmt: skip

    def accuracy():
        return (learner.model(x[400:]).argmax(1) == y[400:]).double().mean().item()

    before = accuracy()
    for _ in range(4):
        picks = learner.ask(15)
        learner.tell(picks.ids, y[picks.ids])
    assert accuracy() > before + 0.05


def test_examples_from_elsewhere_leave_the_pool_open(digits):
    x, y = digits
    model = nn.Linear(16, 10, bias=False).double()
    posterior = po.laplace(model, (x[START], y[START]), structure="full", prior_precision=1.0)
    learner = ActiveLearner(model, posterior, x[30:40], labelled=(x[START], y[START]), criterion="random")
    assert sorted(learner.ask(10).ids.tolist()) == list(range(10))


def test_labels_go_to_the_examples_with_their_ids(digits):
    x, y = digits
    model = nn.Linear(16, 10, bias=False).double()
    posterior = po.laplace(model, (x[START], y[START]), structure="full", prior_precision=1.0)
    ids = 1000 - 7 * torch.arange(50)
    pool = (x[100:150], torch.zeros(50), ids)
    learner = ActiveLearner(model, posterior, pool, labelled=(x[START], y[START]), criterion="random")
    picks = learner.ask(5).ids
    rows = [ids.tolist().index(i) for i in picks.tolist()]
    learner.tell(picks, y[100:150][rows])
    assert torch.equal(learner.posterior.memory.inputs[30:], x[100:150][rows])
    assert learner.labelled[30:].tolist() == picks.tolist()


def test_mistakes_are_named(digits, tmp_path):
    learner = started(digits)
    for ids, labels, message in [
        ([500], [1], "ids: expected ids of the pool"),
        ([3], [1], "ids: expected examples without a label"),
        ([40, 40], [1, 1], "each once"),
        ([40, 41], [1], "labels: expected 2"),
        ([40], [11], "expected labels in 0..9"),
        ([40], [1.7], "labels: expected whole numbers"),
        ([40], [float("nan")], "labels: expected whole numbers"),
        ([40], ["seven"], "expected arrays of numbers"),
        ([40.5], [1], "ids: expected ids, whole numbers"),
        (["40"], [1], "ids: expected ids, whole numbers"),
        ([40, 41], 1, "labels: expected 2"),
        ([], [], "ids: expected at least one"),
        ([True], [1], "ids: expected ids, whole numbers"),
    ]:
        with pytest.raises(PosterityError, match=message):
            learner.tell(ids, labels)
    assert len(learner.labelled) == 30
    with pytest.raises(PosterityError, match="labelled: expected"):
        ActiveLearner(nn.Linear(16, 10, bias=False).double(), po.laplace(
            learner.model, (digits[0][:30], digits[1][:30]), prior_precision=1.0), digits[0])  # fmt: skip
    with pytest.raises(PosterityError, match="expected a file"):
        ActiveLearner.resume(tmp_path, learner.model, digits[0])
    kept = started(digits, folder=tmp_path / "kept")
    with pytest.raises(PosterityError, match="pool: expected the 200 examples"):
        ActiveLearner.resume(tmp_path / "kept", kept.model, digits[0][:100])
