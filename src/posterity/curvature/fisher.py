"""The diagonal Fisher information, and gradients of each example's own loss: their squares, norms and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller

import torch
from torch import Tensor, nn

from posterity.batches import Batch
from posterity.curvature._gradients import Gradient
from posterity.curvature._tape import Tape
from posterity.curvature.ggn import Data, diagonal_ggn, own_part
from posterity.curvature.passes import Pass
from posterity.distributed import totals
from posterity.errors import expected, require_whole
from posterity.likelihoods import Likelihood
from posterity.likelihoods import likelihood as likelihood_of
from posterity.noise import own_seed
from posterity.progress import track
from posterity.trees import Tree

_TOTAL, _SQUARES = methodcaller("total"), methodcaller("squares")


def diagonal_fisher(
    model: nn.Module,
    batches: Data,
    likelihood: str | Likelihood,
    kind: str = "true",
    *,
    samples: int = 1,
    seed: int = 0,
    memory: int | None = None,
) -> Tree:
    """The diagonal of the Fisher information Σ_n E[g_n²], g_n = ∇ −log p(y | x_n), summed over the data.

    Gradients are squared example by example, so the result does not depend on how the data are batched; only the
    labels that are drawn do.

    - "true": labels from the model's own predictive, in closed form. For the likelihoods here, whose logits are
      natural parameters, this is the generalised Gauss-Newton matrix.
    - "sampled": the same expectation by `samples` drawn labels: unbiased, at the cost of one backward pass each.
    - "empirical": the labels of the data; not an expectation under the model.

    Args:
        model: Network whose logits have the class axis last; with further axes (tokens, pixels), an example is a row
            of the batch and its loss the sum over positions.
        batches: Batches of data.
        likelihood: What the logits mean.
        kind: "true", "sampled" or "empirical".
        samples: Labels drawn for each example.
        seed: Seed of the drawn labels.
        memory: Bytes that may be held at a time beside the model and the data; a modest amount by default.

    Returns:
        One tensor for each trainable parameter, shaped as it is.

    References:
        Kunstner, Balles and Hennig, "Limitations of the empirical Fisher approximation", 2019.
    """
    law = likelihood_of(likelihood)
    if kind == "true":
        return diagonal_ggn(model, batches, law, memory=memory)
    if kind == "empirical":
        return per_example_squared_gradients(model, batches, law, memory=memory)
    if kind != "sampled":
        raise expected("kind", "'true', 'sampled' or 'empirical'", kind)
    require_whole("samples", samples)
    generator = torch.Generator(next(model.parameters()).device)

    def begin(number: int) -> None:
        """Labels depend on the batch alone, not on the process that reads it."""
        generator.manual_seed(own_seed(seed, number))

    def drawn(f: Tensor, y: Tensor) -> Tensor:
        law.check(f, y)
        return torch.stack([law.residual(f, law.sample(f, generator)) for _ in range(samples)]) / samples**0.5

    return _sums(model, batches, drawn, samples, memory, _SQUARES, begin=begin)[0]


def per_example_squared_gradients(
    model: nn.Module, batches: Data, likelihood: str | Likelihood, *, memory: int | None = None
) -> Tree:
    """Σ_n g_n², squares of the gradient of each example's own loss, summed over the data.

        Σ_n g_n² = (b²)ᵀ (a²)   for a layer y = W a that meets each example once

    Args:
        model: Network whose logits have the class axis last.
        batches: Batches of data.
        likelihood: What the logits mean.
        memory: Bytes that may be held at a time beside the model and the data; a modest amount by default.

    Returns:
        One tensor for each trainable parameter, shaped as it is.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> data = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [-1.0]])
        >>> per_example_squared_gradients(model, data, "gaussian")  # 3² + 2²
        {'weight': tensor([[13.]])}
    """
    law = likelihood_of(likelihood)
    return _sums(model, batches, lambda f, y: _residual(law, f, y).unsqueeze(0), 1, memory, _SQUARES)[0]


def gradient_moments(
    model: nn.Module, batches: Data, likelihood: str | Likelihood, *, memory: int | None = None
) -> tuple[Tree, Tree]:
    """Σ_n g_n and Σ_n g_n² from the same backward pass, g_n the gradient of one example's loss."""
    law = likelihood_of(likelihood)
    first, second = _sums(model, batches, lambda f, y: _residual(law, f, y).unsqueeze(0), 1, memory, _TOTAL, _SQUARES)
    return first, second


def per_example_gradient_norms(
    model: nn.Module, batch: Batch, likelihood: str | Likelihood, *, memory: int | None = None
) -> Tensor:
    """‖g_n‖ for each example of a batch, (B,): ‖b‖ ‖a‖ for a layer y = W a, never a gradient written out."""
    squared = []
    with Tape(model, memory=memory) as tape:
        for _, step, v in _residuals(tape, batch, likelihood):
            norms = v.new_zeros(v.shape[1])
            for _, examples, gradient in step.gradients(v):
                norms[examples] += gradient.norms()[0]
            squared.append(norms)
    return torch.cat(squared).sqrt()


def per_example_gradients(
    model: nn.Module, batch: Batch, likelihood: str | Likelihood, names: Sequence[str] | None = None
) -> Tree:
    """g_n itself for each example of a batch, written out: (B, *shape) for each parameter asked for."""
    with Tape(model, names) as tape:
        found = {name: sums.new_zeros(len(batch), sums.numel()) for name, sums in tape.zeros().items()}
        for part, step, v in _residuals(tape, batch, likelihood):
            for name, examples, gradient in step.gradients(v):
                found[name][part][examples] = gradient.rows()[0]
    return {name: g.reshape(len(g), *tape.parameters[name].shape) for name, g in found.items()}


def _sums(
    model: nn.Module,
    batches: Data,
    directions: Callable[[Tensor, Tensor], Tensor],
    roots: int,
    memory: int | None,
    *reductions: Callable[[Gradient], Tensor],
    begin: Callable[[int], None] = lambda _: None,
) -> list[Tree]:
    """Sums over gradients, for output directions (R, n, ..., K) made from logits and targets, batch by batch."""
    own = own_part(batches)
    with Tape(model, memory=memory) as tape:
        sums = [tape.zeros() for _ in reductions]
        for number, batch in enumerate(track(own, "gradients"), own.first):
            begin(number)
            batch = batch.to(tape.device)
            for part, step in tape.passes(batch.inputs, roots):
                for name, _, gradient in step.gradients(directions(step.outputs, batch.targets[part])):
                    for total, reduction in zip(sums, reductions):
                        total[name] += reduction(gradient).reshape(total[name].shape)
    return [totals(tree) for tree in sums]


def _residuals(tape: Tape, batch: Batch, likelihood: str | Likelihood) -> Iterator[tuple[slice, Pass, Tensor]]:
    """Passes over one batch, which examples they are of, and the residuals (1, n, ..., K) of those."""
    if not isinstance(batch, Batch):
        raise expected("batch", "a Batch, such as one of batches((inputs, targets))", type(batch).__name__)
    law, batch = likelihood_of(likelihood), batch.to(tape.device)
    for part, step in tape.passes(batch.inputs, roots=1):
        yield part, step, _residual(law, step.outputs, batch.targets[part]).unsqueeze(0)


def _residual(law: Likelihood, f: Tensor, y: Tensor) -> Tensor:
    law.check(f, y)
    return law.residual(f, y)
