"""What a short probe decides before a training: its length, its weight decay, the settings of IVON."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from posterity.learning.folds import FOLDS, OutOfFold
from posterity.learning.learners import METHODS
from posterity.learning.learners.variational import usual_budget
from posterity.learning.length import best_epochs, stretch
from posterity.optim import suggest
from posterity.runs.config import USUAL, Config, folds_follow, usual_lr
from posterity.runs.folds import cross_validated
from posterity.runs.heads import choose_head
from posterity.runs.intervals import shrunk
from posterity.runs.networks import HEAD, RESIDUAL
from posterity.runs.planning import Plan, build, learn
from posterity.runs.residual_network import start_from_ridge
from posterity.runs.table_settings import FEWEST_STEPS, LONG, LONGEST_FOLD, STRETCH, STRETCH_OF_LONG, bounded
from posterity.runs.targets import Amount, Classes
from posterity.runs.tuning import fresh_rows
from posterity.startup import fitting_threads, put_off_compiler


def probe(plan: Plan) -> Plan:
    """The plan with what was left open decided: epochs by cross-validation, settings of IVON by a short training."""
    put_off_compiler()
    with fitting_threads(build(plan), plan.config.batch_size or USUAL, plan.train.inputs):
        return _with_settings(cross_validate(plan))


def cross_validate(plan: Plan) -> Plan:
    """The plan with predictions out of fold, and the length at which these were best, unless the user gave one."""
    config, n = plan.config, len(plan.train.ids)
    if config.model == HEAD:
        judging = fresh_rows(n, config.seed) if plan.data.encoding is not None and plan.data.encoding.tuned else None
        chosen = choose_head(plan.train, plan.preprocessing.target.outputs, min(config.folds, n), config.seed, judging)
        options = {**chosen.options(), **config.options}
        return replace(plan, config=replace(config, options=options), folds=chosen.folds)
    found = None
    if config.folds:
        plan, found = _with_model(plan)
        config = plan.config
    if config.epochs is None:
        config = _long_enough(plan, length(plan, found))
    if found is not None and _noise_as_fit(plan):
        config = replace(config, options={"budget": usual_budget(found.loss), **config.options})
    plan = replace(plan, config=config, folds=found)
    if found is None or not isinstance(plan.preprocessing.target, Amount) or n >= LONG:
        return plan
    if not folds_follow(config.model, config.method):
        return plan
    again = lambda some: learn(plan, some, progress=False).model  # noqa: E731
    return replace(plan, folds=shrunk(found, plan.train, min(config.folds, n), config.seed, again))


def _folds(plan: Plan) -> OutOfFold:
    """Predictions out of fold of networks that learn as the run will, where it learns by AdamW."""
    config, n = plan.config, len(plan.train.ids)
    about: dict[str, Any] = {"batch_size": config.batch_size or USUAL, "seed": config.seed, "thorough": True}
    if folds_follow(config.model, config.method):
        about |= {"lr": config.lr, "decay": config.options.get("weight_decay", 0.0)}
        about |= {"longest": LONGEST_FOLD, "averaged": True} if n >= LONG else {}
    if config.model == RESIDUAL:
        about["start"] = lambda network, x, y: start_from_ridge(network, plan.preprocessing.sorts, x, y)
    target, folds = plan.preprocessing.target, min(config.folds, n)
    return cross_validated(lambda seed: build(plan, seed), plan.train, target, folds, **about)


def _with_model(plan: Plan) -> tuple[Plan, OutOfFold]:
    """The plan with the model and the weight decay of the lowest loss out of fold, and what the folds found with them.

    Amounts that jump, or depend on the product of columns, are learnt better without a linear model to begin with.
    """
    configs = [plan.config]
    if "model" in plan.open:
        lr = usual_lr("tabular") if "lr" in plan.open else plan.config.lr
        configs.append(replace(plan.config, model="tabular", lr=lr))
    return min((_with_decay(replace(plan, config=config)) for config in configs), key=lambda found: found[1].loss)


def _with_decay(plan: Plan) -> tuple[Plan, OutOfFold]:
    """The plan with the weight decay of the lowest loss out of fold, if that is open, and what the folds found with it.

    The usual decay is tried first, then a tenth of the last as long as that lowers the loss. Weights decay at the rate
    lr · decay: where training ends before they would have, another decay makes no difference, and none is tried.
    """
    found = _folds(plan)
    while "weight_decay" in plan.open:
        options, lr = plan.config.options, plan.config.lr or 0.0
        if options["weight_decay"] * lr * found.steps <= 1:
            break
        weaker = replace(plan.config, options={**options, "weight_decay": options["weight_decay"] / 10})
        other = _folds(replace(plan, config=weaker))
        if other.loss >= found.loss:
            break
        plan, found = replace(plan, config=weaker), other
    return plan, found


def length(plan: Plan, found: OutOfFold | None) -> int:
    """Epochs of the training: as many as the folds say, or the usual number; those of a table are bounded."""
    config, n = plan.config, len(plan.train.ids)
    follow, of_table = folds_follow(config.model, config.method), STRETCH_OF_LONG if n >= LONG else STRETCH
    stretched = of_table if follow else stretch(config.method, _lr(plan))
    steps = -(-n // (config.batch_size or USUAL))
    epochs = best_epochs(found, steps, stretched, config.folds or FOLDS, late=_noise_as_fit(plan))
    return bounded(epochs, steps) if follow else epochs


def _long_enough(plan: Plan, epochs: int) -> Config:
    """The configuration with so many epochs, or with more at a lower learning rate of the same sum.

    A linear model that needs hardly any correction is corrected in a few steps, which are too few to learn widths from.
    """
    config, n = plan.config, len(plan.train.ids)
    wanted = -(-FEWEST_STEPS // -(-n // (config.batch_size or USUAL)))
    if config.model != RESIDUAL or config.lr is None or "lr" not in plan.open or epochs >= wanted:
        return replace(config, epochs=epochs)
    return replace(config, epochs=wanted, lr=config.lr * epochs / wanted)


def _noise_as_fit(plan: Plan) -> bool:
    """Whether length and noise are those that `posterity.fit` cross-validates: for classes, but not of tables."""
    config, target = plan.config, plan.preprocessing.target
    variational = config.method == "variational" and not folds_follow(config.model, config.method)
    return variational and isinstance(target, Classes)


def _lr(plan: Plan) -> float | None:
    """The learning rate of the training, as `fit` chooses it where the user gives none; None for several networks."""
    lr, learner = plan.config.lr, METHODS.get(plan.config.method)
    return learner.usual_lr(build(plan)) if lr is None and learner is not None else lr


def _with_settings(plan: Plan) -> Plan:
    """The plan with lr, ess and hess_init of IVON as a short probe suggests, unless the user gave them."""
    config = plan.config
    if config.method != "ivon" or (config.lr is not None and "hess_init" in config.options):
        return plan
    size, likelihood = config.batch_size or USUAL, plan.preprocessing.target.likelihood
    with warnings.catch_warnings():  # that the probe of few rows met no tolerance: cross-validation has the last word
        warnings.filterwarnings("ignore", "suggest:")
        found = suggest(build(plan), plan.train, likelihood=likelihood, batch_size=size, seed=config.seed)
    options = {"ess": found.ess, "hess_init": found.hess_init, **config.options}
    return replace(plan, config=replace(config, lr=found.lr if config.lr is None else config.lr, options=options))
