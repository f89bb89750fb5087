"""A variational network: IVON learns a Gaussian over all weights of a reward network, reward by reward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posterity.errors import require_positive, require_whole
from posterity.exploration.bandits._belief import Belief, RewardHistory, arms_of, checked, squared_error
from posterity.likelihoods import GaussianLikelihood
from posterity.noise import seeded
from posterity.optim import IVON
from posterity.posterior import Diagonal, Posterior
from posterity.trees import evaluating, trainable

CLIP = 10.0  # largest norm of a gradient: a rare large one, met where h is small, would throw the mean far off


class VariationalNetwork(Belief):
    """A network whose weights are N(m, 1/(n(h + δ))), so that its uncertainty is that after n rewards.

    Draws continue the optimizer's own stream of noise: they are reproduced by the same questions in the same order, and
    not by seed and number alone.

    Args:
        network: Contexts (B, D) to rewards (B, arms); trained in place.
        features: Length D of a context.
        noise_precision: Of the rewards.
        prior_precision: Of the weights.
        steps: Steps of IVON for each update, on rewards drawn from all that were seen.
        batch_size: Rewards a step.
        lr: Learning rate of IVON.
        hess_init: Initial Hessian of the mean loss.
        beta2: Decay of the Hessian estimate.
        samples: Draws for the moments.
        seed: Of everything random.
    """

    def __init__(
        self,
        network: nn.Module,
        features: int,
        *,
        noise_precision: float = 1.0,
        prior_precision: float = 1.0,
        steps: int = 1,
        batch_size: int = 64,
        lr: float = 0.1,
        hess_init: float = 1.0,
        beta2: float = 0.999,
        samples: int = 16,
        seed: int = 0,
    ) -> None:
        require_positive("noise_precision", noise_precision)
        for name, value, least in (("steps", steps, 1), ("batch_size", batch_size, 1), ("samples", samples, 2)):
            require_whole(name, value, least)
        self._like = next(network.parameters())
        self.network = network
        self.arms = arms_of(network, torch.zeros(1, features).to(self._like))
        self.optimizer: IVON = IVON(
            trainable(network).items(),
            lr=lr,
            ess=1.0,
            hess_init=hess_init,
            betas=(0.9, beta2),
            prior=Diagonal.isotropic(trainable(network), prior_precision),
            seed=seed,
        )
        self._noise_precision, self._samples = noise_precision, samples
        self._steps, self._batch_size = steps, batch_size
        self._history, self._generator = RewardHistory(), seeded(seed)

    @torch.no_grad()
    def draw(self, contexts: Tensor, seed: int, number: int) -> Tensor:
        rows = []
        for row in contexts.to(self._like).split(1):
            with self.optimizer.sampled_params(), evaluating(self.network):
                rows.append(self.network(row))
        return torch.cat(rows).double()

    @torch.no_grad()
    def moments(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        drawn = []
        for _ in range(self._samples):
            with self.optimizer.sampled_params(), evaluating(self.network):
                drawn.append(self.network(contexts.to(self._like)).double())
        return torch.stack(drawn).mean(0), torch.stack(drawn).std(0)

    def update(self, contexts: Tensor, arms: Tensor, rewards: Tensor) -> None:
        checked(contexts, arms, rewards, self.arms)
        self._history.add(contexts.to(self._like), arms, rewards.double())
        for group in self.optimizer.param_groups:
            group["ess"] = float(self._history.n)
        for _ in range(self._steps):
            batch = self._history.sample(self._batch_size, self._generator)
            with self.optimizer.sampled_params(train=True):
                (self._noise_precision * squared_error(self.network, *batch)).backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def posterior(self) -> Posterior:
        """The posterior over the weights, for every other question."""
        n = max(self._history.n, 1)
        return self.optimizer.posterior(self.network, likelihood=GaussianLikelihood(self._noise_precision), n=n)
