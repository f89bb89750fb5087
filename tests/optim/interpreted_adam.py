"""The Triton kernels of `Variational` over Adam; needs TRITON_INTERPRET=1 before Triton is loaded, or a GPU."""

import pytest

from optim.agreement_of_adam import *  # noqa: F403
from optim.agreement_of_gap import *  # noqa: F403
from optim.interpreted import patched_once_a_launch  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # integers that wrap, as they should
