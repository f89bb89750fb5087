"""Problems of a run, each with a remedy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from posterity.errors import RefusedFile
from posterity.learning.learners import METHODS
from posterity.posterior import Diagonal
from posterity.runs._folder import RunFolder
from posterity.trees import to_vector

CALIBRATION = 0.05  # gap between confidence and accuracy, or coverage and level, that is worth a word
MOVED = 1.05  # factor by which the Hessian has to have left its initial value
QUIET = 1.0  # |mean|/σ that at least one weight in twenty should reach
OVERFIT = 2.0  # loss on held-out rows over loss in training


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or could be, and what to do about it."""

    name: str
    what: str
    remedy: str


def examine(run: RunFolder) -> list[Finding]:
    """Everything that looks wrong with a run; nothing, if all is well."""
    damage = list(_files(run))
    if damage:
        return damage
    trained = [] if run.record.adaptation is not None else [*_training(run)]  # an adapted run was not trained itself
    return [*_data(run), *trained, *_posterior(run), *_calibration(run)]


def _files(run: RunFolder) -> Iterator[Finding]:
    try:
        run.verify()
        run.posterior  # noqa: B018 (reading it is the examination)
    except RefusedFile as why:
        yield Finding("files", str(why), "restore the folder from a copy, or fit again")


def _data(run: RunFolder) -> Iterator[Finding]:
    try:
        train = run.data("train")
    except RefusedFile as why:
        yield Finding("data", str(why), "predict still works; map and adapt need the data as they were")
        return
    if len(train.ids) != run.posterior.n and not run.forgets:
        got = f"{len(train.ids)} training rows, but the posterior counts {run.posterior.n}"
        yield Finding("rows", got, "fit again")


def _training(run: RunFolder) -> Iterator[Finding]:
    if run.status == "interrupted":
        yield Finding("unfinished", "training was stopped early", f"posterity fit --resume --out {run.folder}")
    losses = [row["loss"] for row in run.history if "loss" in row]
    tenth = max(1, len(losses) // 10)
    if len(losses) >= 20:
        late, before = sum(losses[-tenth:]) / tenth, sum(losses[-2 * tenth : -tenth]) / tenth
        if before - late > 0.05 * abs(losses[0] - late):
            yield Finding("short", "the loss was still falling when training ended", "more --epochs")
    last = run.history[-1] if run.history else {}
    held, own = last.get("validation_loss"), last.get("loss")
    classes = run.preprocessing.target.task == "classes"  # the loss of amounts may be negative
    if classes and held is not None and own is not None and held > max(OVERFIT * own, own + 0.1):
        gap = f"the loss is {own:.3g} in training and {held:.3g} on held-out rows"
        yield Finding("overfit", gap, "a smaller --model, a larger --prior, or wrong labels: posterity map")


def _posterior(run: RunFolder) -> Iterator[Finding]:
    posterior, options = run.posterior, run.config["options"]
    found = run.config["method"] in ("variational", "laplace")  # which solve for it
    if not found and not math.isclose(posterior.ess, posterior.n, rel_tol=1e-6):
        what = f"ess is {posterior.ess:g}, not the number of rows {posterior.n}"
        yield Finding("ess", what, "leave --ess out, unless you chose a temperature on purpose")
    structure = posterior.structure
    if not isinstance(structure, Diagonal) or run.config["prediction"] == "linearised":
        return  # nothing is drawn from it
    precision = to_vector(structure.precision_diagonal()).double()
    mean = to_vector(structure.mean).double().abs()
    ratio = torch.quantile((mean * precision.sqrt())[: 10**6], 0.95).item()
    if ratio < QUIET:
        what = f"the noise is larger than the weights: |mean|/σ is {ratio:.2g} or less for 95 % of them"
        yield Finding("noise", what, _remedy(run, "hess_init", "more --epochs, or fewer weights"))
    start = options.get("hess_init")
    if run.config["method"] == "ivon" and start is not None:
        prior = to_vector(posterior.prior.precision_diagonal()).double()
        hessian = (precision - prior) / posterior.ess
        moved = (hessian.clamp_min(1e-30) / start).log().abs().median().item()
        if moved < math.log(MOVED):
            what = f"the Hessian never left its initial value {start:g}, so σ does not depend on the data"
            yield Finding("hessian", what, "more --epochs, or --option beta2=0.999")


def _calibration(run: RunFolder) -> Iterator[Finding]:
    figures, held = run.metrics, run.record.rows.test
    if not figures or not held:
        yield Finding("untested", "no rows were held out, so nothing is known about calibration", "fit with --test 0.2")
        return
    if "accuracy" in figures:
        got, said, word = figures["accuracy"], figures["confidence"], "accuracy"
    else:
        got, said, word = figures["coverage"], figures["level"], "coverage"
    chance = 2 * math.sqrt(max(said * (1 - said), 1e-4) / held)
    if abs(said - got) > max(CALIBRATION, chance):
        how = "overconfident" if said > got else "underconfident"
        what = f"the model is {how}: confidence {said:.3g}, {word} {got:.3g}"
        remedy = _remedy(run, *(("prior", "or fewer weights") if said > got else ("ess", "or more --epochs")))
        yield Finding("calibration", what, remedy)


def _remedy(run: RunFolder, option: str, then: str) -> str:
    """A larger value of an option, if the method of the run has it, and other remedies."""
    learner = METHODS.get(run.config["method"])
    if learner is None or option not in learner.options():
        return then.removeprefix("or ")
    return f"a larger --{option.replace('_', '-')}, {then}"
