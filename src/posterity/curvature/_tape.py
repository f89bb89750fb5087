"""The one place with hooks: a forward pass that remembers what each layer took in, and where its output went."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from posterity.curvature._bags import WrittenOutBags
from posterity.curvature._fallback import transformable
from posterity.curvature._layer_parameters import split
from posterity.curvature._layers import Call, RecordedLayer, closed, unsupported
from posterity.curvature.elementwise import slopes_of
from posterity.curvature.passes import Pass, pulled
from posterity.doubles import exclusive
from posterity.errors import InvalidInput, expected, require
from posterity.inputs import Inputs, attempt, length, over_tensors, take
from posterity.likelihoods import classes_last
from posterity.trees import Tree, attributes_kept, state_dtype, trainable

_PICKS = ("Index", "Scatter", "Gather", "MaskedSelect", "MaskedScatter")  # operations that route rows, as to experts


class SlowPath(UserWarning):
    """Some parameters have no closed form; their per-example Jacobians are formed, a few examples at a time."""


class _Graph(NamedTuple):
    """What logits were made by."""

    operations: set[Node]
    uses: dict[str, int]  # how many operations take each parameter
    picks: bool  # whether any of them picks rows by index or mask


_NO_GRAPH = _Graph(set(), {}, False)
_TOLD: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()  # parameters that a warning has named


class Tape:
    """A context in which `passes` records the layers that hold the parameters `names` (the trainable ones by default).

    Inside, the model is in evaluation mode and those parameters require gradients, frozen or not, even in torch's
    inference mode. It is left exactly as it was found: modes, gradients and hooks. Other threads wait for it.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str] | None = None,
        memory: int | None = None,
        class_axis: int | None = -1,
    ) -> None:
        known = dict(model.named_parameters())
        self.names = list(trainable(model)) if names is None else list(names)
        require(bool(self.names), "parameters", "at least one that requires a gradient", "none")
        for name in self.names:
            if name not in known:
                raise expected("names", f"parameters among {list(known)}", name)
        require(len(set(self.names)) == len(self.names), "names", "every parameter once", self.names)
        self.model = model
        self.parameters = {name: known[name] for name in self.names}
        self.class_axis = class_axis  # of the model's outputs, as `classes_last` takes it
        self.memory = _default_memory(self.device) if memory is None else memory
        self._by_id = {id(p): name for name, p in self.parameters.items()}
        self._calls: dict[nn.Module, list[Call]] = {}
        self._graph = _NO_GRAPH
        self._recording = False
        self._examples = 0  # in the pass that is running
        self._off_axis: set[nn.Module] = set()
        self._same_for_all: set[nn.Module] = set()  # layers called once for all examples, such as those of positions
        self._probed = 0  # with so many examples; what follows is known thereafter
        self._classes = 0  # K
        self._width = 0  # numbers in all outputs of layers, for one example
        self._reasons: dict[str, str] = {}  # why a parameter has no closed form
        self._told = _TOLD.setdefault(model, set())

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(exclusive(self.model))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(attributes_kept(self.model))
            _refuse_batch_statistics(self.model)
            self.model.eval()
            if any(isinstance(module, nn.RNNBase) for module in self.model.modules()):
                # Those of cuDNN have no gradients in evaluation mode.
                stack.callback(setattr, torch.backends.cudnn, "enabled", torch.backends.cudnn.enabled)
                torch.backends.cudnn.enabled = False
            if any(isinstance(module, nn.EmbeddingBag) for module in self.model.modules()):
                stack.enter_context(WrittenOutBags())
            for p in self.parameters.values():
                stack.callback(p.requires_grad_, p.requires_grad)
                p.requires_grad_(True)
            for module in self.model.modules():
                if own := self.own(module):
                    reason = unsupported(module)
                    if reason is not None:
                        self._reasons.update(dict.fromkeys(own.values(), reason))
                        continue
                    handle = module.register_forward_hook(self._record, prepend=True, with_kwargs=True)
                    stack.callback(handle.remove)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._exit.close()

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(iter(self.parameters.values())).device

    def zeros(self) -> Tree:
        """Room for a sum over the data: one tensor for each parameter, in float32 at least."""
        return {
            name: torch.zeros(p.shape, dtype=state_dtype(p.dtype), device=p.device)
            for name, p in self.parameters.items()
        }

    def passes(self, inputs: Inputs, roots: int | None = None) -> Iterator[tuple[slice, Pass]]:
        """Forward passes over the examples, as many at a time as memory allows with so many roots (by default, K)."""
        inputs, examples = differentiable(inputs), length(inputs)
        require(examples > 0, "inputs", "at least one example", "none")
        if min(examples, 2) > self._probed:
            self._probe(take(inputs, slice(0, 2)))
        itemsize = next(iter(self.parameters.values())).element_size()
        for part in split(examples, (roots or self._classes) * self._width, itemsize, self.memory):
            yield part, self._forward(take(inputs, part))

    def _forward(self, inputs: Inputs) -> Pass:
        logits = self._run(inputs)
        if not logits.requires_grad:
            raise InvalidInput(f"model output: expected a function of {self.names}, got one that none of them enters")
        layers, rest = self._collect(logits)
        self._calls, self._graph = {}, _NO_GRAPH
        self._tell(rest)
        return Pass(self, inputs, logits, layers, rest)

    def _run(self, inputs: Inputs) -> Tensor:
        self._calls, self._examples, self._recording = {}, length(inputs), True
        try:
            with torch.enable_grad(), transformable():
                logits = classes_last(attempt(self.model, inputs), self.class_axis)
        finally:
            self._recording = False
        wanted = f"logits shaped ({self._examples}, ..., K)"
        fits = logits.dim() >= 2 and len(logits) == self._examples
        require(fits, "model output", wanted, tuple(logits.shape))
        self._graph = _walk(logits, self._by_id)
        # A call that no logit reads, such as that of another head, is none.
        read = {m: [c for c in calls if c.edge.node in self._graph.operations] for m, calls in self._calls.items()}
        self._calls = {module: calls for module, calls in read.items() if calls}
        return logits

    def _record(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor | None:
        if not (self._recording and output.requires_grad):
            return None
        x = args[0] if args else kwargs["input"]
        if module in self._same_for_all:
            # Written out for each example, it has signals for each.
            x, output = (t.expand(self._examples, *t.shape[1:]) for t in (x, output))
        self._calls.setdefault(module, []).append(Call.of(x, output))
        return output

    def _probe(self, few: Inputs) -> None:
        """Find what an example costs, and the layers that do not keep the examples apart on their first axis."""
        logits = self._run(few)
        single = {m for m, calls in self._calls.items() if all(c.shape[0] == c.input.shape[0] == 1 for c in calls)}
        if single and length(few) > 1:
            self._same_for_all = single
            try:
                expanded = self._run(few)
                same = expanded.shape == logits.shape and torch.allclose(expanded, logits)
            except (RuntimeError, InvalidInput):
                same = False
            if not same:
                self._same_for_all = set()
                expanded = self._run(few)
            logits = expanded
        self._off_axis = self._entangled(logits)
        self._same_for_all -= self._off_axis
        self._probed = length(few)
        self._classes = logits.shape[-1]
        entries = [entry for calls in self._calls.values() for entry in calls]
        self._width = logits[0].numel() + sum(entry.shape[1:].numel() for entry in entries)
        self._compare_slopes(logits)

    def _compare_slopes(self, logits: Tensor) -> None:
        """Refuse slopes by which gradients are other than autograd's."""
        if not any(slopes_of(module) for module in self._calls):
            return
        v = torch.linspace(1.0, 2.0, logits.numel()).view_as(logits).to(logits)
        layers = [layer for layer in self._collect(logits)[0] if slopes_of(layer.module)]
        edges = [call.edge for layer in layers for call in layer.calls]
        names = [name for layer in layers for name in layer.parameters]
        found = pulled(logits, [*edges, *(get_gradient_edge(self.parameters[name]) for name in names)], v)
        signals, true = iter(found[: len(edges)]), dict(zip(names, found[len(edges) :]))
        for layer in layers:
            b = layer.gather([next(signals).unsqueeze(0) for _ in layer.calls])
            for name, parameter in layer.parameters.items():
                ours = parameter.gradient(b, slice(None)).total()
                right = not _differ(true[name].to(b).reshape(1, -1), ours.reshape(1, -1))
                asked = f"elementwise({type(layer.module).__name__})"
                require(right, asked, f"the derivative of the output in {name!r}", "another slope")

    def _entangled(self, logits: Tensor) -> set[nn.Module]:
        """Layers whose rows are not the examples: of another number, or some example's output reads another row.

        Outputs that are weighted example by example, by powers of two, weight the signals of their own rows alike.
        """
        calls = [(module, entry) for module, entries in self._calls.items() for entry in entries]
        off = {module for module, entry in calls if entry.shape[0] != self._examples}
        if not (calls and logits.requires_grad):
            return off
        weights = (2.0 ** (torch.arange(len(logits), device=logits.device) % 7 - 3)).to(logits)
        v = torch.linspace(1.0, 2.0, logits[0].numel()).view_as(logits[0]).to(logits).expand_as(logits)
        edges = [entry.edge for _, entry in calls]
        plain, weighted = (pulled(logits, edges, u) for u in (v, _by_row(v, weights)))
        return off | {
            module
            for (module, _), one, other in zip(calls, plain, weighted)
            if module not in off and _differ(_by_row(one, weights), other)
        }

    def _collect(self, logits: Tensor) -> tuple[list[RecordedLayer], list[str]]:
        """The layers with a closed form in this pass, and the names of the parameters without."""
        uses = self._graph.uses
        if self._graph.picks:  # which row is whose may change with the examples
            self._off_axis |= self._entangled(logits)
        layers = []
        for module, calls in self._calls.items():
            if module in self._off_axis or any(entry.shape[0] != len(logits) for entry in calls):
                reason = f"its {type(module).__name__} does not keep the examples apart on the first axis"
                self._reasons.update(dict.fromkeys(self.own(module).values(), reason))
                continue
            own = {key: name for key, name in self.own(module).items() if key in closed(module)}
            fits = {key: name for key, name in own.items() if uses[name] == len(calls)}
            if fits:
                layers.append(RecordedLayer.of(module, calls, fits))
        found = {name for entry in layers for name in entry.parameters}
        return layers, [name for name in self.names if name not in found and uses[name]]

    def own(self, module: nn.Module) -> dict[str, str]:
        """The watched parameters that a module holds itself: its own names for them, and the model's."""
        return {own: self._by_id[id(p)] for own, p in module._parameters.items() if id(p) in self._by_id}

    def _tell(self, rest: list[str]) -> None:
        new = [name for name in rest if name not in self._told]
        if new:
            self._told.update(new)
            default = "it is shared between layers or used outside its own"
            alike: dict[str, list[str]] = {}
            for name in new:
                alike.setdefault(self._reasons.get(name, default), []).append(name)
            lines = "; ".join(f"{_some(names)} ({reason})" for reason, names in alike.items())
            warnings.warn(f"per-example Jacobians by torch.func, which is slower, for {lines}", SlowPath, stacklevel=5)


def _some(names: list[str]) -> str:
    """All names of a few, or the first and how many more."""
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} and {len(names) - 1} more"


def differentiable(inputs: Inputs) -> Inputs:
    """The inputs, with copies of tensors made in inference mode, which autograd refuses."""
    return over_tensors(lambda x: x.clone() if x.is_inference() else x, inputs)


def _by_row(t: Tensor, weights: Tensor) -> Tensor:
    return t * weights.view(-1, *[1] * (t.dim() - 1))


def _differ(one: Tensor, other: Tensor) -> bool:
    """Whether any row differs by more than rounding."""
    apart, size = ((t.reshape(len(t), -1).abs().amax(1)) for t in (one - other, one))
    return bool((apart > torch.finfo(one.dtype).eps ** 0.5 * size).any())


def _walk(logits: Tensor, by_id: dict[int, str]) -> _Graph:
    operations = {logits.grad_fn} if logits.grad_fn is not None else set()
    uses, picks = dict.fromkeys(by_id.values(), 0), False
    stack = list(operations)
    while stack:
        operation = stack.pop()
        picks = picks or operation.name().startswith(_PICKS)
        for node, _ in operation.next_functions:
            if node is None:
                continue
            name = by_id.get(id(getattr(node, "variable", None)))
            if name is not None:
                uses[name] += 1
            if node not in operations:
                operations.add(node)
                stack.append(node)
    return _Graph(operations, uses, picks)


def _refuse_batch_statistics(model: nn.Module) -> None:
    """Examples that see each other have no Jacobians of their own."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            wanted = "running statistics (with batch statistics the examples are not independent)"
            require(module.running_mean is not None, f"BatchNorm {name!r}", wanted, "track_running_stats=False")
            if module.training:
                warnings.warn(
                    f"BatchNorm {name!r} is in training mode, in which the examples of a batch are not independent; "
                    "its running statistics are used instead (call model.eval() to avoid this warning)",
                    stacklevel=4,
                )
                return


def _default_memory(device: torch.device) -> int:
    """Bytes to hold at a time: a quarter of a GPU's free memory, and on a CPU what does not hurt."""
    return torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else 2**28
