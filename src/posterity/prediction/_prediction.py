"""A prediction with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import Undefined, require
from posterity.likelihoods import Likelihood
from posterity.prediction._quantiles import empirical_quantile


@dataclass(frozen=True, eq=False)
class Prediction:
    """The posterior predictive of many inputs, one row each, classes on the last axis.

    Uncertainty is split into what more data would remove (epistemic, the disagreement of the draws) and what it
    would not (aleatoric, the noise that each draw expects).

    Attributes:
        likelihood: What the outputs mean.
        mean: E[y]: class probabilities, the regression mean, the expected count.
        spread: Variance over draws of E[y | draw], shaped as the mean.
        log_probs: log p(y = k), (..., K); for binary targets K = 2; None where targets are not classes.
        expected_entropy: E[H(y | draw)] of each target; None without draws of class probabilities.
        outputs: The outputs f (logits) of every draw, (draws, ...), if they were kept.
        exact: Whether a regression's predictive is the Gaussian N(mean, std²) and no mixture of draws.
        class_names: Names of the classes, if the posterior has them.
    """

    likelihood: Likelihood
    mean: Tensor
    spread: Tensor | None
    log_probs: Tensor | None = None
    expected_entropy: Tensor | None = None
    outputs: Tensor | None = None
    exact: bool = False
    class_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        kept = "" if self.outputs is None else f", {len(self.outputs)} draws kept"
        return f"Prediction({self.likelihood.name}, {tuple(self.mean.shape)}{kept})"

    @property
    def probs(self) -> Tensor:
        """Class probabilities (..., K); for binary targets p(y = 1), shaped as the outputs."""
        if self.log_probs is None:
            raise Undefined(f"probs: not defined for a {self.likelihood.name} likelihood; see `mean` and `std`")
        return self.mean

    @property
    def std(self) -> Tensor:
        """Of the target, noise included (regression, counts); of each class probability, over draws."""
        if self.log_probs is not None:
            return self.epistemic_std
        return (self.epistemic_std.square() + self.noise_std.square()).sqrt()

    @property
    def epistemic_std(self) -> Tensor:
        """Standard deviation over draws of E[y | draw]."""
        if self.spread is None:
            raise Undefined("std: the probit approximation has no draws; use method='linearised'")
        return self.spread.sqrt()

    @property
    def noise_std(self) -> Tensor:
        """Standard deviation of the target around E[y | draw], averaged in square over draws."""
        if not self.likelihood.is_classification:
            return self.likelihood.noise_std(self.mean)
        return (self.mean * (1 - self.mean) - self.epistemic_std.square()).clamp_min(0).sqrt()

    @property
    def entropy(self) -> Tensor:
        """H(y) in nats of each target; for regression that of the Gaussian with the same mean and variance."""
        if self.log_probs is not None:
            return -(self.log_probs.exp() * self.log_probs).nan_to_num(0.0).sum(-1)
        return self._gaussian_entropy(self.std, "entropy")

    @property
    def aleatoric(self) -> Tensor:
        """E[H(y | draw)] in nats of each target: the uncertainty that no further data would remove."""
        if self.log_probs is None:
            return self._gaussian_entropy(self.noise_std, "aleatoric")
        if self.expected_entropy is None:
            raise Undefined("aleatoric: the probit approximation has no draws; use method='linearised'")
        return self.expected_entropy

    @property
    def mutual_information(self) -> Tensor:
        """I(y; weights) = H(y) − E[H(y | draw)] in nats of each target: how much its label would teach."""
        return (self.entropy - self.aleatoric).clamp_min(0.0)  # rounding can make it negative

    def quantiles(self, q: float | Sequence[float]) -> Tensor:
        """Quantiles: of the target, noise included (regression, counts); of each class probability, over draws.

        Args:
            q: Levels in (0, 1), one or many.

        Returns:
            One more axis in front if `q` is a sequence, shaped as the mean after that.
        """
        levels = torch.as_tensor(q, dtype=self.mean.dtype, device=self.mean.device)
        require(bool(((levels > 0) & (levels < 1)).all()), "q", "levels strictly between 0 and 1", q)
        if self.exact:
            z = torch.special.ndtri(levels).reshape(-1, *[1] * self.mean.ndim)
            values = self.mean + z * self.std
        elif self.log_probs is not None:
            values = empirical_quantile(self.likelihood.mean(self._kept("quantiles")), levels.reshape(-1))
        else:
            f = self._kept("quantiles")
            found = [self.likelihood.quantile(f.double(), q) for q in levels.reshape(-1).double()]
            values = torch.stack(found).to(f.dtype)
        return values.reshape(*levels.shape, *self.mean.shape)

    def log_prob(self, targets: Tensor) -> Tensor:
        """Log predictive probability (density, for regression) of each target, averaged over draws inside the log.

            log p(y) = log (1/S) Σ_s p(y | f_s)

        Args:
            targets: Integer labels (...) for classes; otherwise shaped as the mean.

        Returns:
            One number for each target, shaped as `targets`.
        """
        y = targets.to(self.mean.device)
        if self.log_probs is not None:
            return self.likelihood.log_prob(self.log_probs, y)
        self.likelihood.check(self.mean, y)
        if self.exact:
            return -self.std.log() - 0.5 * ((y - self.mean) / self.std) ** 2 - 0.5 * math.log(2 * math.pi)
        f = self._kept("log_prob")
        # The likelihoods sum over their last axis: a new one of length one keeps the targets apart.
        loss = self.likelihood.loss(f.unsqueeze(-1), y.unsqueeze(-1).to(f.dtype).expand_as(f.unsqueeze(-1)))
        return torch.logsumexp(-loss, 0) - math.log(len(f))

    def _kept(self, what: str) -> Tensor:
        if self.outputs is None:
            raise Undefined(f"{what}: needs the outputs of every draw; call predict(..., keep_samples=True)")
        return self.outputs

    def _gaussian_entropy(self, std: Tensor, what: str) -> Tensor:
        if self.likelihood.noise_precision is None:
            raise Undefined(f"{what}: has no closed form for a {self.likelihood.name} likelihood; see `std`")
        return std.log() + 0.5 * math.log(2 * math.pi * math.e)
