"""The rules: each judges a few parts of a combination by the rows of the tables.

A rule yields nothing when one of its parts is left open. Where the tables have no row it says so, and never guesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat.rules import (
    cudnn,
    gpu,
    nvidia_driver,
    single_part_rules_and_fitting_releases,
    tensorflow,
    tensorflow_serving,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.combination import Combination
    from kiln.compat.results import Finding
    from kiln.compat.rules.single_part_rules_and_fitting_releases import Rule

RULES: tuple[Rule, ...] = (
    tensorflow.state_tested_versions,
    tensorflow.judge_tensorflow_and_cuda,
    tensorflow.judge_tensorflow_and_cudnn,
    tensorflow.judge_tensorflow_and_python,
    tensorflow.judge_tensorflow_and_bazel,
    tensorflow.judge_tensorflow_and_compiler,
    tensorflow_serving.judge_serving_and_its_libraries,
    tensorflow_serving.judge_serving_and_bazel,
    tensorflow_serving.judge_serving_and_python,
    gpu.judge_cuda_and_gpu,
    gpu.judge_cuda_and_target_capabilities,
    gpu.judge_target_capabilities_and_gpu,
    gpu.judge_known_failures,
    gpu.judge_cuda_and_host_compiler,
    nvidia_driver.judge_cuda_and_driver,
    nvidia_driver.judge_driver_and_ptx,
    nvidia_driver.judge_driver_and_gpu,
    nvidia_driver.judge_driver_and_kernel_module,
    cudnn.judge_cudnn_and_cuda,
    cudnn.judge_cudnn_and_machine,
    tensorflow.judge_wheel_and_glibc,
    tensorflow.judge_wheel_and_processor,
)


def findings(combination: Combination) -> Iterator[Finding]:
    """Yield the findings of all rules; without any, the rows of the tables about the single parts.

    Parts that only a release connects, a Python and a CUDA for example, are searched for among the releases.
    """
    has_findings = False
    for rule in RULES:
        for finding in rule(combination):
            has_findings = True
            yield finding
    if not has_findings:
        yield from single_part_rules_and_fitting_releases.single_part_findings(combination)
    if not has_findings or combination.python or combination.bazel:
        yield from single_part_rules_and_fitting_releases.accepting_release_findings(combination, RULES)
    yield from single_part_rules_and_fitting_releases.discontinued_machine_findings(combination)
