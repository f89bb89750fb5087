"""Ensembles: the same training from several starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posterity.errors import expected, require_whole
from posterity.learning._train import Run, train
from posterity.learning.checkpoints import holds_checkpoint
from posterity.learning.learners import METHODS, POINTS
from posterity.learning.settings import FitSettings
from posterity.learning.starts import reinitialised, require_no_statistics
from posterity.likelihoods import Likelihood
from posterity.noise import own_seed
from posterity.posterior import Ensemble, Mixture, Posterior, Structure
from posterity.trees import Tree, snapshot, trainable


def train_members(model: nn.Module | Callable[[], nn.Module], data: Any, settings: FitSettings) -> Run:
    """Train `members` models by the method `base`, each from its own initial weights and with its own seed.

    Points become an ensemble, Gaussians a mixture. After Ctrl-C the finished members are returned (or the first one,
    unfinished). The model of the run is the first member.
    """
    options = dict(settings.options)
    members, base = options.pop("members", 5), options.pop("base", "adamw")
    require_whole("members", members)
    mixable = sorted(name for name, learner in METHODS.items() if learner.mixes)
    if base not in mixable:
        raise expected("base", f"one of {mixable}", base)
    runs: list[Run] = []
    for k in range(members):
        member = reinitialised(model, settings.seed, k)
        if base not in POINTS:
            require_no_statistics(member)
        run = train(member, data, _of_member(settings, k, base, options))
        if run.interrupted and runs:
            break
        runs.append(run)
        if run.interrupted:
            break
    history = [{"member": k + 1, **row} for k, run in enumerate(runs) for row in run.history]
    steps = sum(run.steps for run in runs)
    return Run(runs[0].model, _together(runs), history, settings.method, steps, len(runs) < members or run.interrupted)


def _of_member(settings: FitSettings, k: int, base: str, options: Mapping[str, Any]) -> FitSettings:
    """The settings of member k: a seed and a folder of its own; members that had not begun start afresh."""
    folder = None if settings.checkpoint is None else Path(settings.checkpoint) / f"member-{k + 1}"
    begun = settings.resume and (k == 0 or (folder is not None and holds_checkpoint(folder)))
    seed = own_seed(settings.seed, k)
    return replace(settings, method=base, options=options, seed=seed, checkpoint=folder, resume=begun)


def _together(runs: list[Run]) -> Posterior:
    """One posterior of all members."""
    first = runs[0].posterior
    structure: Structure
    if first.structure.distinct_draws == 1:  # a point
        structure = Ensemble([_with_buffers(run.model) for run in runs])
    else:
        structure = Mixture(torch.ones(len(runs)), [run.posterior.structure for run in runs])
    return Posterior.of(
        runs[0].model,
        structure,
        prior=first.prior,
        n=first.n,
        ess=first.ess,
        likelihood=_likelihood([run.posterior.likelihood for run in runs]),
        class_names=first.class_names,
    )


def _with_buffers(model: nn.Module) -> Tree:
    buffers = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
    return snapshot({**trainable(model), **buffers})


def _likelihood(each: list[Likelihood]) -> Likelihood:
    """The likelihood of the members; their noise variances, where they differ, are averaged."""
    precisions = [one.noise_precision for one in each if one.noise_precision is not None]
    if not precisions:
        return each[0]
    return each[0].with_noise_precision(len(precisions) / sum(1 / precision for precision in precisions))
