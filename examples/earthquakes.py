"""Which is a better fit? Magnitude and frequency of earthquakes near Tōhoku, before the one of 2011.

A straight line in log-frequency (Gutenberg and Richter) and a curve with a kink fit the record about equally well.
What they say about a magnitude 9 differs by a factor of four, and how sure they are of it by orders of magnitude.
Data: USGS ComCat, public domain.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from common import headline, record, save

from posterity import BayesianLearningRule
from posterity.families import Gaussian
from posterity.gradients import LinearLoss, Quadrature

FIRST_YEAR, LAST_DAY = 1973, "2011-03-09"
WIDTH = 0.2  # the record keeps tenths: every bin holds two of them


def yearly_counts() -> tuple[torch.Tensor, torch.Tensor, float]:
    """Lower edges of magnitude bins, earthquakes in each, and years of record."""
    shocks = pd.read_csv(Path(__file__).parent / "data" / "tohoku_earthquakes.csv", parse_dates=["date"])
    shocks = shocks[(shocks.date.dt.year >= FIRST_YEAR) & (shocks.date < LAST_DAY)]
    edges = torch.arange(4.75, 9.36, WIDTH, dtype=torch.float64)
    magnitudes = torch.tensor(shocks.magnitude.to_numpy(), dtype=torch.float64)
    counts = torch.histogram(magnitudes[magnitudes >= 4.75], bins=edges).hist
    years = (shocks.date.max() - shocks.date.min()).days / 365.25
    return edges[:-1] + WIDTH / 2, counts, years


def line(magnitude: torch.Tensor) -> torch.Tensor:
    centred = magnitude - 6.0
    return torch.stack((torch.ones_like(centred), centred), -1)


def kinked(magnitude: torch.Tensor) -> torch.Tensor:
    """A line with a second slope above magnitude 7.25, where the record thins out."""
    return torch.cat((line(magnitude), (magnitude - 7.25).clamp(min=0).unsqueeze(-1)), -1)


def fit(features: torch.Tensor, counts: torch.Tensor) -> Gaussian:
    """Poisson regression, the exact Gaussian variational posterior."""
    d = features.shape[-1]
    prior = Gaussian(torch.zeros(d, dtype=torch.float64), 0.04 * torch.eye(d, dtype=torch.float64))
    loss = LinearLoss(inputs=features, targets=counts, likelihood="poisson")
    start = Gaussian(
        torch.linalg.lstsq(features, (counts + 0.5).log()).solution, 100 * torch.eye(d, dtype=torch.float64)
    )
    rule = BayesianLearningRule(Quadrature(), lr=0.5, prior=prior)
    return rule.run(start, loss, steps=400, tolerance=1e-9)


def main() -> None:
    magnitudes, counts, years = yearly_counts()
    grid = torch.linspace(4.75, 9.25, 150, dtype=torch.float64)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True, layout="constrained")
    nine, found = torch.tensor([9.0], dtype=torch.float64), {}
    for axis, features, name in zip(axes, (line, kinked), ("a straight line", "a line with a kink"), strict=True):
        q = fit(features(magnitudes), counts)
        draws = q.sample(2000, torch.Generator().manual_seed(0))
        rate = (draws @ features(grid).T).exp() / years  # (draws, grid): earthquakes per bin and year
        low, middle, high = rate.quantile(torch.tensor([0.025, 0.5, 0.975], dtype=torch.float64), dim=0)
        axis.fill_between(grid, low, high, color="tab:blue", alpha=0.25, label="95 % of the posterior")
        axis.plot(grid, middle, color="tab:blue", lw=2, label="median")
        seen = counts > 0
        axis.plot(magnitudes[seen], counts[seen] / years, "o", color="tab:red", label=f"{FIRST_YEAR} to March 2011")
        every = 1 / ((draws @ features(nine).T).exp() / years).squeeze(-1)
        lo, mid, hi = every.quantile(torch.tensor([0.025, 0.5, 0.975], dtype=torch.float64)).tolist()
        log_rate = features(magnitudes) @ q.mean
        fits = (counts * log_rate - log_rate.exp() - (counts + 1).lgamma()).sum().item()
        found[name] = {"log_likelihood": fits, "years_between_magnitude_9": [lo, mid, hi]}
        axis.set(
            title=f"{name}: a magnitude 9 every {mid:,.0f} years\n(95 %: {lo:,.0f} to {hi:,.0f})", xlabel="magnitude"
        )
        axis.axvline(9.0, color="k", ls=":", lw=1)
        axis.set_yscale("log")
        axis.set_ylim(1e-7, 1e2)
    axes[0].set_ylabel(f"earthquakes a year in a bin of {WIDTH}")
    axes[0].legend(loc="lower left")
    headline(figure, "Two curves fit the record equally well, and disagree about a magnitude 9")
    record("earthquakes", **found)
    save(figure, "earthquakes")


if __name__ == "__main__":
    main()
