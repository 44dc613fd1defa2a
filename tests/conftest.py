"""Room: tests. Which Python tests do not depend on torch's version."""

from __future__ import annotations

import pytest

# Of tools, the wheel, the lab, frameworks and the tests themselves; of arithmetic; and of the core
# behind tensors and a store: run with one torch alone. Torch's DDP, FSDP, DTensor, optimizers,
# scalers, Works, futures and streams are used by others, which run with the newest one too.
ONCE = {
    "test_adaptive",
    "test_advise",
    "test_checks",
    "test_choices",
    "test_clipping",
    "test_convergence",
    "test_count_tests",
    "test_device_acc",
    "test_device_driver",
    "test_device_queues",
    "test_diagnosis",
    "test_digits",
    "test_flow_control",
    "test_forks",
    "test_frameworks",
    "test_gpu_check",
    "test_hosts",
    "test_install",
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
    "test_programs",
    "test_random_failures",
    "test_readme",
    "test_replicas",
    "test_reproduce",
    "test_saves",
    "test_secret",
    "test_simulation",
    "test_soak",
    "test_sparse_all_reduce",
    "test_statistics",
    "test_torchft",
    "test_units",
    "test_updates",
    "test_wheel",
}
WITH_EVERY_TORCH = {"test_torch_meets_on_hosts_with_ipv6_alone"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        once = item.path.stem in ONCE or item.path.parent.name == "architecture"
        if once and item.name not in WITH_EVERY_TORCH:
            item.add_marker(pytest.mark.once)
