"""Posteriors on disk: what is written comes back bit for bit, and nothing else is accepted."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posterior import cases
from posterity import files
from posterity.errors import InvalidInput, RefusedFile
from posterity.likelihoods import GaussianLikelihood, Likelihood, StudentTLikelihood
from posterity.posterior import Diagonal, Memory, Mixture, Posterior, Training


@pytest.mark.parametrize("name", list(cases.STRUCTURES))
def test_every_structure_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    posterior = cases.posterior(cases.STRUCTURES[name](), memory=True)
    posterior.save(tmp_path / "digits")
    back = Posterior.load(tmp_path / "digits")
    assert back.structure.kind == name
    assert back.names == posterior.names
    before, after = posterior.structure.tensors(), back.structure.tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) and before[k].dtype == after[k].dtype for k in before)
    assert all(torch.equal(back.sample(3)[n], t) for n, t in posterior.sample(3).items())
    assert all(torch.equal(back.prior.precision[n], t) for n, t in posterior.prior.precision.items())
    assert all(torch.equal(back.buffers[n], t) for n, t in posterior.buffers.items())
    assert back.memory is not None
    assert posterior.memory is not None
    assert all(torch.equal(back.memory.tensors()[n], t) for n, t in posterior.memory.tensors().items())
    for field in ("n", "ess", "likelihood", "class_names", "architecture"):
        assert getattr(back, field) == getattr(posterior, field)
    back.check(cases.network())


def test_the_little_that_is_needed_comes_back_too(tmp_path: Path) -> None:
    q = Diagonal({"w": torch.zeros(2, dtype=torch.bfloat16)}, {"w": torch.ones(())})
    columns = {"a": torch.zeros(1, 2), "mask": torch.ones(1, dtype=torch.bool)}
    memory = Memory(columns, torch.tensor([1]), torch.tensor([0]))
    Posterior(q, prior=q, n=1, ess=0.5, likelihood=GaussianLikelihood(3.0), memory=memory).save(tmp_path)
    back = Posterior.load(tmp_path)
    assert back.mean["w"].dtype == torch.bfloat16
    assert back.likelihood == GaussianLikelihood(3.0)
    assert (back.class_names, back.architecture, back.buffers) == (None, "", {})
    assert back.memory is not None
    assert back.memory.inputs["mask"].dtype == torch.bool


@pytest.mark.parametrize(
    "likelihood", [GaussianLikelihood(np.float32(4.0)), StudentTLikelihood(torch.tensor(5.0), np.float32(0.5))]
)
def test_numbers_of_numpy_and_torch_come_back_as_numbers(tmp_path: Path, likelihood: Likelihood) -> None:
    q = cases.diagonal()
    names = np.array([3, 5])  # as scikit-learn's `classes_`
    Posterior(q, prior=q, n=np.int64(7), ess=np.float32(3.5), likelihood=likelihood, class_names=names).save(tmp_path)
    back = Posterior.load(tmp_path)
    assert (back.n, back.ess, back.class_names) == (7, 3.5, ("3", "5"))
    assert back.likelihood == likelihood


def test_how_it_was_trained_comes_back_and_nonsense_does_not(tmp_path: Path) -> None:
    q = cases.diagonal()
    for name, training in {"known": Training(12.5, 64, 3e-3), "other": Training(2.0, 1, None), "unknown": None}.items():
        Posterior(q, prior=q, n=1, ess=1, likelihood="gaussian", training=training).save(tmp_path / name)
        assert Posterior.load(tmp_path / name).training == training
    Posterior(q, prior=q, n=1, ess=1, likelihood="gaussian", training=Training(-1.0, 1, None)).save(tmp_path / "wrong")
    with pytest.raises(RefusedFile, match="epochs"):
        Posterior.load(tmp_path / "wrong")


def test_the_temperature_of_outputs_comes_back_and_nonsense_does_not(tmp_path: Path) -> None:
    q = cases.diagonal()
    Posterior(q, prior=q, n=1, ess=1, likelihood="categorical", output_temperature=1.5).save(tmp_path)
    assert Posterior.load(tmp_path).output_temperature == 1.5
    assert "output_temperature=1.5" in repr(Posterior.load(tmp_path))
    with pytest.raises(InvalidInput, match="output_temperature: expected a positive"):
        Posterior(q, prior=q, n=1, ess=1, likelihood="categorical", output_temperature=0.0)


def test_a_likelihood_that_cannot_be_made_again_is_not_written(tmp_path: Path) -> None:
    class Censored(GaussianLikelihood):
        def settings(self) -> dict[str, Any]:
            return {"name": "a name that nobody has defined"}

    q = cases.diagonal()
    with pytest.raises(InvalidInput, match="likelihood: expected one of"):
        Posterior(q, prior=q, n=1, ess=1, likelihood=Censored()).save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_that_do_not_quite_sum_to_one_come_back_unchanged(tmp_path: Path) -> None:
    mixture = Mixture(torch.full((10,), 0.1, dtype=torch.float64), [cases.diagonal(i) for i in range(10)])
    cases.posterior(mixture).save(tmp_path)
    back = Posterior.load(tmp_path).structure
    assert isinstance(back, Mixture)
    assert torch.equal(back.weights, mixture.weights)


def test_loading_never_unpickles(tmp_path: Path, monkeypatch) -> None:
    cases.posterior(memory=True).save(tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("something was unpickled")

    monkeypatch.setattr(pickle, "Unpickler", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert Posterior.load(tmp_path).n == 50


def test_hundreds_of_mutated_files_are_all_refused(tmp_path: Path) -> None:
    posterior = cases.posterior(cases.mixture(), memory=True)
    posterior.save(tmp_path)
    rng = random.Random(0)
    paths = sorted(tmp_path.iterdir())
    originals = {path: path.read_bytes() for path in paths}
    for _ in range(400):
        path = rng.choice(paths)
        mutated = mutate(originals[path], rng)
        if mutated == originals[path]:
            continue
        path.write_bytes(mutated)
        with pytest.raises(RefusedFile):
            Posterior.load(tmp_path)
        path.write_bytes(originals[path])
    assert Posterior.load(tmp_path).ess == posterior.ess


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat, swap or overwrite a few bytes."""
    changed = bytearray(data)
    start, length = rng.randrange(len(data)), rng.randrange(1, 64)
    match rng.randrange(5):
        case 0:
            changed[start] ^= 1 << rng.randrange(8)
        case 1:
            del changed[start : start + length]
        case 2:
            changed[start:start] = data[start : start + length]
        case 3:
            changed[start : start + length] = rng.randbytes(length)
        case _:
            other = rng.randrange(len(data))
            changed[start], changed[other] = changed[other], changed[start]
    return bytes(changed)


def rewrite(folder: Path, change) -> None:
    """Store the record again with other content or tensors, all hashes right: what a hostile writer can do."""
    record = files.load_record(folder, "posterior", version=1)
    change(record.content, record.tensors)
    files.save_record(folder, "posterior", version=1, content=record.content, tensors=record.tensors)


@pytest.mark.parametrize(
    "change",
    [
        lambda c, t: t.pop("structure/mean/0.weight"),
        lambda c, t: t.pop("prior/precision/4.bias"),
        lambda c, t: t.pop("buffers/1.running_mean"),
        lambda c, t: t.pop("memory/ids"),
        lambda c, t: t.update({"structure/precision/0.weight": torch.ones(9, 9)}),
        lambda c, t: t.update({"structure/mean/0.weight": torch.full((4, 3), float("nan"))}),
        lambda c, t: t.update({"memory/targets": torch.zeros(5)}),
        lambda c, t: c.update(n=0),
        lambda c, t: c.update(n="many"),
        lambda c, t: c.update(ess=-1.0),
        lambda c, t: c.update(ess=None),
        lambda c, t: c.update(ess=10**400),
        lambda c, t: c.update(n=10**400),
        lambda c, t: c.update(class_names="abc"),
        lambda c, t: c.update(class_names=[1, 2]),
        lambda c, t: c.update(likelihood={"name": "os.system"}),
        lambda c, t: c.update(likelihood={"name": "gaussian", "precision": "x"}),
        lambda c, t: c.update(likelihood=[]),
        lambda c, t: c.update(structure={"kind": "subprocess", "names": []}),
        lambda c, t: c.update(structure={"kind": "diagonal", "names": []}),
        lambda c, t: c.update(structure={"kind": "full", "names": c["structure"]["names"]}),
        lambda c, t: c.update(structure=None),
        lambda c, t: c.update(class_names=3),
        lambda c, t: c.pop("prior"),
    ],
)
def test_records_that_make_no_posterior_are_refused(tmp_path: Path, change) -> None:
    cases.posterior(memory=True).save(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(RefusedFile, match="expected a posterior, got a record that makes none"):
        Posterior.load(tmp_path)


@pytest.mark.parametrize("given", [7, 0.5, True, None, ["of", "any", "type"], {"layers": "two"}])
def test_an_architecture_that_is_no_text_is_refused_by_name(tmp_path: Path, given: object) -> None:
    cases.posterior().save(tmp_path)
    rewrite(tmp_path, lambda c, t: c.update(architecture=given))
    with pytest.raises(RefusedFile, match=f"architecture: expected a text, got '{type(given).__name__}'"):
        Posterior.load(tmp_path)


def test_files_that_are_not_there_or_not_ours_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedFile, match="expected a file, got none"):
        Posterior.load(tmp_path / "nowhere")
    cases.posterior().save(tmp_path)
    (tmp_path / "posterior-1.safetensors").unlink()
    with pytest.raises(RefusedFile, match="got no such file"):
        Posterior.load(tmp_path)
    files.save_record(tmp_path, "posterior", version=2, content={}, tensors={})
    with pytest.raises(RefusedFile, match="a newer posterity wrote it"):
        Posterior.load(tmp_path)
    (tmp_path / "posterior.json").write_text(json.dumps({"hello": "world"}))
    with pytest.raises(RefusedFile, match="expected the manifest of a posterior"):
        Posterior.load(tmp_path)


def test_a_loaded_posterior_knows_its_architecture(tmp_path: Path) -> None:
    cases.posterior().save(tmp_path)
    with pytest.raises(InvalidInput, match=r"0\.weight"):
        Posterior.load(tmp_path).apply(cases.network(hidden=7))


@pytest.mark.parametrize("device", ["gpu", "cuda:99", torch.device("cuda", 99)])
def test_a_device_that_is_not_there_is_named_and_not_the_file(tmp_path: Path, device: str | torch.device) -> None:
    cases.posterior().save(tmp_path)
    with pytest.raises(InvalidInput, match="device: expected one that torch can use here, such as 'cpu', got"):
        Posterior.load(tmp_path, device=device)
