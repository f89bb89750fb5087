"""Pictures as vectors: EfficientNet-lite0 with published weights, read from a file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posterity.checkpoints import open_checkpoint
from posterity.errors import MissingExtra, RefusedFile
from posterity.features._encoder import Encoder, Matrix
from posterity.features.efficientnet import WIDTH, EfficientNetLite0

SIDE = 224  # pixels, as in training
MEAN, STD = 127.0, 128.0  # of bytes; with these, the first layer answers pictures as its stored statistics say
BATCH = 4  # whose feature maps stay in the cache: half the time of 32


class PictureEncoder(Encoder):
    """The last feature map of EfficientNet-lite0, averaged over all places.

    The shorter side of a picture is brought to `side` pixels, and the square in its middle is read.

    Args:
        path: The weights, a state dict or safetensors.
        side: Height and width that the network sees, by default 224; smaller is faster and less accurate.
    """

    kind = "pictures"
    part = 256

    def __init__(self, path: Path, side: int | None = None) -> None:
        super().__init__(path)
        if not path.is_file():
            raise RefusedFile(f"{path}: expected a file with the weights of EfficientNet-lite0, got none")
        self.side = SIDE if side is None else side

    def files(self) -> list[Path]:
        return [self.path]

    def settings(self) -> str:
        return f"{self.side} pixels"

    @property
    def width(self) -> int:
        return WIDTH

    def encode(self, items: Sequence[Path]) -> Matrix:
        """The vectors; NaN for pictures that cannot be read."""
        model, found = self._model, np.full((len(items), WIDTH), np.nan, np.float32)
        for start in range(0, len(items), BATCH):
            squares = {row: square(items[row], self.side) for row in range(start, min(start + BATCH, len(items)))}
            pixels = {row: pixel for row, pixel in squares.items() if pixel is not None}
            if not pixels:
                continue
            inputs = (torch.from_numpy(np.stack(list(pixels.values()))).permute(0, 3, 1, 2).float() - MEAN) / STD
            inputs = inputs.contiguous(memory_format=torch.channels_last)
            with torch.inference_mode():
                found[list(pixels)] = model(inputs).numpy()
        return found

    @cached_property
    def _model(self) -> EfficientNetLite0:
        model = EfficientNetLite0()
        stored = open_checkpoint(self.path)
        there = model.state_dict()
        for name, tensor in there.items():
            entry = stored.find(name)
            if entry is None or entry.shape != tuple(tensor.shape):
                got = "none" if entry is None else f"shape {entry.shape}"
                raise RefusedFile(
                    f"{self.path}: expected the weights of EfficientNet-lite0, with {name!r} of shape "
                    f"{tuple(tensor.shape)}, got {got}"
                )
            tensor.copy_(stored.read(name, 0, entry.count).reshape(entry.shape))
        # Channels last: half of the time, and the same numbers up to rounding.
        return model.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@contextmanager
def decoding(path: Path) -> Iterator[None]:
    """One error for all messages of decoders about a damaged picture; its warnings about it are dropped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as why:  # decoders raise almost anything: OSError, SyntaxError, TypeError, struct.error ...
            words = " ".join(str(why).split())[:200]
            raise RefusedFile(f"{path}: expected a picture, got an error: {words}") from why


def square(path: Path, side: int) -> np.ndarray[Any, Any] | None:
    """The middle of a picture, (side, side, 3), in colours; what is transparent is white. None for no picture."""
    try:
        from PIL import Image, ImageOps
    except ImportError as why:
        raise MissingExtra("pictures: expected the package pillow; pip install 'posterity[images]'") from why
    try:
        with decoding(path), Image.open(path) as picture:
            picture.draft("RGB", (2 * side, 2 * side))  # lets JPEG skip detail that nobody would see
            found = ImageOps.exif_transpose(picture)
            if "A" in found.getbands() or "transparency" in found.info:
                found = found.convert("RGBA")
                found = Image.alpha_composite(Image.new("RGBA", found.size, "white"), found)
            return np.asarray(ImageOps.fit(found.convert("RGB"), (side, side), Image.Resampling.BILINEAR))
    except RefusedFile:
        return None
