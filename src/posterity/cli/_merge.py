"""`posterity merge`: fine-tuned checkpoints or adapters on disk into one, from a recipe or from flags."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.cli._output import Json, dump, pairs, say
from posterity.errors import expected, require


def merge(
    recipe: Annotated[
        Path | None, typer.Argument(help="Recipe in YAML, or a mergekit configuration; flags override it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="linear, task_arithmetic, fisher, gradient_matching, ties, dare, slerp or regmean."),
    ] = None,
    base: Annotated[Path | None, typer.Option(help="The model that the others were fine-tuned from.")] = None,
    model: Annotated[list[str] | None, typer.Option(metavar="NAME=PATH", help="A model; repeat for each.")] = None,
    weight: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Weight of a model; negative removes it.")
    ] = None,
    curvature: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="Curvature of a model, or of `base`.")
    ] = None,
    examples: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Examples behind the curvature of a model.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the method, such as density=0.2.")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Rank of merged adapters.")] = None,
    sweep: Annotated[
        int | None, typer.Option(help="How many weights to try, from one model to the others; scores each merge.")
    ] = None,
    score: Annotated[
        list[str] | None, typer.Option(metavar="TASK=DATA", help="For --sweep: data of a task, .npz or .safetensors.")
    ] = None,
    architecture: Annotated[
        str | None, typer.Option(help="For --sweep: module:factory, for models that are not Hugging Face folders.")
    ] = None,
    likelihood: Annotated[str, typer.Option(help="For --sweep: what the outputs mean.")] = "categorical",
    as_json: Json = False,
) -> None:
    """Merge fine-tuned models into one, a chunk in memory at a time; or remove a task, with a negative weight.

    With --sweep, no merged model is kept: OUT gets sweep.csv and sweep.png, the loss of every task under many
    weights.
    """
    gc.disable()  # what is imported stays: it need not be searched for garbage, nor taken apart in the end
    from posterity.merging.recipes import read_value, read_yaml
    from posterity.merging.recipes import recipe as understood

    gc.freeze()
    gc.enable()
    content = read_yaml(recipe) if recipe is not None else {}
    folder = recipe.parent if recipe is not None else Path()
    if out is not None:
        content["out"] = out.absolute()
    if method is not None:
        content["method"] = method
    if base is not None:
        content["base"] = {"path": base.absolute()}
    if rank is not None:
        content["rank"] = rank
    for name, path in pairs("--model", model):
        _section(content, "models")[name] = {"path": Path(path).absolute()}
    for name, number in pairs("--weight", weight):
        _entry(content, name, "--weight")["weight"] = number
    for name, path in pairs("--curvature", curvature):
        _entry(content, name, "--curvature")["curvature"] = Path(path).absolute()
    for name, number in pairs("--examples", examples):
        _entry(content, name, "--examples")["n"] = number
    for name, value in pairs("--option", option):
        _section(content, "options")[name] = read_value(value)
    ready = understood(content, folder)
    if sweep is None:
        merged = ready.cook()
        dump({"merged": str(merged)}) if as_json else say(f"merged into {merged}")
        return
    from posterity.cli._merge_sweep import sweep_recipe

    made = sweep_recipe(ready, sweep, dict(pairs("--score", score)), architecture, likelihood)
    table, picture = made / "sweep.csv", made / "sweep.png"
    if as_json:
        dump({"weights": sweep, "table": str(table), "picture": str(picture)})
    else:
        say(f"losses under {sweep} weights: {table} and {picture}")


def _entry(content: dict[str, Any], name: str, flag: str) -> dict[str, Any]:
    """The mapping that describes a model, or the base, ready to be written to."""
    home, key = (content, "base") if name == "base" and "base" in content else (_section(content, "models"), name)
    if key not in home:
        raise expected(flag, f"a model among {sorted(home)}", name)
    if not isinstance(home[key], dict):
        home[key] = {"path": home[key]}
    return home[key]


def _section(content: dict[str, Any], key: str) -> dict[str, Any]:
    """A part of the recipe with names of its own, ready to be written to."""
    found = content.get(key) or {}
    require(isinstance(found, dict), key, "a mapping", found)
    content[key] = {str(name): value for name, value in found.items()}  # YAML reads 1 as a number
    return content[key]
