"""How likely each label is wrong, judged by networks of which some have not learnt from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import require

# Values of the sharpness and of the share of wrong labels that are averaged over. The prior is uniform in the logarithm
# of the sharpness and in the share.
_SHARPNESSES = torch.logspace(0, 4, 13, base=2, dtype=torch.float64)
_SHARES = torch.logspace(-2.4, -0.35, 24, dtype=torch.float64)  # from 0.4 to 45 percent
_TINY = 1e-300
_NEGLIGIBLE = 1e-4  # posterior weight of settings that are left out


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """What the labels of a data set look like to networks.

    Args:
        probability: Probability that each label is wrong, (N,).
        suggestion: The likeliest other class, (N,).
        confidence: Probability of the suggestion, (N,); at most `probability`.
        share: Share of wrong labels in the data, its posterior mean.
        sharpness: Factor on the logits at which predictions fit the labels, its posterior mean.
    """

    probability: Tensor
    suggestion: Tensor
    confidence: Tensor
    share: float
    sharpness: float


def label_errors(outputs: Tensor, average: Tensor, labels: Tensor) -> LabelErrors:
    """The probability that each label is wrong, given logits out of fold.

    The labels are modelled as draws from sharpened predictions q = softmax(s f), of which a share ε was replaced by
    another class at random:

        p(y | x, s, ε) = (1 − ε) q_y + ε (1 − q_y) / (K − 1)

    By Bayes' rule a label is then wrong with the probability

        P(wrong | y, x, s, ε) = ε (1 − q_y) / (K − 1) / p(y | x, s, ε),

    which is averaged over the posterior of s ≥ 1 and ε given all labels out of fold: networks that stopped before they
    memorised are less sure than they could be, and few labels cannot distinguish an underconfident network from wrong
    labels. For the average, f comes from all networks: those that have learnt from a label repeat it only in part, and
    an average of many is less noisy than the one that has not seen it.

    Args:
        outputs: Logits for each example of a network that has not learnt from it, (N, K).
        average: Logits averaged over all networks, (N, K).
        labels: The labels, (N,).

    Examples:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]]).repeat(25, 1)
        >>> labels = torch.tensor([0, 0, 1, 1]).repeat(25)
        >>> labels[0] = 1
        >>> found = label_errors(logits, logits, labels)
        >>> round(found.share, 3), found.probability.argmax().item(), found.suggestion[0].item()
        (0.02, 0, 0)
    """
    count = outputs.shape[-1]
    require(outputs.ndim == 2 and count >= 2, "outputs", "logits of two or more classes, (N, K)", tuple(outputs.shape))
    require(average.shape == outputs.shape, "average", f"logits shaped {tuple(outputs.shape)}", tuple(average.shape))
    weights = _posterior(torch.stack([_given(outputs, labels, s) for s in _SHARPNESSES.tolist()]), count)
    probability = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    others = torch.zeros_like(average, dtype=torch.float64)  # P(true class = k, k not the label)
    for s, row in zip(_SHARPNESSES.tolist(), weights):
        q = (s * average.double()).softmax(-1)
        given = q.gather(1, labels[:, None])[:, 0]
        wrong = sum(w * _wrong(given, e, count) for w, e in zip(row.tolist(), _SHARES.tolist()) if w > _NEGLIGIBLE)
        rest = q.scatter(1, labels[:, None], 0.0)
        probability += wrong
        others += (wrong / rest.sum(-1).clamp_min(_TINY) * rest.T).T
    total = weights[weights > _NEGLIGIBLE].sum()
    confidence, suggestion = (others / total).max(-1)
    share, sharpness = (weights.sum(0) * _SHARES).sum().item(), (weights.sum(1) * _SHARPNESSES).sum().item()
    return LabelErrors(probability / total, suggestion, confidence, share, sharpness)


def _posterior(given: Tensor, count: int) -> Tensor:
    """Weights of sharpnesses and shares, (S, E), from q_y of every example at every sharpness, (S, N)."""
    evidence = torch.empty(len(_SHARPNESSES), len(_SHARES), dtype=torch.float64)
    for k, share in enumerate(_SHARES.tolist()):
        likelihood = (1 - share) * given + share * (1 - given) / (count - 1)
        evidence[:, k] = likelihood.clamp_min(_TINY).log().sum(-1).cpu()
    return (evidence + _SHARES.log()).flatten().softmax(0).view_as(evidence)  # a grid even in log ε has density 1/ε


def _given(outputs: Tensor, labels: Tensor, sharpness: float) -> Tensor:
    """q_y, the sharpened probability of the given label."""
    log_q = (sharpness * outputs.double()).log_softmax(-1)
    return log_q.gather(1, labels[:, None])[:, 0].exp()


def _wrong(given: Tensor, share: float, count: int) -> Tensor:
    wrong = share * (1 - given) / (count - 1)
    return wrong / (wrong + (1 - share) * given).clamp_min(_TINY)
