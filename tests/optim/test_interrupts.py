"""A KeyboardInterrupt at any instruction of a sampling context leaves the mean in place, bit for bit."""

import sys

import pytest
import torch
from torch import nn

from networks import perceptron
from posterity.optim import EVON, IVON, SAM, SOBA, BayesBiNN, BayesianSAM, Variational, VariationalNewton
from posterity.optim.kernels import _native


def over_adam(parameters, **options):
    return Variational(torch.optim.Adam(parameters, lr=0.01), n=50, batch_size=8, total_steps=60, **options)


CASES = {
    "Variational": over_adam,
    "Variational, tensor operations": lambda p: over_adam(p, fused=False),
    "tensor operations": lambda p: IVON(p, lr=0.1, ess=50, fused=False),
    "kernels": lambda p: IVON(p, lr=0.1, ess=50),
    "SOBA": lambda p: SOBA(p, lr=0.1, ess=50),
    "EVON": lambda p: EVON(p, lr=0.1, ess=50),
    "VariationalNewton": lambda p: VariationalNewton(p, lr=0.1, ess=50),
    "BayesBiNN": lambda p: BayesBiNN(p, lr=0.1, ess=50),
}


class Interrupt:
    """While open, raise KeyboardInterrupt before the instruction of a number, counted in the package's own code."""

    def __init__(self, at):
        self.at, self.count, self.unless = at, 0, ""

    def __enter__(self):
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def first(self):
        """Raise one now, and count from here on."""
        sys.settrace(self.trace)
        raise KeyboardInterrupt

    def trace(self, frame, event, _):
        if "/posterity/optim/" not in frame.f_code.co_filename or frame.f_code.co_name == self.unless:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt
        return self.trace


def pass_through(optimizer, weights, at):
    interrupt = Interrupt(at)
    try:
        with interrupt, optimizer.sampled_params(train=True):
            sys.settrace(None)
            sum((w**2).sum() for w in weights).backward()
            sys.settrace(interrupt.trace)
            sys._getframe().f_trace = interrupt.trace
    except KeyboardInterrupt:
        return interrupt.count, True
    finally:
        sys.settrace(None)
    return interrupt.count, False


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("earlier", [False, True], ids=["first sample", "second sample"])
def test_the_mean_is_back(name, earlier):
    if name == "kernels" and isinstance(_native.library(), str):
        pytest.skip(_native.library())
    generator = torch.Generator().manual_seed(0)
    sizes = [(20, 10), (5,)] if name == "VariationalNewton" else [(180, 100), (7, 3), (5,)]
    weights = [nn.Parameter(torch.randn(size, generator=generator)) for size in sizes]
    optimizer = CASES[name](weights)
    for _ in range(25 if name in ("Variational", "Variational, tensor operations") else 0):  # whose noise comes late
        pass_through(optimizer, weights, -1)
        optimizer.step()
        optimizer.zero_grad()
    mean = [w.detach().clone() for w in weights]
    total, _ = pass_through(optimizer, weights, -1)
    lost = []
    for at in range(1, total, max(1, total // 20)):
        optimizer.zero_grad()
        if earlier:
            pass_through(optimizer, weights, -1)
        _, hit = pass_through(optimizer, weights, at)
        lost += [at] if not all(map(torch.equal, weights, mean)) else []
        assert not optimizer._samples.in_place or not hit, at
    assert not lost
    optimizer.zero_grad()
    pass_through(optimizer, weights, -1)
    optimizer.step()
    assert all(w.isfinite().all() for w in weights)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("make", [over_adam, lambda p: IVON(p, lr=0.1, ess=50)], ids=["Variational", "IVON"])
def test_the_state_of_an_attached_model_is_the_mean(make, ahead):
    """Interrupts in the forward and in the backward pass; a checkpoint that is written then has the mean."""
    torch.manual_seed(0)
    model, x = perceptron(6, 5, 1), torch.randn(8, 6)
    optimizer = make(list(model.parameters()))
    optimizer.attach(model, ahead=ahead)

    def one_pass(at):
        interrupt = Interrupt(at)
        try:
            with interrupt:
                model(x).square().mean().backward()
        except KeyboardInterrupt:
            pass
        return interrupt.count

    for _ in range(25):
        one_pass(-1)
        optimizer.step()
        optimizer.zero_grad()
    mean = {name: t.clone() for name, t in model.state_dict().items()}
    total = one_pass(-1)
    for at in range(1, total, max(1, total // 40)):
        optimizer.zero_grad()
        one_pass(at)
        assert all(torch.equal(t, mean[name]) for name, t in model.state_dict().items()), at
    optimizer.zero_grad()
    one_pass(-1)
    optimizer.step()
    assert all(t.isfinite().all() for t in model.state_dict().values())


@pytest.mark.parametrize("make", [lambda p: SAM(p, lr=0.1), lambda p: BayesianSAM(p, lr=0.1, ess=50)])
def test_an_interrupted_second_pass_leaves_the_mean(make):
    """At every fifth instruction of a step with both passes, the weights are those before it or those after it."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(size, generator=generator) for size in [(20, 10), (5,)]]

    def stepped(at):
        weights = [nn.Parameter(w.clone()) for w in start]
        optimizer, interrupt = make(weights), Interrupt(at)

        def closure():
            optimizer.zero_grad()
            loss = sum((w**4).sum() for w in weights)
            loss.backward()
            return loss

        try:
            with interrupt:
                optimizer.step(closure)
        except KeyboardInterrupt:
            assert not optimizer._samples.context_open
        return interrupt.count, weights, optimizer, closure

    total, after, *_ = stepped(-1)
    for at in range(1, total, 5):
        _, weights, optimizer, closure = stepped(at)
        assert all(map(torch.equal, weights, start)) or all(map(torch.equal, weights, after)), at
    optimizer.step(closure)
    assert all(w.isfinite().all() for w in weights)


@pytest.mark.parametrize("name", ["Variational, tensor operations", "tensor operations", "kernels", "EVON"])
def test_a_second_interrupt_while_the_first_is_cleaned_up_leaves_the_mean(name):
    if name == "kernels" and isinstance(_native.library(), str):
        pytest.skip(_native.library())
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(size)) for size in [(18, 10), (7, 3)]]
    optimizer = CASES[name](weights)
    for _ in range(25):
        pass_through(optimizer, weights, -1)
        optimizer.step()
        optimizer.zero_grad()
    mean = [w.detach().clone() for w in weights]

    def both(at):
        """No signal is handled between an error and the first call after it, which the tracer does not know."""
        interrupt = Interrupt(at)
        interrupt.unless = "sampled_params"
        with pytest.raises(KeyboardInterrupt), optimizer.sampled_params(train=True):
            interrupt.first()
        sys.settrace(None)
        return interrupt.count

    total = both(-1)
    for at in range(1, total, max(1, total // 60)):
        both(at)
        with optimizer.sampled_params():
            pass
        assert all(map(torch.equal, weights, mean)), at
    pass_through(optimizer, weights, -1)
    optimizer.step()


@pytest.mark.parametrize("name", CASES)
def test_an_error_while_the_first_state_is_made_is_made_good_by_the_next_step(name, monkeypatch):
    """As of a device without memory left, at the second parameter; also where torch's own optimizer meets it."""
    if name == "kernels" and isinstance(_native.library(), str):
        pytest.skip(_native.library())
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(size)) for size in [(20, 10), (5,)]]
    optimizer = CASES[name](weights)
    over_torch = name.startswith("Variational") and "Newton" not in name
    owner, function, failing_call = (torch, "zeros_like", 4) if over_torch else (optimizer, "initial_state", 2)
    made, whole = [0], getattr(owner, function)

    def failing(*arguments, **options):
        made[0] += 1
        if made[0] == failing_call:
            raise MemoryError
        return whole(*arguments, **options)

    monkeypatch.setattr(owner, function, failing)
    failed = 0
    for _ in range(3):
        try:
            pass_through(optimizer, weights, -1)
            optimizer.step()
        except MemoryError:
            failed += 1
        optimizer.zero_grad()
    assert failed == 1
    assert all(w.isfinite().all() for w in weights)
