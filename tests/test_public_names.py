"""The public names: every one resolves, and nothing else is exported."""

import pytest

import posterity


@pytest.mark.parametrize("name", posterity.__all__)
def test_every_public_name_resolves(name):
    assert getattr(posterity, name) is not None


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = posterity.nonsense
