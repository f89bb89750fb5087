"""NeuralLinear: a network learns features, and a Bayesian linear model of each arm acts on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posterity.adaptation.heads import Head, find_head
from posterity.errors import expected, require_positive, require_whole
from posterity.exploration.bandits._belief import Belief, RewardHistory, arms_of, squared_error
from posterity.exploration.bandits.linear import LinearGaussian
from posterity.learning.seeding import own_randomness, seed_step
from posterity.noise import own_seed
from posterity.trees import evaluating


class NeuralLinear(Belief):
    """The last-layer Laplace posterior of a reward network, exact between two trainings of its features.

    Rewards update the linear models at once. After every `every` of them the network is trained on all that was seen,
    from where it is, and the linear models are built again on its new features.

    Args:
        network: Contexts (B, D) to rewards (B, arms), through a linear last layer; trained in place.
        features: Length D of a context.
        prior_precision: Of the last layer's weights.
        noise_precision: Of the rewards where it is known; learnt otherwise.
        every: Rewards between two trainings.
        steps: Steps of a training.
        batch_size: Examples a step.
        lr: Learning rate of Adam.
        seed: Of everything random.

    References:
        Riquelme, Tucker and Snoek, "Deep Bayesian bandits showdown", 2018.
    """

    def __init__(
        self,
        network: nn.Module,
        features: int,
        *,
        prior_precision: float = 1.0,
        noise_precision: float | None = None,
        every: int = 100,
        steps: int = 100,
        batch_size: int = 64,
        lr: float = 1e-2,
        seed: int = 0,
    ) -> None:
        for name, value in (("every", every), ("steps", steps), ("batch_size", batch_size)):
            require_whole(name, value)
        require_positive("lr", lr)
        like = next(network.parameters())
        one = torch.zeros(1, features, dtype=like.dtype, device=like.device)
        head = find_head(network, one)
        if head is None:
            raise expected("network", "outputs that a linear layer makes", type(network).__name__)
        self.network, self.arms, self._head, self._like = network, arms_of(network, one), head, like
        self._prior_precision, self._noise_precision = prior_precision, noise_precision
        self._every, self._steps, self._batch_size, self._lr, self._seed = every, steps, batch_size, lr, seed
        self._history, self._fresh = RewardHistory(), 0
        self.linear = self._new_linear(head)

    def draw(self, contexts: Tensor, seed: int, number: int) -> Tensor:
        return self.linear.draw(self._features(contexts), seed, number)

    def moments(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear.moments(self._features(contexts))

    def update(self, contexts: Tensor, arms: Tensor, rewards: Tensor) -> None:
        self.linear.update(self._features(contexts), arms, rewards)
        self._history.add(contexts.to(self._like), arms, rewards.double())
        self._fresh += len(arms)
        if self._fresh >= self._every:
            self._fresh = 0
            self._train()
            self.linear = self._new_linear(self._head)
            contexts, arms, rewards = self._history.columns
            for rows in torch.arange(self._history.n).split(self._batch_size):
                self.linear.update(self._features(contexts[rows]), arms[rows], rewards[rows])

    def _train(self) -> None:
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self._lr)
        with own_randomness(self._like.device):
            seed_step(self._seed, self._history.n, self._like.device)
            generator = torch.Generator().manual_seed(own_seed(self._seed, self._history.n))
            for _ in range(self._steps):
                optimizer.zero_grad(set_to_none=True)
                squared_error(self.network, *self._history.sample(self._batch_size, generator)).backward()
                optimizer.step()

    def _new_linear(self, head: Head) -> LinearGaussian:
        return LinearGaussian(
            head.shape[1],
            self.arms,
            bias=False,
            prior_precision=self._prior_precision,
            noise_precision=self._noise_precision,
        )

    def _features(self, contexts: Tensor) -> Tensor:
        """What the last layer is given, its bias feature included, (B, D)."""
        with evaluating(self.network):
            return self._head.features(self.network, contexts.to(self._like), len(contexts))
