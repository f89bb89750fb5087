"""The Laplace approximation: a Gaussian at the trained weights, as wide as the curvature and the prior allow.

q(θ) = N(θ*, T (βH + δ)⁻¹),    H = Σᵢ Jᵢᵀ Λᵢ Jᵢ   (the generalised Gauss-Newton matrix at θ*)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from posterity import likelihoods
from posterity.batches import Batches, batches
from posterity.curvature import diagonal_ggn, full_ggn, kronecker_ggn
from posterity.errors import expected, require, require_positive
from posterity.inputs import attempt
from posterity.learning.checks import check_class_names
from posterity.learning.marginal_likelihood import Evidence, total_loss
from posterity.learning.objective import infer_likelihood
from posterity.learning.temperature import default_temperature
from posterity.likelihoods import Likelihood
from posterity.linalg import DENSE_LIMIT
from posterity.posterior import Diagonal, Full, Kronecker, LastLayer, Posterior
from posterity.trees import Tree, evaluating, only_trainable, require_values, snapshot, to_vector, trainable

FULL_LIMIT = 2000  # weights of a last layer that still get a full matrix: its eigenvalues take seconds

Precisions = dict[str, float]
PriorPrecision = str | float | Mapping[str, float]


def laplace(
    model: nn.Module,
    data: Any,
    *,
    likelihood: str | Likelihood | None = None,
    structure: str = "kron",
    prior_precision: PriorPrecision | None = None,
    noise_precision: str | float | None = None,
    temperature: float | None = None,
    n: int | None = None,
    last_layer: str | None = None,
    inner: str | None = None,
    batch_size: int = 256,
    class_names: Sequence[str] | None = None,
) -> Posterior:
    """The Laplace posterior of a trained model. The model is not changed.

        q(θ) = N(θ*, T (βH + δ)⁻¹),    p(θ) = N(0, 1/δ),    H = Σᵢ Jᵢᵀ Λᵢ Jᵢ

    Normalisation layers use their running statistics and dropout is off; frozen parameters stay fixed.

    Args:
        model: A model trained to the weights θ*.
        data: The training data: (inputs, targets), a Dataset or a DataLoader.
        likelihood: What the outputs mean; by default inferred from the types and shapes of outputs and targets.
        structure: How much of H is kept: "diag", "kron" (a Kronecker product for each parameter), "full", or
            "last_layer" (only the last layer is uncertain).
        prior_precision: δ as a number, as a number for each parameter by name, or learnt by maximising the marginal
            likelihood: "marglik" (also the default) one number for all, "marglik_layerwise" one for each parameter
            tensor.
        noise_precision: β of a regression, a number or "marglik"; by default that of a GaussianLikelihood given as
            an object, otherwise learnt.
        temperature: T, which scales the covariance; n/T is the posterior's ess. By default 1 where `prior_precision`
            is given or targets are not classes. Otherwise the largest T ≤ 1 under which linearised predictions of
            training examples are at most 0.03 nats underconfident (see `posterity.learning.temperature`).
        n: Number of training examples, where `data` is only a sample of them.
        last_layer: Name of the module that counts as the last layer; by default the last one with weights to run.
        inner: Structure of H on the last layer; by default "full" up to 2000 weights, "kron" above.
        batch_size: Examples at a time, where `data` is not a loader.
        class_names: Names of the classes, to be kept with the posterior.

    Returns:
        A Posterior with ess = n/T, the prior that was given or learnt, and the likelihood with its noise precision.
        Its predictions are linearised by default: H is the curvature of the tangent network.

    Examples:
        >>> x = torch.linspace(-1, 1, 50).unsqueeze(-1)
        >>> model = nn.Linear(1, 1)
        >>> posterior = laplace(model, (x, 2 * x), prior_precision=1.0, noise_precision=4.0, structure="full")
        >>> bool(torch.allclose(1 / posterior.variance["bias"], torch.tensor(4.0 * 50 + 1.0)))
        True

    References:
        MacKay, "A practical Bayesian framework for backpropagation networks", 1992.
        Ritter, Botev and Barber, "A scalable Laplace approximation for neural networks", 2018.
        Immer, Bauer, Fortuin, Rätsch and Khan, "Scalable marginal likelihood estimation for model selection", 2021.
    """
    stream = batches(data, batch_size=batch_size)
    require_values(model)
    require(n is None or n >= 1, "n", "a number of examples >= 1", n)
    if temperature is not None:
        require_positive("temperature", temperature)
    weights, f, y = _survey(model, stream, structure, last_layer)
    curvature_of, gaussian_of = _FORMS[_form(structure, inner, weights)]
    unit, noise = _noise(likelihood, noise_precision, f, y)
    check_class_names(class_names, unit, f)
    prior = _prior(prior_precision, weights)
    layerwise = prior_precision == "marglik_layerwise" or isinstance(prior_precision, Mapping)
    rest: Tree = {name: p for name, p in trainable(model).items() if name not in weights}

    with evaluating(model), only_trainable(model, weights):
        loss, observations, examples = total_loss(model, stream, unit, f.device)
        curvature = curvature_of(model, stream, unit)
        n = stream.n if n is None else n
        scale = n / examples
        if noise is None or prior is None:
            observed = 0 if unit.noise_precision is None else observations
            options: dict[str, Any] = {"observations": observed, "scale": scale, "layerwise": layerwise}
            noise, prior = Evidence.of(curvature, weights, loss=loss, **options).maximise(noise, prior)
        gaussian = gaussian_of(weights, curvature, scale * noise, prior)
        if temperature is None:
            chosen = prior_precision is None
            temperature = default_temperature(model, stream, gaussian.covariance(), unit) if chosen else 1.0
    if temperature != 1:
        prior = {name: delta / temperature for name, delta in prior.items()}
        gaussian = gaussian_of(weights, curvature, scale * noise / temperature, prior)
    return Posterior.of(
        model,
        LastLayer(gaussian, rest) if structure == "last_layer" else gaussian,
        prior=Diagonal({name: torch.zeros_like(w) for name, w in weights.items()}, _tensors(prior)),
        n=n,
        ess=n / temperature,
        likelihood=unit if unit.noise_precision is None else unit.with_noise_precision(noise),
        class_names=class_names,
        predictive="linearised",
    )


def _diagonal(mean: Tree, curvature: Tree, scale: float, prior: Precisions) -> Diagonal:
    return Diagonal(mean, {name: scale * h + prior[name] for name, h in curvature.items()})


def _kronecker(mean: Tree, curvature: dict[str, tuple[Tensor, ...]], scale: float, prior: Precisions) -> Kronecker:
    factors = {name: (scale * first, *rest) for name, (first, *rest) in curvature.items()}
    return Kronecker(mean, factors, _tensors(prior))


def _full(mean: Tree, curvature: Tensor, scale: float, prior: Precisions) -> Full:
    diagonal = to_vector({name: torch.full_like(m, prior[name]) for name, m in mean.items()})
    return Full(mean, scale * curvature + diagonal.to(curvature).diag())


def _tensors(precisions: Precisions) -> Tree:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in precisions.items()}


_FORMS: dict[str, tuple[Callable[..., Any], Callable[..., Diagonal | Kronecker | Full]]] = {
    "diag": (diagonal_ggn, _diagonal),
    "kron": (kronecker_ggn, _kronecker),
    "full": (full_ggn, _full),
}


def _form(structure: str, inner: str | None, weights: Tree) -> str:
    """The key of `_FORMS` for the weights that are uncertain."""
    known = sorted(_FORMS)
    require(structure in (*known, "last_layer"), "structure", f"one of {[*known, 'last_layer']}", structure)
    if structure != "last_layer":
        require(inner is None, "inner", "structure='last_layer' beside it", structure)
    require(inner is None or inner in known, "inner", f"one of {known}", inner)
    size = sum(w.numel() for w in weights.values())
    form = structure if structure != "last_layer" else inner or ("full" if size <= FULL_LIMIT else "kron")
    fits = form != "full" or size <= DENSE_LIMIT
    require(fits, "weights of a full matrix", f"at most {DENSE_LIMIT} (or structure='kron')", size)
    return form


def _survey(model: nn.Module, stream: Batches, structure: str, last_layer: str | None) -> tuple[Tree, Tensor, Tensor]:
    """The weights that are to be uncertain, and the outputs and targets of the first batch."""
    everything = trainable(model)
    require(bool(everything), "model", "trainable parameters", "none")
    batch = next(iter(stream), None)
    if batch is None:
        raise expected("data", "at least one batch", "an empty loader")
    batch = batch.to(next(iter(everything.values())).device)
    with evaluating(model), torch.no_grad(), _running_order(model) as ran:
        f = attempt(model, batch.inputs)
    if structure != "last_layer":
        require(last_layer is None, "last_layer", "structure='last_layer' beside it", structure)
        return snapshot(everything), f, batch.targets
    name = next(reversed(ran), None) if last_layer is None else last_layer
    module = dict(model.named_modules()).get(name)
    if module is None:
        raise expected("last_layer", f"a module among {[m for m, _ in model.named_modules() if m]}", name)
    inside = {id(p) for p in module.parameters()}
    weights = {key: p for key, p in everything.items() if id(p) in inside}
    require(bool(weights), "last_layer", "a module with trainable parameters", name)
    return snapshot(weights), f, batch.targets


@contextmanager
def _running_order(model: nn.Module) -> Iterator[list[str]]:
    """Names of the innermost modules with trainable parameters, in the order in which they run."""
    ran: list[str] = []
    handles = [
        module.register_forward_hook(lambda *_, name=name: ran.append(name))
        for name, module in model.named_modules()
        if not any(module.children()) and any(p.requires_grad for p in module.parameters())
    ]
    try:
        yield ran
    finally:
        for handle in handles:
            handle.remove()


def _noise(
    given: str | Likelihood | None, precision: str | float | None, f: Tensor, y: Tensor
) -> tuple[Likelihood, float | None]:
    """The likelihood at noise precision 1, and the noise precision, None where it is to be learnt."""
    found = infer_likelihood(f, y) if given is None else likelihoods.likelihood(given)
    if found.noise_precision is None:
        require(precision is None, "noise_precision", "a gaussian likelihood beside it", found.name)
        return found, 1.0
    if precision is None:
        precision = found.noise_precision if isinstance(given, Likelihood) else "marglik"
    if isinstance(precision, str):
        require(precision == "marglik", "noise_precision", "a positive number or 'marglik'", precision)
        return found.with_noise_precision(1.0), None
    require_positive("noise_precision", precision)
    return found.with_noise_precision(1.0), float(precision)


def _prior(given: PriorPrecision | None, weights: Tree) -> Precisions | None:
    """The prior precision of each parameter, None where it is to be learnt."""
    if given is None:
        return None
    if isinstance(given, str):
        wanted = "a positive number, one for each parameter, 'marglik' or 'marglik_layerwise'"
        require(given in ("marglik", "marglik_layerwise"), "prior_precision", wanted, given)
        return None
    precisions = dict(given) if isinstance(given, Mapping) else dict.fromkeys(weights, given)
    for name in {**precisions, **weights}:
        if name not in weights or name not in precisions:
            raise expected("prior_precision", f"a number for each of {list(weights)}", list(precisions))
        require_positive(f"prior_precision of {name!r}", precisions[name])
    return {name: float(precisions[name]) for name in weights}
