"""Gauss-Newton matrices against Jacobians written out, and their Kronecker factors against what they must be."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from curvature.cases import CASES, B, K, jacobians
from posterity.batches import batches
from posterity.curvature import diagonal_fisher, diagonal_ggn, full_ggn, kronecker_ggn
from posterity.errors import InvalidInput
from posterity.inputs import call
from posterity.likelihoods import Likelihood, likelihood
from posterity.trees import from_vector, to_vector, trainable

pytestmark = pytest.mark.filterwarnings("ignore::posterity.curvature.SlowPath")
LABELS = torch.zeros(B, dtype=torch.int64)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def explicit(model: nn.Module, inputs: object, law: Likelihood) -> Tensor:
    """Σ_n J_nᵀ Λ_n J_n, by the definition; further axes of the outputs are examples."""
    f = call(model, inputs).detach()
    j = jacobians(model, inputs).reshape(-1, f.shape[-1], sum(p.numel() for p in trainable(model).values()))
    return torch.einsum("nkp,nkl,nlq->pq", j, law.curvature(f.reshape(-1, f.shape[-1])), j)


@pytest.mark.parametrize("name", CASES)
def test_the_diagonal_and_the_matrix_equal_the_definition(name: str) -> None:
    model, inputs = CASES[name].build()
    wanted = explicit(model, inputs, likelihood("categorical"))
    data = batches((inputs, LABELS))
    close(full_ggn(model, data, "categorical"), wanted)
    close(to_vector(diagonal_ggn(model, data, "categorical")), wanted.diagonal())


def test_rows_that_are_sent_to_experts_stay_with_their_examples() -> None:
    for seed in range(60):  # an expert gets as many rows as there are examples in a few of them
        model, inputs = CASES["routed"].build(seed)
        wanted = explicit(model, inputs, likelihood("categorical")).diagonal()
        close(to_vector(diagonal_ggn(model, batches((inputs, LABELS)), "categorical")), wanted)


def test_slopes_of_as_many_examples_as_outputs() -> None:
    model, inputs = CASES["slopes"].build()  # torch's vmap within vmap confuses the two
    wanted = explicit(model, inputs[:K], likelihood("categorical")).diagonal()
    close(to_vector(diagonal_ggn(model, (inputs[:K], LABELS[:K]), "categorical")), wanted)


@pytest.mark.parametrize("law", [likelihood("gaussian", precision=3.0), likelihood("bernoulli"), likelihood("poisson")])
def test_every_likelihood_brings_its_curvature(law: Likelihood) -> None:
    model, inputs = CASES["mlp"].build()
    data = batches((inputs, torch.zeros(B, K)))
    wanted = explicit(model, inputs, law)
    close(full_ggn(model, data, law), wanted)
    close(to_vector(diagonal_ggn(model, data, law)), wanted.diagonal())


@pytest.mark.parametrize("name", ["image", "tokens", "grid", "outside"])
def test_batches_and_memory_change_nothing(name: str) -> None:
    model, inputs = CASES[name].build()
    whole, single = batches((inputs, LABELS)), batches((inputs, LABELS), batch_size=2)
    for memory in (1, 20_000):
        close(full_ggn(model, single, "categorical", memory=memory), full_ggn(model, whole, "categorical"))
        found, wanted = (
            diagonal_ggn(model, single, "categorical", memory=memory),
            diagonal_ggn(model, whole, "categorical"),
        )
        close(to_vector(found), to_vector(wanted))
        found_factors = kronecker_ggn(model, single, "categorical", memory=memory)
        for key, factors in kronecker_ggn(model, whole, "categorical").items():
            for f, w in zip(found_factors[key], factors, strict=True):
                close(f, w)


@pytest.mark.parametrize("ask", [diagonal_ggn, kronecker_ggn, full_ggn, diagonal_fisher])
def test_data_come_as_columns_in_a_loader_or_as_pairs_too(ask: Callable[..., object]) -> None:
    model, inputs = CASES["mlp"].build()
    wanted = ask(model, batches((inputs, LABELS)), "categorical")
    pairs = zip(inputs.split(2), LABELS.split(2))
    for data in ((inputs, LABELS), TensorDataset(inputs, LABELS), DataLoader(TensorDataset(inputs, LABELS), 2), pairs):
        torch.testing.assert_close(ask(model, data, "categorical"), wanted)
    with pytest.raises(InvalidInput, match=r"batch: expected \(inputs, targets\) or a mapping with labels, got Tensor"):
        ask(model, [inputs, LABELS], "categorical")


@pytest.mark.parametrize("ask", [diagonal_ggn, kronecker_ggn, full_ggn, partial(diagonal_fisher, kind="sampled")])
def test_targets_that_speak_of_other_outputs_are_refused(ask: Callable[..., object]) -> None:
    model, inputs = CASES["mlp"].build()
    with pytest.raises(InvalidInput, match=r"labels: expected integers in 0..2, got 'values from -100"):
        ask(model, (inputs, torch.full((B,), -100)), "categorical")
    single = nn.Linear(4, 1).double()
    with pytest.raises(InvalidInput, match="outputs: expected one logit for each of at least 2 classes"):
        ask(single, (inputs, LABELS), "categorical")


@pytest.mark.parametrize(
    "names", [["10.weight", "10.bias"], ["10.bias", "10.weight"], ["10.weight"], ["0.bias", "7.weight"]]
)
def test_some_of_the_parameters_in_any_order(names: list[str]) -> None:
    model, inputs = CASES["image"].build()
    wanted = explicit(model, inputs, likelihood("categorical"))
    places = from_vector(torch.arange(len(wanted)), trainable(model))
    order = torch.cat([places[name].flatten() for name in names])
    for memory in (1000, 2**28):
        found = full_ggn(model, batches((inputs, LABELS)), "categorical", names, memory=memory)
        close(found, wanted[order][:, order])


def test_further_axes_of_the_outputs_are_examples() -> None:
    torch.manual_seed(0)
    mix = nn.Linear(2, 2).double()  # lets the positions see each other

    class Segment(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.mix, self.last = nn.Linear(4, 5), mix, nn.Linear(5, K)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.mix(self.first(x).transpose(1, 2)).transpose(1, 2)))

    model = Segment().double()
    x = torch.randn(B, 2, 4, dtype=torch.float64)
    data = batches((x, torch.zeros(B, 2, dtype=torch.int64)))
    wanted = explicit(model, x, likelihood("categorical"))
    close(full_ggn(model, data, "categorical"), wanted)
    close(to_vector(diagonal_ggn(model, data, "categorical")), wanted.diagonal())


def test_kronecker_factors_are_exact_for_one_example_with_one_output() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    data = batches((torch.tensor([[2]]), torch.zeros(1, 1)))
    matrix = full_ggn(model, data, "gaussian")
    places = from_vector(torch.arange(len(matrix)), trainable(model))
    for sharing in ("expand", "reduce"):
        for name, factors in kronecker_ggn(model, data, "gaussian", sharing=sharing).items():
            block = factors[0] if len(factors) == 1 else torch.kron(*factors)
            index = places[name].flatten()
            close(block, matrix[index][:, index])


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_a_head_on_a_frozen_trunk_is_that_of_the_whole(sharing: str) -> None:
    model, inputs = CASES["tokens"].build()
    data = batches((inputs, LABELS))
    whole = kronecker_ggn(model, data, "categorical", sharing=sharing)
    diagonal = diagonal_ggn(model, data, "categorical")
    model.requires_grad_(False)
    model.out.requires_grad_(True)
    head = kronecker_ggn(model, data, "categorical", sharing=sharing)
    assert list(head) == ["out.weight", "out.bias"]
    for name, factors in head.items():
        for found, wanted in zip(factors, whole[name], strict=True):
            close(found, wanted)
        close(diagonal_ggn(model, data, "categorical")[name], diagonal[name])


def test_frozen_parameters_can_be_asked_for_by_name() -> None:
    model, inputs = CASES["mlp"].build()
    data = batches((inputs, LABELS))
    wanted = full_ggn(model, data, "categorical", ["2.weight"])
    model.requires_grad_(False)
    close(full_ggn(model, data, "categorical", ["2.weight"]), wanted)
    assert not any(p.requires_grad for p in model.parameters())


def test_scales_and_shifts_of_normalisations_have_their_exact_block() -> None:
    model, inputs = CASES["image"].build()
    data = batches((inputs, LABELS))
    factors = kronecker_ggn(model, data, "categorical")
    for name in ("1.weight", "1.bias", "4.weight", "4.bias", "9.weight", "9.bias"):
        close(factors[name][0], full_ggn(model, data, "categorical", [name]))


def test_a_grouped_convolution_averages_the_inputs_of_its_groups() -> None:
    torch.manual_seed(0)
    grouped = nn.Sequential(nn.Conv1d(4, 6, 2, groups=2), nn.Flatten()).double()
    parts = [nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten()).double() for _ in range(2)]
    x = torch.randn(B, 4, 3, dtype=torch.float64)
    b, a = kronecker_ggn(grouped, batches((x, torch.zeros(B, 12))), "gaussian")["0.weight"]
    split = [
        kronecker_ggn(part, batches((x[:, 2 * i : 2 * i + 2], torch.zeros(B, 6))), "gaussian")["0.weight"]
        for i, part in enumerate(parts)
    ]
    close(a, (split[0][1] + split[1][1]) / 2)
    close(b, torch.block_diag(split[0][0], split[1][0]))


@pytest.mark.parametrize(
    ("case", "names"), [("tied", ["table.weight"]), ("grid", ["1.weight", "1.bias", "5.weight", "5.bias"])]
)
def test_other_parameters_get_one_step_to_the_nearest_kronecker_product(case: str, names: list[str]) -> None:
    model, inputs = CASES[case].build()
    root = likelihood("categorical").curvature_root(model(inputs).detach())
    rows = (root.mT @ jacobians(model, inputs)).flatten(0, 1)
    sizes = {name: p.numel() for name, p in trainable(model).items()}
    gradients = dict(zip(sizes, rows.split(list(sizes.values()), dim=1), strict=True))
    factors = kronecker_ggn(model, batches((inputs, LABELS)), "categorical")
    for name in names:
        b, a = factors[name]
        g = gradients[name].unflatten(1, model.get_parameter(name).shape)
        close(b, torch.einsum("noi,npi->op", g, g))
        close(a * b.trace(), torch.einsum("noi,noj->ij", g, g))


def test_half_precision_is_summed_in_single() -> None:
    model, inputs = CASES["mlp"].build()
    exact = diagonal_ggn(model, batches((inputs, LABELS)), "categorical")
    half = diagonal_ggn(model.bfloat16(), batches((inputs.bfloat16(), LABELS)), "categorical")
    for name, h in half.items():
        assert h.dtype == torch.float32
        torch.testing.assert_close(h.double(), exact[name], rtol=0.1, atol=0.05 * exact[name].max().item())


def test_what_does_not_fit_is_named() -> None:
    model, inputs = CASES["mlp"].build()
    data = batches((inputs, LABELS))
    with pytest.raises(InvalidInput, match="sharing: expected 'expand' or 'reduce'"):
        kronecker_ggn(model, data, "categorical", sharing="none")
    with pytest.raises(InvalidInput, match="names: expected parameters among"):
        full_ggn(model, data, "categorical", ["nowhere"])
    with pytest.raises(InvalidInput, match="names: expected every parameter once"):
        full_ggn(model, data, "categorical", ["0.bias", "0.bias"])
    with pytest.raises(InvalidInput, match="expected at most 20000 rows"):
        kronecker_ggn(nn.Embedding(20_001, 1), data, "gaussian")
    with pytest.raises(InvalidInput, match="at least one that requires a gradient"):
        diagonal_ggn(model.requires_grad_(False), data, "categorical")
