"""Run an operation of each CUDA library on the GPU and compare it with the CPU's; see check_gpu.py, which starts this.

Libraries that TensorFlow uses through others alone (cuRAND, NVRTC, nvJitLink) are called directly. Usage:
gpu_operations.py [--after LIBRARY], where the operations up to that of the library are left out.
"""

import argparse
import ctypes
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable

# Without it, TensorFlow multiplies matrices by cuBLAS.
os.environ["TF_USE_CUBLASLT"] = "1"
# TensorFlow then names each library that it opens, and the one that it does not find.
os.environ.setdefault("TF_CPP_VMODULE", "dso_loader=1")

import numpy as np
import tensorflow as tf

RANDOM = np.random.default_rng(7)
# TF32, which newer GPUs use by default, keeps ten bits of each factor.
TF32 = 0.2
PTX = """.version 6.0
.target sm_60
.address_size 64
.visible .entry nothing() { ret; }
"""
ADDITION = 'extern "C" __global__ void add(float *x, float y) { x[threadIdx.x] += y; }'


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


def normal(*shape: int) -> np.ndarray:
    """Return random numbers."""
    return RANDOM.standard_normal(shape, dtype="float32")


def own_kernels() -> None:
    """Add numbers by a kernel of TensorFlow itself."""
    first, second = normal(2, 1 << 20)
    total = tf.add(first, second)
    assert "GPU" in total.device, total.device
    np.testing.assert_array_equal(total.numpy(), first + second)


def cublas() -> None:
    """Solve a triangular system."""
    matrix, right = np.tril(normal(256, 256)) / 64 + np.eye(256, dtype="float32"), normal(256, 8)
    answer = tf.linalg.triangular_solve(matrix, right).numpy()
    np.testing.assert_allclose(answer, np.linalg.solve(matrix, right), rtol=1e-3, atol=1e-3)


def cublaslt() -> None:
    """Multiply matrices, one pair and a batch."""
    first, second = normal(2, 512, 512)
    np.testing.assert_allclose(tf.linalg.matmul(first, second).numpy(), first @ second, atol=TF32)
    first, second = normal(8, 64, 256), normal(8, 256, 64)
    np.testing.assert_allclose(tf.linalg.matmul(first, second).numpy(), first @ second, atol=TF32)


def cudnn() -> None:
    """Convolve images, and get the gradient of their filters."""
    images, filters, slopes = normal(8, 32, 32, 16), normal(3, 3, 16, 32), normal(8, 32, 32, 32) / 16

    def answer() -> tuple[np.ndarray, np.ndarray]:
        variable = tf.Variable(filters)
        with tf.GradientTape() as tape:
            convolved = tf.nn.conv2d(images, variable, strides=1, padding="SAME")
        return convolved.numpy(), tape.gradient(convolved, variable, output_gradients=tf.constant(slopes)).numpy()

    values, gradient = answer()
    with tf.device("CPU"):
        expected_values, expected_gradient = answer()
    np.testing.assert_allclose(values, expected_values, atol=TF32)
    np.testing.assert_allclose(gradient, expected_gradient, atol=TF32)


def cufft() -> None:
    """Transform in two dimensions, forth and back."""
    values = (normal(128, 128) + 1j * normal(128, 128)).astype("complex64")
    transformed = tf.signal.fft2d(values)
    np.testing.assert_allclose(transformed.numpy(), np.fft.fft2(values), rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(tf.signal.ifft2d(transformed).numpy(), values, atol=1e-3)


def cusolver() -> None:
    """Factorize matrices: Cholesky's way, into Q and R, and by eigenvalues."""
    matrix = normal(128, 128)
    symmetric = matrix @ matrix.T / 128 + np.eye(128, dtype="float32")
    np.testing.assert_allclose(tf.linalg.cholesky(symmetric).numpy(), np.linalg.cholesky(symmetric), atol=1e-3)
    q, r = (factor.numpy() for factor in tf.linalg.qr(matrix))
    np.testing.assert_allclose(q @ r, matrix, atol=TF32)
    values = tf.linalg.eigvalsh(symmetric).numpy()
    np.testing.assert_allclose(values, np.linalg.eigvalsh(symmetric), rtol=1e-3, atol=1e-3)


def cusparse() -> None:
    """Multiply a sparse matrix in rows (CSR) with a dense one."""
    dense, right = normal(256, 256), normal(256, 32)
    dense[np.abs(dense) < 1.5] = 0
    sparse = tf.sparse.from_dense(dense)
    parts = {"indices": sparse.indices, "values": sparse.values, "dense_shape": sparse.dense_shape}
    rows = tf.raw_ops.SparseTensorToCSRSparseMatrix(**parts)
    product = tf.raw_ops.SparseMatrixMatMul(a=rows, b=right)
    assert "GPU" in product.device, product.device
    np.testing.assert_allclose(product.numpy(), dense @ right, atol=TF32)


def nccl() -> None:
    """Add numbers of all GPUs."""
    gpus = [gpu.name for gpu in tf.config.list_logical_devices("GPU")]

    @tf.function
    def reduced() -> list[tf.Tensor]:
        common = {"reduction": "sum", "num_devices": len(gpus), "shared_name": "check"}
        results = []
        for index, gpu in enumerate(gpus, 1):
            with tf.device(gpu):
                results.append(tf.raw_ops.NcclAllReduce(input=tf.fill([1 << 16], float(index)), **common))
        return results

    expected = float(sum(range(len(gpus) + 1)))
    for gpu, result in zip(gpus, reduced(), strict=True):
        np.testing.assert_array_equal(result.numpy(), np.full(1 << 16, expected, "float32"), err_msg=gpu)


def cupti() -> None:
    """Profile a product; its kernels must be in the profile."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        tf.linalg.matmul(*normal(2, 256, 256)).numpy()
        tf.profiler.experimental.stop()
        (profile,) = pathlib.Path(folder).rglob("*.xplane.pb")
        assert b"/device:GPU:0" in profile.read_bytes(), "the profile has nothing of the GPU"


def ptxas() -> None:
    """Compile a function by XLA, for which it must find ptxas and libdevice."""
    values = tf.linspace(-1.0, 1.0, 1024)
    compiled = tf.function(lambda x: tf.math.tanh(x) + tf.math.lgamma(x + 3.0), jit_compile=True)
    answer = compiled(values)
    assert "GPU" in answer.device, answer.device
    expected = [math.tanh(x) + math.lgamma(x + 3.0) for x in values.numpy().astype("float64")]
    # The sum passes through zero, where no relative difference is small.
    np.testing.assert_allclose(answer.numpy(), expected, rtol=1e-4, atol=1e-5)


def curand() -> None:
    """Draw numbers on the GPU."""
    library, runtime = load("libcurand.so.10"), load("libcudart.so.12")
    count = 1 << 16
    values, generator, memory = np.empty(count, "float32"), ctypes.c_void_p(), ctypes.c_void_p()
    succeed(runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(values.nbytes)), "cudaMalloc")
    succeed(library.curandCreateGenerator(ctypes.byref(generator), 100), "curandCreateGenerator")
    succeed(library.curandSetPseudoRandomGeneratorSeed(generator, ctypes.c_ulonglong(7)), "the seed")
    succeed(library.curandGenerateUniform(generator, memory, ctypes.c_size_t(count)), "curandGenerateUniform")
    to_host = (ctypes.c_void_p(values.ctypes.data), memory, ctypes.c_size_t(values.nbytes), 2)
    succeed(runtime.cudaMemcpy(*to_host), "cudaMemcpy")
    succeed(library.curandDestroyGenerator(generator), "curandDestroyGenerator")
    succeed(runtime.cudaFree(memory), "cudaFree")
    assert values.min() > 0, values.min()
    assert values.max() <= 1, values.max()
    assert abs(values.mean() - 0.5) < 0.01, values.mean()


def nvrtc() -> None:
    """Compile a kernel of CUDA C++ for this GPU."""
    library = load("libnvrtc.so.12")
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    succeed(library.nvrtcCreateProgram(ctypes.byref(program), ADDITION.encode(), None, 0, None, None), "the program")
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{capability()}".encode())
    succeed(library.nvrtcCompileProgram(program, 1, options), "nvrtcCompileProgram")
    succeed(library.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
    code = ctypes.create_string_buffer(size.value)
    succeed(library.nvrtcGetCUBIN(program, code), "nvrtcGetCUBIN")
    assert code.raw.startswith(b"\x7fELF"), "what it compiled is not machine code"
    succeed(library.nvrtcDestroyProgram(ctypes.byref(program)), "nvrtcDestroyProgram")


def nvjitlink() -> None:
    """Compile and link PTX for this GPU."""
    library = load("libnvJitLink.so.12")
    # Each release has its functions under a name of its own, and those of all before; the header chooses.
    functions = {
        step: getattr(library, f"__nvJitLink{step}_12_5")
        for step in ("Create", "AddData", "Complete", "GetLinkedCubinSize", "GetLinkedCubin", "Destroy")
    }
    linker, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = (ctypes.c_char_p * 1)(f"-arch=sm_{capability()}".encode())
    succeed(functions["Create"](ctypes.byref(linker), 1, options), "nvJitLinkCreate")
    ptx = PTX.encode()
    # 2 is PTX among the kinds of inputs.
    succeed(functions["AddData"](linker, 2, ptx, ctypes.c_size_t(len(ptx) + 1), b"nothing"), "nvJitLinkAddData")
    succeed(functions["Complete"](linker), "nvJitLinkComplete")
    succeed(functions["GetLinkedCubinSize"](linker, ctypes.byref(size)), "nvJitLinkGetLinkedCubinSize")
    code = ctypes.create_string_buffer(size.value)
    succeed(functions["GetLinkedCubin"](linker, code), "nvJitLinkGetLinkedCubin")
    assert code.raw.startswith(b"\x7fELF"), "what it linked is not machine code"
    succeed(functions["Destroy"](ctypes.byref(linker)), "nvJitLinkDestroy")


def capability() -> int:
    """Return the first GPU's compute capability, as 90 for 9.0."""
    major, minor = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])[
        "compute_capability"
    ]
    return 10 * major + minor


def load(name: str) -> ctypes.CDLL:
    """Load a library: the prefix's, else that of NVIDIA's wheels, else the one that the loader finds."""
    prefix = pathlib.Path(os.environ.get("PREFIX", sys.prefix), "lib", name)
    wheels = pathlib.Path(tf.__file__).parents[1].glob(f"nvidia/*/lib/{name}")
    return ctypes.CDLL(str(next((path for path in (prefix, *wheels) if path.exists()), name)))


def succeed(code: int, step: str) -> None:
    """Raise an error for a code that is not that of a success."""
    if code:
        raise RuntimeError(f"{step} ended with the error {code}")


DRIVER = "libcuda.so"
# Each library, the beginning of its files' names, and its operation.
OPERATIONS: dict[str, tuple[str, Callable[[], None]]] = {
    "TensorFlow's kernels": (DRIVER, own_kernels),
    "cuBLAS": ("libcublas.so", cublas),
    "cuBLASLt": ("libcublasLt.so", cublaslt),
    "cuDNN": ("libcudnn", cudnn),
    "cuFFT": ("libcufft.so", cufft),
    "cuSOLVER": ("libcusolver.so", cusolver),
    "cuSPARSE": ("libcusparse.so", cusparse),
    "NCCL": ("libnccl.so", nccl),
    "ptxas and libdevice": ("", ptxas),
    "CUPTI": ("libcupti.so", cupti),
    "cuRAND": ("libcurand.so", curand),
    "NVRTC": ("libnvrtc.so", nvrtc),
    "nvJitLink": ("libnvJitLink.so", nvjitlink),
}
# What TensorFlow must open before it uses a GPU; where one is missing, its own message names none.
OPENED = (
    *("libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusolver.so.11"),
    *("libcusparse.so.12", "libcudnn.so.9"),
)


def loaded(beginning: str) -> str:
    """Return the path of a library in this process's memory; a package's test refuses one from outside its prefix."""
    lines = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = sorted(
        {path for line in lines if (path := line.split(maxsplit=5)[-1]).rpartition("/")[2].startswith(beginning)}
    )
    assert paths, f"no {beginning} is loaded"
    prefix = os.path.realpath(os.environ.get("PREFIX", "/"))
    foreign = [path for path in paths if not pathlib.PurePath(path).is_relative_to(prefix)]
    assert not foreign or beginning == DRIVER, f"{', '.join(foreign)} is used, which is not the prefix's"
    return paths[0]


def version(name: str) -> str:
    """Return the words for the version of a library that tells it."""
    return f" {ctypes.CDLL('libcudnn.so.9').cudnnGetVersion()}" if name == "cuDNN" else ""


def check(name: str) -> None:
    """Run the operation of a library; print its outcome."""
    beginning, operation = OPERATIONS[name]
    say(f"began {name}")
    try:
        with tf.device("GPU:0"):
            operation()
        path = loaded(beginning) if beginning else ""
        outcome = f"passed {name}: {operation.__doc__}{version(name)} {path}".rstrip()
    except Exception as error:  # noqa: BLE001 -- whatever a library raises is told under its name
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        outcome = f"failed {name}: {type(error).__name__}: {' '.join(lines)[:500]}"
    say(outcome)


def say(line: str) -> None:
    """Print a line at once: the operation after it may end the process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the operations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--after", choices=OPERATIONS, help="leave out the operations up to this library's")
    after = parser.parse_args().after
    reason = reason_to_skip()
    if reason:
        say(f"GPU: skipped, {reason}")
        return
    if not tf.config.list_logical_devices("GPU"):
        say_missing()
        return
    tf.config.set_soft_device_placement(False)
    names = list(OPERATIONS)
    for name in names[names.index(after) + 1 if after else 0 :]:
        check(name)


def say_missing() -> None:
    """Print which of the libraries that TensorFlow opens are missing."""
    missing = []
    for name in OPENED:
        try:
            load(name)
        except OSError as error:
            missing.append(name)
            say(f"failed {name}: it cannot be loaded: {error}")
    reason = "without these libraries" if missing else "though all its libraries are there; its messages above say more"
    say(f"failed the device: this machine has a GPU, but TensorFlow does not use it, {reason}")


if __name__ == "__main__":
    main()
