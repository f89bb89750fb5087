"""Pictures render and carry the right data; how they look was judged by eye."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.cbook import is_math_text
from torch import nn

from networks import perceptron
from posterity import metrics, plots
from posterity.errors import InvalidInput, MissingExtra
from posterity.learning import laplace
from posterity.memory import memory_map
from posterity.posterior import Diagonal, Dropout, Posterior
from posterity.prediction import predict
from posterity.trees import snapshot, trainable


def around(model, likelihood, precision=20.0, **settings):
    mean = snapshot(trainable(model))
    q = Diagonal(mean, {name: torch.tensor(precision) for name in mean})
    return Posterior.of(model, q, prior=q, n=9, ess=9, likelihood=likelihood, **settings)


@pytest.fixture
def classification():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(300, 4, generator=generator)
    return logits.softmax(-1), torch.multinomial((0.5 * logits).softmax(-1), 1, generator=generator).squeeze(-1)


def render(figure):
    figure.canvas.draw()
    return figure.axes


def test_reliability_shows_the_calibration_bins(classification):
    probs, labels = classification
    axes = render(plots.reliability({"sharp": probs, "flat": probs.sqrt() / probs.sqrt().sum(-1, True)}, labels))
    assert len(axes) == 4
    assert [axis.get_title(loc="left") for axis in axes[:2]] == ["sharp", "flat"]
    expected = metrics.calibration_bins(probs, labels)
    curve = axes[0].lines[1].get_xydata()
    np.testing.assert_allclose(curve, np.stack((expected.confidence, expected.accuracy), 1))
    np.testing.assert_allclose([bar.get_height() for bar in axes[2].patches], expected.weight)
    assert all(bar.get_height() < axes[2].get_ylim()[1] for axis in axes[2:] for bar in axis.patches)
    assert axes[2].get_ylim()[0] == 0.0
    assert f"ECE {metrics.ece(probs, labels):.3f}" in axes[0].texts[0].get_text()


def test_reliability_of_one_model(classification):
    assert len(render(plots.reliability(*classification, bins=10))) == 2


def test_risk_coverage_shows_the_curve(classification):
    probs, labels = classification
    wrong = probs.argmax(-1) != labels
    doubt = 1 - probs.max(-1).values
    (axes,) = render(plots.risk_coverage({"a": (doubt, wrong), "b": (-doubt, wrong)}))
    coverage, risk = metrics.risk_coverage(doubt, wrong)
    np.testing.assert_allclose(axes.lines[0].get_xydata(), np.stack((100 * coverage, risk), 1))
    assert f"AURC {metrics.aurc(doubt, wrong):.4f}" in axes.get_legend().get_texts()[0].get_text()


def test_more_curves_than_colours():
    rng = np.random.default_rng(0)
    (axes,) = render(plots.risk_coverage({f"m{k}": rng.random((2, 20)) for k in range(9)}))
    assert len(axes.get_legend().get_texts()) == 9
    (axes,) = render(plots.entropy_in_out(rng.random(20), {f"m{k}": rng.random(20) for k in range(9)}))
    assert len(axes.get_legend().get_texts()) == 10


def test_names_are_no_formulas():
    curve = (np.arange(3), np.ones(3))
    (axes,) = render(plots.risk_coverage({"_old": curve, "$5 or $\\x{": curve}))
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [text.replace("\\$", "$").split(" (")[0].strip() for text in shown] == ["_old", "$5 or $\\x{"]
    assert not any(is_math_text(text) for text in shown)


def binary():
    torch.manual_seed(0)
    x = torch.randn(30, 2)
    model = nn.Linear(2, 1)
    posterior = laplace(model, (x, (x[:, :1] > 0).float()), likelihood="bernoulli", prior_precision=1.0)
    m = memory_map(model, posterior, (x, (x[:, :1] > 0).float()))
    return replace(m, posterior=replace(posterior, class_names=("no", "yes")))


def test_examples_say_what_the_model_says_without_them():
    m, images = binary(), torch.rand(30, 4, 4)
    titles = [axis.get_title().split("\n") for axis in render(plots.examples(m, images, count=30))]
    table = m.columns.set_index("id")
    for number, said in titles:
        row = table.loc[int(number)]
        given, without = ("yes" if row[name] > 0.5 else "no" for name in ("label", "loo_prediction"))
        assert said == f"{given} → {without}"
    assert {said for _, said in titles} > {"no → no", "yes → yes"}


def test_examples_of_several_outputs():
    x = torch.randn(8, 2)
    model = nn.Linear(2, 2)
    m = memory_map(model, laplace(model, (x, x), prior_precision=1.0, noise_precision=1.0), (x, x))
    title = render(plots.examples(m, torch.rand(8, 4, 4), count=1))[0].get_title()
    row = m.top(1).iloc[0]
    assert title == f"{row['id']}\n{row['label_0']:.3g} → {row['loo_prediction_0']:.3g}"


def test_one_point_has_room():
    model = nn.Linear(2, 2)
    posterior = around(model, "categorical")
    axes = render(
        plots.predictive_map_2d(lambda x: predict(model, posterior, x, samples=2), (torch.ones(1, 2), torch.zeros(1)))
    )
    assert axes[0].get_xlim() == (0.5, 1.5)
    line = nn.Linear(1, 1)
    render(plots.band_1d(torch.ones(1, 1), predict(line, around(line, "gaussian"), torch.ones(1, 1), samples=2)))


def test_entropies_in_and_out():
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.rand(500, generator=generator), 1 + torch.rand(400, generator=generator)
    (axes,) = render(plots.entropy_in_out(inside, {"far": outside, "near": inside + 0.1}, bins=20))
    heights = np.array([bar.get_height() for bar in axes.patches[:20]])
    reference, _ = np.histogram(inside, np.linspace(0, outside.max().item(), 21), density=True)
    np.testing.assert_allclose(heights, reference, atol=1e-9)
    assert "AUROC 1.000" in axes.get_legend().get_texts()[1].get_text()


def test_bands_are_as_wide_as_the_prediction_says():
    model = nn.Linear(1, 1)
    x = torch.tensor([[2.0], [-1.0], [0.5]])
    p = predict(model, around(model, "gaussian"), x, samples=6)
    (axes,) = render(plots.band_1d(x, p, (x, x), deviations=3, draws=4))
    order = x.squeeze().argsort()
    band = axes.collections[0].get_paths()[0].vertices
    top = (p.mean + 3 * p.epistemic_std).squeeze()[order]
    assert all(np.isclose(band, [a, b]).all(1).any() for a, b in zip(x.squeeze()[order], top))
    np.testing.assert_allclose(axes.lines[0].get_ydata(), (p.mean + 3 * p.std).squeeze()[order], rtol=1e-5)
    singles = [line.get_ydata() for line in axes.lines[2:6]]
    np.testing.assert_allclose(singles, p.outputs[:4, order, 0], rtol=1e-5)
    np.testing.assert_allclose(axes.lines[-1].get_xydata(), torch.cat((x, x), 1))


@pytest.mark.parametrize(("outputs", "likelihood"), [(3, "categorical"), (2, "categorical"), (1, "bernoulli")])
def test_maps_ask_about_the_whole_plane(outputs, likelihood):
    model = nn.Linear(2, outputs)
    posterior = around(model, likelihood)
    asked = []

    def ask(x):
        asked.append(x)
        return predict(model, posterior, x, samples=4)

    points = torch.tensor([[0.0, 0.0], [1.0, 2.0], [0.5, 1.0]])
    axes = render(plots.predictive_map_2d(ask, (points, torch.tensor([0, 1, 1])), margin=0.5, resolution=9))
    grid = asked[0]
    assert grid.shape == (81, 2)
    assert grid.amin(0).tolist() == [-0.5, -1.0]
    assert grid.amax(0).tolist() == [1.5, 3.0]
    image = axes[1].images[0].get_array()
    np.testing.assert_allclose(image, ask(grid).mutual_information.reshape(9, 9), rtol=1e-5)
    assert axes[0].images[0].get_array().shape == (9, 9, 3)


def test_weights_of_a_point_estimate_beside_draws():
    model, other = (perceptron(6, 5, 3) for _ in range(2))
    posterior = around(model, "categorical", precision=400.0)
    axes = render(plots.weight_distributions(posterior, dict(other.named_parameters()), draws=50))
    assert len(axes) == 4
    assert "0.weight" in axes[0].get_ylabel()
    centres = np.array([bar.get_x() + bar.get_width() / 2 for bar in axes[1].patches])
    mass = np.array([bar.get_height() * bar.get_width() for bar in axes[1].patches])
    assert (mass * centres**2).sum() == pytest.approx((model[0].weight ** 2).mean().item() + 1 / 400, rel=0.1)
    assert axes[1].texts[0].get_text() == "posterior std 0.05"


def test_filters_in_rows():
    model = nn.Conv2d(3, 8, 5)
    posterior = around(model, "categorical")
    figure = plots.filter_distributions(posterior, "weight", dict(model.named_parameters()), count=4)
    images = [axis.images[0].get_array() for axis in render(figure) if axis.images]
    assert len(images) == 12
    largest = model.weight.flatten(1).norm(dim=1).argmax()
    np.testing.assert_allclose(images[0], model.weight[largest].mean(0).detach(), rtol=1e-5)
    np.testing.assert_allclose(images[-1], 20**-0.5, rtol=1e-5)


def test_segmentation_shows_truth_prediction_and_doubt():
    model = nn.Sequential(nn.Dropout2d(0.5), nn.Conv2d(3, 9, 3, padding=1))
    mean = snapshot(trainable(model))
    prior = Diagonal.isotropic(mean, 1.0)
    names = tuple("abcdefghi")
    posterior = Posterior.of(
        model, Dropout(mean, {"0": 0.5}), prior=prior, n=9, ess=9, likelihood="categorical", class_names=names
    )
    images, labels = torch.rand(4, 3, 6, 8), torch.randint(0, 9, (4, 6, 8))
    labels[:, 0] = 255
    p = predict(model, posterior, images, samples=5)
    figure = plots.segmentation(images, p, labels, ignore_index=255, count=2)
    pictures = [axis.images[0].get_array() for axis in render(figure) if axis.images]
    assert len(pictures) == 10
    np.testing.assert_allclose(pictures[3], p.entropy[0], rtol=1e-5)
    np.testing.assert_allclose(pictures[9], p.mutual_information[1], rtol=1e-5)
    assert (pictures[1][0] == pictures[1][0, 0]).all()  # the void row has one colour
    assert {text.get_text() for text in figure.legends[0].get_texts()} <= {*names, "not labelled"}
    assert figure.legends[0].get_texts()[-1].get_text() == "not labelled"  # the grey of the void row is named


def test_matplotlib_is_asked_for_only_when_a_picture_is(monkeypatch, classification):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'posterity\[plots\]'"):
        plots.reliability(*classification)


def test_global_settings_stay_as_they_are(classification):
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.reliability(*classification)
    assert dict(matplotlib.rcParams) == before


MODEL = nn.Linear(2, 2)
CLASSES, LINE = around(MODEL, "categorical"), torch.zeros(5, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.band_1d(LINE[:, 0], predict(MODEL, around(MODEL, "gaussian"), LINE, 2)), "one output"),
        (lambda: plots.predictive_map_2d(lambda x: x, (torch.zeros(3, 5), torch.zeros(3))), r"shape \(N, 2\)"),
        (lambda: plots.weight_distributions(CLASSES, names=["nothing"]), "names: expected parameters among"),
        (lambda: plots.weight_distributions(CLASSES, draws=0), "draws: expected a whole number >= 1"),
        (lambda: plots.filter_distributions(CLASSES, "weight"), "a convolution's weight with four axes"),
        (lambda: plots.segmentation(LINE, predict(MODEL, CLASSES, LINE, 2)), r"probabilities \(N, height, width, K\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()
