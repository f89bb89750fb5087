"""The Posterior: the result of training, and the input of every later question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self, overload

import torch
from torch import Tensor, nn

from posterity import likelihoods
from posterity.curvature.covariance import Covariance
from posterity.errors import InvalidInput, expected, require, require_positive, require_whole
from posterity.likelihoods import Likelihood
from posterity.posterior import store
from posterity.posterior._memory import Memory
from posterity.posterior._structure import Structure
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.full import Full
from posterity.posterior.last_layer import LastLayer
from posterity.posterior.projection import diagonal, project
from posterity.posterior.pruning import Pruned, cut
from posterity.posterior.sites import Site, gaussian, natural
from posterity.posterior.training import Training
from posterity.trees import Tree, check_same_shapes, fingerprint, require_values, snapshot, trainable

PREDICTIVES = ("sampled", "linearised")


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Posterior:
    """A distribution over a model's parameters, with everything that later questions need.

    Args:
        structure: Diagonal, Full, Kronecker, Rotated, LastLayer, LowRank, Mixture, Ensemble, Dropout or Signs.
        prior: The prior it was trained with.
        n: Number of training examples.
        ess: Effective sample size, n divided by the temperature.
        likelihood: What the model's outputs mean; a name or a `Likelihood`.
        buffers: State that is not learnt by gradients (batch-norm statistics).
        class_names: Names of the classes, in the order of the outputs.
        architecture: Fingerprint of the model, empty if unknown.
        memory: Examples to remember.
        predictive: How predictions are made by default: "sampled" averages over drawn networks,
            "linearised" over draws of the outputs of the tangent network, which is what the Gauss-Newton curvature
            of a Laplace approximation describes.
        training: How long and how fast it was trained, where that is known.
        output_temperature: What predictions divide the logits of classes by: temperature scaling, fitted on rows that
            were not trained on. Other questions than predictions do not see it. What adapts, merges or averages
            networks starts from 1 again: it was fitted to the one network.

    Examples:
        >>> model = nn.Linear(2, 1)
        >>> weights = snapshot(trainable(model))
        >>> prior = Diagonal.isotropic(weights, 1.0)
        >>> q = Diagonal(weights, prior.precision)
        >>> posterior = Posterior.of(model, q, prior=prior, n=10, ess=10, likelihood="gaussian")
        >>> bool((posterior.sample(3)["weight"] == posterior.sample(3)["weight"]).all())
        True
    """

    structure: Structure
    prior: Diagonal
    n: int
    ess: float
    likelihood: Likelihood
    buffers: Tree
    class_names: tuple[str, ...] | None
    architecture: str
    memory: Memory | None
    predictive: str
    training: Training | None
    output_temperature: float

    def __init__(
        self,
        structure: Structure,
        *,
        prior: Diagonal,
        n: int,
        ess: float,
        likelihood: str | Likelihood,
        buffers: Mapping[str, Tensor] | None = None,
        class_names: Sequence[str] | None = None,
        architecture: str = "",
        memory: Memory | None = None,
        predictive: str = "sampled",
        training: Training | None = None,
        output_temperature: float = 1.0,
    ) -> None:
        require_whole("n", n)
        require(n < 2**63, "n", "a number of examples below 2⁶³", "a larger one")
        require_positive("ess", ess)
        require_positive("output_temperature", output_temperature)
        require(predictive in PREDICTIVES, "predictive", f"one of {list(PREDICTIVES)}", predictive)
        values = {
            "structure": structure,
            "prior": prior,
            "n": int(n),  # numpy's numbers, and names below, have no place in a file
            "ess": float(ess),
            "likelihood": likelihoods.likelihood(likelihood),
            "buffers": snapshot(buffers or {}),
            "class_names": None if class_names is None else tuple(map(str, class_names)),
            "architecture": architecture,
            "memory": memory,
            "predictive": predictive,
            "training": training,
            "output_temperature": float(output_temperature),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check_values()

    def __repr__(self) -> str:
        cold = "" if self.ess == self.n else f", temperature={self.temperature:.3g}"
        soft = "" if self.output_temperature == 1 else f", output_temperature={self.output_temperature:.3g}"
        return f"Posterior({self.structure}, n={self.n}, ess={self.ess:g}{cold}, likelihood={self.likelihood}{soft})"

    def _check_values(self) -> None:
        if not isinstance(self.structure, Structure):
            raise expected("structure", "a structure such as Diagonal or Full", type(self.structure).__name__)
        if not isinstance(self.prior, Diagonal):
            raise expected("prior", "a Diagonal Gaussian", type(self.prior).__name__)
        for name, t in self.prior.mean.items():
            known = self.structure.mean.get(name)
            if known is None:
                raise expected("prior", f"parameters among {sorted(self.structure.mean)}", name)
            require(known.shape == t.shape, f"prior of {name!r}", f"shape {tuple(known.shape)}", tuple(t.shape))
        require(isinstance(self.architecture, str), "architecture", "a text", type(self.architecture).__name__)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        structure: Structure,
        *,
        prior: Diagonal,
        n: int,
        ess: float,
        likelihood: str | Likelihood,
        class_names: Sequence[str] | None = None,
        memory: Memory | None = None,
        predictive: str = "sampled",
        training: Training | None = None,
        output_temperature: float = 1.0,
    ) -> Self:
        """The posterior of a model: its buffers and its architecture are taken along."""
        stored = model.state_dict(keep_vars=True)
        posterior = cls(
            structure,
            prior=prior,
            n=n,
            ess=ess,
            likelihood=likelihood,
            buffers={name: b for name, b in model.named_buffers() if name in stored},
            class_names=class_names,
            architecture=fingerprint(model),
            memory=memory,
            predictive=predictive,
            training=training,
            output_temperature=output_temperature,
        )
        posterior.check(model)
        return posterior

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.structure.names

    @property
    def temperature(self) -> float:
        """n/ess: what a loss of all examples is divided by in this posterior; 1 is Bayes' rule, less is colder."""
        return self.n / self.ess

    @property
    def prior_pulls(self) -> bool:
        """Whether the prior is a part of what the means were trained on; one that a training centred at them is not.

        It decided widths alone. Without a training, as before the first data, mean and prior may just be the same.
        """
        return self.training is None or any(
            not torch.equal(m.to(self.mean[name]), self.mean[name]) for name, m in self.prior.mean.items()
        )

    @property
    def prior_without_data(self) -> Diagonal:
        """The prior that is left when all data are forgotten: about zero where training had centred it at its means."""
        if self.prior_pulls:
            return self.prior
        return Diagonal({name: torch.zeros_like(m) for name, m in self.prior.mean.items()}, self.prior.precision)

    @property
    def mean(self) -> Tree:
        """Posterior mean of each parameter."""
        return self.structure.mean

    @property
    def variance(self) -> Tree:
        """Marginal posterior variance of each weight."""
        return self.structure.variance

    def sample(self, k: int, seed: int = 0) -> Tree:
        """Draw number k, the same each time it is asked for, on any device."""
        return self.structure.sample(k, seed)

    def log_prob(self, tree: Mapping[str, Tensor]) -> Tensor:
        """Log-density of the parameters in `tree`."""
        return self.structure.log_prob(tree)

    def entropy(self) -> Tensor:
        """Differential entropy in nats."""
        return self.structure.entropy()

    def kl(self, other: Posterior | Structure) -> Tensor:
        """KL(self ‖ other) in nats, to another posterior or to a prior."""
        return self.structure.kl(other.structure if isinstance(other, Posterior) else other)

    def covariance(self, untempered: bool = False) -> Covariance:
        """The covariance Σ, or Σ·ess/n: what it would be at temperature 1."""
        covariance = self.structure.covariance()
        return covariance.scaled(self.ess / self.n) if untempered else covariance

    def project(self, to: Literal["diagonal", "full"]) -> Posterior:
        """The same posterior with a simpler (or a dense) structure; "diagonal" keeps the diagonal of the precision."""
        return replace(self, structure=project(self.structure, to))

    def as_prior(self) -> Diagonal:
        """The prior that this posterior leaves for other data: the diagonal of its precision, at temperature 1."""
        return diagonal(self.structure, "prior").times(self.temperature)

    def prune(self, fraction: float | None = None, *, below: float | None = None, cost: float | None = None) -> Pruned:
        """Set weights with a low signal-to-noise ratio |m|/σ to zero, and report the cost.

        Args:
            fraction: Share of the weights that go.
            below: Signal-to-noise ratio below which weights go.
            cost: Rise of the mean training objective, in nats for each example, that may be paid.

        Returns:
            The posterior given that those weights are zero, how many they are, and the estimated cost.

        References:
            Graves, "Practical variational inference for neural networks", 2011.
        """
        found = cut(self.structure, self.ess, fraction, below, cost)
        return Pruned(replace(self, structure=found.structure), *found[1:])

    def tempered(self, temperature: float) -> Posterior:
        """The same posterior at another temperature T: precisions of posterior and prior are those of T = 1, over T.

        Below 1 draws lie closer to the mean; the mean, and what is asked at temperature 1, stay the same. Other
        structures than diagonal and full ones contribute the diagonal of their precision.

        Args:
            temperature: T, n over the new ess.
        """
        require_positive("temperature", temperature)
        factor, whole = self.temperature / temperature, self._scalable()
        structure = gaussian(natural(whole.structure).scaled(factor), whole.structure)
        return replace(whole, structure=structure, prior=self.prior.times(factor), ess=self.n / temperature)

    def discounted(self, forget: float) -> Posterior:
        """The posterior with a share γ of its data forgotten: λ₀ + (1 − γ)(λ − λ₀), λ₀ the prior's natural parameters.

        A prior that a training centred at its own weights, as `po.fit` does by default, counts as one about zero: its
        centre was learnt from the data. Other structures than diagonal and full ones contribute the diagonal of their
        precision.

        Args:
            forget: γ in [0, 1]; with 1 the prior is left.
        """
        require(0 <= forget <= 1, "forget", "a number in [0, 1]", forget)
        if forget == 0:
            return self
        whole, prior = self._scalable(), self.prior_without_data
        known = natural(prior.restrict(tuple(natural(whole.structure).linear)))
        data = (natural(whole.structure) - known).scaled(1 - forget)
        memory = self.memory and replace(self.memory, weights=(1 - forget) * self.memory.weights)
        return replace(whole, structure=gaussian(known + data, whole.structure), prior=prior, memory=memory)

    def _scalable(self) -> Posterior:
        """Itself, or its diagonal where a multiple of its precision is not of its structure."""
        simple = self.structure.inner if isinstance(self.structure, LastLayer) else self.structure
        return self if isinstance(simple, Diagonal | Full) else self.project("diagonal")

    def natural(self) -> Site:
        """Natural parameters as a site that represents all n examples and the prior."""
        return replace(natural(self.structure), n=float(self.n), ess=self.ess)

    def __add__(self, site: Site) -> Posterior:
        """The posterior with a site's data added."""
        if not isinstance(site, Site):
            return NotImplemented
        whole = self.natural() + site
        n = round(whole.n)
        require(n >= 1, "sites", "at least one example left (without any, what is left is the prior)", f"n = {n}")
        return replace(self, structure=gaussian(whole, self.structure), n=n, ess=whole.ess)

    @overload
    def __sub__(self, other: Site) -> Posterior: ...
    @overload
    def __sub__(self, other: Posterior | Structure) -> Site: ...
    def __sub__(self, other: Site | Posterior | Structure) -> Posterior | Site:
        """With a site: the posterior without its data. With a prior: the site, what the data added to that prior."""
        if isinstance(other, Site):
            return self + other.scaled(-1.0)
        if isinstance(other, Posterior):
            return self.natural() - other.natural()
        if isinstance(other, Structure):
            return self.natural() - natural(self._counterpart(other))
        return NotImplemented

    def _counterpart(self, other: Structure) -> Structure:
        return self.structure.counterpart(other) if isinstance(self.structure, LastLayer) else other

    def save(self, folder: str | Path) -> None:
        """Write the posterior into a folder, atomically: safetensors and a JSON manifest, never pickle."""
        store.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "cpu") -> Self:
        """Read a posterior onto a device; one that is damaged, foreign or newer is refused (`RefusedFile`)."""
        return store.load(cls, folder, device)

    @torch.no_grad()
    def apply(self, model: nn.Module, tree: Mapping[str, Tensor] | None = None) -> None:
        """Write the mean, or the parameters in `tree`, and the buffers into a model, in place."""
        self.check(model)
        if tree is not None:
            check_same_shapes(tree, self.mean, "parameters")
        there = _tensors(model)
        for name, value in {**self.buffers, **(self.mean if tree is None else tree)}.items():
            there[name].copy_(value)
        torch.clear_autocast_cache()  # which may have copies of the old ones

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The mean and the buffers in a model, and afterwards what was there before, also after an error."""
        self.check(model)
        there = _tensors(model)
        values = {**self.buffers, **self.mean}
        before = snapshot({name: there[name] for name in values})
        try:
            _write_changes(values, there)
            yield
        finally:
            _write_changes(before, there)

    def check(self, model: nn.Module) -> None:
        """Raise an error that names the first mismatch, if this is not a posterior of such a model."""
        require_values(model)
        there = _tensors(model)
        _check_known("parameter", self.mean, there)
        _check_known("buffer", self.buffers, there)
        found = fingerprint(model)
        if not self.architecture or self.architecture == found:
            return
        for name in trainable(model):
            if name not in self.mean:
                raise InvalidInput(f"model: expected the architecture of the posterior, got another parameter {name!r}")
        raise expected("model", f"the architecture {self.architecture} (names and shapes agree, modules do not)", found)


@torch.no_grad()
def _write_changes(values: Tree, there: Mapping[str, Tensor]) -> None:
    """Copy values in place where they differ: a graph that waits for its backward pass stays valid where none does."""
    for name, value in values.items():
        if not torch.equal(there[name], value.to(there[name])):
            there[name].copy_(value)
    torch.clear_autocast_cache()


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _check_known(what: str, tensors: Tree, there: Mapping[str, Tensor]) -> None:
    for name, t in tensors.items():
        if name not in there:
            raise InvalidInput(f"model: expected a {what} {name!r} of shape {tuple(t.shape)}, got no such {what}")
        if there[name].shape != t.shape:
            raise expected(f"model {what} {name!r}", f"shape {tuple(t.shape)}", tuple(there[name].shape))
