"""The generalised Gauss-Newton matrix Σ_n J_nᵀ Λ_n J_n: its diagonal, its Kronecker factors, and the matrix itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from posterity.batches import OwnPart, batches
from posterity.curvature._kronecker import Factors
from posterity.curvature._single_linear import SingleLinear
from posterity.curvature._tape import Tape
from posterity.curvature.passes import Pass
from posterity.distributed import total as over_processes
from posterity.distributed import totals
from posterity.errors import require
from posterity.likelihoods import Likelihood
from posterity.likelihoods import likelihood as likelihood_of
from posterity.progress import track
from posterity.trees import Tree

Data = Iterable[Any] | Dataset[Any]


def diagonal_ggn(model: nn.Module, batches: Data, likelihood: str | Likelihood, *, memory: int | None = None) -> Tree:
    """The diagonal of the generalised Gauss-Newton matrix, exact over all outputs, summed over the data.

        h = Σ_n Σ_r (J_nᵀ r_nr)²,   Σ_r r_nr r_nrᵀ = Λ_n

    For a layer y = W a that meets an example once, the sum over r and n is the matrix product (Σ_r b_r²)ᵀ (a²).

    Args:
        model: Network whose logits have the class axis last; further axes (tokens, pixels) count as examples.
        batches: Batches of data, or what they can be made of: (inputs, targets), a Dataset or a DataLoader.
        likelihood: What the logits mean.
        memory: Bytes that may be held at a time beside the model and the data; a modest amount by default.

    Returns:
        One tensor for each trainable parameter, shaped as it is.

    Examples:
        >>> import torch
        >>> model = nn.Linear(2, 1)
        >>> data = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(2, 1)
        >>> diagonal_ggn(model, data, "gaussian")["weight"]  # Σ x²
        tensor([[10., 20.]])
    """
    known = likelihood_of(likelihood)
    with Tape(model, memory=memory) as tape:
        total = tape.zeros()
        for step in map(Pass.apart, _passes(tape, batches, known)):
            for v in _roots(step, known):
                for name, _, gradient in step.gradients(v):
                    total[name] += gradient.squares().reshape(total[name].shape)
    return totals(total)


def kronecker_ggn(
    model: nn.Module,
    batches: Data,
    likelihood: str | Likelihood,
    *,
    sharing: str = "expand",
    memory: int | None = None,
) -> dict[str, tuple[Tensor, ...]]:
    """Kronecker factors (B, A) of the generalised Gauss-Newton matrix, summed over the data.

        block of a weight (out, in · kernel) ≈ B ⊗ A,   B = Σ_n Σ_r b bᵀ,   A = (1/N) Σ_n a aᵀ;   of a bias: (B,)

    Where a layer meets an example at T positions (pixels, tokens, repeated calls), "expand" takes every position for
    an example of its own, B = Σ_nt b bᵀ and A = 1/(NT) Σ_nt a aᵀ, and "reduce" sums first, B = Σ_n (Σ_t b)(Σ_t b)ᵀ
    and A = 1/N Σ_n (mean_t a)(mean_t a)ᵀ. Scales and shifts of normalisation layers have their exact block where they
    have one axis, and the step towards a product that parameters without a closed form get where they have more.

    Args:
        model: Network whose logits have the class axis last; further axes (tokens, pixels) count as examples.
        batches: Batches of data.
        likelihood: What the logits mean.
        sharing: "expand" or "reduce".
        memory: Bytes that may be held at a time beside the model and the data; a modest amount by default.

    Returns:
        For each trainable parameter a tuple of symmetric factors, whose Kronecker product is its block.

    References:
        Martens and Grosse, "Optimizing neural networks with Kronecker-factored approximate curvature", 2015.
        Eschenhagen et al., "Kronecker-factored approximate curvature for modern neural network architectures", 2023.
    """
    known = likelihood_of(likelihood)
    require(sharing in ("expand", "reduce"), "sharing", "'expand' or 'reduce'", sharing)
    with Tape(model, memory=memory) as tape:
        factors = Factors(tape, sharing)
        for step in _passes(tape, batches, known):
            if step.is_head:
                factors.add_head(step, known.total_curvature(step.outputs))
                continue
            for v in _roots(step, known):
                factors.add(step, v)
    return factors.result()


def full_ggn(
    model: nn.Module,
    batches: Data,
    likelihood: str | Likelihood,
    names: Sequence[str] | None = None,
    *,
    memory: int | None = None,
) -> Tensor:
    """The generalised Gauss-Newton matrix Σ_n J_nᵀ Λ_n J_n itself, for small models or some of the parameters.

    The parameters of one linear layer need no Jacobian: their matrix is Σ_n (Σ_r b_r b_rᵀ) ⊗ (a aᵀ), a with a 1
    appended for the bias.

    Args:
        model: Network whose logits have the class axis last; further axes (tokens, pixels) count as examples.
        batches: Batches of data.
        likelihood: What the logits mean.
        names: Parameters to cover, in this order; all trainable ones by default.
        memory: Bytes that may be held at a time beside the model, the data and the result; a modest amount by default.

    Returns:
        The matrix (P, P), in the order of `trees.trainable` or of `names`.
    """
    known = likelihood_of(likelihood)
    with Tape(model, names, memory) as tape:
        size = sum(p.numel() for p in tape.parameters.values())
        total = next(iter(tape.zeros().values())).new_zeros(size, size)
        for step in map(Pass.apart, _passes(tape, batches, known)):
            single = SingleLinear.of(step)
            for v in _roots(step, known):
                if single is not None:
                    b = next(step.signals(v))[1]
                    for examples in step.split(single.numbers):
                        total += single.outer_sum(b, examples)
                    continue
                for _, rows in step.jacobians(v):
                    flat = rows.flatten(0, 1)
                    total.addmm_(flat.T, flat)
    return over_processes(total)


def own_part(data: Data) -> OwnPart:
    """The batches of this process."""
    return OwnPart(batches(data) if isinstance(data, (tuple, Dataset, DataLoader)) else data)


def _passes(tape: Tape, data: Data, likelihood: Likelihood) -> Iterator[Pass]:
    for batch in track(own_part(data), "curvature"):
        batch = batch.to(tape.device)
        for part, step in tape.passes(batch.inputs):
            # No target enters the curvature, but one that does not fit tells of outputs in another order or meaning.
            likelihood.check(step.outputs, batch.targets[part])
            yield step


def _roots(step: Pass, likelihood: Likelihood) -> Iterator[Tensor]:
    """Output directions (R, n, ..., K) whose outer products sum to the curvature Λ."""
    return step.at_positions(lambda f: likelihood.curvature_root(f).movedim(-1, 0))
