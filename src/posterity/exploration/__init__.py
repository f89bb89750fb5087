"""Exploration: what to look at next. Active learning on pools, and bandits."""

from posterity.exploration._acquire import acquire
from posterity.exploration.picks import Picks

__all__ = ["Picks", "acquire"]
