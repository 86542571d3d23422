"""Unit tests reach no network and start no process, held by Python's own audit events rather than by good will.

A test marked ``processes`` may start processes. What compiled code does raises no audit event: so its children are
counted after each test, and its way to the network leads to a closed port.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from kiln.base import masking
from kiln.base.limits.errors import BoundedRunState
from kiln.fleet import records

if TYPE_CHECKING:
    from collections.abc import Iterator

NETWORK = frozenset(
    {"socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"}
)
PROCESSES = frozenset(
    {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
)
CLOSED_PORT = "http://127.0.0.1:9"

_forbidden: frozenset[str] = frozenset()


def _refuse(event: str, args: tuple[object, ...]) -> None:
    if event in _forbidden:
        pytest.fail(f"a unit test came to {event}{args[:2]}; what it does belongs in tests/integration")


sys.addaudithook(_refuse)


# Packages of builds, which run on Linux, and their tests of Unix's files and signals.
OF_UNIX = [
    "base/limits",
    "base/system/test_user.py",
    "base/test_process.py",
    "base/test_process_table_signals.py",
    "build/bazel",
    "build/engine/test_dependencies.py",
    "build/engine/test_dependencies_depends_simplified.py",
    "build/engine/test_dependencies_run_exports_unknown_to_engine.py",
    "build/engine/test_dependencies_staging_and_build_run_exports_rehearsal.py",
    "build/engine/test_failures.py",
    "build/engine/test_failures_license_files_not_found.py",
    "build/engine/test_failures_refused_omitted_files.py",
    "build/engine/test_failures_refused_special_files.py",
    "build/engine/test_failures_unpackable_prefix_files.py",
    "build/engine/test_info_files.py",
    "build/engine/test_info_files_readme_and_messages_in_info.py",
    "build/engine/test_metadata.py",
    "build/engine/test_metadata_edit_plan.py",
    "build/engine/test_output_filter.py",
    "build/engine/test_patches.py",
    "build/engine/test_plan.py",
    "build/engine/test_plan_recipe_keys.py",
    "build/engine/test_scripts.py",
    "build/engine/test_scripts_source_fixup_lines.py",
    "build/engine/test_source_plan.py",
    "build/engine/test_sources.py",
    "build/engine/test_sources_source_unpack.py",
    "build/engine/test_sources_unpacked_source_content_hash.py",
    "build/executor",
    "build/job",
    "build/rehearsal",
    "build/sample.py",
    "build/test/test_prefix.py",
    "build/test/test_specs.py",
    "build/test/test_specs_packed_tests.py",
    "build/test/test_specs_wheel_name.py",
    "build/test/test_tester.py",
    "build/test/test_wheels.py",
    "build/test/test_wheels_wheel_install_test.py",
    "build/test/wheels.py",
    "build/test_config_build.py",
    "build/test_config_build_compile_step.py",
    "build/test_engine_calls.py",
    "build/test_engine_calls_rattler_build_calls.py",
    "cli/test_output.py",
    "conda/provenance/test_bazel_repositories.py",
    "conda/provenance/test_bazel_repositories_declaring_file_search.py",
    "conda/test_pypi.py",
    "conda/test_pypi_pip_index_client.py",
    "container",
    "feedstock/test_sources.py",
    "fleet/ansible",
    "fleet/conftest.py",
    "fleet/detached",
    "fleet/plan",
    "fleet/slurm",
    "fleet/test_inventory.py",
    "fleet/test_protocol.py",
    "fleet/test_run.py",
    "fleet/test_run_and_removal.py",
    "fleet/test_run_config.py",
    "fleet/test_supervisor.py",
    "fleet/test_tests.py",
    "fleet/test_tests_worker_test_executor.py",
    "fleet/test_unreachable.py",
    "fleet/test_unreachable_machine_list_check.py",
    "fleet/test_worker_policies.py",
    "fleet/test_worker_policies_fallback_offers.py",
    "fleet/test_worker_policies_lost_worker_limits.py",
    "image",
    "own_feedstock",
    "run/test_checks.py",
    "run/test_checks_bazel_remote_executor_secrets_and_refusals.py",
    "run/test_checks_resource_check.py",
    "run/test_ci_handover.py",
    "run/test_config_process.py",
    "run/test_images.py",
    "run/test_images_yum_requirements.py",
    "run/test_plan.py",
    "run/test_plan_inputs.py",
    "run/test_recipe_checks.py",
    "run/test_recipe_checks_tensorflow_and_cuda_version_check.py",
    "run/test_runner.py",
    "run/test_simulation.py",
    "run/test_simulation_estimates.py",
    "run/test_simulation_shared_compile_pool_simulation.py",
    "state/ledger/test_schema.py",
    "state/store",
    "test_guard.py",
    "test_limits_in_process.py",
    "test_playbook_modules.py",
]

if sys.platform == "win32":
    collect_ignore = OF_UNIX

    def children() -> int:
        """0: Windows does not count a process's children."""
        return 0

else:
    import resource

    def children() -> int:
        """A number that grows with each child process that ended and was waited for, whoever started it."""
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


@contextmanager
def guarded(*, processes: bool) -> Iterator[None]:
    """Refuse the network, and processes unless they are allowed, until the block ends."""
    global _forbidden  # noqa: PLW0603 - an audit hook stays for good, so what it refuses must change
    before, outer = children(), _forbidden
    _forbidden = NETWORK if processes else NETWORK | PROCESSES
    try:
        yield
    finally:
        _forbidden = outer
    if not processes and children() != before:
        pytest.fail("a unit test made compiled code start a process; what it does belongs in tests/integration")


@pytest.fixture(autouse=True)
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, CLOSED_PORT)
    processes = request.node.get_closest_marker("processes") is not None
    # as in a process that has its limits: a fork of this large process takes longer than the work of most tests
    monkeypatch.setattr(BoundedRunState, "inside", True)
    with guarded(processes=processes):
        yield


@pytest.fixture
def limited_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do work on hostile input in a fork under the system's limits, as kiln does; for tests that meet a limit."""
    monkeypatch.setattr(BoundedRunState, "inside", False)


@pytest.fixture(scope="session", autouse=True)
def small_ledger_reserve() -> Iterator[None]:
    """Reserve a page in the ledger of each fleet run: writing the 4 MiB twice takes longer than a simulated run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "RESERVE", 4096)
        yield


@pytest.fixture(autouse=True)
def own_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the secrets of a test at its end: a process has one mask, and another test may print the same words."""
    monkeypatch.setattr(masking._ProcessMask, "mask", masking.current_mask())
