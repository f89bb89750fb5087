"""Every Gaussian structure against dense matrices: torch.distributions and numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import linalg, stats
from torch.distributions import MultivariateNormal, kl_divergence

from posterior import cases
from posterity.curvature.covariance import DiagonalCovariance, FullCovariance, KroneckerCovariance
from posterity.errors import InvalidInput, Undefined
from posterity.posterior import Diagonal, Full, GaussianStructure, Kronecker, LowRank, Rotated
from posterity.posterior._structure import standard_normal
from posterity.trees import Tree, from_vector, to_vector


def dense_precision(q: GaussianStructure) -> torch.Tensor:
    """The precision that a structure's docstring promises, written with numpy alone."""
    if isinstance(q, Diagonal):
        return torch.diag(torch.cat([q.precision[n].expand(q.mean[n].shape).reshape(-1) for n in q.names]))
    if isinstance(q, Full):
        return q.precision
    if isinstance(q, Kronecker):
        blocks = []
        for name in q.names:
            block = np.eye(1)
            for factor in q.factors[name]:
                block = np.kron(block, factor.numpy())
            blocks.append(torch.from_numpy(block + q.prior_precision[name].item() * np.eye(len(block))))
        return torch.block_diag(*blocks)
    if isinstance(q, Rotated):
        blocks = []
        for name in q.names:
            basis = np.eye(1)
            for u in q.bases.get(name, (torch.eye(q.mean[name].numel()),)):
                basis = np.kron(basis, u.numpy())
            blocks.append(torch.from_numpy(basis @ np.diag(q.precision[name].numpy().reshape(-1)) @ basis.T))
        return torch.block_diag(*blocks)
    assert isinstance(q, LowRank)
    rows = np.concatenate([q.deviations[name].reshape(q.rank, -1).numpy() for name in q.names], axis=1)
    return torch.from_numpy(np.linalg.inv(np.diag(to_vector(q.diagonal).numpy()) + rows.T @ rows))


def reference(q: GaussianStructure) -> MultivariateNormal:
    return MultivariateNormal(to_vector(q.mean), precision_matrix=dense_precision(q))


def point(seed: int = 5) -> Tree:
    return cases.weights(seed)


@pytest.fixture(params=list(cases.GAUSSIANS))
def q(request: pytest.FixtureRequest) -> GaussianStructure:
    return cases.GAUSSIANS[request.param]()


def test_density_and_entropy(q: GaussianStructure) -> None:
    torch.testing.assert_close(q.log_prob(point()), reference(q).log_prob(to_vector(point())), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(q.entropy(), reference(q).entropy(), rtol=1e-10, atol=1e-10)


def test_moments(q: GaussianStructure) -> None:
    torch.testing.assert_close(to_vector(q.variance), reference(q).variance, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(q.covariance_matrix(), reference(q).covariance_matrix, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(q.precision_matrix(), dense_precision(q), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(to_vector(q.precision_diagonal()), dense_precision(q).diagonal(), rtol=1e-9, atol=1e-9)


def test_draws_have_the_covariance(q: GaussianStructure) -> None:
    draws = torch.stack([to_vector(q.sample(k, seed=11)) for k in range(1000)])
    deviation = (torch.cov(draws.T) - reference(q).covariance_matrix).abs().max()
    scale = reference(q).variance.max()
    assert deviation < 6 * scale * (2 / 1000) ** 0.5  # six standard errors of a variance
    errors = (draws.mean(0) - to_vector(q.mean)) / (reference(q).variance / 1000).sqrt()
    assert errors.abs().max() < 5


@pytest.mark.parametrize("build", [cases.kronecker, cases.rotated])
def test_draws_do_not_depend_on_the_eigenvectors_that_a_machine_finds(build: Callable[[], GaussianStructure]) -> None:
    q = build()
    noise = to_vector(standard_normal(q.mean, 3, 11)).double().numpy()
    root = linalg.sqrtm(np.linalg.inv(dense_precision(q).numpy()))
    expected = to_vector(q.mean).numpy() + root @ noise
    np.testing.assert_allclose(to_vector(q.sample(3, seed=11)).numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("one", "two"), list(itertools.product(cases.GAUSSIANS, repeat=2)))
def test_kl_of_every_pair(one: str, two: str) -> None:
    q, p = cases.GAUSSIANS[one](0), cases.GAUSSIANS[two](1)
    torch.testing.assert_close(q.kl(p), kl_divergence(reference(q), reference(p)), rtol=1e-9, atol=1e-9)


def test_convolutions_have_two_factors() -> None:
    mean = {"w": torch.randn(2, 3, 2, 2, dtype=torch.float64)}
    factors = (cases.positive_definite(2, 0), cases.positive_definite(12, 1))
    q = Kronecker(mean, {"w": factors}, {"w": torch.tensor(0.1)})
    torch.testing.assert_close(q.entropy(), reference(q).entropy())
    torch.testing.assert_close(to_vector(q.variance), reference(q).variance)
    assert q.covariance().variance["w"].shape == (2, 12)
    assert q.sample(0)["w"].shape == (2, 3, 2, 2)


def test_there_may_be_a_factor_for_each_axis() -> None:
    mean = {"w": torch.randn(2, 3, 4, dtype=torch.float64)}
    factors = tuple(cases.positive_definite(size, size) for size in (2, 3, 4))
    q = Kronecker(mean, {"w": factors}, {"w": torch.tensor(0.1)})
    torch.testing.assert_close(q.entropy(), reference(q).entropy())
    torch.testing.assert_close(to_vector(q.variance), reference(q).variance)
    torch.testing.assert_close(to_vector(q.precision_diagonal()), reference(q).precision_matrix.diagonal())


def test_factors_in_either_memory_order() -> None:
    b, a = torch.diag(torch.tensor([1.0, 2.0])).double(), torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double()
    q = Kronecker({"w": torch.zeros(2, 2).double()}, {"w": (b, torch.linalg.inv(a))}, {"w": torch.tensor(0.1)})
    dense = np.kron(b.numpy(), np.linalg.inv(a.numpy())) + 0.1 * np.eye(4)
    np.testing.assert_allclose(q.precision_matrix(), dense)


def test_kl_of_large_kronecker_posteriors_needs_no_dense_matrix() -> None:
    tree = {"w": torch.zeros(200, 150)}

    def build(scale: float) -> Kronecker:
        return Kronecker(tree, {"w": (scale * torch.eye(200), torch.eye(150))}, {"w": torch.ones(())})

    spread = {"w": torch.tensor(3.0)}, {"w": torch.tensor(5.0)}
    exact = Diagonal(tree, spread[0]).kl(Diagonal(tree, spread[1]))  # both are multiples of the identity
    torch.testing.assert_close(build(2.0).kl(build(4.0)), exact, rtol=1e-5, atol=1e-3)


def test_kl_of_kronecker_posteriors_with_other_factors() -> None:
    q, p = cases.kronecker(0), cases.kronecker(1)
    whole = {name: (torch.kron(*f) if len(f) == 2 else f[0],) for name, f in p.factors.items()}
    torch.testing.assert_close(q.kl(Kronecker(p.mean, whole, p.prior_precision)), q.kl(p))


def test_kl_does_not_depend_on_the_order_of_names() -> None:
    q, p = cases.full(0), cases.full(1)
    names = list(reversed(p.names))
    index = from_vector(torch.arange(p.dimension), p.mean)
    order = torch.cat([index[name].reshape(-1) for name in names])
    turned = Full({name: p.mean[name] for name in names}, p.precision[order][:, order])
    torch.testing.assert_close(q.kl(turned), q.kl(p))


def test_kl_to_a_posterior_of_another_model_is_refused() -> None:
    q = Diagonal.isotropic({"w": torch.zeros(2, 3)}, 1.0)
    with pytest.raises(InvalidInput, match="kl"):
        q.kl(Diagonal.isotropic({"w": torch.zeros(1, 3)}, 1.0))  # which would broadcast


def test_covariances_in_layer_wise_form() -> None:
    q = cases.diagonal()
    covariance = q.covariance()
    assert isinstance(covariance, DiagonalCovariance)
    torch.testing.assert_close(to_vector(covariance.variance), reference(q).variance)

    full = cases.full()
    dense = full.covariance()
    assert isinstance(dense, FullCovariance)
    assert list(dense.shapes) == list(full.names)
    torch.testing.assert_close(dense.matrix, reference(full).covariance_matrix, rtol=1e-9, atol=1e-9)

    kron = cases.kronecker()
    factored = kron.covariance()
    assert isinstance(factored, KroneckerCovariance)
    blocks = []
    for name in kron.names:
        basis = torch.eye(1, dtype=torch.float64)
        for u in factored.bases[name]:
            basis = torch.kron(basis, u)
        blocks.append(basis @ torch.diag(factored.variance[name].reshape(-1)) @ basis.T)
    torch.testing.assert_close(torch.block_diag(*blocks), reference(kron).covariance_matrix, rtol=1e-9, atol=1e-9)


def test_log_prob_is_differentiable(q: GaussianStructure) -> None:
    tree = {name: t.requires_grad_() for name, t in point().items()}
    q.log_prob(tree).backward()
    gradient = torch.cat([t.grad.reshape(-1) for t in tree.values() if t.grad is not None])
    exact = -dense_precision(q) @ (to_vector(point()) - to_vector(q.mean))
    torch.testing.assert_close(gradient, exact, rtol=1e-8, atol=1e-8)


def test_half_precision_parameters_are_summed_in_float32() -> None:
    mean = {"w": torch.ones(64, dtype=torch.bfloat16)}
    q = Diagonal(mean, {"w": torch.full((64,), 1e6)})
    assert q.precision["w"].dtype == torch.float32
    assert q.sample(0)["w"].dtype == torch.bfloat16
    assert q.entropy().dtype == torch.float64
    wide = Diagonal({"w": torch.ones(64)}, {"w": torch.full((64,), 1e6)})
    torch.testing.assert_close(q.entropy(), wide.entropy())


def test_a_number_is_precision_enough() -> None:
    q = Diagonal({"w": torch.zeros(2, 3)}, {"w": torch.tensor(4.0)})
    assert q.variance["w"].shape == (2, 3)
    torch.testing.assert_close(
        q.entropy(), Diagonal({"w": torch.zeros(2, 3)}, {"w": torch.full((2, 3), 4.0)}).entropy()
    )


def test_flat_priors_are_allowed_but_have_no_density() -> None:
    flat = Diagonal.isotropic({"w": torch.zeros(2)}, 0.0)
    for question in (flat.entropy, flat.as_family, lambda: flat.variance, lambda: flat.sample(0)):
        with pytest.raises(Undefined, match=r"flat \(precision 0\) in 'w'"):
            question()


def test_low_rank_keeps_its_digits_where_deviations_are_much_wider_than_the_diagonal() -> None:
    variance, deviation, point = 1e-6, 10.0, torch.tensor([3.0])
    q = LowRank({"w": torch.zeros(1)}, {"w": torch.tensor([variance])}, {"w": torch.tensor([[deviation]])})
    wanted = stats.norm(0, (variance + deviation**2) ** 0.5)
    assert q.log_prob({"w": point}).item() == pytest.approx(wanted.logpdf(3.0), abs=1e-6)
    assert q.precision_diagonal()["w"].item() == pytest.approx(1 / wanted.var(), rel=1e-5)


def test_low_rank_without_diagonal_can_be_drawn_but_has_no_density() -> None:
    mean = {"w": torch.zeros(3)}
    q = LowRank(mean, {"w": torch.zeros(3)}, {"w": torch.eye(3)[:2]})
    assert q.sample(1)["w"][2] == 0
    with pytest.raises(Undefined, match="without variance in a weight of 'w'"):
        q.log_prob(mean)
    with pytest.raises(Undefined, match="project it to 'diagonal' or 'full'"):
        q.covariance()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda m: Diagonal(m, {}), "precision: expected a tensor for parameter 'w', got 'none'"),
        (lambda m: Diagonal(m, {"w": torch.ones(4)}), r"precision of 'w': expected shape \(2, 3\), got \(4,\)"),
        (lambda m: Diagonal(m, {"w": torch.tensor(-1.0)}), "precision of 'w': expected numbers >= 0, got '-1'"),
        (lambda m: Diagonal(m, {"w": torch.tensor(float("nan"))}), "precision of 'w': expected finite numbers"),
        (lambda m: Diagonal(m, {"w": torch.ones(()), "v": torch.ones(())}), "precision: expected parameters among"),
        (
            lambda m: Diagonal({"w": torch.full((2,), float("inf"))}, {"w": torch.ones(2)}),
            "mean of 'w': expected finite",
        ),
        (lambda m: Diagonal({}, {}), "mean: expected at least one parameter"),
        (lambda m: Diagonal({"w": torch.ones(2, dtype=torch.int64)}, {"w": torch.ones(2)}), "floating-point"),
        (lambda m: Diagonal({"w": [1.0]}, {"w": 1.0}), "mean of 'w': expected a floating-point tensor, got 'list'"),
        (lambda m: Full(m, torch.eye(5)), r"precision: expected shape \(6, 6\), got \(5, 5\)"),
        (lambda m: Full(m, -torch.eye(6)).entropy(), "expected a positive-definite matrix, got smallest eigenvalue -1"),
        (lambda m: Kronecker(m, {}, {"w": torch.ones(())}), r"factors: expected one entry for each of \['w'\]"),
        (lambda m: Kronecker(m, {"w": (torch.eye(2),)}, {"w": torch.ones(())}), "sizes that multiply to 6, got 2"),
        (lambda m: Kronecker(m, {"w": (torch.eye(2), torch.ones(3, 2))}, {"w": torch.ones(())}), "square matrices"),
        (lambda m: Kronecker(m, {"w": (torch.eye(2), torch.eye(3))}, {"w": torch.ones(2)}), "one number"),
        (lambda m: Kronecker(m, {"w": (torch.eye(2) / 0, torch.eye(3))}, {"w": torch.ones(())}), "finite numbers"),
        (lambda m: Kronecker(m, {"w": (torch.eye(2), torch.eye(3))}, {"w": -torch.ones(())}), "a number >= 0"),
        (
            lambda m: Kronecker(m, {"w": (torch.zeros(2, 2), torch.eye(3))}, {"w": torch.zeros(())}).entropy(),
            "precision of 'w': expected a positive-definite matrix",
        ),
        (
            lambda m: Rotated(m, {"v": (torch.eye(2),)}, {"w": m["w"] + 1}),
            r"bases: expected entries for some of \['w'\]",
        ),
        (lambda m: Rotated(m, {}, {"w": torch.ones(6)}), r"shape \(2, 3\) without bases, got \(6,\)"),
        (lambda m: Rotated(m, {"w": (torch.eye(2), torch.eye(3))}, {"w": torch.ones(5)}), "6 numbers, got 5"),
        (lambda m: Rotated(m, {"w": (torch.eye(2), torch.eye(3))}, {"w": torch.zeros(2, 3)}), "positive numbers"),
        (lambda m: Rotated(m, {"w": (torch.eye(2),)}, {"w": torch.ones(2, 3)}), "matrices of shapes"),
        (lambda m: Rotated(m, {"w": (torch.eye(2), torch.ones(3, 3))}, {"w": torch.ones(2, 3)}), "orthogonal"),
        (lambda m: LowRank(m, {"w": torch.ones(2)}, {"w": torch.ones(1, 2, 3)}), r"variance of 'w': expected shape"),
        (lambda m: LowRank(m, m, {"w": torch.ones(1, 2)}), r"deviations of 'w': expected shape"),
        (lambda m: LowRank(m, m, {"w": torch.ones(0, 2, 3)}), r"deviations: expected the same rank, at least 1"),
        (lambda m: LowRank(m, m, {"w": torch.ones(())}), r"deviations: expected the same rank, at least 1"),
        (lambda m: LowRank(m, {"w": -torch.ones(2, 3)}, {"w": torch.ones(1, 2, 3)}), "numbers >= 0"),
    ],
)
def test_what_cannot_be_right_is_refused(build, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build({"w": torch.zeros(2, 3)})


def test_dense_matrices_of_large_models_are_refused_with_their_size() -> None:
    mean = {"w": torch.zeros(200_000)}
    wide = {"w": torch.zeros(200, 1000)}
    eye = {"w": (torch.eye(200), torch.eye(1000))}
    for q in (
        Diagonal.isotropic(mean, 1.0),
        LowRank(mean, {"w": torch.ones(200_000)}, {"w": torch.ones(1, 200_000)}),
        Kronecker(wide, eye, {"w": torch.tensor(1.0)}),
        Rotated(wide, eye, {"w": torch.ones(200, 1000)}),
    ):
        for matrix in (q.precision_matrix, q.covariance_matrix):
            with pytest.raises(
                InvalidInput, match=r"at most 20000 parameters for a dense matrix, got 200000 \(298 GiB"
            ):
                matrix()


def test_the_density_of_another_models_weights_is_refused(q: GaussianStructure) -> None:
    with pytest.raises(InvalidInput, match="log_prob"):
        q.log_prob({name: t[..., :1] for name, t in point().items()})


def test_a_gaussian_that_counts_for_three() -> None:
    q = cases.diagonal()
    torch.testing.assert_close(to_vector(q.times(3.0).precision), 3.0 * to_vector(q.precision))
    assert torch.equal(to_vector(q.times(3.0).mean), to_vector(q.mean))
