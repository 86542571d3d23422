"""Multiply matrices on the machine's GPU, or print why there is none."""

import pathlib
import shutil
import subprocess
import sys

import numpy as np
import tensorflow as tf


def reason_to_skip() -> str | None:
    """Return why no GPU can be used here; None where one must work."""
    if not tf.test.is_built_with_cuda():
        return "this build is for the CPU"
    if not pathlib.Path("/dev/nvidiactl").exists():
        return "this machine has no NVIDIA GPU (/dev/nvidiactl does not exist)"
    tool = shutil.which("nvidia-smi")
    if tool and subprocess.run([tool, "-L"], check=False, capture_output=True).returncode != 0:
        return "nvidia-smi finds no GPU that works"
    return None


def check_product(gpu: str) -> None:
    """Check that a matrix product on the GPU equals NumPy's."""
    first, second = np.random.default_rng(7).standard_normal((2, 512, 512), dtype="float32")
    with tf.device(gpu):
        product = tf.linalg.matmul(first, second)
    assert "GPU" in product.device, product.device
    # TF32, which newer GPUs use by default, keeps ten bits of each factor.
    np.testing.assert_allclose(product.numpy(), first @ second, atol=0.2)


def check_compiled(gpu: str) -> None:
    """Check that XLA compiles for the GPU, for which it must find ptxas and libdevice."""
    with tf.device(gpu):
        values = tf.linspace(-1.0, 1.0, 1024)
        compiled = tf.function(lambda x: tf.math.tanh(x) + tf.math.lgamma(x + 3.0), jit_compile=True)
        expected = np.tanh(values) + tf.math.lgamma(values + 3.0)
        # The sum passes through zero, where no relative difference is small.
        np.testing.assert_allclose(compiled(values), expected, rtol=1e-4, atol=1e-5)


reason = reason_to_skip()
if reason:
    sys.stdout.write(f"GPU: skipped, {reason}\n")
else:
    gpus = tf.config.list_logical_devices("GPU")
    assert gpus, "the machine has a GPU, but TensorFlow cannot use it; its messages above name the library it misses"
    check_product(gpus[0].name)
    check_compiled(gpus[0].name)
    sys.stdout.write(f"GPU: matrix product and compiled function agree with the CPU on {gpus[0].name}\n")
