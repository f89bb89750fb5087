"""Student-t sites beside scipy's maximum, long chains beside a plain filter, sparse counts beside dense ones."""

import numpy as np
import pytest
import torch
from scipy import optimize

from graph.cases import DOUBLE, normal
from posterity.algorithms import LinearStateSpace
from posterity.errors import InvalidInput
from posterity.families import Dirichlet, Gaussian
from posterity.gradients import LinearLoss, Quadrature
from posterity.graph import (
    DenseGaussian,
    Model,
    SiteFactor,
    Sites,
    SparseGaussian,
    Topics,
    _blocks,
    cvi,
    filter_states,
    smooth_states,
    svi_step,
    vmp,
)
from posterity.likelihoods import likelihood
from posterity.progress import track

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
PLACES = torch.tensor([-1.0, -0.3, 0.4, 1.1], dtype=DOUBLE)
COVARIANCE = 2.0 * torch.exp(-0.5 * (PLACES[:, None] - PLACES) ** 2) + 1e-6 * torch.eye(4, dtype=DOUBLE)
TARGETS = torch.tensor([0.2, 0.1, 6.0, 0.3], dtype=DOUBLE)  # one of them is an outlier
STUDENT = likelihood("student_t", degrees=3.0, scale=0.3)


def negative_bound(packed):
    """−E_q[log p(y, f)/q(f)] of a full Gaussian q, written down anew: mean and the lower triangle of a root."""
    mean, root = packed[:4], np.zeros((4, 4))
    root[np.tril_indices(4)] = packed[4:]
    S, K = root @ root.T, COVARIANCE.numpy()
    f = torch.as_tensor(mean + np.sqrt(np.diag(S)) * NODES[:, None]).unsqueeze(-1)
    losses = STUDENT.loss(f, TARGETS.unsqueeze(-1).expand(f.shape)).numpy()
    expected = (WEIGHTS / WEIGHTS.sum()) @ losses.sum(-1)
    inverse = np.linalg.inv(K)
    logs = np.linalg.slogdet(K)[1] - 2 * np.log(np.abs(np.diag(root))).sum()
    return expected + 0.5 * (np.trace(inverse @ S) + mean @ inverse @ mean - 4 + logs)


def test_student_t_sites_reach_the_best_gaussian():
    fit = cvi(DenseGaussian(COVARIANCE), TARGETS, STUDENT, gradient=Quadrature(60), tolerance=1e-10, steps=1000)
    assert (fit.sites.precision < 0).any()  # the outlier pushes its own value about
    assert np.all(np.diff(fit.bounds) > -1e-8)
    S = torch.linalg.inv(torch.linalg.inv(COVARIANCE) + torch.diag(fit.sites.precision)).numpy()
    root = np.linalg.cholesky(S)
    start = np.concatenate((fit.marginals.mean.numpy(), root[np.tril_indices(4)]))
    best = optimize.minimize(negative_bound, start + 0.01, method="BFGS", options={"gtol": 1e-7, "maxiter": 500})
    assert -best.fun == pytest.approx(fit.bounds[-1], abs=1e-7)
    np.testing.assert_allclose(best.x[:4], fit.marginals.mean.numpy(), atol=1e-4)
    # Inducing points at all places are the dense process, and predictions at the places are the marginals.
    A = torch.linalg.cholesky(COVARIANCE)
    sparse = SparseGaussian(A, COVARIANCE.diagonal()).marginals(fit.sites)
    torch.testing.assert_close(sparse.mean, fit.marginals.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(sparse.kl, fit.marginals.kl, rtol=1e-6, atol=1e-6)
    mean, variance = DenseGaussian(COVARIANCE).predict(fit.sites, COVARIANCE, COVARIANCE.diagonal())
    torch.testing.assert_close(mean, fit.marginals.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(variance, fit.marginals.variance, rtol=1e-8, atol=1e-8)


def test_sites_that_outweigh_the_prior_are_refused():
    none = torch.zeros(4, dtype=DOUBLE)
    with pytest.raises(
        InvalidInput, match="the prior's precision and that of all sites: expected a positive-definite matrix"
    ):
        DenseGaussian(COVARIANCE).marginals(Sites(none, none - 5.0))


def test_student_t_regression_by_message_passing():
    X = torch.cat((normal(30, 1), torch.ones(30, 1, dtype=DOUBLE)), -1)
    y = X @ torch.tensor([2.0, -1.0], dtype=DOUBLE) + 0.1 * normal(30)
    y[:3] += 50.0
    loss = LinearLoss(inputs=X, targets=y, likelihood=likelihood("student_t", degrees=3.0, scale=0.1))
    prior = Gaussian(torch.zeros(2, dtype=DOUBLE), 0.01 * torch.eye(2, dtype=DOUBLE))
    first = Gaussian(torch.linalg.lstsq(X[3:], y[3:]).solution, X.mT @ X)
    fit = vmp(Model({"w": prior}, [SiteFactor("w", loss)]), {"w": first}, backtracking=True, tolerance=1e-6)
    torch.testing.assert_close(fit.q["w"].mean, torch.tensor([2.0, -1.0], dtype=DOUBLE), rtol=0.1, atol=0.1)
    assert np.all(np.diff(fit.bounds) > -1e-8)


def plain_filter(model, y):
    """Every step written out, whether covariances stand still or not."""
    A, Q, C, R = model.transition, model.transition_noise, model.observation, model.observation_noise
    m, P, means, covariances = model.initial_mean, model.initial_covariance, [], []
    for t, row in enumerate(y):
        if t:
            m, P = A @ m, A @ P @ A.mT + Q
        seen = ~row.isnan()
        if seen.any():
            c = C[seen]
            gain = torch.linalg.solve(c @ P @ c.mT + R[seen][:, seen], c @ P).mT
            m, P = m + gain @ (row[seen] - c @ m), P - gain @ c @ P
        means.append(m)
        covariances.append(P)
    return torch.stack(means), torch.stack(covariances)


def test_long_chains_with_gaps_are_filtered_exactly():
    turn = torch.tensor([[0.9, 0.2], [-0.2, 0.9]], dtype=DOUBLE)
    one = torch.eye(2, dtype=DOUBLE)
    model = LinearStateSpace(turn, 0.1 * one, one[:1], one[:1, :1], one[0], 2.0 * one)
    y = normal(600, 1)
    y[300:310], y[590] = torch.nan, torch.nan
    found = filter_states(model, y)
    means, covariances = plain_filter(model, y)
    torch.testing.assert_close(found.mean, means, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found.covariance, covariances, rtol=1e-11, atol=1e-11)
    # The smoother, written out from the filter's beliefs.
    m, P = means.clone(), covariances.clone()
    for t in range(598, -1, -1):
        before = turn @ covariances[t] @ turn.mT + 0.1 * one
        gain = torch.linalg.solve(before, turn @ covariances[t]).mT
        m[t] += gain @ (m[t + 1] - turn @ means[t])
        P[t] += gain @ (P[t + 1] - before) @ gain.mT
    smooth = smooth_states(model, y)
    torch.testing.assert_close(smooth.mean, m, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(smooth.covariance, P, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(smooth.lagged[5], P[6] @ torch.linalg.solve(
        turn @ covariances[5] @ turn.mT + 0.1 * one, turn @ covariances[5]), rtol=1e-11, atol=1e-11)  # fmt: skip
    pieces = [filter_states(model, y[:n]).log_likelihood for n in (100, 600)]
    assert pieces[1] < pieces[0] < 0


@pytest.mark.parametrize("kind", ["rows", "entries", "slow", "forgets nothing"])
def test_chains_with_many_gaps_are_filtered_in_blocks_as_step_by_step(kind, monkeypatch):
    """A filter that forgets slowly needs the longer run-up; one that forgets nothing goes step by step."""
    rng, one = np.random.default_rng(0), torch.eye(3, dtype=DOUBLE)
    seen = rng.normal(size=(2400, 2))
    seen[(rng.random(2400) < 0.2) if kind == "rows" else rng.random((2400, 2)) < 0.2] = np.nan
    A = {"slow": 0.93, "forgets nothing": 1.0}.get(kind, 0.5) * one + 0.02 * torch.diag(torch.ones(2, dtype=DOUBLE), 1)
    noise = 1e-3 if kind in ("slow", "forgets nothing") else 0.3
    observed = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=DOUBLE)
    model = LinearStateSpace(A, noise * one, observed, one[:2, :2] + 0.2, one[0], 2.0 * one)
    used, real = [], _blocks._in_blocks
    monkeypatch.setattr(_blocks, "_in_blocks", lambda *a: used.append((a[2], found := real(*a))) or found)
    found = filter_states(model, torch.as_tensor(seen))
    monkeypatch.setattr(_blocks, "LONG", 10**9)
    plain = filter_states(model, torch.as_tensor(seen))
    run_ups = [run_up for run_up, answer in used if answer is not None]
    assert run_ups == {"slow": [256], "forgets nothing": []}.get(kind, [64])
    torch.testing.assert_close(found.mean, plain.mean, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found.covariance, plain.covariance, rtol=1e-11, atol=1e-13)
    assert found.log_likelihood == pytest.approx(plain.log_likelihood, rel=1e-12)


def test_states_of_other_units_do_not_stop_the_filter():
    level = torch.tensor([[1e-6]], dtype=DOUBLE), torch.ones(1, 1, dtype=DOUBLE)
    one, zero, y = torch.ones(1, 1, dtype=DOUBLE), torch.zeros(1, 1, dtype=DOUBLE), 3 + normal(300, 1)
    model = LinearStateSpace(one, level[0], one, one, zero[0], level[1])
    both = LinearStateSpace(
        torch.eye(2, dtype=DOUBLE), torch.block_diag(zero, level[0]), torch.cat((zero, one), 1), one,
        torch.zeros(2, dtype=DOUBLE), torch.block_diag(1e13 * one, level[1]),
    )  # fmt: skip
    alone, beside = filter_states(model, y), filter_states(both, y)
    torch.testing.assert_close(beside.mean[:, 1:], alone.mean)
    assert beside.log_likelihood == pytest.approx(alone.log_likelihood)


@pytest.mark.parametrize(("noise", "start"), [(0.0, 1.0), (1.0, 0.0), (0.5, 2.0)])
@pytest.mark.parametrize("turned", [False, True])
def test_states_that_are_known_exactly_are_smoothed_as_by_conditioning(noise, start, turned):
    """Autoregressions of order two: the second state is yesterday's first. The joint Gaussian is written out."""
    one, T = torch.eye(2, dtype=DOUBLE), 12
    A, Q, C = torch.tensor([[0.5, 0.3], [1.0, 0.0]], dtype=DOUBLE), torch.diag(one[0]), one[:1]
    basis = torch.tensor([[1.0, 0.37], [-0.22, 1.3]], dtype=DOUBLE) if turned else one
    inverse = torch.linalg.inv(basis)
    A, Q, C, P = basis @ A @ inverse, basis @ Q @ basis.mT, C @ inverse, start * basis @ basis.mT
    y = normal(T, 1)
    y[5] = torch.nan
    found = smooth_states(LinearStateSpace(A, Q, C, noise * one[:1, :1], torch.zeros(2, dtype=DOUBLE), P), y)
    roots = [torch.linalg.matrix_power(A, t) for t in range(T)]  # what a shock has become t steps later
    rows = [torch.cat([roots[t - s] if s <= t else 0 * A for s in range(T)], 1) for t in range(T)]
    moves = torch.cat(rows)
    joint = moves @ torch.block_diag(P, *[Q] * (T - 1)) @ moves.mT
    seen = torch.block_diag(*[C] * T)[~y[:, 0].isnan()]
    spread = seen @ joint @ seen.mT + noise * torch.eye(len(seen), dtype=DOUBLE)
    gain = torch.linalg.solve(spread, seen @ joint).mT
    mean, covariance = gain @ y[~y.isnan()], joint - gain @ seen @ joint
    torch.testing.assert_close(found.mean, mean.view(T, 2), rtol=1e-9, atol=1e-9)
    for t in range(T):
        own = slice(2 * t, 2 * t + 2)
        torch.testing.assert_close(found.covariance[t], covariance[own, own], rtol=1e-9, atol=1e-9)
        if t:
            torch.testing.assert_close(found.lagged[t - 1], covariance[own, 2 * t - 2 : 2 * t], rtol=1e-9, atol=1e-9)


def test_an_exact_observation_of_a_known_state_is_refused():
    one = torch.ones(1, 1, dtype=DOUBLE)
    with pytest.raises(InvalidInput, match="noise, or a state that is not known exactly"):
        filter_states(LinearStateSpace(one, one, one, 0 * one, one[0], 0 * one), normal(3, 1))


def test_local_variables_move_under_backtracking_too():
    counts = torch.poisson(torch.full((8, 6), 2.0, dtype=DOUBLE), generator=torch.Generator().manual_seed(0))
    one = torch.ones(2, dtype=DOUBLE)
    model = Model(
        {"topics": Dirichlet(one.expand(6, 2).mT)}, [Topics("shares", "topics", counts)], {"shares": Dirichlet(one)}
    )
    start = {"topics": Dirichlet(1 + normal(2, 6).exp())}
    plain, careful = (vmp(model, start, tolerance=1e-4, backtracking=b) for b in (False, True))
    torch.testing.assert_close(careful.q["shares"].natural[0], plain.q["shares"].natural[0])
    assert careful.bounds[-1] == pytest.approx(plain.bounds[-1])


def test_sparse_counts_are_dense_ones():
    counts = torch.poisson(torch.full((9, 7), 0.6, dtype=DOUBLE), generator=torch.Generator().manual_seed(3))
    counts[4] = 0.0  # an empty document
    topics = {"beta": Dirichlet(0.5 + torch.rand(3, 7, dtype=DOUBLE, generator=torch.Generator().manual_seed(1)))}
    answers = []
    for given in (counts, counts.to_sparse_coo()):
        prior = {"beta": Dirichlet(torch.full((3, 7), 0.3, dtype=DOUBLE))}
        local = {"theta": Dirichlet(torch.full((3,), 0.3, dtype=DOUBLE))}
        model = Model(prior, [Topics("theta", "beta", given)], local=local)
        answers.append(svi_step(model.take(torch.arange(8)), topics, 0.3, n=9))
    for q, bound, _ in answers[1:]:
        assert bound == pytest.approx(answers[0][1], rel=1e-12)
        torch.testing.assert_close(q["beta"].concentration, answers[0][0]["beta"].concentration)


def test_the_bar_says_the_bound(capsys):
    list(track(range(3), "sweeps", total=3, show=True, note=lambda: "bound -1.5"))
    assert "bound -1.5" in capsys.readouterr().err
