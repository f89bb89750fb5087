"""The picture of a memory map carries its data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import posterity as po
from memory.problems import digits
from posterity import plots
from posterity.errors import InvalidInput
from posterity.memory import memory_map


@pytest.fixture(scope="module")
def made():
    x, y = digits(200)
    torch.manual_seed(0)
    model = nn.Linear(65, 10).double()
    return memory_map(model, po.laplace(model, (x, y), prior_precision=1.0), (x, y)), x[:, 1:].reshape(-1, 8, 8)


def test_memory_map_shows_every_example_in_its_category(made):
    m, _ = made
    figure = plots.memory_map(m, label=3)
    figure.canvas.draw()
    (axis,) = figure.axes
    shown = np.concatenate([dots.get_offsets() for dots in axis.collections])
    expected = m.table[["leverage", "error"]].to_numpy()
    assert np.allclose(np.sort(shown, axis=0), np.sort(expected, axis=0))
    counts = m.table["category"].value_counts()
    for text in figure.legends[0].get_texts():
        category, count = text.get_text().rsplit(" ", 1)
        assert count == f"({counts[category]})"
    assert [text.get_text() for text in axis.texts] == [str(i) for i in m.top(3)["id"]]
    assert axis.lines[0].get_xdata()[0] == m.limits[0]


def test_examples_shows_the_images_of_the_ranking(made):
    m, images = made
    figure = plots.examples(m, images, count=12, by="leverage")
    figure.canvas.draw()
    first = m.top(1, by="leverage").iloc[0]
    axis = figure.axes[0]
    assert axis.get_title().startswith(f"{first['id']}\n{first['label']} → ")
    picture = images[int(first["id"])].numpy()
    assert np.allclose(axis.images[0].get_array(), (picture - picture.min()) / np.ptp(picture))
    with pytest.raises(InvalidInput, match="positions among 5 images"):
        plots.examples(m, images[:5])
