"""Room: tests. Which Python tests do not depend on torch's version."""

from __future__ import annotations

import pytest

# These run with one torch alone: tests of tools, the wheel, the lab, frameworks and the tests
# themselves, of arithmetic, of processes that start, wait and end, and of the core behind tensors
# and a store. All others go through torch's DDP, FSDP, DTensor, optimizers, scalers, Works, futures
# or streams, and run with the newest torch too.
ONCE = {
    "test_adaptive",
    "test_advise",
    "test_alike",
    "test_checks",
    "test_choices",
    "test_clipping",
    "test_convergence",
    "test_count_tests",
    "test_device_acc",
    "test_device_driver",
    "test_device_faults",
    "test_device_messages",
    "test_device_outer",
    "test_device_pointers",
    "test_device_queues",
    "test_device_steps",
    "test_diagnosis",
    "test_digits",
    "test_flow_control",
    "test_forks",
    "test_frameworks",
    "test_gpu_check",
    "test_hosts",
    "test_install",
    "test_interrupts",
    "test_launch",
    "test_layers",
    "test_leaving",
    "test_many_groups",
    "test_mass",
    "test_meeting",
    "test_momentum",
    "test_netlab",
    "test_netlab_distance",
    "test_nursery",
    "test_odd_hosts",
    "test_other_ucx",
    "test_outer",
    "test_outer_example",
    "test_overlap",
    "test_places",
    "test_plan",
    "test_plot",
    "test_process",
    "test_programs",
    "test_random_collectives",
    "test_random_failures",
    "test_readme",
    "test_recorder",
    "test_replicas",
    "test_reproduce",
    "test_saves",
    "test_secret",
    "test_simulation",
    "test_soak",
    "test_sparse_all_reduce",
    "test_statistics",
    "test_torchft",
    "test_tunnels",
    "test_units",
    "test_updates",
    "test_wheel",
}
WITH_EVERY_TORCH = {
    "test_a_spawned_child_finds_it_too",
    "test_by_name_torch_finds_it_without_autoloading",
    "test_the_backend_is_found_without_an_import",
    "test_torch_meets_on_hosts_with_ipv6_alone",
    "test_torchrun_runs_a_training",
    "test_without_autoloading_an_import_registers_it",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        once = item.path.stem in ONCE or item.path.parent.name == "architecture"
        if once and item.name not in WITH_EVERY_TORCH:
            item.add_marker(pytest.mark.once)
