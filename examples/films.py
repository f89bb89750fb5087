"""Short films: posteriors as data arrive, a memory map in training, a K-prior at work, a mixture finding two modes.

`python examples/films.py --out FOLDER` makes them all; `--only polynomial` makes one. Each is a GIF below one megabyte.
"""

from __future__ import annotations

import argparse
import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import kprior_intuition
import matplotlib as mpl
import matplotlib.pyplot as plt
import mixture_approximation
import polynomial_regression
import torch
from common import digits, write
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

import posterity as po
from posterity import BayesianLearningRule
from posterity.adaptation import k_prior, select
from posterity.algorithms import mixture_vi
from posterity.families import Gaussian, MixtureOfGaussians
from posterity.gradients import LinearLoss, Quadrature
from posterity.learning import Callback, Moment
from posterity.plots.style import BLUE, INK, VERMILION

mpl.use("Agg")
LIMIT = 10**6  # bytes
BANDS = torch.linspace(0, 1, 12).tolist()  # of probabilities: an odd number, so that one half is white
Frames = Iterator[Figure]
Found = dict[str, object]  # the numbers behind the message of a film


def shot(figure: Figure) -> Image.Image:
    """A figure as a picture of few colours, which is what a GIF holds."""
    stream = io.BytesIO()
    figure.savefig(stream, dpi=80, format="png")
    plt.close(figure)
    stream.seek(0)
    return Image.open(stream).convert("RGB").quantize(80, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)


def polynomial(small: bool, found: Found) -> Frames:
    """Curves of degree 15, as examples arrive."""
    one = polynomial_regression
    generator = torch.Generator().manual_seed(3)
    x = 2 * torch.rand(40, generator=generator, dtype=torch.float64) - 1
    y = one.truth(x) + one.NOISE * torch.randn(40, generator=generator, dtype=torch.float64)
    grid = torch.linspace(-1, 1, 160, dtype=torch.float64)
    rows = one.features(grid)
    for count in range(0, 31, 15 if small else 1):
        q = one.posterior(x[:count], y[:count]) if count else Gaussian.standard(one.DEGREE + 1)
        curves = q.sample(12, torch.Generator().manual_seed(0)) @ rows.T
        mean, std = rows @ q.mean, (rows @ q.covariance * rows).sum(-1).sqrt()
        if count:
            near = (grid[:, None] - x[:count]).abs().amin(1) < 0.05
            found[str(count)] = {"near": std[near].mean().item(), "elsewhere": std[~near].mean().item()}
        figure, axis = plt.subplots(figsize=(6.2, 3.9), layout="constrained")
        axis.fill_between(grid, mean - 2 * std, mean + 2 * std, color=BLUE, alpha=0.15, linewidth=0)
        axis.plot(grid, curves.T, color=BLUE, alpha=0.25, linewidth=1)
        axis.plot(grid, one.truth(grid), "--", color=INK, linewidth=1.2)
        axis.plot(x[:count], y[:count], "o", color=VERMILION, markersize=6)
        axis.set(xlim=(-1, 1), ylim=(-3, 3), xlabel="x", ylabel="y")
        axis.set_title(f"Degree 15, {count} examples: wide where nothing was seen")
        yield figure


def logistic(small: bool, found: Found) -> Frames:
    """Classifiers that the data cannot rule out, as examples arrive."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(30, dtype=torch.float64) % 2
    centres = torch.tensor([[-1.0, -0.6], [1.0, 0.8]], dtype=torch.float64)
    x = centres[y.long()] + 0.8 * torch.randn(30, 2, generator=generator, dtype=torch.float64)
    rows = torch.cat((x, torch.ones(30, 1, dtype=torch.float64)), 1)
    prior = Gaussian(torch.zeros(3, dtype=torch.float64), 0.3 * torch.eye(3, dtype=torch.float64))
    rule = BayesianLearningRule(Quadrature(), lr=0.5, prior=prior)
    ticks = torch.linspace(-3.9, 3.9, 90, dtype=torch.float64)
    grid = torch.cartesian_prod(ticks, ticks)
    grid = torch.cat((grid, torch.ones_like(grid[:, :1])), 1)
    q = prior
    for count in range(0, 31, 15 if small else 1):
        if count:
            q = rule.run(q, LinearLoss(inputs=rows[:count], targets=y[:count], likelihood="bernoulli"), steps=25)
        draws = q.sample(300, torch.Generator().manual_seed(0))
        average = torch.sigmoid(grid @ draws.T).mean(-1).reshape(90, 90).T
        found[str(count)] = (0.5 - (average - 0.5).abs()).mean().item()
        figure, axis = plt.subplots(figsize=(5.6, 4.8), layout="constrained")
        axis.contourf(ticks, ticks, average, levels=BANDS, cmap="RdBu_r", alpha=0.7)
        for w in draws[:20]:
            axis.plot(ticks, -(w[0] * ticks + w[2]) / w[1], color=INK, alpha=0.3, linewidth=0.9)
        for label, colour in ((0, BLUE), (1, VERMILION)):
            axis.scatter(*x[:count][y[:count] == label].T, color=colour, edgecolor="w", s=45, zorder=3)
        axis.set(xlim=(-3.9, 3.9), ylim=(-3.9, 3.9), xlabel="x₁", ylabel="x₂")
        axis.set_title(f"{count} examples: lines the data cannot rule out")
        yield figure


def modes(small: bool, found: Found) -> Frames:
    """A mixture of two Gaussians that start beside each other and part."""
    loss = mixture_approximation.double_well
    ticks = torch.linspace(-3.2, 3.2, 90, dtype=torch.float64)
    surface = loss(torch.cartesian_prod(ticks, ticks)).reshape(90, 90).T
    means = torch.tensor([[-0.25, 1.9], [0.25, 1.6]], dtype=torch.float64)
    q = MixtureOfGaussians.of(torch.full((2,), 0.5).double(), means, 4.0 * torch.eye(2).double().expand(2, 2, 2))
    rule, circle = mixture_vi(lr=0.08, nodes=12).rule, torch.linspace(0, 2 * torch.pi, 80, dtype=torch.float64)
    ring = torch.stack((circle.cos(), circle.sin()))
    trail = [means]
    for step in range(0, 121, 60 if small else 2):
        figure, axis = plt.subplots(figsize=(5.2, 4.2), layout="constrained")
        axis.contourf(ticks, ticks, surface, levels=[0, 0.3, 0.8, 1.5, 2.5, 4, 6, 9, 14], cmap="Blues", extend="max")
        for k, colour in enumerate((VERMILION, INK)):
            root = torch.linalg.cholesky(q.conditional.covariance[k])
            for width in (1, 2):
                line = q.conditional.mean[k][:, None] + width * root @ ring
                axis.plot(*line, color=colour, linewidth=2, linestyle="-" if width == 1 else "--")
            axis.plot(*torch.stack(trail)[:, k].T, color=colour, linewidth=1.5)
            axis.plot(*q.conditional.mean[k], "o", color=colour, markersize=8, markeredgecolor="w")
        axis.set(xlim=(-3.2, 3.2), ylim=(-3.2, 3.2), xlabel="θ₁", ylabel="θ₂")
        axis.set_title(f"A mixture finds both modes: step {step}")
        yield figure
        found |= {"step": step, "means": q.conditional.mean.tolist(), "weights": q.weights.tolist()}
        for _ in range(60 if small else 2):
            q = rule.step(q, loss)
            trail.append(q.conditional.mean)


class Watching(Callback):
    """Calls a function after some epochs."""

    def __init__(self, look: Callable[[Moment], None], every: int) -> None:
        self.look, self.every = look, every

    def epoch(self, moment: Moment) -> None:
        """Look, if it is time."""
        if moment.epoch % self.every == 0:
            self.look(moment)


def memory(small: bool, found: Found) -> Frames:
    """The memory map of digits through training, some examples traced."""
    x, y = digits()
    x, y = x[:600], y[:600].clone()
    wrong = torch.arange(600) < 60
    y[wrong] = (y[wrong] + 3) % 10
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    places: list[tuple[int, Tensor]] = []

    def look(moment: Moment) -> None:
        posterior = po.laplace(model, (x, y), structure="diag", prior_precision=1.0)
        table = po.memory_map(model, posterior, (x, y)).table.sort_values("id")
        places.append((moment.epoch, torch.tensor(table[["leverage", "error"]].to_numpy().copy())))

    options = {"epochs": 4 if small else 90, "batch_size": 50, "prior": 0.0, "schedule": "constant", "lr": 2e-3}
    po.fit(model, (x, y), method="adamw", callbacks=[Watching(look, 2)], **options)
    traced = [3, 17, 42, 105, 230, 401]
    limits = {"xlim": (0.02, 20), "ylim": (0, 1.45), "xscale": "log"}
    for k, (epoch, where) in enumerate(places):
        errors = {"right": where[~wrong, 1].mean().item(), "wrong": where[wrong, 1].mean().item()}
        found[str(epoch)] = errors
        figure, axis = plt.subplots(figsize=(6.0, 4.6), layout="constrained")
        where = where.clamp(min=0.021)
        axis.scatter(*where[~wrong].T, s=9, color=BLUE, alpha=0.45, linewidths=0, label="right label")
        axis.scatter(*where[wrong].T, s=16, color=VERMILION, linewidths=0, label="wrong label")
        for i in traced:
            path = torch.stack([place[i] for _, place in places[: k + 1]]).clamp(min=0.021)
            axis.plot(*path.T, color=INK, linewidth=1, alpha=0.7)
            axis.plot(*path[-1], "o", markersize=7, markerfacecolor="none", markeredgecolor=INK)
        axis.set(xlabel="leverage: how much the example decides", ylabel="prediction error", **limits)
        axis.legend(frameon=False, loc="upper left")
        axis.set_title(f"Epoch {epoch}: wrong labels come down last")
        yield figure


def adaptation(small: bool, found: Found) -> Frames:
    """A second task, learnt alone and with a K-prior."""
    one = kprior_intuition
    generator = torch.Generator().manual_seed(0)
    first, second = one.task(2.6, generator), one.task(-0.5, generator)
    options = {"method": "adamw", "prior": 0.0, "lr": 3e-3, "batch_size": 50}
    old = po.fit(one.network(), first, epochs=2 if small else 100, **options).model
    posterior = po.laplace(old, first, structure="diag", prior_precision=0.1)
    held = select(old, posterior, first, 30, by="k-centre")
    penalty = k_prior(old, posterior, held).over(one.PER_TASK)
    ticks = torch.linspace(-4.2, 4.2, 80)
    grid = torch.cartesian_prod(ticks, ticks)
    seen: dict[str, list[tuple[Tensor, list[float]]]] = {}
    for title, keep in (("the second task alone", None), ("with a K-prior, memory 6 %", penalty)):
        model, frames = copy.deepcopy(old), seen.setdefault(title, [])

        def look(_: Moment | None, model: nn.Module = model, frames: list[object] = frames) -> None:  # type: ignore[assignment]
            with torch.no_grad():
                right = [(model(a).argmax(1) == b).float().mean().item() for a, b in (first, second)]
                frames.append((model(grid).softmax(1)[:, 1].reshape(80, 80).T, right))

        look(None)
        po.fit(model, second, penalty=keep, epochs=2 if small else 30, callbacks=[Watching(look, 1)], **options)
    for both in zip(*seen.values()):
        figure, axes = plt.subplots(1, 2, figsize=(7.6, 4.0), sharey=True, layout="constrained")
        for axis, title, (p, right) in zip(axes, seen, both):
            found[title] = right
            axis.contourf(ticks, ticks, p, levels=BANDS, cmap="RdBu_r", alpha=0.6)
            axis.contour(ticks, ticks, p, levels=[0.5], colors=[INK], linewidths=1.5)
            for data, marker in ((first, "o"), (second, "^")):
                axis.scatter(*data[0].T, s=4, marker=marker, c=[(BLUE, VERMILION)[k] for k in data[1]], linewidths=0)
            if "K-prior" in title:
                axis.scatter(*held.inputs.T, s=45, facecolors="none", edgecolors=INK, linewidths=1)
            axis.set_title(f"{title}\nfirst task {right[0]:.0%}, second {right[1]:.0%}")
            axis.set(xlim=(-4.2, 4.2), ylim=(-4.2, 4.2), xticks=[], yticks=[])
        yield figure


FILMS = {
    "polynomial": polynomial, "logistic": logistic, "modes": modes, "memory": memory, "adaptation": adaptation
}  # fmt: skip


def make(name: str, folder: Path, small: bool = False) -> Path:
    """Make a film, and hold it to its size."""
    found: Found = {}
    pictures = [shot(figure) for figure in FILMS[name](small, found)]
    write(folder, f"film_{name}", found)
    path = folder / f"film_{name}.gif"
    times = [120] * (len(pictures) - 1) + [1800]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=times, loop=0, optimize=True)
    if path.stat().st_size > LIMIT:
        raise SystemExit(f"{path.name}: expected at most {LIMIT} bytes, got {path.stat().st_size}")
    print(f"saved {path.name}: {len(pictures)} frames, {path.stat().st_size // 1000} kB")
    return path


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "pictures")
    arguments.add_argument("--only", choices=list(FILMS))
    arguments.add_argument("--small", action="store_true", help="a few frames, to see that it runs")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    for name in [options.only] if options.only else FILMS:
        make(name, options.out, options.small)


if __name__ == "__main__":
    main()
