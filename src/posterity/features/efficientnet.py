"""EfficientNet-lite0 in plain torch: the picture encoder, under the names of the published weights."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

# Of every stage: expansion, output channels, kernel, stride of its first block, number of blocks.
STAGES = (
    (1, 16, 3, 1, 1),
    (6, 24, 3, 2, 2),
    (6, 40, 5, 2, 2),
    (6, 80, 3, 2, 3),
    (6, 112, 5, 1, 3),
    (6, 192, 5, 2, 4),
    (6, 320, 3, 1, 1),
)
STEM, WIDTH, CLASSES = 32, 1280, 1000


class SameConv(nn.Conv2d):
    """A convolution that pads as TensorFlow does: the odd pixel of a stride goes to the right and to the bottom."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C', ⌈H/s⌉, ⌈W/s⌉)."""
        pads: list[int] = []
        for size, kernel, stride in zip(input.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(F.pad(input, pads))


class Block(nn.Module):
    """An inverted bottleneck without squeeze-and-excitation: expand, filter each channel, project, add the input."""

    def __init__(self, before: int, after: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = before * expansion
        if expansion != 1:
            self._expand_conv, self._bn0 = SameConv(before, inner, 1, bias=False), _norm(inner)
        self._depthwise_conv = SameConv(inner, inner, kernel, stride, groups=inner, bias=False)
        self._bn1 = _norm(inner)
        self._project_conv, self._bn2 = SameConv(inner, after, 1, bias=False), _norm(after)
        self.expands, self.adds = expansion != 1, stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """(B, before, H, W) to (B, after, H', W')."""
        inner = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        inner = F.relu6(self._bn1(self._depthwise_conv(inner)))
        out = self._bn2(self._project_conv(inner))
        return out + x if self.adds else out


class EfficientNetLite0(nn.Module):
    """Pictures (B, 3, H, W), standardised as in training, to features (B, 1280)."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = SameConv(3, STEM, 3, 2, bias=False), _norm(STEM)
        blocks, before = [], STEM
        for expansion, after, kernel, stride, count in STAGES:
            for i in range(count):
                blocks.append(Block(before, after, expansion, kernel, stride if i == 0 else 1))
                before = after
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = SameConv(before, WIDTH, 1, bias=False), _norm(WIDTH)
        self._fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The mean over all places of the last feature map; `_fc` makes the 1000 classes of ImageNet of it."""
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x))).mean((2, 3))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
