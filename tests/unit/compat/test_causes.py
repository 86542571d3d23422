"""Errors in people's logs are recognized, whatever else is in them and however long they are."""

from __future__ import annotations

import configparser
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base.errors import BuildFailed, DiskFull, OutOfMemory
from kiln.compat import causes

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests" / "fixtures"


def examples(file: str) -> dict[str, configparser.SectionProxy]:
    settings = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    settings.read_string((FIXTURES / file).read_text(encoding="utf-8"))
    return {name: section for name, section in settings.items() if name != "DEFAULT"}


EXAMPLES = examples("failures.ini")
LOGS = examples("logs.ini")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_real_log(name: str) -> None:
    example = EXAMPLES[name]
    noise = b"INFO: 401 processes: 401 local.\n" * 3
    result = causes.failures_in_log(io.BytesIO(noise + example["log"].encode() + b"\n" + noise))
    assert [failure.name for failure in result] == [example["failure"]]
    assert example["says"] in f"{result[0].headline} {result[0].cause} {result[0].cure}"
    assert "{" not in re.sub(r"\$\{CUDA_DIR\}", "", result[0].headline + result[0].cause + result[0].cure)
    assert result[0].line > 3
    assert is_source(example["source"])


def test_the_logs_are_many() -> None:
    assert len(LOGS) >= 120


@pytest.mark.parametrize("name", LOGS)
def test_of_a_log_as_people_post_it_the_first_cause_that_matters_is_named_first(name: str) -> None:
    log = LOGS[name]
    first, *others = causes.failures_in_log(io.BytesIO(log["log"].encode()))
    assert first.name == log["failure"]
    assert log["says"] in f"{first.cause} {first.cure}"
    assert "{" not in re.sub(r"\$\{CUDA_DIR\}", "", first.cause + first.cure)
    kinds = list(causes.Kind)
    assert all(kinds.index(first.kind) <= kinds.index(other.kind) for other in others)
    assert is_source(log["source"])


def is_source(text: str) -> bool:
    """True if somebody's log was found there; what this project's own scripts say is found in them."""
    return text.startswith("https://") or (ROOT / text).is_file()


def test_every_failure_that_is_known_has_an_example() -> None:
    shown = {example["failure"] for example in (*EXAMPLES.values(), *LOGS.values())}
    beside = {
        "no usable cuBLAS",
        "NUMA node not told",
        "model's folder not found",
    }  # in WORDS, and beside a cause in logs
    assert {each.name for each in causes.known_failures()} == shown | beside


@pytest.mark.parametrize("each", causes.known_failures(), ids=lambda each: each.name)
def test_a_pattern_is_bounded_and_complete(each: causes.KnownFailure) -> None:
    for pattern in each.patterns:
        bare = re.sub(r"\\.|\[[^\]]*\]", "x", pattern.pattern)
        assert re.findall(r"(?<!\()[*+]|\{\d*,\}", bare) == []
    assert all(each.words)
    assert each.cause.endswith(".")
    assert each.cure.endswith(".")
    assert is_source(each.source)


# What compilers and Bazel say that nobody's log at hand has: of their sources, and of runs here.
WORDS = {
    "compiler out of memory": ("clang: error: unable to execute command: Killed",),
    "memory ran out": (
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "LLVM ERROR: out of memory",
        "{standard input}: Error: open CFI at the end of file; missing .cfi_endproc directive",
    ),
    "disk full": (
        "bazel-out/k8-opt/bin/tensorflow/libtensorflow_cc.so.2: final close failed: No space left on device",
        "write error: Disk quota exceeded",
    ),
    "nvcc refuses an architecture": ("ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",),
    "compiler rejects a flag": (
        "g++: error: unrecognized command-line option '-Wthread-safety-beta'; did you mean '-fthread-jumps'?",
        "cc1plus: error: bad value 'znver9' for '-march=' switch",
        "nvcc fatal   : Unknown option '-fcuda-flush-denormals-to-zero'",
    ),
    "Bazel outside the sources' range": ("Current Bazel version is 8.0.0, expected at most 7.99.99",),
    "NumPy of another major version": ("A module that was compiled using NumPy 1.x cannot be run in",),
    "protobuf newer than the generated code": ("TypeError: Descriptors cannot be created directly.",),
    "CUDA plug-ins registered twice": (
        (
            "Unable to register cuFFT factory: Attempting to register factory for plugin cuFFT when one has already "
            "been registered"
        ),
    ),
    "no usable cuBLAS": ("Internal: Blas GEMM launch failed : a.shape=(32, 784), b.shape=(784, 128)",),
    "NUMA node not told": ("successful NUMA node read from SysFS had negative value (-1), but there must be one",),
    "model's folder not found": (
        "FileSystemStoragePathSource encountered an error: Could not find base path /models/m for servable m with",
    ),
    "model does not load": (
        "Loading servable: {name: m version: 1} failed: Not found: Could not find SavedModel .pb or .pbtxt at /m/1",
    ),
    "ptxas too old": ("ptxas /tmp/x, line 9; fatal   : Unsupported .version 7.4; current version is '7.1'",),
    "GPU memory exhausted": ("failed to allocate 2.20G bytes from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",),
    "no driver found": ("failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",),
    "names of TensorFlow 1": ("ModuleNotFoundError: No module named 'tensorflow.contrib'",),
    "no driver for a CUDA build": (
        "nothing provides __cuda >=12 needed by libtensorflow_framework-2.21.0-cuda129h0_200",
    ),
    "download failed": (
        "WARNING: Download from https://example.org/a.tar.gz failed: class java.net.UnknownHostException Unknown host",
        "java.io.IOException: Error downloading [https://example.org/a.xz] to /a.xz: GET returned 403 Forbidden",
    ),
}


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, said in WORDS.items() for line in said])
def test_other_words_for_the_same(name: str, line: str) -> None:
    (result,) = causes.failures_in_log(io.BytesIO(line.encode()))
    assert result.name == name


def test_a_compile_ends_with_the_error_of_its_cause_and_of_several_the_tables_first_counts() -> None:
    ends = {
        "std::bad_alloc": OutOfMemory,
        "No space left on device": DiskFull,
        "error: bad value 'x' for '-march='": None,
    }
    for text, error in ends.items():
        result = causes.cause_of_failed_compile(
            f"INFO: Analyzed target //:wheel\n{text}\nFAILED: Build did NOT complete"
        )
        assert result is not None
        assert result.error is (error or BuildFailed)
    both = causes.cause_of_failed_compile(
        "Download from https://example.org/a failed\ngcc: fatal error: Killed signal terminated program cc1"
    )
    assert both is not None
    assert both.name == "compiler out of memory"


@pytest.mark.parametrize("text", ["", "bad.cc:1:21: error: 'nothing' was not declared in this scope", "killed time"])
def test_an_ordinary_error_has_no_known_cause(text: str) -> None:
    assert causes.cause_of_failed_compile(text) is None


@pytest.mark.parametrize(
    "line",
    [
        'Overlinking against "libc.so.6" for "bin/tool"',
        "conftest.c:14:3: error: unknown type name 'nothing'",
        "WARNING (tool,bin/tool): Needed DSO lib/libz.so.1 not found in packages, sysroot(s) nor the whitelist",
    ],
)
def test_what_an_engine_warns_of_and_configure_tries_is_no_cause(line: str) -> None:
    assert causes.failures_in_log(io.BytesIO(line.encode())) == ()


def test_an_error_of_the_compiler_is_the_cause_unless_something_explains_it_and_of_several_the_first_counts() -> None:
    errors = ["a.c:2:31: error: expected ';' before '}' token", *["      | ^"] * 3, "a.c:9:1: error: b"]
    cause = causes.cause_of_failed_build("\n".join([*errors, "make: *** [Makefile:2: a.o] Error 1"]))
    assert cause is not None
    assert cause.headline == "a.c:2:31: expected ';' before '}' token"
    better = "a.h:3: note: 'uint8_t' is defined in header '<cstdint>'"
    for order in ([*errors, better], [better, *errors]):
        first, *_ = causes.failures_in_log(io.BytesIO("\n".join(order).encode()))
        assert first.name == "standard header not included"


def test_countless_different_failures_are_reported_in_part() -> None:
    log = b"".join(b"kernel version 1.%d does not match DSO version 2.0\n" % number for number in range(5000))
    result = causes.failures_in_log(io.BytesIO(log * 2))
    assert len(result) == causes.MOST
    assert {each.count for each in result} == {2}


def test_lines_are_counted_and_failures_reported_once_in_order() -> None:
    killed = b"gcc: fatal error: Killed signal terminated program cc1plus\n"
    log = b"\n".join([b"one", b"Illegal instruction (core dumped)", killed + killed + b"end"])
    result = causes.failures_in_log(io.BytesIO(log))
    assert [(each.name, each.line, each.count) for each in result] == [
        ("illegal instruction", 2, 1),
        ("compiler out of memory", 3, 2),
    ]


def test_an_endless_line_is_searched_around_the_words() -> None:
    log = b"x" * 700_000 + b" Illegal instruction " + b"y" * 700_000
    (result,) = causes.failures_in_log(io.BytesIO(log))
    assert len(result.text) <= 400


@pytest.mark.parametrize("each", causes.known_failures(), ids=lambda each: each.name)
def test_a_hostile_line_is_read_in_bounded_work(each: causes.KnownFailure) -> None:
    """Lines of one kind of character around the words, as long as is looked at: where backtracking would show."""
    for filler in (b"(", b"a", b"1.", b"/", b"'", b"\xff", b" "):
        for word in each.words:
            causes.failures_in_log(io.BytesIO(filler * 3000 + word + filler * 3000))


@given(st.binary(max_size=3000))
def test_any_bytes_can_be_read(data: bytes) -> None:
    causes.failures_in_log(io.BytesIO(data))


@given(st.integers(1, 200), st.integers(0, 60))
def test_where_a_piece_ends_does_not_matter(size: int, before: int) -> None:
    log = b"line\n" * before + b"Illegal instruction (core dumped)\n" + b"line\n" * 10

    class Small(io.BytesIO):
        def read(self, _size: int | None = -1) -> bytes:
            return super().read(size)

    (result,) = causes.failures_in_log(Small(log))
    assert result.line == before + 1


def test_of_a_file_its_end_can_be_enough(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"Illegal instruction\n" + b"line\n" * 1000)
    assert [each.name for each in causes.failures_at_log_end(log)] == ["illegal instruction"]
    assert causes.failures_at_log_end(log, most=1000) == ()
    assert causes.failures_at_log_end(tmp_path / "none") == ()


PIP = """\
running build_ext
gcc -c e.c -o e.o
e.c:1:10: fatal error: foo.h: No such file or directory
    1 | #include <foo.h>
compilation terminated.
error: command '/usr/bin/gcc' failed with exit code 1
error: subprocess-exited-with-error
│ exit code: 1
╰─> See above for output.
note: This error originates from a subprocess, and is likely not a problem with pip.
Exception information:
Traceback (most recent call last):
  File "pip/_internal/cli/base_command.py", line 105, in _run_wrapper
pip._internal.exceptions.InstallationError: Failed to build e
Script failed with status 1"""


SAID = "a.c:1:10: fatal error: foo.h: No such file or directory"
STAMPS = ("", "2026-11-29 06:22:42 ", "2026-11-29T06:22:42.1234567Z ")


@pytest.mark.parametrize("stamp", STAMPS)
@pytest.mark.parametrize("trace", ["+ echo '", "++ printf '", "+++ grep -q '"])
def test_a_traced_command_that_quotes_an_error_is_no_cause(stamp: str, trace: str) -> None:
    log = f"{stamp}{trace}{SAID}'\n{stamp}{SAID}\n"
    assert [(each.line, each.count) for each in causes.failures_in_log(io.BytesIO(log.encode()))] == [(2, 1)]
    assert causes.cause_of_failed_build(f"{trace}{SAID}'\n") is None
    assert causes.failures_in_log(io.BytesIO(f"{stamp}+{SAID}\n".encode())), "a line of a difference is no trace"


def test_what_is_shown_begins_at_the_cause_and_ends_before_what_pip_and_the_engine_say_of_it() -> None:
    assert causes.telling_lines(f"+ pip install .\n{PIP}") == PIP.splitlines()[2:6]


def test_without_a_known_cause_the_lines_around_the_first_error_are_shown_without_the_shells_trace() -> None:
    output = "\n".join([*(f"step {number}" for number in range(40)), "+ odd", "it went wrong: error 7", "+ exit 7"])
    shown = causes.telling_lines(f"{output}\nScript failed with status 7")
    assert shown == ["step 35", "step 36", "step 37", "step 38", "step 39", "it went wrong: error 7"]


def test_what_pip_tidies_up_is_not_shown() -> None:
    refused = "UnsupportedPythonVersion: Package 'p' requires a different Python: 3.10.2 not in '>=3.11'"
    assert causes.telling_lines(f"{refused}\nRemoved build tracker: '/tmp/x'") == [refused]


def test_of_a_subprocess_that_pip_quotes_its_own_lines_are_shown() -> None:
    quoted = "  ╰─> [2 lines of output]\n      odd\n      worse\n      [end of output]\n\n  note: This error originates"
    text = f"  error: subprocess-exited-with-error\n{quoted}\nERROR: Failed building wheel"
    assert [line.strip() for line in causes.telling_lines(text)] == ["odd", "worse"]


def test_of_several_causes_the_more_exact_one_counts_and_of_one_kind_the_last() -> None:
    lines = ["a.sh: line 3: odd: command not found", *["fine"] * 50, "a.sh: line 9: missing: command not found"]
    cause = causes.cause_of_failed_build("\n".join(lines))
    assert cause is not None
    assert (cause.headline, cause.line) == ("the program missing was not found", 52)
    exact = causes.cause_of_failed_build("\n".join(["a.c:1:1: fatal error: z.h: No such file or directory", *lines]))
    assert exact is not None
    assert exact.headline == "z.h not found, which the sources include"


def test_what_a_program_says_when_it_runs_is_no_cause_of_a_build() -> None:
    assert causes.cause_of_failed_build("Could not find cuda drivers on your machine, GPU will not be used.") is None


def test_a_build_that_lacks_the_drivers_library_is_not_sent_to_look_for_its_package() -> None:
    cause = causes.cause_of_failed_build("ImportError: libcuda.so.1: cannot open shared object file: No such file")
    assert cause is not None
    assert "no package of CUDA's has" in cause.headline
    assert "leave the import out" in cause.cure
