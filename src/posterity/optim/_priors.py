"""What stands before and after training: priors and extra terms by name, and the posterior handed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from posterity.errors import expected, require
from posterity.likelihoods import Likelihood
from posterity.optim._distributed import home, placed_as, whole
from posterity.posterior import Diagonal, Posterior
from posterity.trees import Tree, check_same_shapes, state_dtype

if TYPE_CHECKING:
    from posterity.optim._variational import Group, VariationalOptimizer


def set_prior(optimizer: VariationalOptimizer, prior: Diagonal | Posterior) -> None:
    """Write mean and precision of a diagonal prior into the state of each parameter."""
    structure = prior.structure if isinstance(prior, Posterior) else prior
    if not isinstance(structure, Diagonal):
        raise expected("prior", "a Diagonal, or a Posterior of that structure", type(structure).__name__)
    write(optimizer, "prior_mean", structure.mean)
    write(optimizer, "prior_precision", structure.precision_diagonal())


def set_term(optimizer: VariationalOptimizer, linear: Tree, quadratic: Tree) -> None:
    """Write the two parts of an extra term into the state of each parameter."""
    write(optimizer, "linear", linear)
    write(optimizer, "quadratic", quadratic)


def write(optimizer: VariationalOptimizer, what: str, tree: Tree) -> None:
    """Write a tensor for each parameter into its state, where the equations of the optimizer read it."""
    if what not in optimizer.given:
        raise expected(what, "an optimizer with such a part in its equations", type(optimizer).__name__)
    names = named(optimizer)
    check_same_shapes({name: t for name, t in tree.items() if name in names}, names, what)
    for name, p in names.items():
        given = tree[name].detach().to(p.device, state_dtype(p.dtype), copy=True).contiguous()
        optimizer.state[p][what] = placed_as(given, p)
    optimizer._fast.look_again()


def named(optimizer: VariationalOptimizer) -> dict[str, Tensor]:
    """The parameters by name, where the optimizer was given names."""
    names: dict[str, Tensor] = {}
    for group in optimizer.param_groups:
        if "param_names" not in group:
            raise expected("params", "named parameters, as in model.named_parameters()", "unnamed ones")
        names.update(zip(group["param_names"], group["params"], strict=True))
    return names


def prior_of(optimizer: VariationalOptimizer, p: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Mean and precision of the prior of one parameter."""
    state = optimizer.state.get(p, {})
    if "prior_precision" in state:
        return whole(state["prior_mean"]), whole(state["prior_precision"])
    mean = torch.zeros(p.shape, dtype=state_dtype(p.dtype), device=home(p))
    return mean, mean.new_tensor(group["ess"] * group["weight_decay"])


def precision_of(optimizer: VariationalOptimizer, p: Tensor, group: Group) -> Tensor:
    """Posterior precision of one parameter."""
    precision = optimizer.precision(optimizer._tensors(p), optimizer.numbers(p, group))
    found = torch.as_tensor(precision, dtype=state_dtype(p.dtype), device=p.device)
    return whole(found).to(home(p)).expand(p.shape)


def diagonal(optimizer: VariationalOptimizer, names: Mapping[str, Tensor]) -> Diagonal:
    """The means and precisions of named parameters."""
    groups = {p: group for group, p in optimizer._parameters()}
    mean = {name: whole(p) for name, p in names.items()}
    return Diagonal(mean, {name: precision_of(optimizer, p, groups[p]) for name, p in names.items()})


def trained(optimizer: VariationalOptimizer, model: nn.Module) -> dict[str, Tensor]:
    """The parameters that an optimizer trains, by their names in the model, all of which it must have."""
    mine = set(optimizer._trained())
    names: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p in mine}
    require(len(names) == len(mine), "model", f"the {len(mine)} trained parameters", f"{len(names)} of them")
    return names


def posterior(optimizer: VariationalOptimizer, model: nn.Module, likelihood: str | Likelihood, n: int) -> Posterior:
    """The posterior of a model's trained parameters, in the order of the model."""
    groups = {p: group for group, p in optimizer._parameters() if p.requires_grad}
    names = trained(optimizer, model)
    sizes = {float(group["ess"]) for group in groups.values()}
    require(len(sizes) == 1, "ess", "the same for all parameter groups", sorted(sizes))
    prior = {name: prior_of(optimizer, p, groups[p]) for name, p in names.items()}
    return Posterior.of(
        model,
        optimizer.structure(names),
        prior=Diagonal({name: m for name, (m, _) in prior.items()}, {name: s for name, (_, s) in prior.items()}),
        n=n,
        ess=sizes.pop(),
        likelihood=likelihood,
    )
