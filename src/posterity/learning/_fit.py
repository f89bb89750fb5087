"""`fit`: all training methods behind one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from posterity.errors import expected, require
from posterity.inputs import Inputs
from posterity.learning._members import train_members
from posterity.learning._train import Run, train
from posterity.learning.callbacks import Callback
from posterity.learning.forgetting import forgetting_prior, with_past
from posterity.learning.schedules import Schedule
from posterity.learning.settings import FitSettings
from posterity.likelihoods import Likelihood
from posterity.texts import are_texts, labelled, trimming


def fit(
    model: nn.Module | Callable[[], nn.Module],
    data: Any,
    *,
    method: str = "variational",
    likelihood: str | Likelihood | None = None,
    epochs: int | str | None = None,
    folds: str = "random",
    batch_size: int = 64,
    lr: float | None = None,
    schedule: str | Schedule | None = None,
    validation: Any = None,
    patience: int | None = None,
    n: int | None = None,
    seed: int = 0,
    augment: Callable[[Inputs], Inputs] | None = None,
    class_weights: Sequence[float] | Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    penalty: Callable[[nn.Module], Tensor] | None = None,
    accumulate: int = 1,
    clip: float | None = None,
    amp: str | None = None,
    class_names: Sequence[str] | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    progress: bool | None = None,
    tokenizer: Any = None,
    **options: Any,
) -> Run:
    """Train a model in place and return its posterior.

    Args:
        model: The model; training goes on from the weights it has. For ensembles it may be a function that makes one.
        data: (inputs, targets), a Dataset or a DataLoader; inputs may be a mapping or a tuple of tensors.
        method: "variational" (AdamW with a posterior beside it), "ivon", "laplace", "dropout", "ensemble", "swag",
            "bayes_by_backprop"; of the optimizer family "mixture_ivon", "evon", "soba", "vadam", "vogn", "ogn",
            "variational_newton", "bsam"; "bayesbinn" for weights of ±1. "adamw", "sgd", "sam" and, for signs, "ste"
            return a point estimate, an `Ensemble` of one: for a width use "variational", "laplace", "bsam" or
            "bayesbinn".
        likelihood: What the outputs mean; by default inferred from the types and shapes of outputs and targets. A
            Gaussian by name learns its noise precision (see `NoisePrecision`); one given as an object keeps it.
        epochs: Passes over the data. "auto" trains for as long as five-fold cross-validation of copies of the model
            improves, so that few data, and wrong labels among them, are not memorised. By default this is done for
            perceptrons on 20 to 10 000 examples given as tensors; other trainings take 20 epochs, or as many more as it
            takes to make 2000 steps. Pretrained networks take 3 epochs, or as many more as make 1000 steps, but at most
            20 where a tenth of the weights or more is trained. A network counts as pretrained if transformers loaded
            its weights or most of them are frozen.
        folds: Which examples a fold of the cross-validation leaves out: "random" ones, or "blocks" of neighbours.
            Take blocks where neighbours are alike, as in a time series: a network that has learnt the neighbours of an
            example predicts it well, and random folds do not notice that it memorises.
        batch_size: Examples a batch at most, unless `data` is a loader. The batches of an epoch differ in size by one
            example at most, and so do the examples behind each step.
        lr: Learning rate before the schedule; by default the method's, and for pretrained networks 1e-4, or 1e-3 where
            less than a tenth of the weights is trained, with Adam's steps.
        schedule: "constant", "cosine", "step", or a function from the fraction of training done to a factor on `lr`.
        validation: Data whose loss is computed after each epoch, with the model at its mean. The method "variational"
            also lets them set how much noise its weights get: more where predictions of them are overconfident. Without
            them it leaves out one in twenty of 4000 or more examples, 500 at most, where they have classes and
            cross-validation does not choose the length; `watch=False` trains on all of them.
        patience: Stop when the validation loss has not improved for so many epochs, and keep the best state.
        n: Number N of examples that the posterior counts; by default the distinct ones in `data`, before augmentation.
        seed: Seed of everything random.
        augment: What is done to the inputs of each training batch.
        class_weights: A weight for each class.
        label_smoothing: ε of smoothed labels.
        ignore_index: A label that means "no target here".
        penalty: A function of the model that is added to the mean loss.
        accumulate: Batches a step, at most.
        clip: Largest norm of the gradient; by default the method's (10 for IVON, without bound for the others).
        amp: "bf16" or "fp16" for automatic mixed precision.
        class_names: Names of the classes, for the posterior to carry.
        callbacks: Objects that training calls at each step and epoch; see `posterity.learning.callbacks`.
        checkpoint: A folder for checkpoints.
        checkpoint_every: Steps between checkpoints; by default one every ten seconds.
        resume: Go on from the checkpoint in that folder, to the same bits as without the interruption.
        progress: True for a progress bar, False for nothing; by default a bar on terminals, and elsewhere a line
            every few seconds.
        tokenizer: A tokenizer of transformers: then `data` and `validation` are (texts, labels), texts are cut to what
            the model reads, and labels may be words. `posterity.tokenised` does the same for `predict`.
        **options: What the method takes; its class in `posterity.learning.learners` explains them. Where `prior` is an
            earlier posterior, also `forget`: the share of its data to forget, in [0, 1], or "auto" for the share under
            which the new data are most likely. The result is then the posterior of all data that are kept: it carries
            the earlier posterior's own prior, so that the next chunk can forget the older ones too.

    Returns:
        The run: model, posterior, history. After Ctrl-C, what had been reached (`run.interrupted`).

    Examples:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> run = fit(nn.Linear(1, 1), (x, 3 * x), method="adamw", lr=0.1, epochs=200)
        >>> round(run.posterior.mean["weight"].item(), 1)
        3.0
    """
    arguments = dict(locals())  # before there is any other name here
    if tokenizer is not None:
        arguments |= _of_texts(arguments)
    elif are_texts(data):
        raise expected("data", "numbers, or a tokenizer beside texts (tokenizer=...)", "texts without one")
    data, share = arguments["data"], None
    past: Any = options.get("prior")
    if "forget" in options:
        if not isinstance(model, nn.Module):
            raise expected("model", "a torch.nn.Module", type(model).__name__)
        require(method != "ensemble", "forget", "a method that leaves one posterior", method)
        options["prior"], share = forgetting_prior(model, data, past, options.pop("forget"))
    left = ("model", "data", "tokenizer")
    settings = FitSettings(**{name: value for name, value in arguments.items() if name not in left})
    if method == "ensemble":
        return train_members(model, data, settings)
    if not isinstance(model, nn.Module):
        raise expected("model", "a torch.nn.Module", type(model).__name__)
    run = train(model, data, settings)
    return run if share is None else replace(run, posterior=with_past(run.posterior, past, share))


def _of_texts(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `fit` with texts as numbers, and batches without the padding that they do not need."""
    tokenizer, model = given["tokenizer"], given["model"]
    if not isinstance(model, nn.Module):
        raise expected("model", "a torch.nn.Module beside a tokenizer", type(model).__name__)
    train = labelled(tokenizer, given["data"], model, given["class_names"])
    names = given["class_names"] if train.class_names is None else train.class_names
    found = {"data": train[:2], "class_names": names, "augment": trimming(given["augment"])}
    if given["validation"] is not None:
        found["validation"] = labelled(tokenizer, given["validation"], model, names)[:2]
    return found
