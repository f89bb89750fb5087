"""A choice in words: its equation and its line of code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from posterity.app.rule import optimizers
from posterity.app.rule.choice import Choice
from posterity.app.rule.optimizers import MOVERS


def docstring_equations(algorithm: Callable[..., Any]) -> list[str]:
    """The update equations in an algorithm's docstring, one to a line.

    Examples:
        >>> from posterity.algorithms import newton
        >>> docstring_equations(newton)
        ['S ← ∇²ℓ(m)', 'm ← m − S⁻¹ ∇ℓ(m)']
    """
    text = (inspect.getdoc(algorithm) or "").split("\nArgs:")[0]
    lines = [line.strip().rstrip(".,:;") for line in text.splitlines() if line.startswith("    ")]
    parts = [part.strip().rstrip(".,:;") for line in lines for part in line.split(",   ")]
    return [part for part in parts if "←" in part or "=" in part]


def equations(choice: Choice) -> list[str]:
    """The step of the rule that a choice gives."""
    if choice.estimator in MOVERS:
        return list(MOVERS[choice.estimator].equations)
    slope, bend = _gradient(choice), _curvature(choice)
    keep = "(1 − ρ)" if choice.temperature == 1.0 else f"(1 − {choice.temperature:g}ρ)"
    push = "v" if choice.momentum else slope
    first = [f"v ← βv + {slope}"] if choice.momentum else []
    if choice.family == "signs":
        decay = "λ" if choice.estimator == "delta-mode" else keep + "λ"
        return [f"λ ← {decay} − ρ {slope}", "μ = tanh λ"]
    if choice.family == "point":
        return [*first, f"m ← m − ρ {push}"]
    if choice.family == "mixture":
        f = "f = ℓ + log q" if choice.temperature == 1.0 else f"f = ℓ + {choice.temperature:g} log q"
        at = "(mₖ)" if choice.estimator == "delta" else ""
        mean = (lambda of: of + at) if at else (lambda of: f"Eₖ[{of}]")
        return [f"Sₖ ← Sₖ + ρ {mean('∇²f')}", f"mₖ ← mₖ − ρ Sₖ⁻¹ {mean('∇f')}", f]
    scale = "(1 − β₂)" if choice.slow_scale is not None else "ρ"
    old = "β₂S" if choice.slow_scale is not None else f"{keep}S"
    by = " / √S" if choice.square_root else ""
    inverse = "" if choice.square_root else "S⁻¹ "
    return [f"S ← {old} + {scale} {bend}", *first, f"m ← m − ρ {inverse}{push}{by}"]


def _gradient(choice: Choice) -> str:
    return {
        "delta": "ĝ" if choice.minibatch else "∇ℓ(m)",
        "monte-carlo": "∇ℓ(θ), θ ~ q",
        "quadrature": "E[∇ℓ]",
        "dropout": "z/π ∘ ∇ℓ(z/π ∘ m)",
        "enumeration": "∇E[ℓ]",
        "relaxed": "s ∘ ∇ℓ(w)",
        "delta-mode": "∇ℓ(sign λ)",
    }[choice.estimator]


def _curvature(choice: Choice) -> str:
    if choice.curvature == "squared":
        return "ĝ²"
    if choice.curvature == "per-example":
        return "Σᵢ gᵢ²"
    if choice.curvature == "gauss-newton":
        return "Σᵢ JᵢᵀΛᵢJᵢ"
    if choice.curvature == "stein":
        return "S(θ − m) ∇ℓ(θ)ᵀ"
    return {"delta": "∇²ℓ(m)", "monte-carlo": "∇²ℓ(θ)"}.get(choice.estimator, "E[∇²ℓ]")


def code(choice: Choice) -> str:
    """Code that does the same, given `q`, `loss` and, where there is one, a `generator`."""
    if choice.estimator in MOVERS:
        return optimizers.code(choice)
    plain, options = Choice(), [_estimator(choice), f"lr={choice.lr:g}"]
    for name in ("momentum", "temperature", "retracted", "slow_scale", "debias", "decay"):
        value = choice.entropy if name == "temperature" else getattr(choice, name)
        if value != getattr(plain, name):
            options.append(f"{name}={value if isinstance(value, bool) else format(value, 'g')}")
    if choice.square_root:
        options.append("square_root=1e-8")
    losses = f"loss.minibatches({choice.minibatch}, seed={choice.seed})" if choice.minibatch else "loss"
    return f"rule = BayesianLearningRule({', '.join(options)})\nq = rule.run(q, {losses}, steps={choice.steps})"


def _estimator(choice: Choice) -> str:
    bend = {"squared": "SquaredGradients()", "per-example": "SquaredGradients(per_example=True)"}
    curvature = (bend | {"gauss-newton": "GaussNewton()", "stein": "Stein()"}).get(choice.curvature, "")
    return {
        "delta": f"Delta({curvature})",
        "delta-mode": 'Delta(at="mode")',
        "monte-carlo": f"MonteCarlo({choice.samples}, {curvature or 'Hessian()'}, generator)",
        "quadrature": f"Quadrature({choice.nodes})",
        "dropout": f"DropoutMasks({choice.keep:g}, 1, generator)",
        "enumeration": "Enumeration()",
        "relaxed": f"RelaxedBernoulli({choice.samples}, 1.0, generator)",
    }[choice.estimator]
