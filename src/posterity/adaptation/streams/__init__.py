"""Data that come one chunk or one task after another: the online loop, continual learning and its strategies."""
