"""Readers for the real data sets that the benchmarks use: a folder given by --data or POSTERITY_DATA."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Split = tuple[Tensor, Tensor]


def folder(given: str | None = None) -> Path:
    """The data folder, or an exit that says how to name it."""
    path = given or os.environ.get("POSTERITY_DATA")
    if not path or not Path(path).is_dir():
        raise SystemExit("data: expected a folder in --data or POSTERITY_DATA, got " + repr(path))
    return Path(path)


def _idx(path: Path) -> np.ndarray:
    with gzip.open(path, "rb") as file:
        raw = file.read()
    dims = raw[3]
    shape = struct.unpack(">" + "I" * dims, raw[4 : 4 + 4 * dims])
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def digits_like(root: Path, name: str, split: str) -> Split:
    """MNIST, FashionMNIST (train, t10k) or KMNIST_test (t10k): images (N, 1, 28, 28) in [0, 1] and labels."""
    where = root / name / "raw" if (root / name / "raw").is_dir() else root / name
    images = _idx(where / f"{split}-images-idx3-ubyte.gz")
    labels = _idx(where / f"{split}-labels-idx1-ubyte.gz")
    return torch.from_numpy(images.copy()).float().div_(255).unsqueeze(1), torch.from_numpy(labels.copy()).long()


def _sheet(path: Path, height: int, width: int) -> np.ndarray:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    sheet = np.asarray(Image.open(path).convert("RGB"))
    rows, columns = sheet.shape[0] // height, sheet.shape[1] // width
    return sheet.reshape(rows, height, columns, width, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, height, width)


_CIFAR_MEAN = torch.tensor([0.49140, 0.48216, 0.44653]).view(3, 1, 1)
_CIFAR_STD = torch.tensor([0.24703, 0.24349, 0.26159]).view(3, 1, 1)
_IMAGENET_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
_IMAGENET_STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def _normalised(images: np.ndarray, imagenet: bool) -> Tensor:
    mean, std = (_IMAGENET_MEAN, _IMAGENET_STD) if imagenet else (_CIFAR_MEAN, _CIFAR_STD)
    return (torch.from_numpy(images.copy()).float().div_(255) - mean) / std


def cifar10(root: Path, split: str, imagenet: bool = False) -> Split:
    """CIFAR-10 "train" or "test", normalised by its own statistics (or by ImageNet's, for borrowed weights)."""
    labels = np.load(root / "cifar10" / "labels.npz")[split]
    names = [f"data_batch_{i}" for i in range(1, 6)] if split == "train" else ["test_batch"]
    images = np.concatenate([_sheet(_cifar_sheet(root, name), 32, 32) for name in names])
    return _normalised(images, imagenet), torch.from_numpy(labels).long()


def _cifar_sheet(root: Path, name: str) -> Path:
    """A sheet of CIFAR-10: lossless WebP, or JPEG where a machine takes no more than a third of the bytes."""
    lossless = root / "cifar10" / f"{name}.webp"
    return lossless if lossless.exists() else lossless.with_suffix(".jpg")


def cifar_pictures(root: Path) -> str:
    """How the pictures of CIFAR-10 are stored, for the head of a table."""
    return "lossless" if _cifar_sheet(root, "test_batch").suffix == ".webp" else "JPEG, quality 90"


def cifar100_images(root: Path, imagenet: bool = False) -> Tensor:
    """2000 test images of CIFAR-100: things no CIFAR-10 network has seen."""
    return _normalised(_sheet(root / "cifar100_ood" / "test2000.webp", 32, 32), imagenet)


def pictures(root: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Bytes (N, H, W, 3) or (N, H, W) and labels of test pictures: cifar10, cifar100 (a part of them) or fashion."""
    if name == "fashion":
        raw = root / "FashionMNIST" / "raw"
        return _idx(raw / "t10k-images-idx3-ubyte.gz"), _idx(raw / "t10k-labels-idx1-ubyte.gz")
    place, key = {"cifar10": ("cifar10/test_batch", "test"), "cifar100": ("cifar100_ood/test2000", "y")}[name]
    labels = np.load((root / place).parent / "labels.npz")[key]
    return _sheet(root / f"{place}.webp", 32, 32).transpose(0, 2, 3, 1)[: len(labels)], labels


def camvid(root: Path, split: str) -> Split:
    """CamVid street scenes (N, 3, 120, 160) in [0, 1] and label maps with 11 = unlabelled."""
    labels = np.load(root / "camvid" / "labels.npz")["y_" + split]
    images = _sheet(root / "camvid" / f"{split}.webp", 120, 160)[: len(labels)]
    return torch.from_numpy(images.copy()).float().div_(255), torch.from_numpy(labels).long()


def uci_regression(root: Path, name: str) -> dict[str, np.ndarray]:
    """X, y and the standard train/test splits of one UCI regression set."""
    return dict(np.load(root / "uci_regression" / f"{name}.npz"))


def tabular(root: Path, name: str) -> dict[str, np.ndarray]:
    """Arrays of one table under tabular/."""
    return dict(np.load(root / "tabular" / f"{name}.npz"))


def text(root: Path, name: str) -> list[dict[str, Any]]:
    """Records with at least "text" and "label"."""
    with lzma.open(root / "text" / f"{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
