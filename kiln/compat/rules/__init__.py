"""The rules: each looks at a few parts of a combination and says what the rows of the tables tell of them.

A rule is silent when a part that it looks at is left open. Where the tables are silent it says so, and never guesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat.rules import cudnn, driver, gpu, serving, tensorflow, wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kiln.compat.answer import Finding
    from kiln.compat.combination import Combination

    Rule = Callable[[Combination], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    tensorflow.tensorflow_alone,
    tensorflow.tensorflow_and_cuda,
    tensorflow.tensorflow_and_cudnn,
    tensorflow.tensorflow_and_python,
    tensorflow.tensorflow_and_bazel,
    tensorflow.tensorflow_and_compiler,
    serving.serving_and_the_rest,
    serving.serving_and_bazel,
    gpu.cuda_and_gpu,
    gpu.cuda_and_built_for,
    gpu.builds_and_gpu,
    gpu.cuda_and_host_compiler,
    driver.cuda_and_driver,
    driver.driver_and_ptx,
    driver.driver_and_gpu,
    driver.driver_and_kernel,
    cudnn.cudnn_and_cuda,
    cudnn.cudnn_and_machine,
    wheel.wheel_and_glibc,
    wheel.wheel_and_processor,
)


def findings(asked: Combination) -> tuple[Finding, ...]:
    """Return what every rule says of a combination."""
    return tuple(finding for rule in RULES for finding in rule(asked))
