"""Run tests of IVON twice: by the kernels of this machine, and by tensor operations."""

import pytest

from posterity.optim.engine._fused import Fused
from posterity.optim.kernels import _native


@pytest.fixture(params=["kernels", "tensor operations"])
def arithmetic(request, monkeypatch):
    if request.param == "tensor operations":
        monkeypatch.setattr(Fused, "_possible", lambda self, work: False)
    elif isinstance(_native.library(), str):
        pytest.skip(_native.library())
