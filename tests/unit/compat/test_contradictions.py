"""No two answers contradict each other: what one part excludes, no pair with it allows, unless the answer names it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from kiln.compat import tables
from kiln.compat.combination import CANNOT, COSTS, WORKS, combination_from_options
from kiln.compat.tables import is_at_least, is_below
from kiln.compat.verdict import judge_combination


def column(name: str, table: str) -> list[str]:
    return sorted({row[name] for row in tables.table_rows(table) if row[name]})


GPUS = [*column("gpu", "gpu"), *column("capability", "gpu"), "p3", "g5g", "a2-highgpu-1g", "a4x-highgpu-4g", "t1-45"]
DRIVERS = [*column("driver", "cuda_driver"), "450", "470.57.02", "535.54.03", "550.54.15", "575", "580.65.06"]
COMPILERS = [f"{name}-{version}" for name, last in (("gcc", 16), ("clang", 22)) for version in range(5, last)]
PARTS = {
    "cuda": st.sampled_from(tables.cuda_minor_versions()),
    "cudnn": st.sampled_from([*column("first", "cudnn"), *column("last", "cudnn"), "9.3"]),
    "gpu": st.sampled_from(GPUS),
    "driver": st.sampled_from(DRIVERS),
    "host": st.sampled_from(COMPILERS),
    "python": st.sampled_from(["2.7", "3.6", "3.8", "3.9", "3.12", "3.13", "3.14"]),
    "glibc": st.sampled_from(["2.12", "2.17", "2.27", "2.36"]),
    "arch": st.sampled_from(["x86_64", "aarch64"]),
    "system": st.sampled_from(["linux", "wsl2", "windows", "macos"]),
    "numpy": st.sampled_from(["1.19.5", "1.24", "1.26.4", "2", "2.1.3", "2.4"]),
    "keras": st.sampled_from(["2.6", "2.15.0", "3", "3.5.0", "3.12"]),
    "protobuf": st.sampled_from(["3.19", "3.20.3", "4.21.3", "4.25.8", "5.29", "6.31.1", "7.36"]),
    "built_for": st.sampled_from(
        ["sm_60,sm_70,compute_90", "sm_87", "sm_86", "sm_120,compute_120", "compute_90a", "sm_100f"]
    ),
}
ONE = st.sampled_from([*PARTS]).flatmap(lambda name: st.tuples(st.just(name), PARTS[name]))
CUDAS = re.compile(r"CUDA (\d+(?:\.\d+)+)(?: to (\d+(?:\.\d+)+))?")
RELEASES = re.compile(r"([\d.]+) is the newest that accepts it(?:, ([\d.]+) the oldest)?")


def verdict_and_reasons(parts: dict[str, str]) -> tuple[object, str]:
    answer = judge_combination(combination_from_options(parts), suggest=False)
    return answer.verdict, "\n".join(finding.reason for finding in answer.findings)


def is_named(version: str, ranges: re.Pattern[str], text: str) -> bool:
    """Return whether an answer without any range of versions, or one with a version in a range, allows it."""
    ends = [sorted(match.groups(match[1]), key=tables.version_numbers) for match in ranges.finditer(text)]
    return not ends or any(is_at_least(version, low) and not is_below(high, version) for low, high in ends)


@given(ONE, st.sampled_from(column("tf", "tensorflow")))
def test_the_answer_about_a_part_names_every_release_that_works_with_it(part: tuple[str, str], tf: str) -> None:
    name, value = part
    verdict, text = verdict_and_reasons({name: value, "tf": tf})
    if verdict in {WORKS, COSTS}:
        alone, said = verdict_and_reasons({name: value})
        assert alone is not CANNOT
        assert is_named(tf, RELEASES, said), (said, text)


@given(st.sampled_from(["gpu", "driver", "host"]).flatmap(lambda n: st.tuples(st.just(n), PARTS[n])), PARTS["cuda"])
def test_the_answer_about_a_part_names_every_cuda_that_works_with_it(part: tuple[str, str], cuda: str) -> None:
    name, value = part
    verdict, text = verdict_and_reasons({name: value, "cuda": cuda})
    if verdict in {WORKS, COSTS}:
        _, said = verdict_and_reasons({name: value})
        assert is_named(cuda, CUDAS, said), (said, text)


@given(st.dictionaries(st.sampled_from([*PARTS]), st.integers(0, 10_000), min_size=2, max_size=4), st.data())
def test_another_part_never_makes_a_refused_pair_work(asked: dict[str, int], data: st.DataObject) -> None:
    parts = {name: data.draw(PARTS[name], label=name) for name in asked}
    whole, _ = verdict_and_reasons(parts)
    left_out = data.draw(st.sampled_from(sorted(parts)))
    fewer, text = verdict_and_reasons({name: value for name, value in parts.items() if name != left_out})
    if fewer is CANNOT and whole in {WORKS, COSTS}:
        assert "is the way out" in text or "compile it for the GPU" in text, text
