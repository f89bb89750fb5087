"""Latent Dirichlet allocation: topics of documents."""

from __future__ import annotations

import warnings
from typing import Any, Literal, Self

import numpy as np
import torch
from scipy import sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from posterity.errors import require, require_whole
from posterity.families import Dirichlet
from posterity.graph import Fit, Model, Topics, svi, svi_step, vmp
from posterity.graph.evaluated import Evaluated
from posterity.graph.sweeps import settle
from posterity.models._base import BayesianEstimator
from posterity.rule import robbins_monro


class LatentDirichletAllocation(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BayesianEstimator):  # type: ignore[misc]
    """Documents as mixtures of topics: θ_d ~ Dir(α), β_k ~ Dir(η), each word from β_k with chance θ_dk.

    Args:
        n_components: Number of topics K, at least 2.
        method: "svi" (minibatches of documents) or "vmp" (all in each sweep).
        doc_topic_prior: α; 1/K unless given.
        topic_word_prior: η; 1/K unless given.
        learning_offset: τ₀ of the steps ρ_t = (τ₀ + t)^−κ.
        learning_decay: κ, in (½, 1].
        batch_size: Documents of a minibatch.
        max_iter: Passes over the data.
        tol: Stop when no natural parameter moves by more than this, relative to the largest.
        max_doc_iter: Updates of a document's proportions, at most.
        doc_tol: When they are at rest.
        random_state: Of the first topics and of the order of minibatches.

    Attributes:
        posterior_: {"topics": Dirichlet}, (K, words).
        components_: Its concentration.
        lower_bounds_: The evidence bound, estimated on the minibatch for "svi".
        n_iter_: Steps taken.

    Examples:
        >>> counts = np.kron(np.eye(2, dtype=int), np.full((20, 3), 4))  # two kinds of documents, three words each
        >>> topics = LatentDirichletAllocation(2, random_state=0).fit(counts)
        >>> topics.transform(counts[[0, -1]]).max(1).round(1)
        array([1., 1.])
    """

    def __init__(
        self,
        n_components: int = 10,
        *,
        method: Literal["svi", "vmp"] = "svi",
        doc_topic_prior: float | None = None,
        topic_word_prior: float | None = None,
        learning_offset: float = 10.0,
        learning_decay: float = 0.7,
        batch_size: int = 128,
        max_iter: int = 10,
        tol: float = 1e-4,
        max_doc_iter: int = 100,
        doc_tol: float = 1e-3,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.learning_offset = learning_offset
        self.learning_decay = learning_decay
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.max_doc_iter = max_doc_iter
        self.doc_tol = doc_tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn topics from counts X (documents, words)."""
        X = self._begin(X)
        model, start = self._model(X), self._first(X.shape[1])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "λ still moves", RuntimeWarning)
            if self.method == "vmp":
                return self._keep(vmp(model, start, steps=self.max_iter, tolerance=self.tol))
        seed = self._seed()
        steps = self.max_iter * -(-len(X) // min(self.batch_size, len(X)))
        return self._keep(
            svi(
                model, start, batch_size=self.batch_size, steps=steps, schedule=self._schedule(), tolerance=self.tol,
                local_steps=self.max_doc_iter, local_tolerance=self.doc_tol, seed=seed,
            )
        )  # fmt: skip

    def partial_fit(self, X: Any, y: Any = None, *, total_samples: int | None = None) -> Self:
        """Learn from more documents.

        Args:
            X: Counts (documents, words).
            y: Ignored.
            total_samples: Size of the corpus these are a minibatch of: one step of stochastic variational inference.
                Unless given, documents are news: yesterday's posterior is today's prior.
        """
        known = hasattr(self, "posterior_")
        X = self._counts(X) if known else self._begin(X)
        q: dict[str, Any] = self.posterior_ if known else self._first(X.shape[1])
        model = self._model(X)
        if total_samples is not None:
            self.n_batches_ += 1
            q, bound, change = svi_step(
                model, q, self._schedule()(self.n_batches_), n=total_samples,
                local_steps=self.max_doc_iter, local_tolerance=self.doc_tol,
            )  # fmt: skip
            return self._keep(Fit(q, [bound], 1, change <= self.tol))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "λ still moves", RuntimeWarning)
            return self._keep(vmp(model.given(q) if known else model, q, steps=100 * self.max_iter, tolerance=self.tol))

    def transform(self, X: Any) -> np.ndarray:
        """Expected proportions of the topics in each document, (documents, K)."""
        return self._proportions(X)[0].mean.numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """The bound on log p(X), the documents' share alone, for each word that occurs."""
        q, bound = self._proportions(X)
        words = float(self._counts(X).sum())
        price = q.kl(Dirichlet(torch.full_like(q.concentration, self._alpha))).sum()
        return float(bound - price) / max(words, 1.0)

    def perplexity(self, X: Any) -> float:
        """exp(−score): the lower, the better the words were expected."""
        return float(np.exp(-self.score(X)))

    def sample(self, n_samples: int = 1, words: int = 100) -> np.ndarray:
        """Counts of documents drawn from the predictive, each with so many words."""
        check_is_fitted(self)
        generator = self._generator()
        prior = Dirichlet(torch.full((self.n_components,), self._alpha, dtype=torch.float64))
        chance = prior.sample(n_samples, generator) @ self.posterior_["topics"].mean
        drawn = torch.multinomial(chance, words, replacement=True, generator=generator)
        return torch.zeros_like(chance).scatter_add_(1, drawn, torch.ones_like(drawn, dtype=chance.dtype)).numpy()

    @property
    def _alpha(self) -> float:
        return 1.0 / self.n_components if self.doc_topic_prior is None else self.doc_topic_prior

    def _begin(self, X: Any) -> Tensor:
        require_whole("n_components", self.n_components, 2)
        require(self.method in ("svi", "vmp"), "method", '"svi" or "vmp"', self.method)
        self.n_batches_ = 0
        return self._counts(X, reset=True)

    def _counts(self, X: Any, reset: bool = False) -> Tensor:
        """The counts, as sparse as they come."""
        if not sparse.issparse(X):
            return self._tensor(X, reset=reset, ensure_non_negative=True)
        checked = validate_data(
            self, X, reset=reset, dtype=np.float64, accept_sparse="csr", ensure_non_negative=True
        ).tocoo()
        places = torch.as_tensor(np.stack(checked.coords).astype(np.int64))
        values = torch.as_tensor(checked.data)
        return torch.sparse_coo_tensor(places, values, checked.shape, check_invariants=True).coalesce()

    def _model(self, X: Tensor) -> Model:
        K = self.n_components
        eta = 1.0 / K if self.topic_word_prior is None else self.topic_word_prior
        proportions = Dirichlet(torch.full((K,), self._alpha, dtype=torch.float64))
        return Model(
            {"topics": Dirichlet(torch.full((K, X.shape[1]), eta, dtype=torch.float64))},
            [Topics("proportions", "topics", X)],
            local={"proportions": proportions},
        )

    def _first(self, words: int) -> dict[str, Any]:
        """Topics that are almost the same: enough for them to part."""
        shape = torch.full((self.n_components, words), 100.0, dtype=torch.float64)
        return {"topics": Dirichlet(torch._standard_gamma(shape, generator=self._generator()) / 100.0)}

    def _schedule(self) -> Any:
        return robbins_monro(self.learning_offset, self.learning_decay)

    def _keep(self, fit: Fit) -> Self:
        self.posterior_ = {"topics": fit.q["topics"]}
        self.components_ = fit.q["topics"].concentration.numpy()
        self._n_features_out = self.n_components
        self.lower_bounds_, self.n_iter_, self.converged_ = fit.bounds, fit.steps, fit.converged
        return self

    def _proportions(self, X: Any) -> tuple[Dirichlet, Tensor]:
        """q(θ_d) of each document, at rest, and the value of the words."""
        check_is_fitted(self)
        model = self._model(self._counts(X))
        known = Evaluated(model)
        q, _ = settle(known, model.start(self.posterior_), self.max_doc_iter, self.doc_tol)
        proportions = q["proportions"]
        assert isinstance(proportions, Dirichlet)
        return proportions, known.factor(0, q).value

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = tags.input_tags.sparse = True
        return tags
