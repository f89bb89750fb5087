"""The networks of the studies: LeNet, network-in-network, ResNet-20, SegNet and U-Net, multilayer perceptrons."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity.curvature import elementwise


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A multilayer perceptron with these widths, input and output included."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])


def lenet(conv_dropout: float = 0.0, dense_dropout: float = 0.0) -> nn.Sequential:
    """LeNet with 20 and 50 filters and 500 hidden units; dropout after convolutions and before the last layer."""

    def drop(rate: float) -> list[nn.Module]:
        return [nn.Dropout(rate)] if rate else []

    return nn.Sequential(
        nn.Conv2d(1, 20, 5), *drop(conv_dropout), nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5), *drop(conv_dropout), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), *drop(dense_dropout), nn.Linear(500, 10),
    )  # fmt: skip


def lenet5() -> nn.Sequential:
    """LeNet-5 with rectifiers: 6 and 16 filters, 120 and 84 hidden units."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def network_in_network(dropout: float = 0.5, classes: int = 10) -> nn.Sequential:
    """Network-in-network for 32 x 32 images: three stages of 5x5/3x3 and 1x1 convolutions, dropout between them."""

    def stage(fan_in: int, kernel: int, widths: Sequence[int]) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for i, width in enumerate(widths):
            size = kernel if i == 0 else 1
            layers += [nn.Conv2d(fan_in, width, size, padding=size // 2), nn.ReLU()]
            fan_in = width
        return layers

    return nn.Sequential(
        *stage(3, 5, (192, 160, 96)), nn.MaxPool2d(3, 2, 1), nn.Dropout(dropout),
        *stage(96, 5, (192, 192, 192)), nn.AvgPool2d(3, 2, 1), nn.Dropout(dropout),
        *stage(192, 3, (192, 192, classes)), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def cifar_net(classes: int = 10, dropout: float = 0.0) -> nn.Sequential:
    """The small convolutional network of the continual-learning literature: 32-32-64-64 filters, 512 hidden units.

    Args:
        classes: Outputs.
        dropout: Rate after each pool; before the last layer it is twice as high. Published: 0.25.
    """
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Dropout(dropout),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Dropout(dropout),
        nn.Flatten(), nn.Linear(2304, 512), nn.ReLU(), nn.Dropout(2 * dropout), nn.Linear(512, classes),
    )  # fmt: skip


class FilterResponseNorm(nn.Module):
    """Filter response normalisation: no batch statistics, so that noise in the weights is harmless."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def normalised(self, x: Tensor) -> Tensor:
        """The input divided by its root mean square over positions."""
        return x * torch.rsqrt(x.square().mean((2, 3), keepdim=True) + 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, scale and shift."""
        return self.weight * self.normalised(x) + self.bias


class ThresholdedUnit(nn.Module):
    """max(x, τ): the unit that goes with filter response normalisation, whose outputs need not be centred at zero."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The larger of input and threshold."""
        return torch.maximum(x, self.threshold)


elementwise(FilterResponseNorm, weight=FilterResponseNorm.normalised, bias=lambda layer, x: torch.ones_like(x))
elementwise(  # torch.maximum shares the gradient where both are equal, which rounding does bring about
    ThresholdedUnit, threshold=lambda layer, x: (x < layer.threshold) + 0.5 * (x == layer.threshold)
)


def _norm(channels: int, frn: bool) -> nn.Module:
    return FilterResponseNorm(channels) if frn else nn.BatchNorm2d(channels)


def _unit(channels: int, frn: bool) -> nn.Module:
    return ThresholdedUnit(channels) if frn else nn.ReLU()


class _Block(nn.Module):
    """Two 3x3 convolutions and a parameter-free shortcut (subsample and pad)."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, frn: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False)
        self.bn1, self.unit1 = _norm(fan_out, frn), _unit(fan_out, frn)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False)
        self.bn2, self.unit2 = _norm(fan_out, frn), _unit(fan_out, frn)
        self.stride, self.extra = stride, (fan_out - fan_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Residual sum of the two convolutions and the shortcut."""
        out = self.bn2(self.conv2(self.unit1(self.bn1(self.conv1(x)))))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra, self.extra))
        return self.unit2(out + shortcut)


class ResNet20(nn.Module):
    """ResNet-20 for CIFAR: three stages of three blocks; parameter names follow the common public checkpoint.

    Args:
        classes: Outputs.
        frn: Filter response normalisation and thresholded units in place of batch normalisation and ReLU.
    """

    def __init__(self, classes: int = 10, frn: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1, self.unit1 = _norm(16, frn), _unit(16, frn)
        self.layer1 = self._stage(16, 16, 1, frn)
        self.layer2 = self._stage(16, 32, 2, frn)
        self.layer3 = self._stage(32, 64, 2, frn)
        self.linear = nn.Linear(64, classes)

    @staticmethod
    def _stage(fan_in: int, fan_out: int, stride: int, frn: bool) -> nn.Sequential:
        first = _Block(fan_in, fan_out, stride, frn)
        return nn.Sequential(first, *(_Block(fan_out, fan_out, 1, frn) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.unit1(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


class SegNet(nn.Module):
    """A small Bayesian SegNet: encoder and decoder of three stages, unpooling by stored indices, dropout inside."""

    def __init__(self, classes: int = 11, width: int = 64, dropout: float = 0.5) -> None:
        super().__init__()
        self.encoders = nn.ModuleList([_conv_stage(3, width), _conv_stage(width, width), _conv_stage(width, width)])
        self.decoders = nn.ModuleList([_conv_stage(width, width) for _ in range(3)])
        self.dropout_in = nn.Dropout2d(dropout)
        self.dropout_out = nn.Dropout2d(dropout)
        self.classifier = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes, height, width)."""
        places, sizes = [], []
        for encoder in self.encoders:
            x = encoder(x)
            sizes.append(x.shape[-2:])
            x, index = F.max_pool2d(x, 2, return_indices=True)
            places.append(index)
        x = self.dropout_in(x)
        for decoder in self.decoders:
            size = sizes.pop()
            x = decoder(F.max_unpool2d(x, places.pop(), 2, output_size=list(size)))
        return self.classifier(self.dropout_out(x))


def _conv_stage(fan_in: int, fan_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(fan_in, fan_out, 5, padding=2, bias=False), nn.BatchNorm2d(fan_out), nn.ReLU(),
        nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False), nn.BatchNorm2d(fan_out), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """A Bayesian U-Net: four poolings, skip connections, dropout of channels in the deepest stages of either side."""

    def __init__(self, classes: int = 11, width: int = 48, dropout: float = 0.5) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width, 8 * width]
        self.encoders = nn.ModuleList([_pair(a, b) for a, b in itertools.pairwise([3, *widths])])
        self.decoders = nn.ModuleList([_pair(a + b, b) for a, b in itertools.pairwise(widths[::-1])])
        self.central = nn.ModuleList([nn.Dropout2d(dropout) for _ in range(4)])
        self.classifier = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes, height, width)."""
        kept = []
        for depth, encoder in enumerate(self.encoders):
            x = encoder(x if depth == 0 else F.max_pool2d(x, 2))
            x = self.central[depth - 3](x) if depth >= 3 else x
            kept.append(x)
        x = kept.pop()
        for depth, decoder in enumerate(self.decoders):
            skip = kept.pop()
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = decoder(torch.cat((x, skip), 1))
            x = self.central[2 + depth](x) if depth < 2 else x
        return self.classifier(x)


def _pair(fan_in: int, fan_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False), nn.BatchNorm2d(fan_out), nn.ReLU(),
        nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False), nn.BatchNorm2d(fan_out), nn.ReLU(),
    )  # fmt: skip
