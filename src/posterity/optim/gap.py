"""How much better a network predicts the examples that it trains on than others, from gradients alone.

A step moves the weights by −η D ĝ, where D = 1/(√v̂ + ε) for Adam. The mean gradient ĝ of a batch contains that of each
of its B examples, and so lowers the loss of an example by (η/B) gᵢᵀ D gᵢ that is its own doing: other examples do not
have this part. A step meets B of N examples. Over all examples the loss falls in a step, by their own doing, by

    s = (η/N) E[(gᵢ − ḡ)ᵀ D gᵢ],     E[(gᵢ − ḡ)ᵀ D gᵢ] ≈ B (ĝ − ḡ)ᵀ D ĝ,

with the average ḡ of gradients before: what all examples agree on is learnt for others too. Summed over training, this
is the difference between the losses on unseen examples and on those of training, to first order. Later steps overwrite
what earlier ones have taught, the more the further the weights have moved since, so that the sum forgets:

    G ← G (τ / (τ + η))³ + s,     τ = Σ η.

At the optimum of a model that fits its data this gap would be P/N, with the effective number of parameters P (Akaike,
Takeuchi). Where G is far below, there is little to gain from noise: the data are easy, or training has only begun.
Where it is above, the network memorises. The budget of the noise is a share of G that falls with the cube of N G / P,

    b = 0.15 G min(1, N G / 1.2 P)³,

between two limits: without any noise there would be no posterior, and with too much the network would not learn. G is
learnt in the first half of training, while the budget is closed: later the noise itself would keep gradients large.

Gradients are also large where nothing is memorised but labels are noisy, or where steps overshoot. Then they are larger
than the curvature allows: in a model whose residuals have the size that it expects, squares of gradients equal the
curvature (Bartlett), and where examples are memorised they are smaller. The noise itself measures the curvature, as the
effective number of parameters P̂ (`posterity.optim.price`). The budget falls with the fourth power of P̂/P as far as
this ratio is surely below one.

Some networks learn nothing for half of training, and then everything. Noise would slow them, and what was memorised
before tells nothing. P grows when they begin. Once it is more than twice the P₀ of the time when G was last learnt, the
budget also falls with the fourth power of 2 P₀/P. Where a network only memorises, P grows by less.

Others are still far from fitted when training ends, with predictions that are too cautious already. Noise makes them
more so. Such a network would have a lower training loss if the weights of one layer were larger, by U = −mᵀḡ for a
factor e, to first order. In a network of rectifiers without biases this number is the same for all layers (Euler). A
sum would grow with depth, so the matrix with the largest |U| decides. Once the network has fitted its examples, U is
small, whatever their labels. Above 0.2 nats, the budget falls with the eighth power of 0.2/U. U is averaged over the
third quarter of training, or the last looks before it where a schedule jumps over it. Later the noise itself would
raise it.
"""

from __future__ import annotations

import torch
from torch import Tensor

FORGETTING = 3  # power of the share of all movement that came before
SHARE = 0.15  # of the gap, that noise may cost
USUAL = 1.2  # times P/N: the gap from which on a network memorises
POWER = 3  # with which the share falls below that
DOUBT = 4  # power with which the budget falls where the noise meets less curvature than squares of gradients promise
GROWN = 2.0  # times P when the gap was learnt, from which on the network has learnt late
GROWING = (
    0.2  # nats by which larger weights of a layer would lower the training loss, from which on it is far from fitted
)
CAUTION = 8  # power with which the budget falls from there on
NOISY = 0.75  # of training, from which on the noise itself would raise that gain
LEAST, MOST = 0.003, 0.1  # nats per example
UNKNOWN = 0.03  # nats per example where a base does not tell how it steps


def remembered(taught: Tensor, before: Tensor, movement: Tensor | float) -> Tensor:
    """What is left of a gap when the weights have moved on.

    Args:
        taught: The gap G so far.
        before: The sum τ of learning rates so far.
        movement: The learning rates since.
    """
    return taught * (before / (before + movement).clamp_min(torch.finfo(before.dtype).tiny)) ** FORGETTING


def worth(taught: Tensor, per_example: Tensor) -> Tensor:
    """The nats per example that noise may cost.

    Args:
        taught: The gap G.
        per_example: P/N, the gap at an optimum.

    Examples:
        >>> gaps = torch.tensor([0.0, 0.04, 0.1, 2.0])
        >>> [round(float(b), 3) for b in worth(gaps, torch.tensor(0.1))]
        [0.003, 0.003, 0.009, 0.1]
    """
    memorised = (taught / (USUAL * per_example).clamp_min(1e-12)).clamp_max(1.0)
    return (SHARE * taught * memorised**POWER).clamp(LEAST, MOST)


def believed(allowed: Tensor, agreement: Tensor, settled: Tensor, growing: Tensor) -> Tensor:
    """What is left of a budget where the noise disagrees with the squares of gradients, or the network still learns.

    Args:
        allowed: The nats per example that the gap is worth.
        agreement: The largest likely ratio P̂/P, at most 1.
        settled: P when the gap was learnt, as a multiple of P.
        growing: U, the nats by which larger weights of a layer would lower the training loss.
    """
    trust, caution = agreement * (GROWN * settled).clamp_max(1.0), GROWING / growing.clamp_min(GROWING)
    return (allowed * trust**DOUBT * caution**CAUTION).clamp_min(LEAST)


def largest(gains: Tensor) -> Tensor:
    """The one that is largest in size, with its sign.

    Fluctuations that all layers share leave its average over looks without bias, as with those of a learning rate that
    overshoots. Fluctuations that each layer has for itself make the average too large.
    """
    return torch.take(gains, gains.abs().argmax()) if len(gains) else gains.sum()  # which does not wait for a device
