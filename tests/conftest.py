"""Room: tests. Which Python tests do not depend on torch's version."""

from __future__ import annotations

import pytest

# Of tools, the wheel, the lab, the tests themselves, and the core behind tensors and a store: run
# with one torch alone.
ONCE = {
    "test_advise",
    "test_checks",
    "test_convergence",
    "test_count_tests",
    "test_gpu_check",
    "test_hosts",
    "test_install",
    "test_mass",
    "test_meeting",
    "test_netlab",
    "test_nursery",
    "test_odd_hosts",
    "test_other_ucx",
    "test_plot",
    "test_programs",
    "test_reproduce",
    "test_simulation",
    "test_wheel",
}
WITH_EVERY_TORCH = {"test_torch_meets_on_hosts_with_ipv6_alone"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        once = item.path.stem in ONCE or item.path.parent.name == "architecture"
        if once and item.name not in WITH_EVERY_TORCH:
            item.add_marker(pytest.mark.once)
