"""Every Triton kernel is compiled for a GPU, which takes none: what the interpreter lets pass, a compiler may not."""

from types import SimpleNamespace

import pytest
import torch

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from posterity.optim._meter import Meter  # noqa: E402
from posterity.optim.kernels import Course, _triton_adam, _triton_looks, _triton_meter, _triton_sample, _triton_step  # noqa: E402
from posterity.optim.kernels._fused import Launcher  # noqa: E402
from posterity.optim.kernels._launcher_adam import AdamLauncher  # noqa: E402
from posterity.optim.kernels._pointer_table import SCALARS, Entry  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {torch.int32: "*i32", torch.int64: "*i64", torch.float32: "*fp32", torch.float64: "*fp64"}
PRIOR, TERM = ("prior_mean", "prior_precision"), ("linear", "quadratic")
KINDS = {
    "plain": {},
    "bfloat16, prior, term": {"dtype": torch.bfloat16, "extra": (*PRIOR, *TERM)},
    "squares, transposed, not aligned": {"shape": (3, 7), "transposed": True, "squares": True},
}


class Kernel:
    """A kernel that is compiled where it would be launched."""

    def __init__(self, kernel, compiled):
        self.kernel, self.compiled = kernel, compiled
        self.__name__, self.arg_names = kernel.__name__, kernel.arg_names

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            constants = {name: value for name, value in options.items() if name in self.arg_names}
            types = [POINTERS[a.dtype] if isinstance(a, torch.Tensor) else "i32" for a in arguments]
            signature = dict(zip(self.arg_names, types)) | dict.fromkeys(constants, "constexpr")
            values = {(self.arg_names.index(name),): value for name, value in constants.items()}
            source = ASTSource(self.kernel, signature, values)
            settings = {name: value for name, value in options.items() if name not in constants}
            binary = triton.compile(source, target=HOPPER, options=settings)
            self.compiled.append((self.__name__, len(binary.asm["cubin"])))

        return launch


def entry(shape=(4, 8), dtype=torch.float32, extra=(), squares=False, transposed=False):
    p = torch.zeros(shape, dtype=dtype)
    p = p.t() if transposed else p
    state = {name: torch.zeros_like(p, dtype=torch.float32) for name in ("momentum", "hessian", *extra)}
    scalars = {name: torch.zeros(()) for name in SCALARS}
    return Entry({"p": p, "buffer": torch.zeros_like(p), **state, **scalars}, 0, 0, squares)


def compiling(kind, one, **modules):
    """A launcher whose kernels are compiled where they would be launched, and the list of those."""
    launcher = kind([one], [(0, 0, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))])
    compiled = []
    for name, module in modules.items():
        kernels = {k: Kernel(v, compiled) for k, v in vars(module).items() if isinstance(v, triton.JITFunction)}
        setattr(launcher, name, SimpleNamespace(**kernels))
    return launcher, compiled


@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_compiles(kind):
    one = entry(**KINDS[kind])
    launcher, compiled = compiling(Launcher, one, _samples=_triton_sample, _steps=_triton_step)
    gradients, products = [torch.zeros_like(one.tensors["p"])], [torch.zeros_like(one.tensors["momentum"])]
    launcher.draw()
    launcher.draw(gradients, products)
    launcher.draw(keep=True)
    launcher.restore([])
    launcher.restore([], keep=True)
    launcher.step(gradients)
    launcher.step(gradients, ahead=True, held=True)
    launcher.step(gradients, products, held=True)
    launcher.step(gradients, products, sampled=False)
    assert {name for name, _ in compiled} == {"draw", "sample", "restore", "check", "measure", "step"}
    assert all(size > 0 for _, size in compiled)


@pytest.mark.parametrize("kind", ["plain", "squares, transposed, not aligned"])
def test_every_kernel_of_adam_compiles(kind):
    one = entry(**{**KINDS[kind], "squares": False})
    modules = {
        "_samples": _triton_sample,
        "_steps": _triton_step,
        "_adam": _triton_adam,
        "_meters": _triton_meter,
        "_looks": _triton_looks,
    }
    launcher, compiled = compiling(AdamLauncher, one, **modules)
    meter = Meter.of(100, 10, 50, 0.03, [one.tensors["p"]])
    course = Course(meter, [0.1], 1.0, torch.ones(1), torch.ones(1), given=False)
    gradients = [torch.zeros_like(one.tensors["p"])]
    launcher.follow(course)
    launcher.draw()
    launcher.draw(fresh=False, keep=True)
    launcher.size(gradients)
    launcher.restore([])
    launcher.step(gradients, course, done=[])
    launcher.step(gradients, course, held=True, ahead=True, done=[])
    meters = {"widths", "size", "begin_step", "look_at_means", "look_at_widths", "plan", "end_step"}
    assert {name for name, _ in compiled} == {"sample", "restore", "check", "adam", *meters}
    assert all(size > 0 for _, size in compiled)
