"""Frozen features: pretrained networks that turn texts and pictures into vectors, computed once and kept."""

from posterity.features._encoder import Encoder
from posterity.features.cache import Cache
from posterity.features.find import find_encoder
from posterity.features.pictures import PictureEncoder
from posterity.features.text import TextEncoder

__all__ = ["Cache", "Encoder", "PictureEncoder", "TextEncoder", "find_encoder"]
