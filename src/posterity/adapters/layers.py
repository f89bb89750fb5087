"""LoRA in plain torch: frozen linear layers, each with a product of two thin matrices added."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from posterity.errors import expected, require, require_positive, require_whole


class LoRALinear(nn.Module):
    """W x + b + (α/r) B A x, with W and b frozen.

    A starts as torch starts linear layers and B at zero, as in PEFT: the model's outputs do not change until B does.
    The factors are linear layers themselves, so that hooks and closed forms see them as such.

    Args:
        base: The frozen layer.
        rank: Rows r of A.
        alpha: Scale α of the product.
        dropout: Rate of dropout on the input of A.

    References:
        Hu et al., "LoRA: low-rank adaptation of large language models", 2022.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        device, dtype = base.weight.device, base.weight.dtype
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, device=device, dtype=dtype)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, device=device, dtype=dtype)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)
        self.lora_dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.rank, self.alpha = rank, alpha

    @property
    def scale(self) -> float:
        """α/r."""
        return self.alpha / self.rank

    @property
    def change(self) -> Tensor:
        """(α/r) B A, what the adapter adds to W."""
        return self.scale * self.lora_B.weight @ self.lora_A.weight

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return self.base_layer(x) + self.scale * self.lora_B(self.lora_A(self.lora_dropout(x)))


def insert_lora(
    model: nn.Module,
    targets: Sequence[str],
    *,
    rank: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.0,
    trained: Sequence[str] = (),
) -> list[str]:
    """Put adapters beside linear layers of a model, in place, and freeze everything else.

    Args:
        model: The model.
        targets: Ends of the names of the layers ("query" for every `...attention.query`).
        rank: Rank r of each change.
        alpha: Scale α; the change is (α/r) B A.
        dropout: Rate of dropout on the inputs of the adapters.
        trained: Modules that are trained whole beside the adapters, such as a new head.

    Returns:
        The names of the layers that were changed.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        >>> insert_lora(net, ["0"], rank=2, trained=["2"])
        ['0']
        >>> [name for name, p in net.named_parameters() if p.requires_grad]
        ['0.lora_A.weight', '0.lora_B.weight', '2.weight', '2.bias']
    """
    require_whole("rank", rank)
    require_positive("alpha", alpha)
    require(0 <= dropout < 1, "dropout", "a rate in [0, 1)", dropout)
    if adapted_modules(model):
        raise expected("model", "no adapters yet (load_adapter fills those that are there)", "some")
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    found = {name: module for name, module in linear.items() if any(_ends(name, target) for target in targets)}
    if not found:
        raise expected("targets", f"ends of names of linear layers such as {sorted(linear)[:5]}", list(targets))
    modules = dict(model.named_modules())
    for name in trained:
        if name not in modules:
            raise expected("trained", f"modules of the model such as {sorted(modules)[1:6]}", name)
    place_adapters(model, list(found), rank=rank, alpha=alpha, dropout=dropout, trained=trained)
    return list(found)


def place_adapters(
    model: nn.Module, layers: Sequence[str], *, rank: int, alpha: float, dropout: float, trained: Sequence[str]
) -> None:
    """As `insert_lora`, beside layers whose whole names are given and known to be linear."""
    modules = dict(model.named_modules())
    model.requires_grad_(False)
    for name in trained:
        modules[name].requires_grad_(True)
    for name in layers:
        parent, _, last = name.rpartition(".")
        layer = modules[name]
        assert isinstance(layer, nn.Linear)
        setattr(modules[parent], last, LoRALinear(layer, rank, alpha, dropout))


def adapted_modules(model: nn.Module) -> dict[str, LoRALinear]:
    """The layers of a model with an adapter beside them, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}


def _ends(name: str, target: str) -> bool:
    """Whether a name ends in a target, at a dot: PEFT's rule."""
    return name == target or name.endswith(f".{target}")
