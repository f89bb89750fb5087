"""Run tests of IVON twice: by the kernels of this machine, and by tensor operations."""

import pytest

from posterity.optim._fast import FastPath
from posterity.optim.kernels import _native


@pytest.fixture(params=["kernels", "tensor operations"])
def arithmetic(request, monkeypatch):
    if request.param == "tensor operations":
        monkeypatch.setattr(FastPath, "_possible", lambda self: False)
    elif isinstance(_native.library(), str):
        pytest.skip(_native.library())
