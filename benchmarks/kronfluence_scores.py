"""Influence scores by kronfluence, a peer that lives in an environment of its own."""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

Data = tuple[Tensor, Tensor]


def pairwise(
    place: str, model: nn.Module, train: Data, queries: Data, damping: float, layers: Sequence[str] | None = None
) -> Tensor:
    """∇ℓ_q · (EK-FAC + damping)⁻¹ ∇ℓ_t for each query q (rows) and training example t, of a softmax classifier.

    Args:
        place: Where kronfluence is installed.
        model: The classifier.
        train: The training examples.
        queries: The test examples.
        damping: What is added to every eigenvalue.
        layers: Names of the linear layers that were trained; all of them by default.
    """
    sys.path.append(place)
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.task import Task

    class Classification(Task):
        def compute_train_loss(self, batch: Any, model: nn.Module, sample: bool = False) -> Tensor:
            logits = model(batch[0])
            labels = torch.multinomial(logits.detach().softmax(-1), 1).flatten() if sample else batch[1]
            return F.cross_entropy(logits, labels, reduction="sum")

        def compute_measurement(self, batch: Any, model: nn.Module) -> Tensor:
            return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")

        def get_influence_tracked_modules(self) -> list[str] | None:
            return None if layers is None else [f"0.{name}" for name in layers]

    task = Classification()
    ready = prepare_model(nn.Sequential(copy.deepcopy(model)).float(), task)
    data, asked = (TensorDataset(x.float(), y) for x, y in (train, queries))
    with tempfile.TemporaryDirectory() as folder:
        analyzer = Analyzer("text", ready, task, cpu=True, output_dir=folder, disable_tqdm=True)
        analyzer.fit_all_factors("ekfac", data, per_device_batch_size=256, factor_args=FactorArguments())
        analyzer.compute_pairwise_scores(
            "scores", "ekfac", asked, data, per_device_query_batch_size=256, per_device_train_batch_size=256,
            score_args=ScoreArguments(damping_factor=damping),
        )  # fmt: skip
        return analyzer.load_pairwise_scores("scores")["all_modules"]
