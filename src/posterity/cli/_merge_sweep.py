"""`posterity merge --sweep`: a recipe under many weights, each merged, scored on every task and thrown away."""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from posterity.batches import batches
from posterity.cells import escaped
from posterity.cli._subjects import open_data, open_model
from posterity.errors import RefusedFile, require
from posterity.inputs import call
from posterity.likelihoods import classes_last
from posterity.likelihoods import likelihood as likelihood_of
from posterity.merging import sweep, trade_offs
from posterity.merging.recipes import Recipe
from posterity.plots import trade_off


def sweep_recipe(
    recipe: Recipe, steps: int, tasks: Mapping[str, str], architecture: str | None, likelihood: str
) -> Path:
    """Merge under weights from one model to the others, write the losses of every task and their picture.

    Args:
        recipe: The merge.
        steps: Weights on each line.
        tasks: Data of each task.
        architecture: `module:factory`, where the merged folder does not name its model.
        likelihood: What the outputs mean.
    """
    require(bool(tasks), "--score", "the data of at least one task, as TASK=DATA", "none")
    if recipe.out.exists():
        raise RefusedFile(f"{recipe.out}: expected a folder that does not exist yet, got one that does")
    data = {task: batches(open_data(path, "")) for task, path in tasks.items()}
    law = likelihood_of(likelihood)

    @torch.no_grad()
    def losses(folder: Path) -> dict[str, float]:
        model = open_model(str(folder)) if architecture is None else open_model(architecture, folder)
        return {
            task: sum(law.loss(classes_last(call(model, b.inputs)), b.targets).sum().item() for b in source) / source.n
            for task, source in data.items()
        }

    with tempfile.TemporaryDirectory(dir=recipe.out.absolute().parent) as scratch:
        place = Path(scratch) / "merged"

        def merged(weights: Mapping[str, float]) -> Path:
            shutil.rmtree(place, ignore_errors=True)
            return recipe.weighted(weights, place).cook()

        found = sweep(merged, trade_offs(list(recipe.models), steps), losses)
    recipe.out.mkdir(parents=True)
    with open(recipe.out / "sweep.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(escaped(name) for name in found.rows()[0])
        writer.writerows(row.values() for row in found.rows())
    trade_off(found).savefig(recipe.out / "sweep.png")
    return recipe.out
