"""Which Python tests do not depend on torch's version, what their processes do not inherit, and how
long a test may take.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Generator

import pytest

# Where it is set, print() writes a line's text and its end by two calls: lines of ranks that share
# one output run together.
os.environ.pop("PYTHONUNBUFFERED", None)
# torch's store looks up the name of each client's address. Where a name server drops queries, each
# dropped one takes glibc's default of 5 s.
os.environ.setdefault("RES_OPTIONS", "timeout:1")

# These run with one torch alone: tests of tools, the wheel, the lab, frameworks and the tests
# themselves, of arithmetic, of arguments and their errors, of processes that start, wait and end,
# of devices, and of the core behind tensors and a store; and those that show more of what others
# show of DDP and FSDP. All others go through torch's collectives, DDP, FSDP, compiler, optimizers,
# scalers, Works or futures, and run with the newest torch too.
ONCE = {
    "test_adaptive",
    "test_advise",
    "test_alike",
    "test_alone",
    "test_arguments",
    "test_callback_chains",
    "test_callbacks",
    "test_checkpoints",
    "test_checks",
    "test_choices",
    "test_clipping",
    "test_convergence",
    "test_coo",
    "test_count_tests",
    "test_coverage_table",
    "test_ddp_habits",
    "test_dense_coded",
    "test_device",
    "test_device_acc",
    "test_device_driver",
    "test_device_dtensor",
    "test_device_faults",
    "test_device_messages",
    "test_device_outer",
    "test_device_pointers",
    "test_device_queues",
    "test_device_self_test",
    "test_device_steps",
    "test_device_training",
    "test_diagnosis",
    "test_digits",
    "test_error_decay",
    "test_exchange_errors",
    "test_flow_control",
    "test_forks",
    "test_frameworks",
    "test_fsdp_parts",
    "test_fsdp_saved",
    "test_fsdp_types",
    "test_fsdp_unused",
    "test_gpu_check",
    "test_gpu_check_results",
    "test_habits",
    "test_hangs",
    "test_hosts",
    "test_install",
    "test_interrupts",
    "test_launch",
    "test_layers",
    "test_leaving",
    "test_many_groups",
    "test_mass",
    "test_meeting",
    "test_memory",
    "test_momentum",
    "test_netlab",
    "test_netlab_distance",
    "test_nursery",
    "test_odd_hosts",
    "test_other_ucx",
    "test_outer",
    "test_outer_bytes",
    "test_outer_example",
    "test_outer_killed",
    "test_outer_late",
    "test_outer_members",
    "test_outer_refusals",
    "test_outer_saves",
    "test_outer_shard_members",
    "test_outer_training",
    "test_overlap",
    "test_parts",
    "test_places",
    "test_plan",
    "test_plot",
    "test_process",
    "test_programs",
    "test_random_collectives",
    "test_random_failures",
    "test_readme",
    "test_recorder",
    "test_refused_collectives",
    "test_replicas",
    "test_reproduce",
    "test_saved_state",
    "test_saves",
    "test_secret",
    "test_signatures",
    "test_silence",
    "test_simulation",
    "test_soak",
    "test_sparse_all_reduce",
    "test_statistics",
    "test_throwing_callbacks",
    "test_torchft",
    "test_tunnels",
    "test_units",
    "test_updates",
    "test_wheel",
    "test_wrappers",
}
WITH_EVERY_TORCH = {
    "test_by_name_torch_finds_it_without_autoloading",
    "test_the_backend_is_found_without_an_import",
    "test_torchrun_runs_a_training",
    "test_without_autoloading_an_import_registers_it",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        once = item.path.stem in ONCE or item.path.parent.name == "architecture"
        if once and item.name not in WITH_EVERY_TORCH:
            item.add_marker(pytest.mark.once)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "longest", "seconds that a test may take, unless it is labelled long", default=1200
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that hangs fails and shows every thread's stack; what it started is ended."""
    if item.get_closest_marker("long"):
        return (yield)
    longest = float(item.config.getini("longest"))

    def end(*_: object) -> None:
        faulthandler.dump_traceback(2)  # which pytest captures
        pytest.fail(f"not done after {longest:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, longest, longest)  # again, if its clean-up hangs as well
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
