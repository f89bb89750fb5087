"""One linear layer alone, such as the last: its dense matrices factor over examples, no Jacobian is formed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.curvature._layer_parameters import LayerParameter, MatrixParameter, VectorParameter
from posterity.curvature.passes import Pass


@dataclass(frozen=True)
class SingleLinear:
    """The parameters (W, c) of y = W a + c, with J_nᵀ v = b_n ⊗ ã_n and ã = (a, 1)."""

    inputs: Tensor  # ã, (n, d)
    outputs: int
    order: Tensor  # where each parameter of the tape stands in (outputs, d), flattened

    @classmethod
    def of(cls, step: Pass) -> SingleLinear | None:
        """The layer, if the tape watches the parameters of one linear layer and nothing else."""
        if len(step.layers) != 1 or step.rest or len(step.layers[0].parameters) != len(step.tape.names):
            return None
        parameters = step.layers[0].parameters
        if not all(_plain(parameter) for parameter in parameters.values()):
            return None
        columns = [_column(parameter, step.outputs) for parameter in parameters.values()]
        outputs = next(iter(parameters.values())).shape[0]
        place = torch.arange(outputs * sum(c.shape[1] for c in columns), device=step.logits.device)
        places = place.view(outputs, -1).split([c.shape[1] for c in columns], dim=1)
        by_name = {name: block.flatten() for name, block in zip(parameters, places)}
        return cls(torch.cat(columns, dim=1), outputs, torch.cat([by_name[name] for name in step.tape.names]))

    def outer_sum(self, b: Tensor, examples: slice) -> Tensor:
        """Σ_n Σ_r (b ⊗ ã)(b ⊗ ã)ᵀ = Σ_n (Σ_r b bᵀ) ⊗ (ã ãᵀ), from signals (R, n, 1, outputs)."""
        b, a = b[:, examples, 0].transpose(0, 1), self.inputs[examples]
        left = (b.mT @ b).flatten(1)  # (n, outputs²)
        right = (a.unsqueeze(-1) * a.unsqueeze(-2)).flatten(1)  # (n, d²)
        d = a.shape[1]
        blocks = (left.T @ right).view(self.outputs, self.outputs, d, d)
        dense = blocks.transpose(1, 2).reshape(self.outputs * d, self.outputs * d)
        return dense[self.order][:, self.order]

    def covariance(self, matrix: Tensor, examples: slice) -> Tensor:
        """Covariance (n, outputs, outputs) of the layer's output: ãᵀ Σ_op ã for all pairs of outputs o, p."""
        a = self.inputs[examples]
        d, back = a.shape[1], torch.argsort(self.order)
        blocks = matrix[back][:, back].view(self.outputs, d, self.outputs * d)
        half = (a @ blocks).view(self.outputs, len(a), self.outputs, d)  # (o, n, p, d)
        return torch.einsum("onpd,nd->nop", half, a)

    @property
    def numbers(self) -> int:
        """Numbers that one example needs in either sum."""
        d = self.inputs.shape[1]
        return d * d + self.outputs**2 * d


def _plain(parameter: LayerParameter) -> bool:
    return (isinstance(parameter, MatrixParameter) and parameter.rank_one) or (
        isinstance(parameter, VectorParameter) and parameter.inputs is None and parameter.positions == 1
    )


def _column(parameter: LayerParameter, like: Tensor) -> Tensor:
    if isinstance(parameter, MatrixParameter):
        return parameter.activations(slice(None))[:, 0, 0]
    return torch.ones(len(like), 1, dtype=like.dtype, device=like.device)
