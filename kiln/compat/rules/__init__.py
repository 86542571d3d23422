"""The rules: each looks at a few parts of a combination and says what the rows of the tables tell of them.

A rule is silent when a part that it looks at is left open. Where the tables are silent it says so, and never guesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat.rules import alone, cudnn, driver, gpu, serving, tensorflow, wheel

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
    serving.serving_and_python,
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
    return tuple(one_by_one(asked))


def one_by_one(asked: Combination) -> Iterator[Finding]:
    """Yield what every rule says; where none has a word on something, what the tables have of it for itself.

    What only a release brings together, a Python and a CUDA say, is looked for among the releases.
    """
    spoken = False
    for rule in RULES:
        for finding in rule(asked):
            spoken = True
            yield finding
    if not spoken:
        yield from alone.facts(asked)
    if not spoken or asked.python or asked.bazel:
        yield from alone.releases(asked, RULES)
