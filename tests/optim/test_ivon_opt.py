"""Checkpoints of the ivon-opt package, in the format it writes."""

import copy

import pytest
import torch

from optim.reference import data, loss, network
from posterity.errors import InvalidInput
from posterity.optim import IVON, load_ivon_opt


def flat_checkpoint(optimizer):
    """What ivon-opt would have saved in this optimizer's place: one flat vector for each group."""
    groups = []
    for group in optimizer.param_groups:
        states = [optimizer.state[p] for p in group["params"]]
        groups.append(
            {
                **{name: group[name] for name in ("lr", "ess", "hess_init", "weight_decay", "clip_radius")},
                "mc_samples": 1,
                "beta1": group["betas"][0],
                "beta2": group["betas"][1],
                "numel": sum(p.numel() for p in group["params"]),
                "momentum": torch.cat([s["momentum"].flatten() for s in states]),
                "hess": torch.cat([s["hessian"].flatten() for s in states]),
                "params": list(range(len(states))),
            }
        )
    return {"state": {"count": 0, "avg_grad": None, "avg_nxg": None, "avg_gsq": None}, "param_groups": groups}


def make(model, **options):
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.3}]
    return IVON(groups, **{"lr": 0.1, "ess": 40, "betas": (0.9, 0.97), "hess_init": 0.7, **options})


def cycle(model, optimizer, k):
    with optimizer.sampled_params(train=True):
        loss(model, *data(seed=k)).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_training_goes_on_from_a_flat_checkpoint():
    model = network()
    optimizer = make(model)
    for k in range(5):
        cycle(model, optimizer, k)
    twin = copy.deepcopy(model)
    resumed = make(twin, lr=9.0, ess=1.0)
    load_ivon_opt(resumed, flat_checkpoint(optimizer), steps=5)
    assert resumed.param_groups[1]["lr"] == 0.3
    assert resumed.diagnostics().learnt == pytest.approx(optimizer.diagnostics().learnt, rel=1e-4)
    for group in resumed.param_groups:
        group["draws"] = 5  # ivon-opt has no counter noise; continue ours to compare
    for k in range(5, 8):
        cycle(model, optimizer, k)
        cycle(twin, resumed, k)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_what_is_not_such_a_checkpoint_is_refused():
    model = network()
    optimizer = make(model)
    cycle(model, optimizer, 0)
    flat = flat_checkpoint(optimizer)
    with pytest.raises(InvalidInput, match="load_ivon_opt"):
        optimizer.load_state_dict(flat)
    with pytest.raises(InvalidInput, match="ivon-opt"):
        load_ivon_opt(optimizer, optimizer.state_dict(), steps=1)
    with pytest.raises(InvalidInput, match="steps"):
        load_ivon_opt(optimizer, flat, steps=-1)
    with pytest.raises(InvalidInput, match="param_groups"):
        load_ivon_opt(IVON(model.parameters(), lr=0.1, ess=1), flat, steps=1)
    flat["param_groups"][0]["hess"] = torch.ones(3)
    with pytest.raises(InvalidInput, match="30 numbers, got 3"):
        load_ivon_opt(optimizer, flat, steps=1)


def test_arguments_of_ivon_opt_are_taken():
    model = torch.nn.Linear(2, 1)
    optimizer = IVON(model.parameters(), lr=0.1, ess=10, beta1=0.8, beta2=0.9, sync=False)
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert IVON(model.parameters(), lr=0.1, ess=10, beta2=0.9).param_groups[0]["betas"] == (0.9, 0.9)
    with pytest.raises(InvalidInput, match=r"sync: expected False, got True; .* noise='per_rank'"):
        IVON(model.parameters(), lr=0.1, ess=10, sync=True)
