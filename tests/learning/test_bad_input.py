"""What `fit` refuses, and in which words; the model is left as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from learning.problems import blobs, line, mlp
from posterity.errors import InvalidInput, PosterityError, RefusedFile
from posterity.learning import Callback, dropout, ensemble, fit, insert_dropout, laplace
from posterity.posterior import Diagonal

# Most runs here are far too short for IVON's Hessian, and it says so.
pytestmark = pytest.mark.filterwarnings("ignore:IVON. only .* of the Hessian has been learnt")

X, Y = blobs(40)


def spoiled(x, position, value):
    x = x.clone()
    x[position, 0] = value
    return x


class Particular(nn.Linear):
    """A model that refuses single examples for a reason of its own."""

    def forward(self, x):
        if self.training and len(x) == 1:
            raise ValueError("no pair to compare")
        return super().forward(x)


BAD = {
    "NaN inputs": (
        {"data": (spoiled(X, 33, torch.nan), Y), "batch_size": 8},
        r"inputs: expected finite numbers, got NaN or infinity in the examples \[33\]",
    ),
    "inputs of another width": (
        {"data": (X[:, :1], Y)},
        r"inputs: expected what the model takes, got float32 \(40, 1\): mat1 and mat2",
    ),
    "labels out of range": (
        {"data": (X, Y + torch.arange(40).eq(30) * 9), "batch_size": 8},
        r"labels: expected integers in 0\.\.2",
    ),
    "negative labels": ({"data": (X, Y - 1)}, r"labels: expected integers in 0\.\.2, got 'values from -1"),
    "float64 inputs": ({"data": (X.double(), Y)}, r"inputs: expected the dtype of the model, torch\.float32"),
    "targets without an axis": (
        {"model": mlp(3, 4, 1), "data": (line(40)[0], line(40)[1].squeeze(1))},
        r"targets: expected shape \(40, 1\) like the outputs, got \(40,\)",
    ),
    "infinite targets": (
        {"model": mlp(3, 4, 1), "data": (line(40)[0], spoiled(line(40)[1], 3, torch.inf))},
        r"targets: expected finite numbers",
    ),
    "outputs without an axis": (
        {"model": nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), "data": (line(40)[0], line(40)[1].squeeze(1))},
        r"outputs: expected shape \(batch, \.\.\., outputs\), with outputs = 1 for a single one, got \(40,\)",
    ),
    "NaN in the second of two inputs": (
        {"model": nn.Bilinear(2, 2, 3), "data": [((X[i], spoiled(X, 7, torch.nan)[i]), Y[i]) for i in range(40)]},
        r"inputs: expected finite numbers, got NaN or infinity in the examples \[\d+\]",
    ),
    "names for other classes": (
        {"class_names": ["a", "b"]},
        "class_names: expected 3 names, one a class, got 2",
    ),
    "probabilities to ignore": (
        {"data": (X, torch.eye(3)[Y]), "likelihood": "categorical", "ignore_index": -100},
        "targets: expected labels, among which ignore_index may occur, got 'class probabilities'",
    ),
    "validation without a batch": (
        {"validation": DataLoader(TensorDataset(X[:4], Y[:4]), batch_size=8, drop_last=True), "patience": 1},
        "validation: expected at least one batch, got 'an empty loader'",
    ),
    "labels to ignore, for Laplace": (
        {"method": "laplace", "ignore_index": -100},
        "ignore_index: expected its default, because method 'laplace' does not use it, got -100",
    ),
    "maps of classes, for Laplace": (
        {
            "model": nn.Conv2d(1, 3, 1),
            "data": (torch.ones(5, 1, 2, 2), torch.ones(5, 2, 2).long()),
            "method": "laplace",
        },
        r"outputs: expected \(batch, \.\.\., classes\) for Laplace; flatten maps .* got \(5, 3, 2, 2\)",
    ),
    "a Gaussian prior for a point": (
        {"method": "adamw", "prior": Diagonal.isotropic(dict(mlp().named_parameters()), 1.0)},
        "prior: expected a precision, the same for all weights, got 'Diagonal'",
    ),
    "a last layer as prior": (
        {"prior": laplace(mlp(), (X, Y), structure="last_layer")},
        "prior: expected a posterior over all parameters, got \"one of the structure 'last_layer'\"",
    ),
    "likelihood that does not fit": ({"likelihood": "gaussian"}, r"targets: expected shape \(40, 3\)"),
    "categorical with one output": (
        {"model": mlp(2, 4, 1), "likelihood": "categorical"},
        "outputs: expected at least two logits for a categorical likelihood",
    ),
    "counts below zero": (
        {"model": mlp(3, 4, 1), "data": line(40), "likelihood": "poisson"},
        "counts: expected whole numbers >= 0",
    ),
    "unknown likelihood": ({"likelihood": "gauss"}, r"likelihood: expected one of \['bernoulli'"),
    "unknown method": ({"method": "adam"}, r"method: expected one of \['adamw', .*'vogn'\], got 'adam'"),
    "unknown option": ({"hess": 1.0}, r"option of method 'variational': expected one of \['prior', .* got 'hess'"),
    "misspelt argument": ({"epoch": 2}, r"did you mean 'epochs'\?\), got 'epoch'"),
    "option of another method": ({"method": "sgd", "ess": 1.0}, "option of method 'sgd'.*got 'ess'"),
    "unknown schedule": ({"schedule": "linear"}, r"schedule: expected one of \['constant', 'cosine', 'step'\]"),
    "unknown precision": ({"amp": "fp8"}, r"amp: expected one of \['bf16', 'fp16'\] or None, got 'fp8'"),
    "no epochs": ({"epochs": 0}, "epochs: expected a whole number >= 1, got 0"),
    "endless epochs": ({"epochs": 10**400}, r"epochs: expected a whole number below 2\^63, got a larger one"),
    "an endless batch": ({"batch_size": 10**24}, r"batch_size: expected a whole number below 2\^63, got 10000"),
    "an endless seed": ({"seed": 10**400}, "seed: expected a whole number in 64 bits, got a larger one"),
    "half a batch": ({"batch_size": 0.5}, "batch_size: expected a whole number >= 1, got 0.5"),
    "half a seed": ({"seed": 0.5}, "seed: expected a whole number, got 0.5"),
    "a batch that batch norm does not take": (
        {"model": nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), "batch_size": 1},
        "batch_size: expected no batch of a single example",
    ),
    "weights of classes by name": (
        {"class_weights": {0: 1.0, 1: 2.0}},
        "class_weights: expected a sequence of numbers",
    ),
    "a negative weight": ({"class_weights": [1.0, -1.0, 1.0]}, "class_weights: expected finite numbers >= 0"),
    "a weight that is NaN": ({"class_weights": [1.0, torch.nan, 1.0]}, "class_weights: expected finite numbers >= 0"),
    "weights of nothing": ({"class_weights": [0.0, 0.0, 0.0]}, "not all of them 0, got"),
    "truths without an axis": (
        {"model": mlp(2, 4, 1), "data": (X, Y > 0)},
        r"targets: expected labels of shape \(40,\) for classes, or \(40, 1\) for binary ones, .* got 'bool \(40,\)'",
    ),
    "no n": ({"n": 0}, "n: expected a whole number >= 1, got 0"),
    "negative lr": ({"lr": -1.0}, r"lr: expected a positive finite number, got -1\.0"),
    "negative prior": ({"prior": -1.0}, r"prior: expected a precision >= 0, got -1\.0"),
    "no prior for a KL": ({"method": "bayes_by_backprop", "prior": 0.0}, "prior: expected a precision > 0 on every"),
    "no effective sample": ({"method": "bayes_by_backprop", "ess": 0.0}, "ess: expected a positive finite number"),
    "half a draw": ({"draws": 1.5}, r"draws: expected a whole number >= 1, got 1\.5"),
    "half a deviation": ({"method": "swag", "rank": 2.5}, r"rank: expected a whole number >= 2, got 2\.5"),
    "patience alone": ({"patience": 3}, "patience: expected validation data beside it"),
    "resume from nowhere": ({"resume": True}, "checkpoint: expected a folder"),
    "dropout without dropout": ({"method": "dropout"}, r"model: expected dropout modules \(or p=\.\.\."),
    "dropout of another kind": (
        {"model": nn.Sequential(nn.Linear(2, 4), nn.AlphaDropout(0.1), nn.Linear(4, 3)), "method": "dropout"},
        r"module '1': expected nn\.Dropout, .* got 'AlphaDropout'",
    ),
    "data of no kind": ({"data": 3}, r"data: expected \(inputs, targets\), a Dataset or a DataLoader, got 'int'"),
    "a model that is none": ({"model": torch.sin}, r"model: expected a torch\.nn\.Module"),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_input_is_named(case):
    arguments, message = BAD[case]
    arguments = {"model": mlp(), "data": (X, Y), "epochs": 2, "batch_size": 40, **arguments}
    with pytest.raises(InvalidInput, match=message):
        fit(arguments.pop("model"), arguments.pop("data"), **arguments)


def test_only_frozen_parameters():
    model = mlp()
    for p in model.parameters():
        p.requires_grad_(False)
    with pytest.raises(InvalidInput, match="model: expected trainable parameters, got 'none'"):
        fit(model, (X, Y))


@pytest.mark.parametrize("method", ["ivon", "bayes_by_backprop"])
def test_a_prior_over_some_of_the_weights(method):
    model = mlp()
    model[0].requires_grad_(False)
    posterior = laplace(model, (X, Y))
    model.requires_grad_(True)
    with pytest.raises(InvalidInput, match=r"prior: expected a tensor for parameter '0\.weight', got \"only"):
        fit(model, (X, Y), prior=posterior, method=method, epochs=1)


def test_a_bad_validation_set():
    with pytest.raises(InvalidInput, match=r"labels: expected integers in 0\.\.2"):
        fit(mlp(), (X, Y), epochs=1, validation=(X, Y + 7))
    with pytest.raises(InvalidInput, match=r"inputs: expected finite numbers, .* in the examples \[5\]"):
        fit(mlp(), (X, Y), epochs=1, validation=(spoiled(X, 5, torch.inf), Y))


def test_a_validation_loss_over_some_of_the_batches_is_none():
    class Overflows(nn.Linear):
        def forward(self, x):
            return super().forward(x) * torch.where(x[:, :1] > 100, torch.nan, 1.0)

    validation = (torch.cat((X, torch.full((8, 2), 101.0))), torch.cat((Y, Y[:8])))
    with pytest.raises(PosterityError, match="validation: expected finite losses, got NaN or infinity"):
        fit(Overflows(2, 3), (X, Y), epochs=1, batch_size=8, validation=validation)


def test_errors_of_models_are_their_own():
    with pytest.raises(ValueError, match=r"^no pair to compare"):
        fit(Particular(2, 3), (X, Y), epochs=1, batch_size=1)


def test_checkpoints_are_not_mixed_up(tmp_path):
    with pytest.raises(RefusedFile, match="expected a checkpoint to resume, got none"):
        fit(mlp(), (X, Y), epochs=1, checkpoint=tmp_path, resume=True)
    fit(mlp(), (X, Y), epochs=1, checkpoint=tmp_path)
    with pytest.raises(InvalidInput, match="checkpoint: expected an empty folder, or resume=True"):
        fit(mlp(), (X, Y), epochs=1, checkpoint=tmp_path)
    with pytest.raises(InvalidInput, match=r"lr: expected 0\.003 as in the checkpoint to resume, got 0\.5"):
        fit(mlp(), (X, Y), epochs=1, lr=0.5, checkpoint=tmp_path, resume=True)
    with pytest.raises(InvalidInput, match=r"option budget: expected None as in the checkpoint to resume, got 2\.0"):
        fit(mlp(), (X, Y), epochs=1, budget=2.0, checkpoint=tmp_path, resume=True)
    with pytest.raises(
        InvalidInput, match=r"class_weights: expected None as in the checkpoint to resume, got '\[1\.0, 2"
    ):
        fit(mlp(), (X, Y), epochs=1, checkpoint=tmp_path, resume=True, class_weights=[1, 2, 1])
    with pytest.raises(InvalidInput, match=r"architecture: expected .* as in the checkpoint to resume"):
        fit(mlp(hidden=9), (X, Y), epochs=1, checkpoint=tmp_path, resume=True)


def test_ensembles_need_fresh_weights():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2, 3))

        def forward(self, x):
            return x @ self.w

    with pytest.raises(
        InvalidInput, match=r"expected a method reset_parameters \(or a function that makes the model\)"
    ):
        ensemble(Bare(), (X, Y), members=2, epochs=1)
    with pytest.raises(InvalidInput, match="members: expected a whole number >= 1, got 0"):
        ensemble(mlp, (X, Y), members=0)
    with pytest.raises(InvalidInput, match=r"base: expected one of .* got 'ensemble'"):
        ensemble(mlp, (X, Y), base="ensemble")
    with pytest.raises(InvalidInput, match=r"expected a function that makes a torch\.nn\.Module, got 'int'"):
        ensemble(lambda: 3, (X, Y))


def test_ensembles_that_cannot_be_put_together_are_refused_before_training():
    with_masks = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.1), nn.Linear(4, 3))
    with_statistics = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    seen = []
    watch = Callback()
    watch.start = seen.append
    with pytest.raises(InvalidInput, match=r"base: expected one of .* got 'dropout'"):
        ensemble(with_masks, (X, Y), base="dropout", members=2, epochs=1, callbacks=[watch])
    with pytest.raises(InvalidInput, match=r"model: expected no running statistics, .* got \['1.running_mean'\]"):
        ensemble(with_statistics, (X, Y), base="laplace", members=2, epochs=1, callbacks=[watch])
    assert not seen


def test_dropout_needs_a_place():
    with pytest.raises(InvalidInput, match=r"after: expected modules among .* got 'x'"):
        insert_dropout(mlp(), 0.1, after=["x"])
    with pytest.raises(InvalidInput, match=r"p: expected a probability in \(0, 1\), got 1\.0"):
        insert_dropout(mlp(), 1.0)
    with pytest.raises(InvalidInput, match="at least two linear or convolutional layers"):
        insert_dropout(nn.Linear(2, 3), 0.1)
    with pytest.raises(InvalidInput, match="expected dropout modules"):
        dropout(mlp(), likelihood="categorical", n=40)


def test_labels_as_floats_and_models_without_values_are_named():
    with pytest.raises(
        InvalidInput, match=r"targets: expected class labels as integers \(targets.long\(\)\), got .labels"
    ):
        fit(mlp(), (X, Y.float()))
    with pytest.raises(InvalidInput, match=r"model: expected parameters with values .*, got .some on meta"):
        fit(mlp().to("meta"), (X, Y))


def test_other_data_than_those_of_training_are_named():
    with pytest.raises(InvalidInput, match=r"^validation: expected \(inputs, targets\)"):
        fit(mlp(), (X, Y), validation=X)
    with pytest.raises(InvalidInput, match=r"or an argument of po.fit such as lr, got 'learning_rate'"):
        fit(mlp(), (X, Y), learning_rate=0.1)


def test_no_question_takes_a_model_without_values():
    model = mlp()
    posterior = laplace(model, (X, Y), structure="diag", prior_precision=1.0)
    empty = mlp().to("meta")
    questions = (
        lambda: laplace(empty, (X, Y)),
        lambda: po.predict(empty, posterior, X),
        lambda: po.memory_map(empty, posterior, (X, Y)),
        lambda: po.adapt(empty, posterior, data=(X, Y), remove=[1]),
        lambda: po.Stream(empty, likelihood="categorical"),
    )
    for ask in questions:
        with pytest.raises(InvalidInput, match=r"model: expected parameters with values .*, got .some on meta"):
            ask()


def test_labels_as_floats_are_named_by_every_question():
    model = mlp()
    posterior = laplace(model, (X, Y), structure="diag", prior_precision=1.0)
    with pytest.raises(InvalidInput, match="targets: expected class labels as integers"):
        po.adapt(model, posterior, data=(X, Y), add=(X[:3], Y[:3].float()))
    with pytest.raises(InvalidInput, match=r"^add: expected at least one example"):
        po.adapt(model, posterior, data=(X, Y), add=(X[:0], Y[:0]))
