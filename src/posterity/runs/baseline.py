"""The plainest model on the same rows: a logistic regression, or a ridge regression, to compare a run with."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity import metrics
from posterity.runs.preprocessing import Examples
from posterity.runs.targets import Amount, Classes, Target
from posterity.startup import put_off_compiler

STRENGTH = 1.0  # λ of λ/2 ‖W‖², scikit-learn's 1/C and alpha
LOGISTIC, RIDGE = "logistic regression", "ridge regression"
STEPS = 100  # of L-BFGS
ENOUGH = 50_000  # training rows, for a linear model that is only compared with
_ROUNDS, _ENOUGH = 100, 1e-4  # of the evidence, and the relative change of the prior at which it is found
_NOISE, _TINY = 1e-9, 1e-12  # least noise, in squares of the targets; instead of a division by zero


def baseline(train: Examples, test: Examples | None, target: Target) -> dict[str, dict[str, float]]:
    """Figures of merit on the held-out rows, by the name of the model; nothing for counts, or without such rows."""
    if test is None:
        return {}
    n = len(train.targets)
    some = slice(None, None, -(-n // ENOUGH))  # evenly spaced
    x, y = train.inputs[some].flatten(1).double(), train.targets[some]
    of = "" if len(y) == n else f" of {len(y):,} training rows"
    z = test.inputs.flatten(1).double()
    if isinstance(target, Classes):
        weights, bias = logistic(x, y, target.outputs)
        probs = (z @ weights + bias).softmax(-1)
        nll = -probs.clamp_min(1e-300).log().gather(1, test.targets[:, None]).mean().item()
        accuracy, ece = metrics.accuracy(probs, test.targets), metrics.ece(probs, test.targets)
        return {LOGISTIC + of: {"accuracy": accuracy, "nll": nll, "ece": ece}}
    if isinstance(target, Amount):
        weights, bias = ridge(x, y.double())
        return {RIDGE + of: {"rmse": target.scale * metrics.rmse(z @ weights + bias, test.targets.double())}}
    return {}


def logistic(
    x: Tensor,
    labels: Tensor,
    classes: int,
    strength: float = STRENGTH,
    start: tuple[Tensor, Tensor] | None = None,
    steps: int = STEPS,
) -> tuple[Tensor, Tensor]:
    """Minimise Σᵢ −log softmax(xᵢW + b)_{yᵢ} + λ/2 ‖W‖² by L-BFGS, from zero or from weights and bias that are near."""
    put_off_compiler()
    zero = x.new_zeros(x.shape[1], classes), x.new_zeros(classes)
    weights, bias = (t.detach().clone().requires_grad_() for t in start or zero)
    optimizer = torch.optim.LBFGS(
        [weights, bias], max_iter=steps, tolerance_grad=1e-6, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ weights + bias, labels, reduction="sum")
        value = (loss + strength / 2 * weights.square().sum()) / len(x)  # scaled, for tolerances that fit any N
        value.backward()
        return value

    optimizer.step(objective)
    return weights.detach(), bias.detach()


def ridge(x: Tensor, y: Tensor, strength: float = STRENGTH) -> tuple[Tensor, Tensor]:
    """Minimise ‖xW + b − y‖² + λ ‖W‖²: W = (XᵀX + λI)⁻¹ Xᵀy on centred data."""
    centre, middle = x.mean(0), y.mean(0)
    a = x - centre
    gram = a.T @ a + strength * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(gram, a.T @ (y - middle))
    return weights, middle - centre @ weights


def likeliest_ridge(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The ridge regression under whose noise and prior the targets are likeliest.

        γ = Σⱼ βlⱼ / (βlⱼ + α),    α ← γ / ‖W‖²,    β ← (N − γ) / ‖xW + b − y‖²

    α is the precision of the prior, β that of the noise, l are the eigenvalues of XᵀX on centred data.

    Args:
        x: Inputs, (N, D).
        y: Targets, (N, 1).

    Returns:
        Weights (D, 1) and bias (1).

    References:
        MacKay, "Bayesian interpolation", 1992.
    """
    centre, middle = x.mean(0), y.mean(0)
    a, r = x - centre, y - middle
    wide = a.shape[1] > len(a)
    values, vectors = torch.linalg.eigh(a @ a.T if wide else a.T @ a)  # of the same values, but for zeros
    values = values.clamp_min(0)
    q = (vectors.T @ (r if wide else a.T @ r))[:, 0]
    total, squares = r.square().sum(), (values if wide else 1) * q.square()
    alpha, beta = torch.ones_like(total), len(y) / total.clamp_min(_TINY)
    for _ in range(_ROUNDS):
        before, shrunk = alpha / beta, 1 / (values + alpha / beta)
        counted = (values * shrunk).sum()
        alpha = counted / (squares * shrunk.square()).sum().clamp_min(_TINY)
        error = total - (squares * shrunk * (2 - values * shrunk)).sum()
        beta = (len(y) - counted) / torch.maximum(error, _NOISE * total).clamp_min(_TINY)
        if (alpha / beta - before).abs() <= _ENOUGH * before:
            break
    inside = vectors @ (q / (values + alpha / beta))[:, None]
    weights = a.T @ inside if wide else inside
    return weights, middle - centre @ weights
