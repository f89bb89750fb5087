"""PyTorch's generic tests of its own optimizers, by name: where ours asks the same, or why it cannot be asked.

`torch/test/test_optim.py` is in no wheel. The tests that nothing else here asked are at the end.
"""

import copy
import importlib

import pytest
import torch
from torch import nn

from optim.conformance import BINARY, CASES, Problem, all_optimizers, at_the_mean

pytestmark = at_the_mean

TRAINING, STATE, HERE = "optim.test_conformance_training", "optim.test_conformance_state", "optim.test_torch_generic"
ASKED = {
    "test_errors": [
        (TRAINING, "test_torchs_words_for_bad_arguments"),
        (TRAINING, "test_torchs_words_for_bad_weight_decay"),
        (TRAINING, "test_a_parameter_belongs_to_one_group"),
    ],
    "test_forloop_goes_right_direction": [(TRAINING, "test_goes_downhill")],
    "test_param_group_with_lrscheduler_goes_right_direction": [
        (TRAINING, "test_goes_downhill_by_groups_with_their_own_rates_under_a_scheduler")
    ],
    "test_tensor_lr": [(TRAINING, "test_a_tensor_learning_rate_is_a_learning_rate")],
    "test_rosenbrock_sparse": [("optim.test_bad_input", "test_sparse_gradients_are_refused_by_all")],
    "test_complex": [(HERE, "test_complex_parameters_are_refused")],
    "test_complex_2d": [(HERE, "test_complex_parameters_are_refused")],
    "test_foreach_matches_forloop": [
        ("optim.test_layouts", "test_small_parameters_are_worked_on_together_and_change_alike"),
        ("optim.test_layouts", "test_blocks_of_any_size_give_the_same_numbers"),
    ],
    "test_mixed_device_dtype": [(TRAINING, "test_dtypes_side_by_side_train_as_they_do_alone")],
    "test_set_default_dtype_works_with_foreach": [("test_default_dtype", "test_optimizers")],
    "test_fused_matches_forloop": [
        ("optim.test_native", "test_the_equations_of_the_paper"),
        ("optim.test_triton", "test_the_kernels_in_the_interpreter"),
        (HERE, "test_layers_that_are_frozen_for_a_while"),
    ],
    "test_fused_error_on_params_on_meta": [(HERE, "test_parameters_without_data_are_refused")],
    "test_fused_does_not_step_if_foundinf": [(TRAINING, "test_a_skipped_step_leaves_nothing_behind")],
    "test_param_groups_weight_decay": [(TRAINING, "test_weight_decay_of_a_group_shrinks_it")],
    "test_param_groups_lr": [(TRAINING, "test_a_group_with_rate_zero_stays")],
    "test_step_is_noop_when_params_have_no_grad": [(TRAINING, "test_nothing_happens_where_all_is_frozen")],
    "test_step_is_noop_for_zero_grads": [(TRAINING, "test_zero_gradients_without_decay_leave_the_parameters")],
    "test_grads_are_never_inplaced_into": [(TRAINING, "test_gradients_are_read_and_never_written")],
    "test_optimizer_can_be_printed": [(STATE, "test_it_prints_its_groups")],
    "test_state_dict_deterministic": [
        (STATE, "test_a_loaded_optimizer_goes_on_exactly"),
        (HERE, "test_a_group_that_is_there_twice_looks_the_same"),
    ],
    "test_can_load_older_state_dict": [(STATE, "test_an_older_state_dict_takes_defaults_for_what_it_lacks")],
    "test_can_load_from_to_named_state_dict": [
        (STATE, "test_named_and_unnamed_parameters_load_into_each_other"),
        (HERE, "test_names_are_kept_from_either_side"),
    ],
    "test_save_load_equality_with_weights_only": [(STATE, "test_files_load_with_weights_only")],
    "test_load_nontensor_step": [(STATE, "test_a_step_saved_as_a_number_loads")],
    "test_state_dict_pre_hook": [(HERE, "test_hooks_that_write_into_the_state")],
    "test_state_dict_post_hook": [(HERE, "test_hooks_that_write_into_the_state")],
    "test_state_dict_pre_post_hook": [(HERE, "test_hooks_that_write_into_the_state")],
    "test_load_state_dict_pre_hook_and_prepend": [(HERE, "test_of_two_hooks_the_second_decides_what_is_loaded")],
    "test_load_state_dict_post_hook": [(STATE, "test_hooks_around_state_dicts")],
    "test_load_state_dict_pre_post_hook": [(STATE, "test_hooks_around_state_dicts")],
    "test_step_post_hook": [(TRAINING, "test_hooks_run_before_and_after_a_step")],
    "test_step_pre_hook": [(TRAINING, "test_hooks_run_before_and_after_a_step")],
    "test_step_all_hooks": [(TRAINING, "test_hooks_run_before_and_after_a_step")],
    "test_deepcopy_copies_all_public_attrs": [(STATE, "test_copies_have_all_public_attributes")],
    "test_non_empty_state": [(STATE, "test_state_is_kept_for_each_parameter")],
}
NOT_ASKED = {
    "test_optim_infos_do_not_specify_global_cliquey_kwargs": "about torch's own table of cases",
    "test_adamw_serialization": "about Adam's and AdamW's own option",
    "test_second_order_optims_return_consistent_types": "about LBFGS",
    "test_step_iteration": "about LBFGS",
    "test_forloop_goes_right_direction_multigpu": "needs two GPUs",
    "test_foreach_large_tensor": "needs a GPU with 72 GB",
    "test_fused_large_tensor": "needs 64 GB",
    "test_peak_memory_foreach": "needs a GPU; `benchmarks/optimizer_cost.py` measures memory there",
    "test_cpu_load_state_dict": "needs a GPU",
    "test_state_dict_cross_device": "needs a GPU",
    "test_fused_cpu_matches_device": "needs a GPU; `benchmarks/gpu_checks.py` compares there",
    "test_defaults_changed_to_foreach": "`foreach` has no effect here: tensors are always worked on together",
    "test_fused_mixed_precision_state_init": "about state in bfloat16 of fused Adam",
    "test_fused_mixed_precision_hook_skips_existing_state": "about state in bfloat16 of fused Adam",
    "test_fused_mixed_precision_numerics": "about state in bfloat16 of fused Adam",
}


@pytest.mark.parametrize("name", ASKED)
def test_each_is_asked(name):
    assert name not in NOT_ASKED
    for module, test in ASKED[name]:
        assert callable(getattr(importlib.import_module(module), test))


@all_optimizers
def test_complex_parameters_are_refused(make):
    with pytest.raises(ValueError, match=r"params: expected real floating-point parameters, got torch\.complex64"):
        make([nn.Parameter(torch.ones(2, dtype=torch.complex64))])


@all_optimizers
def test_parameters_without_data_are_refused(make):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimizer = make(model.parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        optimizer.step()
    optimizer.zero_grad()
    model.to_empty(device="cpu")  # whose parameters are others
    optimizer.step()


@all_optimizers
def test_layers_that_are_frozen_for_a_while(make):
    model = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1), nn.Sigmoid())
    number = nn.Parameter(torch.tensor(0.5))
    number.grad = torch.tensor(0.1)
    optimizer = make([*model.parameters(), number])
    if type(optimizer).__name__ == "VariationalNewton":
        pytest.skip("its matrix has a row for each weight that was trained at the first step; others are refused")
    for step in range(7):
        optimizer.zero_grad()
        if step in (3, 5):
            model[2].requires_grad_(step == 5)
        before = copy.deepcopy(model[2].state_dict())
        if step != 2:
            model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        stayed = all(torch.equal(before[name], value) for name, value in model[2].state_dict().items())
        assert stayed or step not in (2, 3, 4)
        assert not stayed or step in (2, 3, 4) or make in (CASES[name] for name in BINARY)  # whose signs may stay
    assert all(p.isfinite().all() for p in (*model.parameters(), number))


@all_optimizers
def test_a_group_that_is_there_twice_looks_the_same(make):
    problem = Problem()
    optimizer = make(problem.parameters)
    optimizer.step(problem.closure(optimizer))
    before = optimizer.state_dict()["param_groups"][-1]
    optimizer.param_groups.extend(optimizer.param_groups)
    assert optimizer.state_dict()["param_groups"][-1] == before


@all_optimizers
@pytest.mark.parametrize(("from_named", "to_named"), [(True, True), (True, False), (False, True)])
def test_names_are_kept_from_either_side(make, from_named, to_named):
    problem = Problem()
    source = make(problem.named if from_named else problem.parameters)
    source.step(problem.closure(source))
    target = make(problem.named if to_named else problem.parameters)
    target.load_state_dict(source.state_dict())
    target.step(problem.closure(target))
    assert target.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]


@all_optimizers
def test_hooks_that_write_into_the_state(make):
    optimizer = make(Problem().parameters)

    def after(_, state_dict):
        return {**state_dict, "noted": state_dict["state"].pop("note", None)}

    handle = optimizer.register_state_dict_post_hook(after)
    assert optimizer.state_dict()["noted"] is None
    optimizer.register_state_dict_pre_hook(lambda o: o.state.update(note=1))
    assert optimizer.state_dict()["noted"] == 1
    handle.remove()
    assert optimizer.state_dict()["state"]["note"] == 1


@all_optimizers
def test_of_two_hooks_the_second_decides_what_is_loaded(make):
    optimizer = make(Problem().parameters)

    def rate(value):
        def hook(_, state_dict):
            state_dict = copy.deepcopy(state_dict)
            state_dict["param_groups"][0]["lr"] = value
            return state_dict

        return hook

    state_dict = optimizer.state_dict()
    optimizer.register_load_state_dict_pre_hook(rate(0.002))
    optimizer.load_state_dict(state_dict)
    assert optimizer.param_groups[0]["lr"] == 0.002
    optimizer.register_load_state_dict_pre_hook(rate(0.003), prepend=True)
    optimizer.load_state_dict(state_dict)
    assert optimizer.param_groups[0]["lr"] == 0.002
