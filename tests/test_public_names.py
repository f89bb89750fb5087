"""The public names: every one resolves, and nothing else is exported."""

import subprocess
import sys

import pytest

import posterity


@pytest.mark.parametrize("name", posterity.__all__)
def test_every_public_name_resolves(name):
    assert getattr(posterity, name) is not None


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = posterity.nonsense


def test_importing_the_package_does_not_import_torch():
    code = "import sys, posterity; dir(posterity); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
