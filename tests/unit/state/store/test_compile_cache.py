"""Caches on the disk: found with their sizes, held while in use, removed the least used first."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kiln.recipe.feedstock import BuildConfig
from kiln.state.store.compile_cache import (
    DiskCaches,
    DiskCacheUsage,
    caches_to_remove,
    compile_cache_name,
    toolchain_digest,
)

if TYPE_CHECKING:
    from pathlib import Path


MB = 1 << 20


@pytest.fixture
def caches(tmp_path: Path) -> DiskCaches:
    """Three caches of two files of a megabyte each, ``a`` the one used last, ``c`` the one used longest ago."""
    result = DiskCaches(root=tmp_path / "compile-cache")
    for age, key in enumerate("abc"):
        with result.locked_folder(key, f"for {key}") as folder:
            for number in range(2):
                file = folder / "cas" / f"{number}"
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(os.urandom(MB))
                os.utime(file, (1000 + number, 1000 + number))
        os.utime(result.root / f"{key}.json", (9000 - age, 9000 - age))
    return result


def keys(caches: DiskCaches) -> list[str]:
    return [entry.key for entry in caches.all_caches()]


def test_whole_caches_go_the_least_used_first(caches: DiskCaches) -> None:
    assert [(entry.key, entry.label) for entry in caches.all_caches()] == [(key, f"for {key}") for key in "abc"]
    freed = caches.trim_to_size(5 * MB)
    assert keys(caches) == ["a", "b"]
    assert freed >= 2 * MB
    assert not (caches.root / "c").exists()


def test_a_cache_in_use_stays_whole(caches: DiskCaches) -> None:
    with caches.locked_folder("c", "for c"):
        assert caches.trim_to_size(3 * MB) >= 2 * MB
        assert "c" in keys(caches)
        assert caches.remove_cache(next(entry for entry in caches.all_caches() if entry.key == "c")) == 0
        assert len(list((caches.root / "c" / "cas").iterdir())) == 2
    assert keys(caches)[0] == "c", "it was used last"


def test_of_a_cache_that_stays_the_oldest_entries_go(caches: DiskCaches) -> None:
    caches.trim_to_size(MB + MB // 2, keep={"a", "b", "c"})
    left = sorted(str(file.relative_to(caches.root)) for file in caches.root.rglob("cas/*"))
    assert left == ["a/cas/1"]


def test_room_is_made_of_what_the_run_does_not_use(caches: DiskCaches) -> None:
    before = keys(caches)
    caches.remove_caches_to_free_space(0, keep=())
    assert keys(caches) == before
    caches.remove_caches_to_free_space(1 << 60, keep={"b"})
    assert keys(caches) == ["b"]


def test_no_more_is_removed_than_needed() -> None:
    entries = tuple(
        DiskCacheUsage(key=key, label="", size=10, used=used) for key, used in (("a", 3.0), ("b", 1.0), ("c", 2.0))
    )
    assert [entry.key for entry in caches_to_remove(entries, 11)] == ["b", "c"]
    assert caches_to_remove(entries, 0) == ()
    assert [entry.key for entry in caches_to_remove(entries, 5, keep={"b"})] == ["c"]


def test_a_cache_that_another_process_has_removed_meanwhile_is_passed_over(caches: DiskCaches) -> None:
    seen = caches.all_caches()
    assert caches.remove_cache(seen[1]) > 0
    assert caches.remove_cache(seen[1]) == 0
    assert not (caches.root / "b.json").exists()
    assert keys(caches) == ["a", "c"]


def test_two_users_of_a_new_cache_keep_what_it_is_for(tmp_path: Path) -> None:
    caches = DiskCaches(root=tmp_path)
    with caches.locked_folder("k", "cuda12.9"), caches.locked_folder("k", "cuda12.9"):
        assert [entry.label for entry in caches.all_caches()] == ["cuda12.9"]
        assert caches.trim_to_size(0) == 0


VARIANT = {
    "c_compiler_version": "14",
    "cuda_compiler_version": "12.9",
    "cudnn": "9.3",
    "microarch_level": "1",
    "numpy": "1.26",
    "python": "3.11.* *_cpython",
    "docker_image": "quay.io/a:1",
    "channel_sources": "conda-forge",
}


def key(where: str = "sha256:1", platform: str = "linux-64", **changed: str) -> str:
    variant = {name: (value,) for name, value in {**VARIANT, **changed}.items()}
    zipped = (("python", "numpy", "python_impl"),)
    config = BuildConfig(name="x", platform=platform, variant=variant, zip_keys=zipped, pin_run_as_build={})
    return compile_cache_name(config, where=where)


def test_what_changes_the_result_changes_the_cache() -> None:
    variants = ("c_compiler_version", "cuda_compiler_version", "cudnn", "microarch_level", "CFLAGS")
    others = [key(**{name: "other"}) for name in variants]
    others += [key(where="sha256:2"), key(platform="linux-aarch64")]
    assert len({key(), *others}) == len(others) + 1


def test_what_does_not_change_it_shares_the_cache() -> None:
    assert key(python="3.12.* *_cpython", numpy="2", python_impl="cpython") == key()
    assert key(docker_image="localhost/the-same-by-another-name") == key()
    assert key(channel_sources="file:///elsewhere") == key()


def test_a_machine_without_images_is_known_by_its_compilers(tmp_path: Path) -> None:
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    before = toolchain_digest(str(tmp_path))
    assert toolchain_digest(str(tmp_path)) == before
    compiler.write_text("#!/bin/sh\n# another release\n")
    assert toolchain_digest(str(tmp_path)) != before
