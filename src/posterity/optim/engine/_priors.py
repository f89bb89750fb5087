"""Before and after training: priors and extra terms by name, and the resulting posterior."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from posterity.errors import expected, require
from posterity.likelihoods import Likelihood
from posterity.optim._distributed import placed_as
from posterity.optim.engine._parameters import Parameters
from posterity.posterior import Diagonal, Posterior, Structure
from posterity.trees import Tree, check_same_shapes, state_dtype


def diagonal_prior(prior: Diagonal | Posterior) -> dict[str, Tree]:
    """Mean and precision of a diagonal prior, under the names that they have in the state of a parameter."""
    structure = prior.structure if isinstance(prior, Posterior) else prior
    if not isinstance(structure, Diagonal):
        raise expected("prior", "a Diagonal, or a Posterior of that structure", type(structure).__name__)
    found = prior.as_prior() if isinstance(prior, Posterior) else structure
    return {"prior_mean": found.mean, "prior_precision": found.precision_diagonal()}


def write(parameters: Parameters, what: str, tree: Tree, given: Collection[str], kind: str) -> None:
    """Write a tensor for each parameter into its state, where the equations of the optimizer read it.

    Args:
        parameters: The parameters, which have names.
        what: The name of the tensor in the state of a parameter.
        tree: The tensors by the names of parameters.
        given: What the equations read.
        kind: Whose equations.
    """
    if what not in given:
        raise expected(what, "an optimizer with such a part in its equations", kind)
    names = parameters.named()
    check_same_shapes({name: t for name, t in tree.items() if name in names}, names, what)
    for name, p in names.items():
        value = tree[name].detach().to(p.device, state_dtype(p.dtype), copy=True).contiguous()
        parameters.state[p][what] = placed_as(value, p)


def trained(parameters: Parameters, model: nn.Module) -> dict[str, Tensor]:
    """The parameters that an optimizer trains, by their names in the model, all of which it must have."""
    mine = set(parameters.trained())
    names: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p in mine}
    require(len(names) == len(mine), "model", f"the {len(mine)} trained parameters", f"{len(names)} of them")
    return names


def posterior(
    parameters: Parameters,
    model: nn.Module,
    names: Mapping[str, Tensor],
    structure: Structure,
    likelihood: str | Likelihood,
    n: int,
) -> Posterior:
    """The posterior of a model's trained parameters, in the order of the model."""
    groups = {p: group for group, p in parameters if p.requires_grad}
    sizes = {float(group["ess"]) for group in groups.values()}
    require(len(sizes) == 1, "ess", "the same for all parameter groups", sorted(sizes))
    prior = {name: parameters.prior_of(p, groups[p]) for name, p in names.items()}
    return Posterior.of(
        model,
        structure,
        prior=Diagonal({name: m for name, (m, _) in prior.items()}, {name: s for name, (_, s) in prior.items()}),
        n=n,
        ess=sizes.pop(),
        likelihood=likelihood,
    )
