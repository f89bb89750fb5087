"""`merge`: several posteriors into one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from posterity.errors import expected, require
from posterity.merging._method import Method, check_named
from posterity.merging.gradient_matching import GradientMatching
from posterity.merging.methods import merge_state_dicts, method_of, weights_of
from posterity.posterior import Diagonal, Posterior, Site
from posterity.posterior.projection import diagonal
from posterity.trees import Tree, check_same_shapes


def merge(
    posteriors: Mapping[str, Posterior],
    base: Posterior | None = None,
    *,
    method: str | Method = "gradient_matching",
    weights: Mapping[str, float] | None = None,
    **options: Any,
) -> Posterior:
    """Merge posteriors of fine-tuned models into one, each weighted by its certainty about each weight.

    A task's curvature N_t H_t is the precision that its data added to its prior (its site), so nothing has to be
    computed from data; the base's is its whole precision P₀. By default task vectors are matched in their gradients:

        P = P₀ + Σ_t α_t N_t H_t,    m = m₀ + P⁻¹ Σ_t α_t (P₀ + N_t H_t)(m_t − m₀)

    For models solved with the base as their prior α is 1: the result is the base plus their sites, which is what all
    data together give. Networks that were trained for some epochs move farther than such a solution, and their sum
    goes too far. For them α is one over the number of tasks: a mean weighted by the certainty of each. With α = −1 a
    task is removed. Other methods choose another mean; the precision is the same. Averages, which have no base, start
    from the prior of the first posterior and count every model's data once.

    Args:
        posteriors: The fine-tuned posteriors, by name. Structures that are not diagonal are projected.
        base: The posterior that all were fine-tuned from; averages ("linear", "fisher", "slerp") take none.
        method: Name of a method, or a `Method`.
        weights: For each posterior a number α_t. By default gradient matching chooses it as above, and other methods
            take 1, as does a name that is missing.
        **options: Options of the method ("density", "convention", ...).

    Returns:
        The merged posterior. Buffers are averaged over the examples behind them; there is no memory of examples.

    Examples:
        >>> def posterior(mean, precision, prior):
        ...     q = Diagonal({"w": torch.tensor([mean])}, {"w": torch.tensor([precision])})
        ...     return Posterior(q, prior=prior or q, n=10, ess=10, likelihood="gaussian")
        >>> base = posterior(0.0, 1.0, None)
        >>> a, b = posterior(1.0, 2.0, base.structure), posterior(-1.0, 4.0, base.structure)
        >>> merged = merge({"a": a, "b": b}, base)
        >>> merged.mean["w"], merged.structure.precision["w"], merged.n
        (tensor([-0.4000]), tensor([5.]), 30)

    References:
        Daheim, Möllenhoff, Ponti, Gurevych and Khan, "Model merging by uncertainty-based gradient matching", 2024.
    """
    chosen = method_of(method, options)
    _check_alike(posteriors, base)
    start = next(iter(posteriors.values())) if base is None else base
    if weights is None and base is not None and isinstance(chosen, GradientMatching) and not _solved(posteriors, base):
        weights = dict.fromkeys(posteriors, 1 / len(posteriors))
    numbers = weights_of(weights, list(posteriors))
    sites = {name: _site(posterior, start) for name, posterior in posteriors.items()}
    ground = start.prior if base is None else diagonal(base.structure, "structure")
    mean = merge_state_dicts(
        {name: posterior.mean for name, posterior in posteriors.items()},
        None if base is None else base.mean,
        method=chosen,
        weights=weights,
        curvatures={name: site.precision for name, site in sites.items()},  # type: ignore[misc]  # all are diagonal
        base_precision=ground.precision_diagonal(),
    )
    counts = [1.0] * len(sites) if chosen.averages else numbers
    added = [site.scaled(count) for site, count in zip(sites.values(), counts, strict=True)]
    precision = _total(ground, added)
    n = (0 if base is None else base.n) + round(sum(site.n for site in added))
    require(n >= 1, "weights", "at least one example left after merging", f"n = {n}")
    return Posterior(
        Diagonal(mean, precision),
        prior=start.prior,
        n=n,
        ess=n * start.ess / start.n,
        likelihood=start.likelihood,
        buffers=_buffers(posteriors, base, counts),
        class_names=start.class_names,
        architecture=start.architecture,
    )


def _check_alike(posteriors: Mapping[str, Posterior], base: Posterior | None) -> None:
    check_named("posteriors", posteriors, Posterior)
    require(len(posteriors) > 0, "posteriors", "at least one", "none")
    require(base is None or isinstance(base, Posterior), "base", "a Posterior", type(base).__name__)
    like = next(iter(posteriors.values())) if base is None else base
    for name, other in posteriors.items():
        check_same_shapes(other.mean, like.mean, f"posterior {name!r}")
        for what in ("architecture", "class_names"):
            found, wanted = getattr(other, what), getattr(like, what)
            if found and wanted and found != wanted:
                raise expected(f"{what} of {name!r}", f"{wanted!r} as in the others", found)
        wanted, found = like.likelihood.settings(), other.likelihood.settings()
        require(found == wanted, f"likelihood of {name!r}", f"{wanted} as in the others", found)


def _solved(posteriors: Mapping[str, Posterior], base: Posterior) -> bool:
    """Whether all were solved, not trained for some epochs, with the base as prior: then what they learnt adds up."""
    return all(
        other.training is None
        and all(torch.equal(m.to(base.mean[name]), base.mean[name]) for name, m in other.prior.mean.items())
        for other in posteriors.values()
    )


def _site(posterior: Posterior, start: Posterior) -> Site:
    """What the data of a task added to its prior, at the temperature of the posterior that merging starts from.

    Data never reduce knowledge: precisions below the prior's, as noisy estimates have some, added nothing.
    """
    flat = replace(posterior, structure=diagonal(posterior.structure, "structure"))
    site = flat - flat.prior
    assert isinstance(site.precision, dict)
    factor = posterior.temperature / start.temperature
    known = replace(site, precision={name: t.clamp(min=0) for name, t in site.precision.items()})
    return replace(known.scaled(factor), n=site.n)


def _total(ground: Diagonal, sites: list[Site]) -> Tree:
    """P₀ + Σ_t α_t N_t H_t."""
    total = Site(ground.mean, ground.precision_diagonal())
    for site in sites:
        total = total + site
    assert isinstance(total.precision, dict)
    return total.precision


def _buffers(posteriors: Mapping[str, Posterior], base: Posterior | None, counts: list[float]) -> Tree:
    """Statistics that are not learnt, averaged over the examples of the models that are put together."""
    parts = [(p.n, p.buffers) for p, count in zip(posteriors.values(), counts, strict=True) if count > 0]
    parts += [] if base is None else [(base.n, base.buffers)]
    examples = sum(n for n, _ in parts)
    merged: Tree = {}
    for name, t in parts[-1][1].items():
        if t.is_floating_point():
            merged[name] = torch.stack([tree[name].double() * (n / examples) for n, tree in parts]).sum(0).to(t.dtype)
        else:
            merged[name] = t
    return merged
