"""What a sampled prediction costs: `predict` beside the plain loop that anybody would write.

The plain loop draws a set of weights, copies it into the model, runs all batches, keeps the probabilities of every draw
and summarises them at the end: mean, standard deviation, entropy and expected entropy. Times are the medians of
several alternating runs, over all draws and batches, drawing included: processor time on a CPU (other people's work
counts only by what it takes of the caches), wall time on a GPU. The factor is the median over pairs of runs that
follow each other.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import report
import torch
from torch import Tensor, nn

import networks
from posterity.posterior import Diagonal, LastLayer, Posterior
from posterity.prediction import predict
from posterity.trees import snapshot, trainable

FEWEST = 7  # runs of each, however long they take
Case = tuple[str, nn.Module, Tensor, tuple[str, ...]]  # name, model, inputs, names that vary (none: all of them)


def cases() -> Iterator[Case]:
    for batch in (1, 16, 128, 512, 4096):
        yield "MLP 13-50-2", networks.mlp([13, 50, 2]), torch.randn(batch, 13), ()
    for batch in (1, 16, 128, 512, 4096):
        yield "MLP 64-64-64-10", networks.mlp([64, 64, 64, 10]), torch.randn(batch, 64), ()
    for batch in (1, 16, 128, 512, 2048):
        yield "MLP 784-500-300-10", networks.mlp([784, 500, 300, 10]), torch.randn(batch, 784), ()
    for batch in (1, 8, 64, 256):
        yield "LeNet", networks.lenet(), torch.randn(batch, 1, 28, 28), ()
    for batch in (1, 2, 8, 64):
        yield "ResNet-20", networks.ResNet20(), torch.randn(batch, 3, 32, 32), ()
    for batch in (1, 64):
        head = ("linear.weight", "linear.bias")
        yield "ResNet-20, last layer", networks.ResNet20(), torch.randn(batch, 3, 32, 32), head


def posterior_of(model: nn.Module, varying: tuple[str, ...]) -> Posterior:
    mean = snapshot(trainable(model))
    precision = {name: torch.full_like(t, 1e4) for name, t in mean.items()}
    prior = Diagonal(mean, precision)
    structure: Diagonal | LastLayer = prior
    if varying:
        rest = {name: t for name, t in mean.items() if name not in varying}
        structure = LastLayer(prior.restrict(varying), rest)
    return Posterior.of(model, structure, prior=prior, n=1000, ess=1000, likelihood="categorical")


def plain_loop(
    model: nn.Module, posterior: Posterior, inputs: Tensor, samples: int, batch_size: int
) -> tuple[Tensor, ...]:
    parameters = dict(model.named_parameters())
    draws = []
    with torch.no_grad():
        for k in range(samples):
            for name, value in posterior.sample(k).items():
                parameters[name].copy_(value)
            draws.append(torch.cat([model(x).softmax(-1) for x in inputs.split(batch_size)]))
        probs = torch.stack(draws)
        mean = probs.mean(0)
        entropy, expected = torch.special.entr(mean).sum(-1), torch.special.entr(probs).sum(-1).mean(0)
        return mean, probs.std(0), entropy, expected


def compare(seconds: float, *functions: Callable[[], object]) -> Tensor:
    """Seconds (rounds, functions) of alternating runs, so that a busy machine hits all alike."""
    rounds: list[list[float]] = []
    end = _clock() + seconds
    while _clock() < end or len(rounds) < FEWEST:
        rounds.append([])
        for function in functions:
            start = _clock()
            function()
            rounds[-1].append(_clock() - start)
    return torch.tensor(rounds)


def _clock() -> float:
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="time spent on each row")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out")
    options = parser.parse_args()
    rows = []
    for name, model, inputs, varying in cases():
        model, x = model.to(options.device).eval(), inputs.to(options.device).repeat_interleave(options.batches, 0)
        posterior = posterior_of(model, varying)
        size = len(inputs)
        times = compare(
            options.seconds,
            lambda: plain_loop(model, posterior, x, options.samples, size),  # noqa: B023
            lambda: predict(model, posterior, x, options.samples, batch_size=size),  # noqa: B023
        )
        loop, ours = (1e3 * times).median(0).values.tolist()
        factor = (times[:, 0] / times[:, 1]).median().item()
        rows.append([name, size, f"{loop:.1f}", f"{ours:.1f}", f"{factor:.2f}"])
        print(*rows[-1], flush=True)
    chosen = "the limits of a vectorised pass were set on networks of this table"
    text = report.header(
        "Cost of a sampled prediction", samples=options.samples, batches=options.batches, chosen=chosen
    )
    columns = ["model", "batch", "plain loop, ms", "predict, ms", "times faster (median of pairs)"]
    text += "\n" + report.table(columns, rows)
    report.publish("prediction_cost", text, options.out)


if __name__ == "__main__":
    main()
