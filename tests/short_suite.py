"""Which tests the suites have.

The short suite has of each test function as few sets of parameters as have every value once. The long suite
adds the files and functions below, and of each function as few sets as have every pair of values once, up to
a limit. The other sets are marked ``exhaustive``, as well as ``long``: ``pytest -m ""`` runs them too.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pytest

LONG_FILES = {
    "the documentation, examples and commands of this checkout": [
        "test_docs", "test_torch_docs", "test_examples", "test_cli_check", "test_cli_demo", "test_cli_info",
        "test_error_pages", "test_vectors", "test_warnings", "test_types", "test_signatures",
        "test_onnx_examples", "test_contributing", "test_structure",
    ],
    "benchmarks and their scripts": ["test_asv_bench", "test_bench_scripts", "test_cli_bench"],
    "other libraries and namespaces": [
        "test_peers", "test_jax_layers", "test_keras", "test_keras_backends", "test_other_namespaces",
        "test_torch_distributed", "test_torch_per_sample", "test_flashrnn",
    ],
    "machines, processes and files": [
        "test_adapters", "test_ahead", "test_blas_threads", "test_cache_folder", "test_compile_cache",
        "test_compiling", "test_core", "test_interrupts", "test_jax_devices", "test_jax_export",
        "test_machines", "test_options", "test_packed_applications", "test_torch_private",
    ],
    "every digit of scalar functions": ["test_scalar_functions"],
    "the tests of our own tools": ["test_testing"],
}  # fmt: skip
"""Files that belong to the long suite as a whole, by what they are about."""

LONG_TESTS = {
    "processes, threads and memory": [
        "test_a_forked_child_has_no_team", "test_as_a_script", "test_compiled_formulas_are_kept",
        "test_dtypes_that_two_processes_compiled_stay_apart_in_a_third",
        "test_memory_is_freed_without_the_garbage_collector", "test_modules_save_less_and_autocast",
        "test_a_program_runs_its_own_cell_in_another_process_or_none", "test_the_first_call_of_a_process",
        "test_the_gradient_needs_little_memory",
        "test_the_page_behind_an_arena", "test_the_process_grows_by_little_on_tensors",
    ],
    "what compiles many formulas again": [
        "test_bands_of_one_image", "test_compiled_code_runs_for_every_length",
        "test_convolutions_written_down", "test_cross_entropies_of_mapped_samples",
        "test_derivatives_while_a_mode_or_a_recorder_watches",
        "test_every_activation_in_a_step", "test_lengths_of_every_kind_compiled",
        "test_lengths_of_functions_and_own_layers_compiled",
        "test_in_every_transformation", "test_options_that_change_count",
        "test_parameters_get_other_memory_dtypes_and_strides",
        "test_single_precision_padding_and_large_batches", "test_the_number_in_an_option_changes",
        "test_tiles_for_other_machines",
        "test_what_is_saved_has_one_shape_whatever_the_options", "test_winograds_error_in_float32",
        "test_jit_trace_of_a_residual_network",
    ],
    "second derivatives": ["test_gradgradcheck", "test_gradient_with_graph_equals_gradient_without"],
    "what shorter tests hold too": [
        "test_random_calls_of_uneven_lengths", "test_random_calls_under_the_guard",
        "test_results_stay_when_other_calls_follow",
        "test_vmap_joins_the_batch", "test_a_gradient_is_linear_in_its_cotangents",
        "test_a_convolution_is_linear_in_either_factor", "test_differentiable_through_every_output",
        "test_solvers_of_linear_equations_take_a_convolution", "test_under_a_trace_they_are_programs",
        "test_a_traced_gradient_is_one_of_the_saved_arrays_it_is_given", "test_a_step_of_many_operations",
        "test_hooks_of_every_kind_get_the_module_that_runs", "test_regularizers_follow_their_sequences",
        "test_training_continues_under_the_same_optimizer", "test_compile_sees_one_node_for_each_kernel",
        "test_random_geometries_against_autograd", "test_any_problem_matches_the_naive_references",
        "test_numbers_from_outside_of_compiled_code", "test_nodes_of_pools",
        "test_a_step_is_split_along_the_batch", "test_a_residual_network_compiles_and_exports",
        "test_each_case_is_the_direct_sum", "test_central_differences_without_biases",
        "test_a_network_stays_channels_last_under_compile",
    ],
}  # fmt: skip
"""Test functions of other files that belong to the long suite as a whole."""

FEW = {
    "test_batches_in_chunks_and_threads": 2,
    "test_mixed_second_derivatives_of_parameters": 6,
    "test_nested_vmap": 8,
    "test_programs_are_the_recorded_ones": 4,
    "test_programs_for_other_batches": 3,
    "test_jax_recurrent::test_values_and_gradients_are_those_of_autodiff": 1,
    "test_recurrent_state::test_a_call_leaves_no_circles_of_references": 1,
    "test_a_class_that_is_pytorchs_too": 1,
    "test_a_retained_graph": 1,
    "test_gru_d::test_against_autograd_through_the_definition": 2,
    "test_cell_operators::test_against_autograd_through_the_definition": 2,
    "test_against_autograd_through_the_definition": 3,
    "test_against_torch_nn": 1,
    "test_all_sequences_empty": 1,
    "test_conv_properties::test_arrays_that_run_backwards": 2,
    "test_both_ends_of_hard_sigmoid": 2,
    "test_torch_resets::test_cells": 1,
    "test_cells_agree_with_their_formulas_and_with_differences": 1,
    "test_cells_step_by_step_are_the_sequence": 2,
    "test_torch_inplace::test_checkpoint": 1,
    "test_clip_passes_the_cotangent_at_its_bounds_of_the_lstm": 1,
    "test_compile_without_optional_operands": 1,
    "test_recurrent_state::test_compiled": 1,
    "test_torch_inplace::test_compiled": 1,
    "test_compiled_and_in_programs": 1,
    "test_compiled_with_states_alone": 1,
    "test_jax_operators::test_convolutions": 1,
    "test_activations::test_definition": 12,
    "test_device_and_dtype": 3,
    "test_each_saved_array_matters": 2,
    "test_jax_engine::test_eager_and_traced_are_as_with_numpy": 1,
    "test_torch_layers::test_equals_torch": 4,
    "test_heads_and_inputs::test_every_backend": 2,
    "test_every_kernel": 2,
    "test_every_method_is_the_direct_sum": 3,
    "test_export": 2,
    "test_fake_tensors_agree_without_optional_operands": 2,
    "test_float64_against_autograd_with_every_combination_of_cotangents": 1,
    "test_float64_against_finite_differences": 3,
    "test_jax_resets::test_forward_mode": 1,
    "test_function_samples": 3,
    "test_grad": 2,
    "test_gradcheck": 2,
    "test_gradcheck_in_forward_mode": 3,
    "test_gradcheck_without_optional_operands": 1,
    "test_gradient_of_arguments_that_were_left_out": 1,
    "test_jax_resets::test_gradients": 2,
    "test_gradients_are_those_of_autograd_through_a_loop": 2,
    "test_gradients_are_those_of_autograd_through_the_plain_loop": 3,
    "test_torch_inplace::test_half_precision": 3,
    "test_recurrent_oracles::test_half_precision_against_float64_and_the_native_kernel": 1,
    "test_torch_samples::test_hooks": 2,
    "test_in_place_modules_compile": 1,
    "test_inference_kernel": 2,
    "test_inference_with_every_attribute": 3,
    "test_inputs_are_never_written_to": 4,
    "test_cell_operators::test_jax": 2,
    "test_jit_trace": 2,
    "test_jit_trace_of_functions": 12,
    "test_kinks_of_a_computed_value": 1,
    "test_large_arrays_by_rows": 1,
    "test_torch_inplace::test_layers": 3,
    "test_layers_are_repeated_without_checks": 2,
    "test_layers_are_the_plain_loop": 3,
    "test_layers_pass_gradcheck": 2,
    "test_torch_layers::test_lengths_equal_packing": 1,
    "test_lengths_of_every_sum_for_one_form": 2,
    "test_jax_operators::test_losses": 2,
    "test_torch_conv::test_lower_precision_against_float64": 1,
    "test_torch_functional::test_lower_precision_against_float64": 1,
    "test_many_cotangents_at_once": 3,
    "test_module_samples": 2,
    "test_modules_and_functions": 2,
    "test_modules_beside_a_loop": 2,
    "test_modules_per_sample": 2,
    "test_onnx_operators::test_node": 40,
    "test_norms_and_weighted_sums_are_those_of_per_sample_gradients": 2,
    "test_nothing_is_copied_until_somebody_writes": 1,
    "test_opcheck": 1,
    "test_opcheck_of_the_gradient": 2,
    "test_opcheck_without_any_optional_operand": 1,
    "test_torch_lstm::test_options_against_plain_loop": 1,
    "test_jax_recurrent::test_other_dtypes": 2,
    "test_own_cells_are_programs_under_a_trace": 1,
    "test_per_sample_gradients_add_up_and_wrt_leaves_out": 3,
    "test_per_sample_gradients_are_those_of_each_sample": 2,
    "test_per_sample_gradients_take_the_kernel_of_that_name": 3,
    "test_per_sample_gradients_within_a_map": 2,
    "test_pieces_are_calls_of_their_own": 2,
    "test_places": 2,
    "test_plain_way_where_programs_do_not_fit": 1,
    "test_random_calls": 2,
    "test_random_recurrences_from_programs": 1,
    "test_same_call::test_recurrent_options": 3,
    "test_registered_and_eager_are_the_same": 5,
    "test_resets_on_every_backend": 1,
    "test_recurrent_backends::test_results_and_their_kind": 4,
    "test_results_and_their_kind": 5,
    "test_same_as_on_the_fast_path": 12,
    "test_second_derivatives_in_every_order_of_modes": 2,
    "test_shared_sums_and_states_in_frameworks": 1,
    "test_slope_of_h_where_two_branches_share_a_value": 2,
    "test_slopes_at_kinks_of_the_lstm": 1,
    "test_small_chunks": 3,
    "test_steps_chain_to_the_sequence": 5,
    "test_steps_make_the_layer": 4,
    "test_steps_of_the_cell_make_the_sequence": 2,
    "test_sums_of_parameters_and_shared_states": 1,
    "test_symbolic_trace_calls_the_module": 2,
    "test_targets_and_weights_are_differentiable_twice": 1,
    "test_the_hosts_threads_share_columns": 1,
    "test_the_naive_reference": 3,
    "test_the_number_of_blocks_may_vary": 2,
    "test_jax_resets::test_the_plain_way": 1,
    "test_torch_inplace::test_traced": 2,
    "test_training_graph": 3,
    "test_training_kernel": 4,
    "test_transposed_by_the_direct_sum": 4,
    "test_two_hundred_steps_are_numpys": 1,
    "test_values_and_gradients_are_those_of_autodiff": 2,
    "test_vjp_outside_of_its_call": 2,
    "test_vmap_of_the_registered_gradient": 2,
    "test_vmap_of_the_registered_operator": 2,
    "test_vmap_over_another_axis_and_out": 1,
    "test_vmap_over_parameters": 2,
    "test_recurrent_backends::test_wrt_gives_the_same_and_nothing_else": 2,
    "test_cells::test_wrt_gives_the_same_and_nothing_else": 1,
}
"""Test functions of which the short suite has at most so many sets of parameters, because each takes long.

The file stands in front of a name that is cheap in other files.
"""

LONG_FEW = {
    "test_programs_for_other_batches": 12,
    "test_random_calls": 4,
    "test_jax_recurrent::test_values_and_gradients_are_those_of_autodiff": 4,
    "test_a_batch_of_any_size": 1,
    "test_all_sequences_empty": 3,
    "test_an_option_that_changes": 1,
    "test_cells_agree_with_their_formulas_and_with_differences": 4,
    "test_cells::test_wrt_gives_the_same_and_nothing_else": 15,
    "test_central_differences_without_biases": 1,
    "test_compile_sees_one_node_for_each_kernel": 4,
    "test_compile_without_optional_operands": 8,
    "test_torch_inplace::test_compiled": 8,
    "test_convolutions_written_down": 1,
    "test_cross_entropies_of_mapped_samples": 2,
    "test_every_kernel_in_lazy_ndonnx": 3,
    "test_every_number_is_compiled": 2,
    "test_export": 8,
    "test_fake_tensors_agree_without_optional_operands": 30,
    "test_recurrent_oracles::test_float64_against_finite_differences": 10,
    "test_torch_layers::test_gradcheck": 8,
    "test_recurrent_state::test_gradcheck": 3,
    "test_jax_recurrent::test_in_every_transformation": 1,
    "test_layers_for_jax_learn_as_the_frameworks_own": 1,
    "test_layers_for_jax_time_nothing_but_steps": 1,
    "test_lengths_of_every_kind_compiled": 1,
    "test_keras::test_masks": 4,
    "test_memory_is_freed_without_the_garbage_collector": 2,
    "test_torch_activations::test_memory_is_freed_without_the_garbage_collector": 4,
    "test_numbers_from_outside_of_compiled_code": 1,
    "test_onnx_runs_back": 4,
    "test_opacus_privacy_engine": 10,
    "test_opcheck": 16,
    "test_opcheck_of_the_gradient": 8,
    "test_opcheck_without_any_optional_operand": 8,
    "test_other_kernels_of_any_size": 3,
    "test_parameters_get_other_memory_dtypes_and_strides": 1,
    "test_per_sample_equals_single_sample_calls": 3,
    "test_programs_in_xla_without_functions_of_the_system": 1,
    "test_keras::test_random_options": 4,
    "test_sums_of_parameters_and_shared_states": 4,
    "test_tensors_where_openmp_has_no_entry_of_gcc": 1,
    "test_the_number_in_an_option_changes": 3,
    "test_the_plain_way": 2,
    "test_tiles_for_other_machines": 2,
    "test_transformations_of_a_batch_of_any_size": 1,
    "test_recurrent_backends::test_wrt_gives_the_same_and_nothing_else": 15,
}
"""The most sets of parameters that the long suite adds, where that is not `LONG_MOST`."""

LONG_MOST = 6
"""Sets of parameters of every other function, in the long suite beside the short one's."""

_FILES = frozenset(name for names in LONG_FILES.values() for name in names)
_TESTS = frozenset(name for names in LONG_TESTS.values() for name in names)


def is_long(path: Path) -> bool:
    """Whether a file belongs to the long suite as a whole."""
    return path.stem in _FILES


def mark_suites(items: Sequence[pytest.Item]) -> None:
    """Mark what the short suite leaves out, and what the long one leaves out."""
    functions: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        functions.setdefault((str(item.path), item.nodeid.partition("[")[0]), []).append(item)
    for same in functions.values():
        values = [_values(item) for item in same]
        whole = is_long(same[0].path) or _function(same[0]) in _TESTS
        short = set() if whole else set(covering(values, most=_most(same[0], FEW)))
        more = covering([_pairs(each) for each in values], short, _most(same[0], LONG_FEW) or LONG_MOST)
        long = {*short, *more}
        for number, item in enumerate(same):
            if number not in short:
                item.add_marker(pytest.mark.long)
            if number not in long:
                item.add_marker(pytest.mark.exhaustive)


def _function(item: pytest.Item) -> str:
    return item.name.partition("[")[0]


def _most(item: pytest.Item, few: Mapping[str, int]) -> int | None:
    """How many sets of parameters of a function a suite has at most; None for as many as it needs."""
    name = _function(item)
    return few.get(f"{item.path.stem}::{name}", few.get(name))


def _values(item: pytest.Item) -> frozenset[tuple[str, object]]:
    """The parameters of a test, each as its name and its value; one without a hash stands for itself."""
    callspec = getattr(item, "callspec", None)
    return (
        frozenset((name, _key(value)) for name, value in callspec.params.items()) if callspec else frozenset()
    )


def _pairs(values: frozenset[tuple[str, object]]) -> frozenset:
    """Each pair of a test's values; of a single one, itself."""
    return frozenset(map(frozenset, combinations(values, 2))) or values


def _key(value: object) -> object:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def covering(
    sets: Sequence[frozenset], taken: Collection[int] = (), most: int | None = None
) -> Sequence[int]:
    """Numbers of as few sets as a greedy choice needs, beside those taken, to have every element once."""
    missing = set[object]().union(*sets)
    if not missing:
        return range(len(sets))[:most]
    for number in taken:
        missing -= sets[number]
    # what a set adds only falls: a set that still adds most, counted again, is the best one
    adds = [(-len(one), number) for number, one in enumerate(sets)]
    heapq.heapify(adds)
    chosen: list[int] = []
    while missing and (most is None or len(chosen) < most):
        number = adds[0][1]
        again = -len(sets[number] & missing), number
        if again > adds[0]:
            heapq.heapreplace(adds, again)
            continue
        chosen.append(number)
        missing -= sets[number]
    return chosen
