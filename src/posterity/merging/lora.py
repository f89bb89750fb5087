"""Low-rank adapters, merged where they act: in the change ΔW = s B A that each makes, not in its factors."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.adapters.bases import common_hashes, write_hashes
from posterity.adapters.store import CONFIG, TENSORS
from posterity.checkpoints import PEFT_PREFIX
from posterity.errors import RefusedFile, require, require_whole
from posterity.files import read_json, read_tensors, write_bytes, write_json, write_tensors
from posterity.merging._card import page, row
from posterity.merging._method import Method, check_named
from posterity.merging.job import MergeSource
from posterity.merging.linear import Linear
from posterity.merging.methods import merge_state_dicts, method_of
from posterity.merging.regmean import RegMean
from posterity.merging.task_arithmetic import TaskArithmetic
from posterity.trees import Tree

WHOLE = "modules_to_save"  # layers that are trained and saved whole, such as a classifier
UNSUPPORTED = (
    *("use_dora", "alpha_pattern", WHOLE, "layer_replication", "target_parameters"),
    *("use_qalora", "use_bdlora", "kasa_config", "monteclora_config", "arrow_config"),
)
RESIDUAL = ("pissa", "olora", "corda", "loftq", "lora_ga")  # starts from parts of the base, which PEFT takes out of it
ALIKE = (
    *("base_model_name_or_path", "fan_in_fan_out", "layers_to_transform", "layers_pattern", "exclude_modules"),
    "alora_invocation_tokens",
)


@dataclass(frozen=True)
class Adapter:
    """The factors of one adapter: for each module B (out, r) and A (r, in), and the scale s of their product."""

    config: dict[str, Any]
    tensors: Tree

    @property
    def modules(self) -> set[str]:
        """The modules that it changes."""
        return {name.removesuffix(".lora_A.weight") for name in self.tensors if name.endswith(".lora_A.weight")}

    @property
    def rank(self) -> int:
        """The largest rank of its changes."""
        return max(self.tensors[f"{module}.lora_A.weight"].shape[0] for module in self.modules)

    def factors(self, module: str) -> tuple[Tensor, Tensor]:
        """B and A of a module."""
        return self.tensors[f"{module}.lora_B.weight"].double(), self.tensors[f"{module}.lora_A.weight"].double()

    def stored(self, module: str, B: Tensor, A: Tensor) -> Tree:
        """Factors of a module as they are kept, in the dtype of this adapter."""
        dtype = next(iter(self.tensors.values())).dtype
        return {f"{module}.lora_A.weight": A.to(dtype), f"{module}.lora_B.weight": B.to(dtype)}

    def changes(self, modules: Sequence[str]) -> Tree:
        """s B A of those of the modules that it changes, written out."""
        pairs = {module: self.factors(module) for module in modules if module in self.modules}
        return {module: self.scale(A.shape[0]) * B @ A for module, (B, A) in pairs.items()}

    def scale(self, rank: int) -> float:
        """α/r, or α/√r for rank-stabilised adapters."""
        return self.config["lora_alpha"] / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


def is_adapter(path: Path) -> bool:
    """Whether a folder holds a PEFT adapter."""
    return (path / CONFIG).is_file()


def recompress(B: Tensor, A: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The factors of the given rank that are closest to the product B A, which is never formed.

        B = Q R,  Aᵀ = P S,  R Sᵀ = U diag(σ) Vᵀ   ⟹   B A ≈ (Q U_r √σ_r)(√σ_r V_rᵀ Pᵀ)

    This is the truncated singular value decomposition of B A: by Eckart and Young no other matrix of that rank is
    closer. Factors that are small enough are kept, with zeros to fill up.

    Examples:
        >>> B, A = torch.randn(6, 4), torch.randn(4, 5)
        >>> b, a = recompress(B, A, rank=2)
        >>> error = torch.linalg.matrix_norm(B @ A - b @ a)
        >>> torch.allclose(error, torch.linalg.svdvals(B @ A)[2:].norm(), atol=1e-4)
        True
    """
    have = A.shape[0]
    if have <= rank:
        return torch.nn.functional.pad(B, (0, rank - have)), torch.nn.functional.pad(A, (0, 0, 0, rank - have))
    Q, R = torch.linalg.qr(B)
    P, S = torch.linalg.qr(A.mT)
    U, sigma, Vh = torch.linalg.svd(R @ S.mT)
    rank_there = min(rank, len(sigma))
    root = sigma[:rank_there].sqrt()
    b, a = Q @ U[:, :rank_there] * root, root[:, None] * (Vh[:rank_there] @ P.mT)
    return recompress(b, a, rank) if rank_there < rank else (b, a)


def merge_adapters(
    adapters: Mapping[str, MergeSource],
    out: str | Path,
    *,
    method: str | Method = "linear",
    rank: int | None = None,
    curvatures: Mapping[str, Mapping[str, Tensor]] | None = None,
    base_precision: Mapping[str, Tensor] | None = None,
) -> Path:
    """Merge LoRA adapters of one model: Σ_t w_t s_t B_t A_t / Σ_t w_t, at the best approximation of the given rank.

    Methods that are not sums (TIES, DARE, SLERP) work on the changes s B A themselves, written out for one module after
    the other, or for all modules where the method looks at the whole model; then rank is cut as for sums.

    Args:
        adapters: Folders that PEFT wrote, with their weights.
        out: Folder to make.
        method: Name of a method, or a `Method`: by default "linear", the weighted average; "task_arithmetic" is the
            weighted sum. Of those with curvature, "regmean", "fisher" and "gradient_matching".
        rank: Rank of the result; the largest rank among the adapters by default. RegMean keeps the part of that rank
            that changes the outputs of the layers most; the others keep what is closest in the weights.
        curvatures: For methods that need it, the curvature of the adapted weights in each adapter's task: see
            `posterity.adapters.adapter_curvature`, and for "regmean" `posterity.merging.gram_matrices`.
        base_precision: For "gradient_matching", the curvature of the same weights in what the base was trained on.

    Returns:
        The folder, with an adapter that PEFT loads.
    """
    check_named("adapters", adapters, MergeSource)
    method = method_of(method)
    if rank is not None:
        require_whole("rank", rank)
    if method.needs_curvature:
        for name in adapters:
            require(
                name in (curvatures or {}), "curvatures", f"those of the adapter {name!r}", sorted(curvatures or {})
            )
    out = Path(out)
    if out.exists():
        raise RefusedFile(f"{out}: expected a folder that does not exist yet, got one that does")
    weights = [source.weight for source in adapters.values()]
    method.check(weights)
    read = [_read(source.path) for source in adapters.values()]
    config = _common_config(dict(zip(adapters, read, strict=True)))
    hashes = common_hashes({name: source.path for name, source in adapters.items()})
    config["r"] = rank or max(adapter.rank for adapter in read)
    if isinstance(method, TaskArithmetic | Linear):
        total = sum(weights) if method.averages else 1.0
        tensors = _summed(read, [weight / total for weight in weights], config["r"])
    else:
        known = {name: _by_module(curvature) for name, curvature in (curvatures or {}).items()}
        for name, adapter in zip(adapters, read, strict=True) if method.needs_curvature else ():
            missing = sorted(adapter.modules - known[name].keys())
            require(not missing, f"curvatures of {name!r}", "one of every module that the adapter changes", missing[:1])
        precision = _by_module(base_precision or {})
        tensors = _combined(dict(zip(adapters, read, strict=True)), weights, method, config["r"], known, precision)
    partial = out.with_name(f"{out.name}.partial")
    if partial.exists():
        raise RefusedFile(f"{partial}: expected nothing there, got the rest of an interrupted merge or another folder")
    partial.mkdir(parents=True)
    write_tensors(partial / TENSORS, tensors)
    write_json(partial / CONFIG, config)
    if hashes:
        write_hashes(partial, hashes)
    rows = [row(name, source.path.name, f"{source.weight:g}") for name, source in adapters.items()]
    note = f"Merged in the space of changes, recompressed to rank {config['r']}."
    write_bytes(partial / "README.md", page("Merged adapter", method, {}, rows, note).encode())
    os.replace(partial, out)
    return out


def _summed(adapters: list[Adapter], weights: list[float], rank: int) -> Tree:
    """Σ_t w_t s_t B_t A_t = [w_t s_t B_t …][A_t …]ᵀ, recompressed, divided by the scale that the result will get."""
    first = adapters[0]
    tensors: Tree = {}
    for module in _modules(adapters):
        left, right = [], []
        for adapter, weight in zip(adapters, weights, strict=True):
            if module in adapter.modules:
                B, A = adapter.factors(module)
                left.append(weight * adapter.scale(A.shape[0]) / first.scale(rank) * B)
                right.append(A)
        _check_shapes(module, left, right)
        tensors |= first.stored(module, *recompress(torch.cat(left, 1), torch.cat(right), rank))
    return tensors


def _combined(
    named: Mapping[str, Adapter],
    weights: list[float],
    method: Method,
    rank: int,
    curvatures: Mapping[str, Mapping[str, Tensor]],
    base_precision: Mapping[str, Tensor],
) -> Tree:
    """The changes s_t B_t A_t merged by any method on task vectors, recompressed."""
    adapters = list(named.values())
    first, modules = adapters[0], _modules(adapters)
    tensors: Tree = {}
    for group in [modules] if method.scope == "model" else [[module] for module in modules]:
        base = {module: _nothing(module, adapters) for module in group}
        changes = {name: base | adapter.changes(group) for name, adapter in named.items()}
        about = {name: {m: _curvature(method, found, m, base[m]) for m in group} for name, found in curvatures.items()}
        merged = merge_state_dicts(
            changes,
            base if method.needs_base else None,
            method=method,
            weights=dict(zip(named, weights, strict=True)),
            curvatures=about if method.needs_curvature else None,
            base_precision={module: t for module, t in base_precision.items() if module in group},
        )
        for module, change in merged.items():
            metric = None
            if isinstance(method, RegMean):
                grams = [weight * about[name][module] for name, weight in zip(named, weights, strict=True)]
                metric = torch.stack(grams).sum(0)
            tensors |= first.stored(module, *cut_rank(change / first.scale(rank), rank, metric))
    return tensors


def cut_rank(change: Tensor, rank: int, metric: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Factors B (out, r) and A (r, in) of a matrix: the closest of that rank, by its entries or by what it does.

        min ‖(ΔW − B A) G^½‖:   ΔW G^½ = U diag(σ) Vᵀ,   B = U_r √σ_r,   A = √σ_r V_rᵀ G^{-½}

    Args:
        change: ΔW, (out, in).
        rank: r; zeros fill up where the matrix has less.
        metric: G = Σ xxᵀ of the inputs x, (in, in), by which outputs are compared; by default the identity.
    """
    root = back = None
    if metric is not None:
        values, vectors = torch.linalg.eigh(metric.double())
        values = values.clamp_min(1e-6 * values.mean().item() or 1.0)  # inputs that never occur change no output
        root, back = vectors * values.sqrt() @ vectors.mT, vectors * values.rsqrt() @ vectors.mT
    U, sigma, Vh = torch.linalg.svd(change if root is None else change @ root, full_matrices=False)
    half = sigma[:rank].sqrt()
    A = half[:, None] * (Vh[:rank] if back is None else Vh[:rank] @ back)
    return recompress(U[:, :rank] * half, A, rank)


def _by_module(curvature: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Curvatures under the names of an adapter's file; Gram matrices come under those of the frozen weights."""
    found = {name.removesuffix(".base_layer.weight"): t for name, t in curvature.items()}
    return {name if name.startswith(PEFT_PREFIX) else PEFT_PREFIX + name: t for name, t in found.items()}


def _curvature(method: Method, found: Mapping[str, Tensor], module: str, change: Tensor) -> Tensor:
    """The curvature of a module; none where an adapter does not change it."""
    shape = method.curvature_shape(tuple(change.shape))
    return found[module] if module in found else change.new_zeros(shape)


def _modules(adapters: list[Adapter]) -> list[str]:
    """The modules that any of the adapters changes."""
    return sorted(set().union(*(adapter.modules for adapter in adapters)))


def _nothing(module: str, adapters: list[Adapter]) -> Tensor:
    """No change at all, in the shape that a module's changes have in every adapter."""
    pairs = [adapter.factors(module) for adapter in adapters if module in adapter.modules]
    _check_shapes(module, [B for B, _ in pairs], [A for _, A in pairs])
    return torch.zeros(pairs[0][0].shape[0], pairs[0][1].shape[1], dtype=torch.float64)


def _check_shapes(module: str, left: list[Tensor], right: list[Tensor]) -> None:
    shapes = {(B.shape[0], A.shape[1]) for B, A in zip(left, right, strict=True)}
    require(len(shapes) == 1, f"shape of {module}", "the same in all adapters", sorted(shapes))


def _read(path: Path) -> Adapter:
    if not is_adapter(path):
        raise RefusedFile(f"{path}: expected an adapter with {CONFIG}, as the other models are, got none")
    config = read_json(path / CONFIG)
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA" or not {"r", "lora_alpha"} <= config.keys():
        raise RefusedFile(f"{path / CONFIG}: expected a LoRA adapter with r and lora_alpha, got {kind}")
    for key in UNSUPPORTED:
        if config.get(key):
            got = f"expected no {key}, whose changes do not add up, got {config[key]}"
            hint = "; train the adapters beside a base whose other weights stay frozen" if key == WHOLE else ""
            raise RefusedFile(f"{path / CONFIG}: {got}{hint}")
    if str(config.get("init_lora_weights")).lower().startswith(RESIDUAL):
        start = config["init_lora_weights"]
        raise RefusedFile(
            f"{path / CONFIG}: expected changes of the base itself, got those of what init_lora_weights={start!r} left "
            "of it; let PEFT convert the adapter when it saves it (path_initial_model_for_weight_conversion)"
        )
    if not (path / TENSORS).is_file():
        raise RefusedFile(f"{path}: expected {TENSORS}, got none")
    adapter = Adapter(config, read_tensors(path / TENSORS))
    known = {f"{m}.{factor}.weight" for m in adapter.modules for factor in ("lora_A", "lora_B")}
    if not known:
        raise RefusedFile(f"{path / TENSORS}: expected pairs of lora_A and lora_B weights, got none")
    for name in known ^ adapter.tensors.keys():
        raise RefusedFile(f"{path / TENSORS}: expected pairs of lora_A and lora_B weights, got {name!r}")
    for name, t in adapter.tensors.items():
        if t.ndim != 2:
            raise RefusedFile(f"{path / TENSORS}: expected a matrix {name!r}, got shape {tuple(t.shape)}")
        if not bool(torch.isfinite(t).all()):
            raise RefusedFile(f"{path / TENSORS}: expected finite numbers in {name!r}, got NaN or infinity")
    return adapter


def _common_config(adapters: Mapping[str, Adapter]) -> dict[str, Any]:
    """The first adapter's configuration, for all modules that any adapter changes."""
    first = next(iter(adapters.values())).config
    targets = [adapter.config.get("target_modules") for adapter in adapters.values()]
    for name, adapter in adapters.items():
        for key in ALIKE:
            wanted, found = first.get(key), adapter.config.get(key)
            require(found == wanted, f"{key} of {name!r}", f"{wanted!r} as in the others", found)
    if all(isinstance(target, list) for target in targets):
        return {**first, "target_modules": sorted({m for t in targets for m in t or ()}), "rank_pattern": {}}
    require(all(t == targets[0] for t in targets), "target_modules", "the same pattern in all adapters", targets)
    return {**first, "rank_pattern": {}}
