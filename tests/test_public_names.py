"""The public names: every one resolves, and nothing else is exported."""

import importlib

import pytest

import posterity


@pytest.mark.parametrize("name", posterity.__all__)
def test_every_public_name_resolves(name):
    assert getattr(posterity, name) is not None


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = posterity.nonsense


@pytest.mark.parametrize(
    ("package", "old", "new"),
    [
        ("graph", "Linear", "LinearFactor"),
        ("graph", "Mixture", "MixtureFactor"),
        ("graph", "Point", "PointMass"),
        ("graph", "Site", "SiteFactor"),
        ("merging", "Source", "MergeSource"),
        ("merging", "Stretch", "Chunk"),
        ("posterior", "Gaussian", "GaussianStructure"),
        ("runs.data", "Source", "DataSource"),
    ],
)
def test_old_names_work_with_a_warning(package, old, new):
    room = importlib.import_module(f"posterity.{package}")
    with pytest.warns(DeprecationWarning, match=f"posterity.{package}.{old} is now posterity.{package}.{new}"):
        assert getattr(room, old) is getattr(room, new)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = room.Nonsense


def test_the_old_name_of_a_module_works_with_a_warning():
    processes = importlib.import_module("posterity.processes")
    with pytest.warns(DeprecationWarning, match="posterity.processes.sharded is now posterity.distributed.sharded"):
        assert processes.sharded is posterity.sharded
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = processes.nonsense
