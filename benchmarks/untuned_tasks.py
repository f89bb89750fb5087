"""The tasks of the study without tuning: for each data set a network that people would take, and no search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from untuned_data import WORDS, Arrays

from networks import lenet, mlp


@dataclass(frozen=True)
class Task:
    """A data set, a network and how long people would train it.

    Args:
        data: Name of the packed data.
        network: Makes the network, given the packed data.
        batch: Examples (for language models: windows) a step.
        steps: Steps of training.
        kind: "classes", "amounts" or "tokens".
        chosen_on: Whether the rule's constants were chosen on this task.
        take: Examples that are trained on; all by default.
        tested: The first examples (characters) to be tested on; all by default.
        half: Whether a GPU computes in bfloat16.
    """

    data: str
    network: Callable[[Arrays], nn.Module]
    batch: int
    steps: int
    kind: str = "classes"
    chosen_on: bool = False
    take: int | None = None
    tested: int | None = None
    half: bool = False


WINDOW = 128  # characters that a language model sees at once


# ── networks ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Residual(nn.Module):
    """A pre-activation residual block with batch normalisation."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(fan_in), nn.ReLU(), nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(fan_out), nn.ReLU(), nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False),
        )  # fmt: skip
        same = stride == 1 and fan_in == fan_out
        self.shortcut: nn.Module = nn.Identity() if same else nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return self.body(x) + self.shortcut(x)


def resnet(channels: int, width: int, classes: int, blocks: int = 2) -> nn.Module:
    """ResNet with four stages (ResNet-18 for two blocks each) for small pictures."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, 1, 1, bias=False)]
    fan_in = width
    for stage in range(4):
        fan_out = width * 2**stage
        for block in range(blocks):
            layers.append(Residual(fan_in, fan_out, 2 if stage and not block else 1))
            fan_in = fan_out
    tail = [nn.BatchNorm2d(fan_in), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(fan_in, classes)]
    return nn.Sequential(*layers, *tail)


def small_cnn(channels: int, classes: int, width: int = 32) -> nn.Module:
    """Three convolutions with batch normalisation."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in ((channels, width), (width, 2 * width), (2 * width, 2 * width)):
        layers += [nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.BatchNorm2d(fan_out), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes))


class Attention(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the perceptron, each added to its input."""
        n, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.body(self.norm2(x))


class Mixing(nn.Module):
    """A block of an MLP-mixer."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across, self.within = mlp((tokens, 2 * tokens, tokens), nn.GELU), mlp((width, 4 * width, width), nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, then channels."""
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Patches(nn.Module):
    """Pictures as patches through transformer or mixer blocks."""

    def __init__(self, size: int, patch: int, width: int, depth: int, classes: int, mixer: bool) -> None:
        super().__init__()
        tokens = (size // patch) ** 2
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.place = nn.Parameter(0.02 * torch.randn(1, tokens, width))
        blocks = [Mixing(tokens, width) if mixer else Attention(width, width // 48, False) for _ in range(depth)]
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of pictures."""
        x = self.embed(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.norm(self.blocks(x)).mean(1))


class Encoder(nn.Module):
    """A transformer over the words of a sentence."""

    def __init__(self, words: int, classes: int, width: int = 128, depth: int = 2) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(1, WORDS, width))
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.Sequential(*(Attention(width, 4, False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the average over the sentence's words (0 pads)."""
        real = (x > 0).unsqueeze(-1)
        x = self.norm(self.blocks(self.embed(x) + self.place))
        return self.head((x * real).sum(1) / real.sum(1).clamp_min(1))


class Recurrent(nn.Module):
    """A bidirectional LSTM or GRU over the words of a sentence."""

    def __init__(self, words: int, classes: int, kind: type[nn.RNNBase], width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.body = kind(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the largest value of each unit over the sentence."""
        return self.head(self.body(self.embed(x))[0].amax(1))


class WordCNN(nn.Module):
    """Convolutions over words, of three widths."""

    def __init__(self, words: int, classes: int, width: int = 100) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, k, padding=k // 2) for k in (3, 4, 5))
        self.head = nn.Linear(3 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the largest response of each filter."""
        e = self.embed(x).transpose(1, 2)
        return self.head(torch.cat([F.relu(c(e)).amax(2) for c in self.convolutions], 1))


class GPT(nn.Module):
    """A decoder over characters."""

    def __init__(self, tokens: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, width), nn.Parameter(0.02 * torch.randn(1, WINDOW, width))
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.Sequential(*(Attention(width, width // 64, True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next character at each place."""
        x = self.blocks(self.embed(x) + self.place[:, : x.shape[1]])
        return self.head(self.norm(x))


def table(widths: tuple[int, ...]) -> Callable[[Arrays], nn.Module]:
    """A perceptron on the columns of a table."""
    return lambda d: mlp((d["x"].shape[1], *widths, outputs(d)))


def outputs(data: Arrays) -> int:
    """Classes, or mean and log-variance of an amount."""
    return 2 if data["y"].is_floating_point() else int(data["y"].max()) + 1


def words(data: Arrays) -> int:
    """Size of the vocabulary."""
    return int(data["x"].max()) + 1


TASKS: dict[str, Task] = {
    # chosen on
    "Adult, perceptron": Task("adult", table((256, 256)), 128, 3000, chosen_on=True),
    "SST-2, LSTM": Task("sst2", lambda d: Recurrent(words(d), 2, nn.LSTM), 64, 1500, chosen_on=True),
    "Fashion-MNIST 12 000, LeNet": Task("fashion", lambda d: lenet(), 128, 2500, chosen_on=True),
    "TREC, transformer": Task("trec", lambda d: Encoder(words(d), 6), 64, 2000, chosen_on=True, half=True),
    "CIFAR-10 12 000, ResNet-18": Task("cifar", lambda d: resnet(3, 48, 10), 128, 2000, chosen_on=True, half=True),
    "CIFAR-10 12 000, ViT": Task(
        "cifar", lambda d: Patches(32, 4, 192, 6, 10, False), 128, 2500, chosen_on=True, half=True
    ),
    "WikiText-2 characters, GPT": Task(
        "wikitext", lambda d: GPT(words(d), 256, 4), 64, 1500, "tokens", chosen_on=True, half=True
    ),
    "digits 500, CNN (easy)": Task("digits", lambda d: small_cnn(1, 10), 64, 800, chosen_on=True),
    "kin8nm, perceptron": Task("kin8nm", table((128, 128)), 64, 3000, "amounts", chosen_on=True),
    "WikiText-2, GPT, 200 steps (too short)": Task(
        "wikitext", lambda d: GPT(words(d), 256, 4), 64, 200, "tokens", chosen_on=True, half=True
    ),
    # reported on (USPS and the BatchNorm CNN were, until noise before batch normalisation had to go)
    "electricity 8000, perceptron": Task("electricity", table((256, 256)), 128, 3000),
    "a7a, perceptron": Task("a7a", table((128, 128)), 128, 2500),
    "USPS, CNN (easy)": Task("usps", lambda d: small_cnn(1, 10), 128, 1500, chosen_on=True),
    "Fashion-MNIST 12 000, BatchNorm CNN": Task("fashion", lambda d: small_cnn(1, 10, 48), 128, 2500, chosen_on=True),
    "CIFAR-10 12 000, mixer": Task("cifar", lambda d: Patches(32, 4, 192, 6, 10, True), 128, 2500, half=True),
    "rotten tomatoes, GRU": Task("rotten", lambda d: Recurrent(words(d), 2, nn.GRU), 64, 1500),
    "SST-5, convolutions over words": Task("sst5", lambda d: WordCNN(words(d), 5), 64, 1500),
    "clinc150, transformer": Task("clinc", lambda d: Encoder(words(d), 150), 128, 2500, half=True),
    "Shakespeare characters, GPT": Task("shakespeare", lambda d: GPT(words(d), 256, 4), 64, 1500, "tokens", half=True),
    "Shakespeare, GPT, 200 steps (too short)": Task(
        "shakespeare", lambda d: GPT(words(d), 256, 4), 64, 200, "tokens", half=True
    ),
    "protein 10 000, perceptron": Task("protein", table((128, 128)), 64, 4000, "amounts"),
    "KMNIST 8000, LeNet": Task("kmnist", lambda d: lenet(), 128, 2000),
    "IMDB, transformer": Task("imdb", lambda d: Encoder(words(d), 2), 64, 2000, half=True),
    "UCI sentences, GRU": Task("sentences", lambda d: Recurrent(words(d), 2, nn.GRU), 64, 800),
    "abalone 3000, perceptron": Task("abalone", table((128, 128)), 64, 1500),
    "banana 1000, perceptron": Task("banana", table((64, 64)), 32, 1500),
    "biopsies 400, perceptron (easy)": Task("biopsies", table((64,)), 32, 600),
    "wine quality 1400, perceptron": Task("quality", table((64, 64)), 32, 1500, "amounts"),
}
