"""Cross-validation side by side: against networks trained one by one, and what it says about memorising."""

import copy
from unittest.mock import patch

import pytest
import scipy.stats
import torch
from torch import nn

from networks import perceptron
from posterity.errors import InvalidInput
from posterity.learning import committee, fit, folds
from posterity.learning.folds import OutOfFold, out_of_fold
from posterity.learning.length import best_epochs, stretch
from posterity.likelihoods import likelihood


def network(seed, inputs=6, outputs=3):
    torch.manual_seed(seed)
    return perceptron(inputs, 32, outputs, hidden=nn.ReLU)


def blobs(n=90, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return torch.randn(n, 6, generator=generator) + 1.5 * nn.functional.one_hot(y, 6), y


CATEGORICAL = likelihood("categorical")


RELU = nn.ReLU()
NETWORKS = {
    "layers in a row": lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)),
    "an activation used twice": lambda: nn.Sequential(nn.Linear(6, 8), RELU, nn.Linear(8, 8), RELU, nn.Linear(8, 3)),
    "no biases": lambda: nn.Sequential(nn.Linear(6, 16, bias=False), nn.GELU(), nn.Linear(16, 3)),
    "pictures": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 3)),
    "norms": lambda: nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3)),
    "nested": lambda: network(0),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_stacked_networks_learn_as_separate_ones(monkeypatch, name):
    def made(seed):
        torch.manual_seed(seed)
        return NETWORKS[name]()

    x, y = blobs()
    x = x.reshape(-1, 1, 2, 3) if name == "pictures" else x
    monkeypatch.setattr(folds, "LONGEST", 30)
    together = out_of_fold([made(k) for k in range(3)], x, y, CATEGORICAL)
    for choice in ("stacks", "_is_perceptron"):
        monkeypatch.setattr(committee, choice, lambda *_: False)
    alone = out_of_fold([made(k) for k in range(3)], x, y, CATEGORICAL)
    assert together.steps == alone.steps
    torch.testing.assert_close(together.outputs, alone.outputs)
    torch.testing.assert_close(together.average, alone.average)


def test_what_is_frozen_and_what_is_shared_stays_so():
    x = torch.randn(4, 6)
    frozen = [network(k) for k in range(2)]
    for net in frozen:
        net[0].weight.requires_grad_(False)
    tied = [nn.Sequential(layer := nn.Linear(6, 6), nn.ReLU(), layer) for _ in range(2)]
    for networks, learning in ((frozen, 3), (tied, 2)):
        outputs = torch.stack([net(x) for net in networks])
        found = committee.committee(networks, x)
        assert len(found.parameters) == learning
        torch.testing.assert_close(found.forward(x.expand(2, 4, 6)), outputs)


def test_averaged_weights_are_not_kept_away_by_the_noise_of_batches():
    generator = torch.manual_seed(0)
    x = torch.randn(400, 6, generator=generator)
    y = (x[:, 0] + torch.randn(400, generator=generator) > 0).long()
    settings = {"batch_size": 4, "lr": 0.3, "longest": 400}
    single, averaged = (
        out_of_fold([nn.Linear(6, 2) for _ in range(3)], x, y, CATEGORICAL, averaged=a, **settings)
        for a in (False, True)
    )
    assert averaged.loss < single.loss
    assert averaged.steps > single.steps


def test_averages_that_were_better_before_the_last_look_memorise():
    x, y = blobs(60)
    y = y[torch.randperm(60, generator=torch.Generator().manual_seed(2))]
    about = {"lr": 0.01, "longest": 40, "thorough": True}
    found = [
        out_of_fold([network(k) for k in range(3)], x, y, CATEGORICAL, averaged=averaged, **about)
        for averaged in (False, True)
    ]
    assert all(one.steps < 40 for one in found)
    assert [one.memorises for one in found] == [False, True]


def test_no_row_is_predicted_by_a_network_that_has_learnt_from_it(monkeypatch):
    x, y = blobs()
    monkeypatch.setattr(folds, "LONGEST", 30)
    start = [network(k) for k in range(3)]
    before = out_of_fold(copy.deepcopy(start), x, y, CATEGORICAL)
    changed = y.clone()
    changed[7] = (y[7] + 1) % 3
    after = out_of_fold(copy.deepcopy(start), x, changed, CATEGORICAL)
    assert before.steps == after.steps == 30
    assert torch.equal(before.outputs[7], after.outputs[7])  # its own label has no say
    assert not torch.equal(before.outputs[8:], after.outputs[8:])


def test_networks_start_from_rows_that_they_learn_from(monkeypatch):
    x, y = blobs()
    monkeypatch.setattr(folds, "LONGEST", 2)
    started = []
    networks = [network(k) for k in range(3)]
    found = out_of_fold(networks, x, y, CATEGORICAL, start=lambda _, *rows: started.append(rows))
    part = folds.at_random(90, 3, torch.Generator().manual_seed(0))
    for k, (rows, labels) in enumerate(started):
        assert torch.equal(rows, x[part != k])
        assert torch.equal(labels, y[part != k])
    assert found.steps <= 2


def test_random_labels_are_memorised_and_a_line_is_not(monkeypatch):
    x, y = blobs()
    monkeypatch.setattr(folds, "LONGEST", 300)
    found = out_of_fold([network(k) for k in range(5)], x, y[torch.randperm(90)], CATEGORICAL)
    assert found.memorises
    assert found.steps < 100
    line = out_of_fold([network(k, outputs=1) for k in range(5)], x, x[:, :1], likelihood("gaussian"))
    assert line.steps > found.steps
    assert line.outputs.shape == line.average.shape == (90, 1)


def test_a_loss_that_is_surely_higher_ends_the_search(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 6, generator=generator), torch.randint(3, (300,), generator=generator)
    step = torch.optim.AdamW.step

    def searched(certain):
        monkeypatch.setattr(folds, "_QUICK", folds._QUICK._replace(patience=20.0, certain=certain))
        with patch.object(torch.optim.AdamW, "step", autospec=True, side_effect=step) as steps:
            return out_of_fold([network(k) for k in range(3)], x, y, CATEGORICAL, longest=400), steps.call_count

    (early, fewer), (late, more) = searched(3.0), searched(float("inf"))
    assert fewer < more
    assert early.steps == late.steps
    assert early.memorises
    torch.testing.assert_close(early.outputs, late.outputs)


def test_standard_errors_are_those_of_a_paired_test():
    gaps = torch.tensor([0.3, -0.1, 0.4, 0.2, 0.0], dtype=torch.float64)
    assert folds._standard_errors(gaps) == pytest.approx(scipy.stats.ttest_1samp(gaps.numpy(), 0.0).statistic)
    assert folds._standard_errors(torch.ones(5)) == 0


def test_more_parts_than_rows():
    x, y = blobs(3)
    with pytest.raises(InvalidInput, match="folds: expected from 2 to 3, the number of examples, got 5"):
        out_of_fold([network(k) for k in range(5)], x, y, CATEGORICAL)


def test_the_length_of_the_final_training():
    nothing = torch.empty(0)
    found = OutOfFold(nothing, nothing, 60, 0.5, True)
    assert best_epochs(found, 3, stretch("ivon")) == 50  # 2 · 60 · 5/4 steps
    assert best_epochs(found, 3, stretch("adamw")) == 100
    assert best_epochs(OutOfFold(nothing, nothing, 3000, 0.5, False), 3, 2.0) == best_epochs(None, 3, 2.0) == 667


def test_fit_finds_its_length():
    x, y = blobs()
    run = fit(network(0), (x, y[torch.randperm(90)]), method="adamw", epochs="auto", progress=False)
    assert 0 < run.steps < 2000
    default = fit(network(0), (x, y[torch.randperm(90)]), progress=False)
    assert default.method == "variational"
    assert 0 < default.steps < 2000
    with pytest.raises(InvalidInput, match="epochs: expected a whole number, or 'auto', got 'long'"):
        fit(network(0), (x, y), epochs="long")
    with pytest.raises(InvalidInput, match=r"epochs='auto': expected \(inputs, targets\) as tensors"):
        fit(network(0), [(a, b) for a, b in zip(x, y)], epochs="auto")


def test_noise_allows_a_late_end():
    nothing = torch.empty(0)
    found = OutOfFold(nothing, nothing, 60, 0.5, True, late=90)
    assert best_epochs(found, 3, 2.0, late=True) == 75  # 2 · 90 · 5/4 steps
    assert best_epochs(found, 3, 2.0) == 50


def test_a_late_end_is_as_far_as_the_slack_goes(monkeypatch):
    x, y = blobs()
    y = torch.where(torch.rand(90, generator=torch.Generator().manual_seed(1)) < 0.3, (y + 1) % 3, y)
    late = []
    for slack in (0.0, folds._SLACK, 10.0):
        monkeypatch.setattr(folds, "_SLACK", slack)
        found = out_of_fold([network(k) for k in range(5)], x, y, CATEGORICAL, thorough=True, progress=False)
        assert found.memorises
        late.append(found.late)
    assert found.steps == late[0] < late[1] < late[2]


def test_blocks_notice_that_a_network_memorises_rows_whose_neighbours_are_alike():
    """Five copies of each example, side by side, with labels that are half chance: random folds know the copies."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 6, generator=generator), torch.randint(2, (40,), generator=generator)
    x, y = x.repeat_interleave(5, 0), y.repeat_interleave(5)
    found = {
        how: out_of_fold([network(k, outputs=2) for k in range(5)], x, y, CATEGORICAL, longest=300, parts=how)
        for how in ("random", "blocks")
    }
    assert found["random"].loss < 0.5  # of labels that cannot be predicted: log 2 is what a good model has
    assert found["blocks"].loss > 0.6
    assert found["blocks"].memorises
    run = fit(network(0, outputs=2), (x, y), folds="blocks", progress=False)
    assert run.history[-1]["loss"] > 0.5


def test_folds_are_random_or_blocks():
    with pytest.raises(InvalidInput, match=r"folds: expected one of \['blocks', 'random'\], got 'days'"):
        fit(network(0), blobs(), folds="days")
