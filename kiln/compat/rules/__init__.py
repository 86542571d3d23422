"""The rules: each judges a few parts of a combination by the rows of the tables.

A rule yields nothing when one of its parts is left open. Where the tables have no row it says so, and never guesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat.rules import cudnn, driver, gpu, single_parts, tensorflow, tensorflow_serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.combination import Combination
    from kiln.compat.results import Finding
    from kiln.compat.rules.single_parts import Rule

RULES: tuple[Rule, ...] = (
    tensorflow.tested_versions,
    tensorflow.tensorflow_and_cuda,
    tensorflow.tensorflow_and_cudnn,
    tensorflow.tensorflow_and_python,
    tensorflow.tensorflow_and_bazel,
    tensorflow.tensorflow_and_compiler,
    tensorflow_serving.serving_and_tensorflow_cuda_cudnn,
    tensorflow_serving.serving_and_bazel,
    tensorflow_serving.serving_and_python,
    gpu.cuda_and_gpu,
    gpu.cuda_and_target_capabilities,
    gpu.target_capabilities_and_gpu,
    gpu.known_wheel_failures,
    gpu.cuda_and_host_compiler,
    driver.cuda_and_driver,
    driver.driver_and_ptx,
    driver.driver_and_gpu,
    driver.driver_and_kernel_module,
    cudnn.cudnn_and_cuda,
    cudnn.cudnn_and_machine,
    tensorflow.wheel_and_glibc,
    tensorflow.wheel_and_processor,
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
        yield from single_parts.single_part_findings(combination)
    if not has_findings or combination.python or combination.bazel:
        yield from single_parts.accepting_release_findings(combination, RULES)
    yield from single_parts.discontinued_machine_findings(combination)
