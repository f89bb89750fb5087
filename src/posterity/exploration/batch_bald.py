"""BatchBALD: the joint information of a batch's labels about the weights, so that repetition does not count.

    I(y_1..y_b; θ) = H(y_1..y_b) − Σ_i E[H(y_i | θ)],    p(y_1..y_b) = E_θ[∏_i p(y_i | θ)]

The joint entropy is a sum over all K^b configurations of the labels while they are few, then an average over sampled
ones. The gain of a further example can only fall as a batch grows, so that most need not be looked at again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import Undefined
from posterity.exploration.criteria import bald
from posterity.exploration.question import PoolQuestion
from posterity.likelihoods import Likelihood
from posterity.noise import seeded
from posterity.prediction import predict
from posterity.progress import track

CONFIGURATIONS = 1024  # of labels, enumerated up to here and sampled beyond
CHUNK = 64


@dataclass(frozen=True, eq=False)
class JointProbabilities:
    """The distribution of the labels of a batch under the draws of the weights.

    Args:
        likelihoods: p(configuration | draw), (M, S), up to a factor for each configuration.
        sampled: Whether the configurations are draws and not all there are.
        log_factor: Mean logarithm of the factors: products over hundreds of labels would be too small for a number.
    """

    likelihoods: Tensor
    sampled: bool
    log_factor: float = 0.0

    @classmethod
    def empty(cls, draws: int) -> JointProbabilities:
        """Of no labels at all: one configuration, certain."""
        return cls(torch.ones(1, draws, dtype=torch.float64), False)

    def entropy_with(self, probs: Tensor) -> Tensor:
        """H(batch, y) in nats for each candidate with class probabilities (C, S, K)."""
        joint = torch.einsum("ms,csk->cmk", self.likelihoods, probs) / probs.shape[1]  # p(configuration, y)
        if not self.sampled:
            return -torch.special.xlogy(joint, joint).sum((1, 2))
        alone = self.likelihoods.mean(1)  # p(configuration)
        return -(torch.special.xlogy(joint, joint) / alone.reshape(1, -1, 1)).sum(2).mean(1) - self.log_factor

    def entropy(self) -> float:
        """H(batch) in nats."""
        return self.entropy_with(torch.ones(1, self.likelihoods.shape[1], 1, dtype=torch.float64)).item()

    def joined(self, probs: Tensor, generator: torch.Generator) -> JointProbabilities:
        """The batch with one more example, (S, K): all configurations while they are few, otherwise sampled ones."""
        count, draws = self.likelihoods.shape
        if not self.sampled and count * probs.shape[1] <= CONFIGURATIONS:
            return JointProbabilities(torch.einsum("ms,sk->mks", self.likelihoods, probs).reshape(-1, draws), False)
        before = self if self.sampled else self._draw(generator)
        p = before.likelihoods @ probs  # (M, K), proportional to p(y | configuration)
        labels = torch.multinomial(p, 1, generator=generator)[:, 0]
        product = before.likelihoods * probs[:, labels].T
        factor = product.mean(1, keepdim=True)
        return JointProbabilities(product / factor, True, before.log_factor + factor.log().mean().item())

    def _draw(self, generator: torch.Generator) -> JointProbabilities:
        """Configurations drawn with their probabilities."""
        rows = torch.multinomial(self.likelihoods.mean(1), CONFIGURATIONS, replacement=True, generator=generator)
        return JointProbabilities(self.likelihoods[rows], True)


def greedy(probs: Tensor, k: int, seed: int = 0) -> tuple[list[int], list[float]]:
    """The greedy batch of k candidates, and what each adds to the information of those before it.

    Args:
        probs: Class probabilities of the candidates under each draw, (C, S, K).
        k: Size of the batch.
        seed: Of sampled configurations.

    Examples:
        >>> certain = torch.eye(2).expand(2, 2, 2)  # two copies of a label on which two draws disagree
        >>> [round(value, 4) for value in greedy(certain, 2)[1]]  # log 2, and then nothing
        [0.6931, 0.0]

    References:
        Kirsch, van Amersfoort and Gal, "BatchBALD", 2019.
    """
    probs = probs.double()
    noise = -torch.special.xlogy(probs, probs).sum(2).mean(1)  # E[H(y | θ)]
    generator = seeded(seed)
    joint, bounds = JointProbabilities.empty(probs.shape[1]), torch.full((len(probs),), torch.inf, dtype=torch.float64)
    chosen: list[int] = []
    gains: list[float] = []
    for _ in track(range(k), "batch"):
        base, best = joint.entropy(), -torch.inf
        for rows in bounds.argsort(descending=True, stable=True).split(CHUNK):
            if best >= bounds[rows[0]]:
                break
            bounds[rows] = torch.minimum(bounds[rows], joint.entropy_with(probs[rows]) - base - noise[rows])
            best = max(best, bounds[rows].max().item())
        pick = int(bounds.argmax())
        chosen.append(pick)
        gains.append(max(bounds[pick].item(), 0.0))
        bounds[pick] = -torch.inf
        joint = joint.joined(probs[pick], generator)
    return chosen, gains


def choose(question: PoolQuestion, k: int) -> tuple[Tensor, Tensor]:
    """A batch by BatchBALD, from the candidates with the highest BALD: positions, and what each adds."""
    places, trained = question.shortlist(bald(question)), question.trained
    drawn = predict(
        trained.model,
        trained.posterior,
        question.examples(places).inputs,
        question.samples,
        seed=question.seed,
        keep_samples=True,
    )
    assert drawn.outputs is not None
    chosen, gains = greedy(_class_probs(trained.likelihood, drawn.outputs.cpu()), k, question.seed)
    return places[chosen], torch.tensor(gains, dtype=torch.float64)


def _class_probs(likelihood: Likelihood, f: Tensor) -> Tensor:
    """Class probabilities (N, S, K) from the outputs (S, N, K) of every draw."""
    log_p = likelihood.log_probs(f.double())
    if log_p is not None and log_p.ndim == 4 and log_p.shape[2] == 1:  # of one binary label
        log_p = log_p[:, :, 0]
    if log_p is None or log_p.ndim != 3:
        raise Undefined(
            f"batch_bald: expected one label for each example, got {tuple(f.shape[1:])} {likelihood.name} outputs"
        )
    return log_p.exp().transpose(0, 1)
