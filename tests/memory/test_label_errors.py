"""Probabilities of wrong labels against the model they follow from, and labels drawn from it."""

import pytest
import torch

from posterity.errors import InvalidInput
from posterity.memory.label_errors import label_errors


def drawn(n, classes, share, seed=0):
    """Logits, labels drawn from them, and which of these were replaced by another class."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    wrong = torch.rand(n, generator=generator) < share
    moved = (labels + torch.randint(1, classes, (n,), generator=generator)) % classes
    return logits, torch.where(wrong, moved, labels), wrong


def test_share_and_sharpness_are_recovered():
    logits, labels, wrong = drawn(20_000, 4, 0.1)
    found = label_errors(0.5 * logits, 0.5 * logits, labels)
    step = 2 ** (4 / 12)  # between two sharpnesses of the grid
    assert 2 / step <= found.sharpness <= 2 * step
    assert found.share == pytest.approx(0.1, abs=0.02)  # a step of the grid around it
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 1.0)):  # stated probabilities come true
        some = (found.probability > low) & (found.probability <= high)
        rate, stated = wrong[some].double().mean().item(), found.probability[some].mean().item()
        assert rate == pytest.approx(stated, abs=5 * (0.25 / int(some.sum())) ** 0.5)


def test_predictions_are_sharpened_sixteen_times_at_most():
    logits, labels, _ = drawn(2000, 3, 0.0)
    found = label_errors(1e-3 * logits, 1e-3 * logits, labels)
    assert 15 < found.sharpness <= 16


def test_bayes_rule(monkeypatch):
    logits, labels, _ = drawn(50, 3, 0.2)
    monkeypatch.setattr("posterity.memory.label_errors._SHARPNESSES", torch.tensor([1.5], dtype=torch.float64))
    monkeypatch.setattr("posterity.memory.label_errors._SHARES", torch.tensor([0.1], dtype=torch.float64))
    found = label_errors(logits, logits, labels)
    q = (1.5 * logits).softmax(-1)
    transition = torch.full((3, 3), 0.1 / 2, dtype=torch.float64).fill_diagonal_(0.9)
    joint = q * transition[:, labels].T  # P(true = k, given label | x)
    posterior = joint / joint.sum(-1, keepdim=True)
    torch.testing.assert_close(found.probability, 1 - posterior.gather(1, labels[:, None])[:, 0])
    others = posterior.scatter(1, labels[:, None], 0.0)
    torch.testing.assert_close(found.confidence, others.max(-1).values)
    assert torch.equal(found.suggestion, others.argmax(-1))


def test_clean_labels_are_left_alone():
    logits, labels, _ = drawn(5_000, 4, 0.0)
    assert (label_errors(logits, logits, labels).probability > 0.5).double().mean() < 0.005


def test_bad_shapes():
    logits, labels, _ = drawn(10, 3, 0.0)
    with pytest.raises(InvalidInput, match=r"outputs: expected logits of two or more classes"):
        label_errors(logits[:, :1], logits[:, :1], labels)
    with pytest.raises(InvalidInput, match=r"average: expected logits shaped \(10, 3\), got \(10, 2\)"):
        label_errors(logits, logits[:, :2], labels)
