"""Adapters merged by their curvature: the joint optimum where the loss is quadratic."""

import pytest
import torch
from torch import nn

from posterity.adapters import adapter_curvature, insert_lora, load_adapter, save_adapter
from posterity.adapters.layers import adapted_modules
from posterity.errors import InvalidInput
from posterity.likelihoods import GaussianLikelihood
from posterity.merging import gram_matrices
from posterity.merging.job import MergeSource
from posterity.merging.lora import cut_rank, merge_adapters
from posterity.merging.regmean import RegMean

D, K = 4, 3


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(D, K, bias=False, dtype=torch.float64))
    insert_lora(model, ["0"], rank=K, alpha=float(K))
    return model


def task(seed, scales):
    """Orthogonal inputs whose columns have different sizes: the curvature is diagonal, and differs between tasks."""
    torch.manual_seed(seed)
    x = torch.linalg.qr(torch.randn(24, D, dtype=torch.float64)).Q * torch.tensor(scales, dtype=torch.float64)
    return x, x @ torch.randn(D, K, dtype=torch.float64)


def solved(x, y):
    """An adapter whose change takes the base to the optimum of a task: B = ΔW (K ≤ D), A of rank K spans it."""
    model = network()
    layer = adapted_modules(model)["0"]
    best = torch.linalg.lstsq(x, y).solution.mT
    U, sigma, Vh = torch.linalg.svd(best - layer.base_layer.weight, full_matrices=False)
    with torch.no_grad():
        layer.lora_B.weight.copy_(U * sigma)
        layer.lora_A.weight.copy_(Vh)
    return model, best


def test_gradient_matching_of_adapters_is_joint_training(tmp_path):
    tasks = {"a": task(1, [3.0, 1.0, 2.0, 0.5]), "b": task(2, [0.5, 2.0, 1.0, 3.0])}
    curvatures, sources = {}, {}
    for name, data in tasks.items():
        model, best = solved(*data)
        torch.testing.assert_close(model[0].base_layer.weight + model[0].change, best)
        save_adapter(model, tmp_path / name)
        curvatures[name] = adapter_curvature(model, data, GaussianLikelihood(1.0))
        columns = (data[0] ** 2).sum(0).expand(K, D)
        torch.testing.assert_close(curvatures[name]["base_model.model.0"], columns)
        sources[name] = MergeSource(tmp_path / name)
    merge_adapters(sources, tmp_path / "merged", method="gradient_matching", curvatures=curvatures)
    heavy = {"base_model.model.0": torch.full((K, D), 1e9, dtype=torch.float64)}
    merge_adapters(sources, tmp_path / "sum", method="gradient_matching", curvatures=curvatures, base_precision=heavy)
    merged = network()
    load_adapter(merged, tmp_path / "merged")
    x, y = (torch.cat(parts) for parts in zip(*tasks.values()))
    joint = torch.linalg.lstsq(x, y).solution.mT
    torch.testing.assert_close(merged[0].base_layer.weight + merged[0].change, joint)
    # Where the base weighs most, what the tasks add is summed: task arithmetic, up to curvatures of 1e-8 of the base's.
    summed = network()
    load_adapter(summed, tmp_path / "sum")
    changes = sum(solved(*data)[0][0].change for data in tasks.values())
    torch.testing.assert_close(summed[0].change, changes, rtol=1e-6, atol=1e-6)


def correlated(seed):
    """Inputs whose columns are far from orthogonal, and differ between tasks."""
    torch.manual_seed(seed)
    x = torch.randn(24, D, dtype=torch.float64) @ torch.randn(D, D, dtype=torch.float64)
    return x, x @ torch.randn(D, K, dtype=torch.float64)


def test_regmean_of_adapters_is_joint_training(tmp_path):
    tasks = {"a": correlated(1), "b": correlated(2)}
    grams, sources = {}, {}
    for name, data in tasks.items():
        model, _ = solved(*data)
        save_adapter(model, tmp_path / name)
        grams[name] = gram_matrices(model, data)
        sources[name] = MergeSource(tmp_path / name)
    merge_adapters(sources, tmp_path / "merged", method=RegMean(shrink=1.0), curvatures=grams)
    merged = network()
    load_adapter(merged, tmp_path / "merged")
    x, y = (torch.cat(parts) for parts in zip(*tasks.values()))
    joint = torch.linalg.lstsq(x, y).solution.mT
    # A ridge of 2e-16 of the trace, against a condition number below 1e4.
    torch.testing.assert_close(merged[0].base_layer.weight + merged[0].change, joint, rtol=1e-8, atol=1e-8)


def test_rank_is_cut_where_outputs_change_least():
    x, y = correlated(3)
    change = torch.linalg.lstsq(x, y).solution.mT
    gram = x.mT @ x

    def error(factors):
        return torch.linalg.matrix_norm((change - factors[0] @ factors[1]) @ x.mT)

    plain, measured = (error(cut_rank(change, 1, metric)) for metric in (None, gram))
    best = torch.linalg.svdvals(change @ x.mT)[1:].norm()  # Eckart and Young, on the outputs themselves
    torch.testing.assert_close(measured, best)
    assert plain > 1.01 * best
    whole = cut_rank(change, D, gram)
    torch.testing.assert_close(whole[0] @ whole[1], change)
    assert whole[1].shape == (D, D)


def test_curvature_is_asked_for(tmp_path):
    model, _ = solved(*task(1, [1.0] * D))
    save_adapter(model, tmp_path / "a")
    with pytest.raises(InvalidInput, match="curvatures"):
        merge_adapters({"a": MergeSource(tmp_path / "a")}, tmp_path / "merged", method="fisher")
    with pytest.raises(InvalidInput, match="one with adapters"):
        adapter_curvature(nn.Linear(2, 2), (torch.zeros(1, 2), torch.zeros(1, 2)), "gaussian")
