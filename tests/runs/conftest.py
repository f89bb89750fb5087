"""A small run that the tests of its verbs share."""

from __future__ import annotations

import pytest

from runs.problems import flowers, trained


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flowers")
    flowers(folder / "flowers.csv")
    return folder


@pytest.fixture(scope="module")
def run(here):
    return trained(here / "run", here / "flowers.csv")
