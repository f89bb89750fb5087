"""`Stream`: predict, then learn, chunk by chunk, in a world that may change.

Several posteriors learn side by side, each of which forgets another share γ of its past before a chunk,

    λ_γ ← λ₀ + (1 − γ)(λ_γ − λ₀) + site of the chunk.

Before it learns a chunk, each predicts it, averaged over the posterior and by its mean alone. What was most likely in
recent chunks is used:

    s_γ ← d s_γ + log p_γ(chunk),    d = 0.8.

With many weights and few rows a posterior at temperature 1 can be so wide that its average says little.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch
from torch import nn

from posterity import likelihoods
from posterity.adaptation._adapt import adapt
from posterity.adaptation.heads import find_head, solvable_alone
from posterity.adaptation.selection import select
from posterity.adaptation.solve.drift import Drift
from posterity.adaptation.solve.forgetting import checked
from posterity.adaptation.streams import store
from posterity.batches import Batch, batches
from posterity.errors import InvalidInput, require, require_positive, require_whole
from posterity.inputs import tensors
from posterity.learning import fit
from posterity.learning.checks import check_inputs
from posterity.likelihoods import Likelihood
from posterity.posterior import Diagonal, Full, Memory, Posterior
from posterity.prediction import Prediction, predict
from posterity.trees import require_values, snapshot, to_vector, trainable

RATES = (0.0, 0.05, 0.2, 0.5, 0.8, 1.0)
COLUMNS = ("chunk", "rows", "loss", "accuracy", "forget", "against_keeping", "drift")
NOISE_ROUNDS = 8  # of expectation maximisation, which gains a factor n/d each
DECAY = 0.8  # of scores: about five chunks count
DRAWS = (64, 0)  # the two ways to predict: averaged, and at the mean


class Stream:
    """A model that learns from one chunk of data after another, with bounded memory.

    Linear models, and last layers on frozen networks, learn each chunk by Newton's method from a full posterior.
    Networks are trained on the first chunk by `fit` and adapted to the others with a K-prior and a memory.

    Args:
        model: The model; a copy of it learns.
        likelihood: What the outputs mean. For "gaussian" the first chunk decides the noise, 1/β = E_q[(y − f)²]; a
            `GaussianLikelihood` keeps the precision that it has.
        forget: Share γ of the past to forget before each chunk, or "auto": linear models then keep posteriors that
            forget at six rates, networks choose γ by the predictive likelihood of each chunk.
        prior_precision: Precision of the prior of a linear model.
        memory: Examples that a network remembers.
        folder: A folder in which the stream is kept after each chunk.
        seed: Of everything random.
        **settings: Of `fit`, for the first chunk of a network. Its folds are blocks of neighbouring rows, which in a
            stream are often alike (`folds="random"` for others).

    Examples:
        >>> import posterity as po
        >>> x = torch.linspace(-1, 1, 40).double().unsqueeze(1)
        >>> _ = torch.manual_seed(0)
        >>> stream = po.Stream(nn.Linear(1, 1).double(), likelihood="bernoulli")
        >>> for sign in (1, 1, 1, -1, -1):
        ...     row = stream.learn((x, (sign * x > 0).double()))
        >>> row["forget"], row["drift"]  # the labels were turned around
        (1.0, True)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        likelihood: str | Likelihood,
        forget: float | str = "auto",
        prior_precision: float = 1.0,
        memory: int = 200,
        folder: str | Path | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        require(isinstance(model, nn.Module), "model", "a torch.nn.Module", type(model).__name__)
        require_values(model)
        require_positive("prior_precision", prior_precision)
        require_whole("memory", memory)
        self.likelihood = likelihoods.likelihood(likelihood)
        self._noise_is_given = self.likelihood.noise_precision is None or not isinstance(likelihood, str)
        self.forget = checked(forget)
        self.prior_precision, self.memory, self.seed, self.settings = (
            float(prior_precision),
            int(memory),
            seed,
            settings,
        )
        self.folder = None if folder is None else Path(folder)
        self._model = copy.deepcopy(model).eval()
        self._linear: bool | None = None
        self._posteriors: list[Posterior] = []
        self._scores: list[float] = []
        self._rows: list[dict[str, Any]] = []
        if self.folder is not None:
            store.refuse_occupied(self.folder)

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module) -> Self:
        """Go on with a stream that was kept in a folder; `model` has to be the same architecture."""
        kept = store.read(Path(folder))
        stream = cls(model, likelihood=kept.likelihood, forget=kept.forget, **kept.settings)
        for posterior in kept.posteriors:
            posterior.check(stream._model)
        stream.folder = Path(folder)
        count = len(DRAWS) * len(kept.posteriors)  # an earlier version had a score for each posterior
        stream._posteriors, stream._scores = kept.posteriors, (kept.scores * len(DRAWS))[:count]
        stream._rows, stream._linear = kept.rows, kept.linear
        return stream

    def __repr__(self) -> str:
        return f"Stream({len(self._rows)} chunks, forget={self.forget})"

    @property
    def rates(self) -> tuple[float | str, ...]:
        """The shares that are forgotten, one for each posterior."""
        return RATES if self.forget == "auto" and self._linear else (self.forget,)

    @property
    def history(self) -> pd.DataFrame:
        """A row for each chunk: its size, log-loss and accuracy before it was learnt, what was forgotten, and drift."""
        return pd.DataFrame(self._rows, columns=list(COLUMNS))

    @property
    def posterior(self) -> Posterior:
        """The posterior that predicts best."""
        require(len(self._posteriors) > 0, "stream", "at least one chunk learnt", "none")
        return self._posteriors[self._leader % len(self._posteriors)]

    @property
    def model(self) -> nn.Module:
        """A copy of the model at the mean of this posterior."""
        found = copy.deepcopy(self._model)
        self.posterior.apply(found)
        return found

    @property
    def _leader(self) -> int:
        """Number of the best predictions: of each posterior, averaged, then of each at its mean."""
        return max(range(len(self._scores)), key=lambda k: self._scores[k])

    def predict(self, inputs: Any, samples: int = DRAWS[0]) -> Prediction:
        """Predict as was best recently: with that posterior, averaged over it or at its mean.

        Args:
            inputs: What to predict.
            samples: Draws, where predictions are averaged and have no closed form.
        """
        posterior = self.posterior
        return self._predicted(posterior, inputs, samples if self._leader < len(self._posteriors) else 0)

    def learn(self, chunk: Any) -> dict[str, Any]:
        """Predict a chunk, then learn from it; an error leaves the stream as it was.

        Args:
            chunk: (inputs, targets), a Dataset or a DataLoader.

        Returns:
            The row of the history.
        """
        batch = self._checked(chunk)
        row: dict[str, Any] = {"chunk": len(self._rows), "rows": len(batch)}
        if not self._posteriors:
            posteriors = self._first(batch)
            scores = [0.0] * (len(DRAWS) * len(posteriors))
            row |= {"loss": None, "accuracy": None, "forget": None, "against_keeping": 0.0, "drift": False}
        else:
            predictions = [self._predicted(p, batch.inputs, draws) for draws in DRAWS for p in self._posteriors]
            each = [p.log_prob(batch.targets).double() for p in predictions]
            scores = [DECAY * old + new.sum().item() for old, new in zip(self._scores, each)]
            posteriors, drift = self._updated(batch, scores)
            leader = self._leader
            row |= {"loss": -each[leader].mean().item(), "accuracy": self._accuracy(predictions[leader], batch)}
            row |= {"forget": drift.forget, "against_keeping": drift.against_keeping, "drift": drift.found}
        if self.folder is not None:
            kept = store.Kept(
                self.likelihood,
                self.forget,
                self._kept_settings(),
                posteriors,
                scores,
                [*self._rows, row],
                self._linear,
            )
            store.write(self.folder, kept)
        self._posteriors, self._scores = posteriors, scores
        self._rows.append(row)
        return row

    def _kept_settings(self) -> dict[str, Any]:
        ours = {"prior_precision": self.prior_precision, "memory": self.memory, "seed": self.seed}
        return {**ours, **self.settings}

    def _checked(self, chunk: Any) -> Batch:
        parts = list(batches(chunk, batch_size=1024))
        require(sum(map(len, parts)) > 0, "chunk", "at least one example", "none")
        batch = Batch.concatenate(parts)
        check_inputs(self._model, batch)
        for t in (*tensors(batch.inputs), batch.targets):
            require(not t.is_floating_point() or bool(t.isfinite().all()), "chunk", "finite numbers", "NaN or infinity")
        if self._linear is None:
            head = find_head(self._model, batch.inputs)
            self._linear = head is not None and solvable_alone(self._model, head)
        try:
            with torch.no_grad():
                f = self._model(batch.take(torch.arange(1)).inputs)
        except (RuntimeError, TypeError) as why:
            raise InvalidInput(f"chunk: expected inputs that the model takes, got an error: {why}") from why
        self.likelihood.check(f.expand(len(batch), -1), batch.targets)
        # Ids of their own, whatever those of the chunk: it may be read from a file that starts at 0 each time.
        first = sum(row["rows"] for row in self._rows)
        return Batch(batch.inputs, batch.targets, first + torch.arange(len(batch)))

    def _first(self, batch: Batch) -> list[Posterior]:
        """What the first chunk leaves."""
        if not self._linear:
            model = copy.deepcopy(self._model)
            settings: dict[str, Any] = {"likelihood": self.likelihood, "seed": self.seed, "folds": "blocks"}
            run = fit(model, (batch.inputs, batch.targets), **settings | self.settings)
            return [self._with_memory(run.model, run.posterior, batch)]
        zero = {name: torch.zeros_like(p).double() for name, p in snapshot(trainable(self._model)).items()}
        prior = Diagonal.isotropic(zero, self.prior_precision)
        width = torch.full_like(to_vector(zero), self.prior_precision)
        likelihood = self.likelihood
        for _ in range(1 if self._noise_is_given else NOISE_ROUNDS):
            nothing = Posterior.of(
                self._model, Full(zero, width.diag()), prior=prior, n=1, ess=1.0, likelihood=likelihood
            )
            learnt = self._adapted(nothing, batch, 0.0)[0]
            if not self._noise_is_given:
                likelihood = likelihood.with_noise_precision(1 / self._squared_error(learnt, batch))
        n = len(batch)
        return [replace(learnt, n=n, ess=float(n))] * len(self.rates)

    def _squared_error(self, posterior: Posterior, batch: Batch) -> float:
        """E_q[(y − f)²], averaged over examples and outputs."""
        p = self._predicted(posterior, batch.inputs)
        return ((batch.targets - p.mean).square() + p.epistemic_std.square()).double().mean().item()

    def _with_memory(self, model: nn.Module, posterior: Posterior, batch: Batch) -> Posterior:
        if self.memory >= len(batch):
            return replace(posterior, memory=Memory.of(batch))
        data = (batch.inputs, batch.targets, batch.ids)
        return replace(posterior, memory=select(model, posterior, data, self.memory, seed=self.seed))

    def _updated(self, batch: Batch, scores: Sequence[float]) -> tuple[list[Posterior], Drift]:
        found = [self._adapted(p, batch, rate) for p, rate in zip(self._posteriors, self.rates)]
        posteriors = [posterior for posterior, _ in found]
        if len(found) == 1:
            return posteriors, found[0][1] or Drift(0.0, {})
        best = max(scores)
        either = zip(scores[: len(found)], scores[len(found) :])
        evidence = {float(rate): max(pair) - best for rate, pair in zip(RATES, either)}
        return posteriors, Drift(max(evidence, key=lambda rate: evidence[rate]), evidence)

    def _adapted(self, posterior: Posterior, batch: Batch, rate: float | str) -> tuple[Posterior, Drift | None]:
        add = (batch.inputs, batch.targets, batch.ids)
        method = "ewc" if self._linear else None
        result = adapt(self._model, posterior, add=add, forget=rate, method=method, seed=self.seed)
        memory = None if self._linear or result.posterior.memory is None else self._trimmed(result.posterior.memory)
        return replace(result.posterior, memory=memory), result.report.drift

    def _trimmed(self, memory: Memory) -> Memory:
        """As many examples as fit, at random, reweighted to represent all of them."""
        if len(memory) <= self.memory:
            return memory
        generator = torch.Generator().manual_seed(self.seed + len(self._rows))
        rows = torch.randperm(len(memory), generator=generator)[: self.memory]
        kept = memory.take(rows)
        return replace(kept, weights=kept.weights * (memory.weights.sum() / kept.weights.sum()))

    def _accuracy(self, prediction: Prediction, batch: Batch) -> float | None:
        if not self.likelihood.is_classification:
            return None
        right = self.likelihood.decide(prediction.mean) == self.likelihood.labels(batch.targets)
        return right.double().mean().item()

    def _predicted(self, posterior: Posterior, inputs: Any, samples: int = DRAWS[0]) -> Prediction:
        """Linear models in closed form, where there is one; draws otherwise. Without draws, at the mean."""
        tangent = "probit" if self.likelihood.is_classification else "linearised"
        method = tangent if self._linear and samples else "sampled"
        return predict(self._model, posterior, inputs, samples, method=method)
