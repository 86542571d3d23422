"""What people's logs say is recognised, whatever else is in them and however long they are."""

from __future__ import annotations

import configparser
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.compat import failures

FIXTURE = Path(__file__).parents[2] / "fixtures" / "failures.ini"


def examples() -> dict[str, configparser.SectionProxy]:
    settings = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    settings.read_string(FIXTURE.read_text(encoding="utf-8"))
    return {name: section for name, section in settings.items() if name != "DEFAULT"}


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_real_log(name: str) -> None:
    example = EXAMPLES[name]
    noise = b"INFO: 401 processes: 401 local.\n" * 3
    found = failures.read(io.BytesIO(noise + example["log"].encode() + b"\n" + noise))
    assert [failure.name for failure in found] == [example["failure"]]
    assert example["says"] in f"{found[0].cause} {found[0].cure}"
    assert "{" not in re.sub(r"\$\{CUDA_DIR\}", "", found[0].cause + found[0].cure)
    assert found[0].line > 3
    assert example["source"].startswith("https://")


def test_every_failure_that_is_known_has_an_example_but_for_those_of_the_same_words() -> None:
    untold = {each.name for each in failures.known()} - {example["failure"] for example in EXAMPLES.values()}
    assert untold == {"CUDA refuses a compiler", "Bazel's server died"}


@pytest.mark.parametrize("each", failures.known(), ids=lambda each: each.name)
def test_a_pattern_is_bounded_and_has_what_a_maintainer_needs(each: failures.Known) -> None:
    bare = re.sub(r"\\.|\[[^\]]*\]", "x", each.pattern.pattern)
    assert re.findall(r"[*+]|\{\d*,\}", bare) == []
    assert each.words
    assert each.cause.endswith(".")
    assert each.cure.endswith(".")
    assert each.source.startswith("https://")


def test_the_compiler_that_cuda_refuses_without_its_version_in_the_path() -> None:
    log = (
        b"host_config.h:139:2: error: #error -- unsupported GNU version! gcc versions later than 10 are not supported!"
    )
    (found,) = failures.read(io.BytesIO(log))
    assert (found.name, "newer than 10" in found.cause) == ("CUDA refuses a compiler", True)


def test_bazels_server() -> None:
    (found,) = failures.read(
        io.BytesIO(b"Server terminated abruptly (error code: 14, error message: 'Socket closed', log file: 'x')")
    )
    assert found.name == "Bazel's server died"


def test_a_log_without_anything_known() -> None:
    assert failures.read(io.BytesIO(b"all is well\n" * 1000)) == ()
    assert failures.read(io.BytesIO(b"")) == ()


def test_lines_are_counted_and_failures_told_once_in_the_order_of_the_log() -> None:
    killed = b"gcc: fatal error: Killed signal terminated program cc1plus\n"
    log = b"\n".join([b"one", b"Illegal instruction (core dumped)", killed + killed + b"end"])
    found = failures.read(io.BytesIO(log))
    assert [(each.name, each.line, each.count) for each in found] == [
        ("illegal instruction", 2, 1),
        ("compiler out of memory", 3, 2),
    ]


def test_different_architectures_are_different_failures() -> None:
    log = (
        b"nvcc fatal : Unsupported gpu architecture 'compute_35'\nnvcc fatal : Unsupported gpu architecture 'sm_120'\n"
    )
    assert ["compute_35" in each.cause for each in failures.read(io.BytesIO(log))] == [True, False]


class Endless(io.RawIOBase):
    """A log of many megabytes that is never in memory as a whole: blocks of lines, then one line that matters."""

    def __init__(self, blocks: int) -> None:
        self.block = (
            b"[1,234 / 56,789] Compiling tensorflow/core/kernels/cwise_op_add.cc; 12s local, remote-cache\n" * 1000
        )
        self.left = blocks
        self.last = b"Illegal instruction (core dumped)\n"

    def read(self, _size: int = -1) -> bytes:
        if self.left:
            self.left -= 1
            return self.block
        last, self.last = self.last, b""
        return last


def test_a_long_log_is_read_in_pieces() -> None:
    (found,) = failures.read(Endless(400))  # type: ignore[arg-type]  # all that is read of it is read()
    assert (found.line, found.name) == (400_001, "illegal instruction")


def test_a_line_without_end_is_looked_at_around_what_matters() -> None:
    log = b"x" * 700_000 + b" Illegal instruction " + b"y" * 700_000
    (found,) = failures.read(io.BytesIO(log))
    assert len(found.text) <= 400


@pytest.mark.parametrize("each", failures.known(), ids=lambda each: each.name)
def test_a_hostile_line_is_read_in_bounded_work(each: failures.Known) -> None:
    """Lines of one kind of character around the words, as long as is looked at: where backtracking would show."""
    for filler in (b"(", b"a", b"1.", b"/", b"'", b"\xff", b" "):
        failures.read(io.BytesIO(filler * 3000 + each.words + filler * 3000))


@given(st.binary(max_size=3000))
def test_any_bytes_can_be_read(data: bytes) -> None:
    failures.read(io.BytesIO(data))


@given(st.integers(1, 200), st.integers(0, 60))
def test_where_a_piece_ends_does_not_matter(size: int, before: int) -> None:
    log = b"line\n" * before + b"Illegal instruction (core dumped)\n" + b"line\n" * 10

    class Small(io.BytesIO):
        def read(self, _size: int | None = -1) -> bytes:
            return super().read(size)

    (found,) = failures.read(Small(log))
    assert found.line == before + 1


def test_of_a_file_its_end_can_be_enough(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"Illegal instruction\n" + b"line\n" * 1000)
    assert [each.name for each in failures.at_the_end(log)] == ["illegal instruction"]
    assert failures.at_the_end(log, most=1000) == ()
    assert failures.at_the_end(tmp_path / "none") == ()
