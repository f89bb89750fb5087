"""`posterity curvature`: the curvature of a model's loss in each weight, for merges that use it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posterity.cli._output import Json, dump, say


def curvature(
    model: Annotated[str, typer.Argument(help="Hugging Face folder, folder of a run, or module:factory.")],
    data: Annotated[str, typer.Argument(help="Inputs and targets in .npz or .safetensors; of a run, train or test.")],
    checkpoint: Annotated[Path | None, typer.Option(help="Weights for module:factory.")] = None,
    kind: Annotated[
        str, typer.Option(help="true, sampled or empirical Fisher information, or gram for RegMean.")
    ] = "true",
    likelihood: Annotated[
        str, typer.Option(help="What the outputs mean: categorical, bernoulli, gaussian or poisson.")
    ] = "categorical",
    batch_size: Annotated[int, typer.Option(help="Examples at a time; the result does not depend on it.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of drawn labels.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="File to write; by default <model>.fisher.safetensors beside the model.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute the curvature of a model on its data, and write it beside the model, for `posterity merge`."""
    from posterity.cli._subjects import beside, open_data, open_model
    from posterity.merging import write_curvature

    target = out or beside(model, checkpoint, "gram" if kind == "gram" else "fisher")
    settings = {"kind": kind, "likelihood": likelihood, "batch_size": batch_size, "seed": seed}
    opened = open_model(model, checkpoint)
    written = write_curvature(opened, open_data(data, model), target, **settings)  # type: ignore[arg-type]
    dump({"written": str(written), **settings}) if as_json else say(f"wrote {written}")
