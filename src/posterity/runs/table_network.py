"""The network for tables: members that share their hidden layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MEMBERS = 8


class TableNetwork(nn.Module):
    """An ensemble in one network.

        h_m = g(s_m ⊙ x),    f(x) = (1/M) Σ_m W_m h_m + b

    The members m = 1 ... M share the hidden layers g and differ by fixed random signs s_m of the inputs and by their
    last weights W_m. In training, each example of a batch is answered by one member, f = W_m h_m + b with m the place
    in the batch modulo M: every member learns to answer alone, and a step costs no more than one of a plain network.
    In evaluation the members' outputs are averaged. The last layer is one `nn.Linear` of all members' features, so code
    that looks for the last layer of a model finds it.

    Args:
        inputs: Numbers of an example.
        outputs: Outputs.
        hidden: Widths of the hidden layers.
        members: Number of members M.

    References:
        Gorishniy, Kotelnikov and Babenko, "TabM: advancing tabular deep learning with parameter-efficient ensembling",
        2025; the signs are those of Wen, Tran and Ba, "BatchEnsemble", 2020.
    """

    signs: Tensor

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int], members: int = MEMBERS) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.members = members
        self.register_buffer("signs", 2.0 * torch.randint(0, 2, (members, inputs)) - 1)
        layers = [(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(widths)]
        self.body = nn.Sequential(*(layer for pair in layers for layer in pair))
        self.head = nn.Linear(members * widths[-1], outputs)
        nn.init.uniform_(self.head.weight, -1 / math.sqrt(widths[-1]), 1 / math.sqrt(widths[-1]))  # one member's fan
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (B, ...) to outputs (B, K)."""
        x = x.flatten(1)
        if self.training:
            member = torch.arange(len(x), device=x.device) % self.members
            alone = F.one_hot(member, self.members).to(x).unsqueeze(2)  # (B, M, 1)
            h = self.body(x * self.signs[member]).unsqueeze(1) * alone
        else:
            h = self.body(x.unsqueeze(1) * self.signs) / self.members  # (B, M, width)
        return self.head(h.flatten(1))
