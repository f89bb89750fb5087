"""LoRA adapters: merged in the space of changes, as PEFT itself then applies them."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn

from networks import perceptron
from posterity.adapters.bases import read_hashes, write_hashes
from posterity.errors import InvalidInput, RefusedFile
from posterity.merging.job import MergeSource
from posterity.merging.lora import cut_rank, merge_adapters, recompress
from posterity.merging.methods import merge_state_dicts, method_of
from posterity.merging.recipes import recipe


def base_model():
    torch.manual_seed(0)
    return perceptron(6, 8, 5)


def make_adapter(folder, seed, rank=2, rslora=False, targets=("0", "2")):
    """Save a random adapter with PEFT, and return the changes it makes to the weights."""
    config = LoraConfig(r=rank, lora_alpha=3, use_rslora=rslora, target_modules=list(targets))
    model = get_peft_model(base_model(), config)
    torch.manual_seed(seed)
    for name, p in model.named_parameters():
        if "lora" in name:
            nn.init.normal_(p, std=0.5)
    model.save_pretrained(folder)
    return changes(model)


def changes(model):
    before, merged = base_model().state_dict(), model.merge_and_unload().state_dict()
    return {name: merged[name] - before[name] for name in ("0.weight", "2.weight")}


def changes_of(folder):
    return changes(PeftModel.from_pretrained(base_model(), folder))


@pytest.mark.parametrize("rslora", [False, True])
def test_one_adapter_is_itself(tmp_path, rslora):
    make_adapter(tmp_path / "a", 1, rslora=rslora)
    out = merge_adapters({"a": MergeSource(str(tmp_path / "a"))}, tmp_path / "out")
    before, after = (load_file(f / "adapter_model.safetensors") for f in (tmp_path / "a", out))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("rslora", [(False, False), (True, False), (True, True)])
def test_sum_is_exact_where_the_rank_suffices(tmp_path, rslora):
    a = make_adapter(tmp_path / "a", 1, rank=2, rslora=rslora[0])
    b = make_adapter(tmp_path / "b", 2, rank=1, rslora=rslora[1])
    sources = {"a": MergeSource(tmp_path / "a", 0.7), "b": MergeSource(tmp_path / "b", -1.5)}
    merged = changes_of(merge_adapters(sources, tmp_path / "out", method="task_arithmetic", rank=4))
    for name in a:
        torch.testing.assert_close(merged[name], 0.7 * a[name] - 1.5 * b[name], atol=1e-5, rtol=1e-5)


def test_average_and_different_modules(tmp_path):
    a = make_adapter(tmp_path / "a", 1)
    b = make_adapter(tmp_path / "b", 2, targets=("2",))
    sources = {"a": MergeSource(tmp_path / "a", 3.0), "b": MergeSource(tmp_path / "b", 1.0)}
    out = merge_adapters(sources, tmp_path / "out", rank=4)
    merged = changes_of(out)
    torch.testing.assert_close(merged["0.weight"], 0.75 * a["0.weight"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(merged["2.weight"], 0.75 * a["2.weight"] + 0.25 * b["2.weight"], atol=1e-5, rtol=1e-5)
    assert "recompressed to rank 4" in (out / "README.md").read_text()


def test_recompression_is_optimal(tmp_path):
    a, b = (make_adapter(tmp_path / name, seed) for seed, name in enumerate("ab"))
    merged = changes_of(merge_adapters({n: MergeSource(tmp_path / n) for n in "ab"}, tmp_path / "out"))
    for name in a:
        U, sigma, Vh = torch.linalg.svd((a[name] + b[name]) / 2)
        best = U[:, :2] * sigma[:2] @ Vh[:2]
        torch.testing.assert_close(merged[name], best, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "options"),
    [("ties", {"density": 0.4}), ("ties", {"density": 0.4, "convention": "peft"}), ("dare", {}), ("slerp", {})],
)
def test_other_methods_work_on_the_changes(tmp_path, method, options):
    made = {name: make_adapter(tmp_path / name, seed, rslora=seed == 1) for seed, name in enumerate("ab")}
    chosen = method_of(method, options)
    out = merge_adapters({n: MergeSource(tmp_path / n, 0.8) for n in "ab"}, tmp_path / "out", method=chosen, rank=5)
    # PEFT's names of modules decide DARE's noise.
    named = {n: {f"base_model.model.{k.removesuffix('.weight')}": t for k, t in made[n].items()} for n in made}
    base = {name: torch.zeros_like(t) for name, t in named["a"].items()} if chosen.needs_base else None
    wanted = merge_state_dicts(named, base, method=chosen, weights={"a": 0.8, "b": 0.8})
    merged = changes_of(out)
    assert all(f"- {name}: {value}\n" in (out / "README.md").read_text() for name, value in options.items())
    for name, t in wanted.items():
        found = merged[name.removeprefix("base_model.model.") + ".weight"]
        best = t
        if min(t.shape) > 5:  # rank 5 is the whole of the second layer, and the best of the first
            U, sigma, Vh = torch.linalg.svd(t, full_matrices=False)
            best = U[:, :5] * sigma[:5] @ Vh[:5]
        torch.testing.assert_close(found, best, atol=1e-4, rtol=1e-4)


def test_rank_beyond_the_matrix_is_filled_with_zeros():
    B, A = torch.randn(3, 6), torch.randn(6, 4)
    b, a = recompress(B, A, rank=5)
    assert (b.shape, a.shape) == ((3, 5), (5, 4))
    torch.testing.assert_close(b @ a, B @ A)


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_changes_of_what_is_left_of_a_base_are_refused(tmp_path, start):
    model = get_peft_model(base_model(), LoraConfig(r=2, target_modules=["0"], init_lora_weights=start))
    assert not torch.equal(model.base_model.model[0].base_layer.weight, base_model()[0].weight)
    model.save_pretrained(tmp_path / "a")
    with pytest.raises(RefusedFile, match="expected changes of the base itself"):
        merge_adapters({"a": MergeSource(tmp_path / "a")}, tmp_path / "out")


class Experts(nn.Module):
    """One matrix for each of three experts, as mixtures keep them."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 4, 5))

    def forward(self, x):
        return torch.einsum("bi,eio->beo", x, self.w)


def test_adapters_of_single_parameters_are_refused(tmp_path):
    config = LoraConfig(r=2, target_modules=[], target_parameters=["0.w"])
    get_peft_model(nn.Sequential(Experts()), config).save_pretrained(tmp_path / "a")
    with pytest.raises(RefusedFile, match="expected no target_parameters"):  # B and A of all experts lie in one matrix
        merge_adapters({"a": MergeSource(tmp_path / "a")}, tmp_path / "out")


def test_what_does_not_add_up_is_refused(tmp_path):
    make_adapter(tmp_path / "a", 1)
    a = MergeSource(tmp_path / "a")
    with pytest.raises(InvalidInput, match="curvatures: expected those of the adapter"):
        merge_adapters({"a": a}, tmp_path / "out", method=method_of("fisher"))
    with pytest.raises(InvalidInput, match=r"adapters\['a'\]: expected a MergeSource, got 'str'"):
        merge_adapters({"a": "folder"}, tmp_path / "out")
    with pytest.raises(InvalidInput, match="rank: expected a whole number >= 1, got 0"):
        merge_adapters({"a": a}, tmp_path / "out", rank=0)
    with pytest.raises(RefusedFile, match="expected a folder that does not exist yet"):
        merge_adapters({"a": a}, tmp_path / "a")
    with pytest.raises(InvalidInput, match="weights: expected finite numbers, got nan"):
        merge_adapters({"a": MergeSource(tmp_path / "a", float("nan"))}, tmp_path / "out")
    asked = {"method": "linear", "models": {"a": str(tmp_path / "a")}, "out": str(tmp_path / "out")}
    with pytest.raises(InvalidInput, match="base: expected none, adapters are changes already"):
        recipe(asked | {"base": str(tmp_path / "base")}).cook()
    with pytest.raises(RefusedFile, match="expected an adapter with"):
        merge_adapters({"a": a, "b": MergeSource(tmp_path)}, tmp_path / "out")

    def refuses(message, error=RefusedFile, **changed):
        make_adapter(tmp_path / "b", 2)
        path = tmp_path / "b" / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
        with pytest.raises(error, match=message):
            merge_adapters({"a": a, "b": MergeSource(tmp_path / "b")}, tmp_path / "out")

    refuses("expected no use_dora", use_dora=True)
    refuses("expected no modules_to_save, .* stay frozen", modules_to_save=["classifier"])
    refuses("expected no alpha_pattern", alpha_pattern={"0": 3})
    refuses("expected no target_parameters", target_parameters=["0.weight"])
    refuses("expected no use_bdlora", use_bdlora=True)
    refuses("alora_invocation_tokens of 'b'", InvalidInput, alora_invocation_tokens=[3, 4])
    refuses("expected a LoRA adapter", peft_type="IA3")
    refuses("base_model_name_or_path of 'b'", InvalidInput, base_model_name_or_path="another")
    refuses("layers_to_transform of 'b'", InvalidInput, layers_to_transform=[1])
    refuses("target_modules: expected the same pattern in all adapters", InvalidInput, target_modules=".*2")
    make_adapter(tmp_path / "b", 2)
    path = tmp_path / "b" / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"extra.bias": torch.ones(2)}, path)
    with pytest.raises(RefusedFile, match=r"pairs of lora_A and lora_B weights, got 'extra\.bias'"):
        merge_adapters({"b": MergeSource(tmp_path / "b")}, tmp_path / "out")
    name = next(name for name in tensors if "lora_B" in name)
    save_file(tensors | {name: torch.cat([tensors[name], tensors[name]])}, path)
    for method in ("task_arithmetic", "ties"):
        with pytest.raises(InvalidInput, match=r"shape of .*: expected the same in all adapters"):
            merge_adapters({"a": a, "b": MergeSource(tmp_path / "b")}, tmp_path / "out", method=method_of(method))
    assert not list(tmp_path.glob("out*"))


def test_a_rank_is_cut_where_it_changes_outputs_least():
    """By any square root of the metric, the closest matrix of a rank comes from the largest singular values."""
    generator = torch.Generator().manual_seed(0)
    change = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    inputs = torch.randn(30, 4, generator=generator, dtype=torch.float64) * torch.tensor([5.0, 1.0, 0.2, 1.0])
    root = torch.linalg.cholesky(inputs.T @ inputs)
    U, sigma, Vh = torch.linalg.svd(change @ root)
    closest = (U[:, :2] * sigma[:2]) @ Vh[:2] @ torch.linalg.inv(root)
    B, A = cut_rank(change, 2, inputs.T @ inputs)
    assert (B.shape, A.shape) == ((5, 2), (2, 4))
    torch.testing.assert_close(B @ A, closest)
    assert not torch.allclose(B @ A, torch.matmul(*cut_rank(change, 2)), rtol=0.1)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_the_unit_of_inputs_does_not_change_what_is_cut(scale):
    generator = torch.Generator().manual_seed(0)
    change = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    inputs = torch.randn(30, 4, generator=generator, dtype=torch.float64) * torch.tensor([5.0, 1.0, 0.2, 1.0])
    metric = inputs.T @ inputs
    found = [torch.matmul(*cut_rank(change, 2, unit * metric)) for unit in (1.0, scale)]
    torch.testing.assert_close(*found)


def test_inputs_that_never_occur_are_cut_by_entries():
    """Without any inputs all matrices do the same; the closest by entries is taken, and nothing is divided by zero."""
    change = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = torch.matmul(*cut_rank(change, 2, torch.zeros(4, 4)))
    torch.testing.assert_close(found, torch.matmul(*cut_rank(change, 2)))


def test_curvature_counts_where_an_adapter_changes_a_module(tmp_path):
    """Fisher averages: where one adapter alone changes a module, the other has no curvature and no say."""
    a = make_adapter(tmp_path / "a", 1, targets=("0", "2"))
    make_adapter(tmp_path / "b", 2, targets=("0",))
    shapes = {"0": (8, 6), "2": (5, 8)}
    curvatures = {
        "a": {name: torch.full(shape, 2.0) for name, shape in shapes.items()},
        "b": {"0": torch.full(shapes["0"], 3.0)},
    }
    sources = {name: MergeSource(tmp_path / name) for name in ("a", "b")}
    out = merge_adapters(sources, tmp_path / "out", method="fisher", rank=5, curvatures=curvatures)
    torch.testing.assert_close(changes_of(out)["2.weight"], a["2.weight"], atol=1e-4, rtol=1e-4)
    wrong = curvatures | {"a": {f"{name}.weight": t for name, t in curvatures["a"].items()}}
    with pytest.raises(InvalidInput, match="curvatures of 'a': expected one of every module that the adapter changes"):
        merge_adapters(sources, tmp_path / "other", method="fisher", curvatures=wrong)


def test_merged_adapters_carry_the_hashes_of_their_base(tmp_path):
    for name in "ab":
        make_adapter(tmp_path / name, 1)
    sources = {name: MergeSource(tmp_path / name) for name in "ab"}
    assert read_hashes(merge_adapters(sources, tmp_path / "without")) == {}
    write_hashes(tmp_path / "a", {"0": "of one base"})
    assert read_hashes(merge_adapters(sources, tmp_path / "with")) == {"0": "of one base"}
    write_hashes(tmp_path / "b", {"0": "of another"})
    with pytest.raises(RefusedFile, match="an adapter of the same base"):
        merge_adapters(sources, tmp_path / "two")


@pytest.mark.parametrize("prefix", ["", "base_model.model."])
def test_gradient_matching_of_adapters_counts_the_precision_of_the_base(tmp_path, prefix):
    """ΔW = H̄⁻¹ Σ αₜ (P₀ + Hₜ) ΔWₜ in each module, H̄ = P₀ + Σ αₜ Hₜ; the second one has no more than rank five."""
    made = {name: make_adapter(tmp_path / name, seed) for seed, name in enumerate("ab", 1)}
    generator = torch.Generator().manual_seed(0)
    shapes = {"0": (8, 6), "2": (5, 8)}
    H = {n: {k: torch.rand(s, generator=generator).double() for k, s in shapes.items()} for n in "ab"}
    P = {prefix + k: 0.5 + torch.rand(s, generator=generator).double() for k, s in shapes.items()}
    out = merge_adapters(
        {"a": MergeSource(tmp_path / "a", 0.7), "b": MergeSource(tmp_path / "b", 0.4)},
        tmp_path / "out",
        method="gradient_matching",
        rank=5,
        curvatures=H,
        base_precision=P,
    )
    prior, shares = P[f"{prefix}2"], {"a": 0.7, "b": 0.4}
    total = prior + sum(share * H[n]["2"] for n, share in shares.items())
    wanted = sum(share * (prior + H[n]["2"]) * made[n]["2.weight"] for n, share in shares.items()) / total
    torch.testing.assert_close(changes_of(out)["2.weight"], wanted.float(), atol=1e-4, rtol=1e-4)


def test_regmean_of_adapters_cuts_the_rank_by_the_inputs_of_all_tasks_as_they_are_weighted(tmp_path):
    made = {name: make_adapter(tmp_path / name, seed, rank=3, targets=("2",)) for seed, name in enumerate("ab", 1)}
    generator = torch.Generator().manual_seed(0)
    scales = {"a": torch.arange(1.0, 9.0), "b": torch.arange(9.0, 1.0, -1.0)}
    inputs = {n: (torch.randn(30, 8, generator=generator) * scales[n]).double() for n in "ab"}
    grams, shares = {n: x.T @ x for n, x in inputs.items()}, {"a": 0.9, "b": 0.1}
    sources = {n: MergeSource(tmp_path / n, share) for n, share in shares.items()}
    known = {n: {"2": gram} for n, gram in grams.items()}
    out = merge_adapters(
        sources, tmp_path / "out", method=method_of("regmean", {"shrink": 1}), rank=2, curvatures=known
    )
    total = sum(share * grams[n] for n, share in shares.items())
    right = sum(share * made[n]["2.weight"].double() @ grams[n] for n, share in shares.items())
    best, root = torch.linalg.solve(total, right.mT).mT, torch.linalg.cholesky(total)
    U, sigma, Vh = torch.linalg.svd(best @ root, full_matrices=False)
    cut = (U[:, :2] * sigma[:2]) @ Vh[:2] @ torch.linalg.inv(root)
    torch.testing.assert_close(changes_of(out)["2.weight"], cut.float(), atol=1e-4, rtol=1e-4)
