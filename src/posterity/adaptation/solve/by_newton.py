"""Adapting a generalised linear model or a last layer: past, prior and new data in one convex problem."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posterity.adaptation.heads import Head
from posterity.adaptation.past import Past, joined
from posterity.adaptation.penalties.quadratic import gaussian_of
from posterity.adaptation.penalties.replay import predictions_of
from posterity.adaptation.penalties.residual_curvature import covers_all
from posterity.adaptation.problem import AdaptationProblem, Solved
from posterity.adaptation.solve.newton import ConvexProblem, Solution, as_means, minimise
from posterity.batches import Batch
from posterity.likelihoods import Likelihood
from posterity.posterior import Full, Memory
from posterity.trees import Tree

NESTED = 1e-6  # relative error up to which new features count as combinations of the old ones


@dataclass(frozen=True, eq=False)
class Layer:
    """A head inside its model."""

    model: nn.Module
    head: Head

    def rows(self, batch: Batch) -> Tensor:
        """Features of a batch."""
        return self.head.features(self.model, batch.inputs, len(batch))

    def flat(self, tree: Tree) -> Tensor:
        """Tensors of the head in the order of the flat W."""
        return self.head.matrix(tree).reshape(-1).to(next(self.model.parameters()).device)

    @torch.no_grad()
    def write(self, theta: Tensor) -> None:
        """Put weights into the model."""
        there = dict(self.model.named_parameters())
        for name, value in self.head.tree(theta.reshape(self.head.shape)).items():
            there[name].copy_(value)


def carried_over(old: Layer, new: Layer, batch: Batch) -> Tensor | None:
    """T with θ_old = T θ_new: which old weights make the outputs that new weights make; None if there are none.

    Classes that are new have no part in it. Where the features are others, they have to be combinations Aφ of the old
    ones on the given examples: W φ_new = (W A) φ_old.
    """
    (k, d), (k_new, _) = old.head.shape, new.head.shape
    device = next(new.model.parameters()).device
    classes = torch.eye(k, k_new, dtype=torch.float64, device=device)
    before, after = old.rows(batch), new.rows(batch)
    if before.shape == after.shape and torch.equal(before, after):
        return torch.kron(classes, torch.eye(d, dtype=torch.float64, device=device))
    a = torch.linalg.lstsq(before, after, driver="gelsd" if device.type == "cpu" else None).solution.T  # (D_new, D)
    nested = (before @ a.T - after).norm() <= NESTED * after.norm()
    return torch.kron(classes, a.T.contiguous()) if bool(nested) else None


def convex_problem(
    problem: AdaptationProblem, past: Past, new_data: bool = True
) -> tuple[ConvexProblem, Tensor, Tensor | None]:
    """The convex problem of past, prior and (or not) new data, a start, and T with θ_old = T θ_new."""
    assert problem.heads is not None
    old, new = Layer(problem.old, problem.heads[0]), Layer(problem.new, problem.heads[1])
    t = carried_over(old, new, problem.examples())
    width = problem.scale * new.flat(problem.prior.precision_diagonal())
    precision, linear = width.diag(), width * new.flat(problem.prior.mean)
    start = torch.zeros_like(linear)
    if t is not None:
        order = torch.argsort(old.head.order()).to(linear.device)
        rest = past.rest.precision_matrix().double().to(linear.device)[order][:, order]  # as W is flattened
        mean, pull = old.flat(past.rest.mean), old.flat(past.pull)
        same = len(mean) == len(start) and _keeps(t)
        precision = precision + (rest if same else t.T @ rest @ t)  # a product of large matrices, with the identity
        linear = linear + t.T @ (rest @ mean - pull)
        start = mean if same else torch.linalg.lstsq(t, mean).solution
    likelihood = problem.posterior.likelihood
    rows = _rows(new, past.memory, problem.change.added if new_data else None, likelihood)
    return ConvexProblem(likelihood, *rows, precision, linear), start, t


def _keeps(t: Tensor) -> bool:
    """Whether the old weights are among the new ones as they are."""
    return torch.equal(t, torch.eye(*t.shape).to(t))


def by_newton(problem: AdaptationProblem, past: Past) -> Solved:
    """The minimum of the adapted objective, by Newton's method."""
    assert problem.heads is not None
    new, added = Layer(problem.new, problem.heads[1]), problem.change.added
    convex, start, t = convex_problem(problem, past)
    solution = minimise(convex, start)
    new.write(solution.theta)
    memory = past.remembered(new.model)
    memory = memory if added is None else joined(memory, new.model, added)
    looked_at = 2.0 * (solution.steps + 1) * len(convex.features)
    exact = t is not None and problem.keep == 1 and not problem.widths_alone() and _nothing_approximated(problem, past)
    hessian = _precision(problem, new, solution) if _needs_hessian(problem, t) else None
    return Solved(new.model, past, hessian, memory, exact, solution.steps, looked_at, solution.residual)


def _needs_hessian(problem: AdaptationProblem, t: Tensor | None) -> bool:
    """Whether the Hessian is the best that is known: of a dense posterior, or of weights that the old model has not.

    Otherwise a diagonal remainder that was cut off at zero is in it, and changes of curvature add up better.
    """
    assert problem.heads is not None
    old, new = problem.heads
    same = t is not None and _keeps(t) and old.names == new.names
    return isinstance(gaussian_of(problem.posterior.structure), Full) or not same


def _precision(problem: AdaptationProblem, new: Layer, solution: Solution) -> Tensor:
    """The Hessian, tempered, in the order of a posterior."""
    order = new.head.order().to(solution.hessian.device)
    return solution.hessian[order][:, order] / problem.scale


def _nothing_approximated(problem: AdaptationProblem, past: Past) -> bool:
    """Whether memory and remainder are the past itself: every example is there, or the losses are quadratic."""
    if past.memory is not None and covers_all(problem.posterior, problem.memory):
        return True
    quadratic = problem.posterior.likelihood.noise_precision is not None
    return quadratic and problem.change.others is None and isinstance(past.rest, Full)


def retrained(problem: AdaptationProblem, batch: Batch) -> nn.Module:
    """The model trained on all given data."""
    assert problem.heads is not None
    new = Layer(copy.deepcopy(problem.new), problem.heads[1])
    width = problem.scale * new.flat(problem.prior.precision_diagonal())
    centre, likelihood = new.flat(problem.prior.mean), problem.posterior.likelihood
    rows = _rows(new, None, batch, likelihood)
    new.write(minimise(ConvexProblem(likelihood, *rows, width.diag(), width * centre), centre).theta)
    return new.model


def _rows(
    new: Layer, memory: Memory | None, added: Batch | None, likelihood: Likelihood
) -> tuple[Tensor, Tensor, Tensor]:
    """Features, expected targets and weights of the memory (soft labels) and of new data (their own)."""
    k, d = new.head.shape
    device = next(new.model.parameters()).device
    features, targets, weights = [], [], []
    if memory is not None:
        soft = likelihood.mean(predictions_of(memory).double())
        features.append(new.rows(memory.batch()))
        targets.append(as_means(likelihood, soft, k).to(device))
        weights.append(memory.weights.double().to(device))
    if added is not None:
        features.append(new.rows(added))
        targets.append(as_means(likelihood, added.targets, k).to(device))
        weights.append(torch.ones(len(added), dtype=torch.float64, device=device))
    if not features:
        empty = torch.zeros(0, d, dtype=torch.float64, device=device)
        return empty, empty.new_zeros(0, k), empty.new_zeros(0)
    return torch.cat(features), torch.cat(targets), torch.cat(weights)
