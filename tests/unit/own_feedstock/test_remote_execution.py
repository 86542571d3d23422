"""The recipe's flags for a remote executor: address, properties, credentials in files, and the key of the cache."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[3] / "recipe"
CONFIG = {"cuda_compiler_version": "None", "cudnn": "undefined", "PY_VER": "3.12"}
ROOM = {"BAZEL_CPUS": "2", "BAZEL_MEMORY_MB": "8000", "BAZEL_CACHE_KEY": "4f1c", "BAZEL_DISK_CACHE": "/cache"}
URL = "grpcs://executor.example.org:443/projects/one"
PEM = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"


def credentials(**value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def plan(scripts: Any, ini: str | None = None, **variables: str) -> Any:
    settings = scripts.compile_plan.read(RECIPE / "compile.ini")
    if ini is not None:
        settings.remove_section("remote")
        settings.read_string(ini)
    return scripts.compile_plan.make(settings, CONFIG | ROOM | variables)


def key_of(flags: tuple[str, ...]) -> str:
    (flag,) = (flag for flag in flags if "cache-silo-key" in flag)
    return flag.rpartition("=")[2]


def test_without_an_executor_no_flag_changes(scripts: Any) -> None:
    flags = plan(scripts).flags
    assert "--jobs=2" in flags
    assert key_of(flags) == "4f1c"
    assert not any("remote_executor" in flag or "container-image" in flag for flag in flags)


def test_the_executor_gets_its_instance_the_image_of_its_actions_and_more_jobs(scripts: Any) -> None:
    flags = plan(scripts, BAZEL_REMOTE_EXECUTOR=URL).flags
    assert "--remote_executor=grpcs://executor.example.org:443" in flags
    assert "--remote_instance_name=projects/one" in flags
    assert any(flag.startswith("--remote_default_exec_properties=container-image=docker://") for flag in flags)
    assert max(index for index, flag in enumerate(flags) if flag == "--jobs=200") > flags.index("--jobs=2")
    assert "--remote_local_fallback" not in flags
    more = plan(scripts, BAZEL_REMOTE_EXECUTOR=URL, BAZEL_REMOTE_JOBS="64", BAZEL_REMOTE_FALLBACK="1").flags
    assert {"--jobs=64", "--remote_local_fallback"} <= set(more)


def test_the_cache_is_divided_by_the_properties_and_by_the_executor_where_no_image_is_named(scripts: Any) -> None:
    image = "[remote]\njobs = 2\nproperties =\n    container-image=docker://a@sha256:1\n"
    other, none = image.replace("sha256:1", "sha256:2"), "[remote]\njobs = 2\nproperties =\n    OSFamily=Linux\n"
    far = "grpcs://another.example.org"

    def key(ini: str, url: str, base: str = "4f1c") -> str:
        return key_of(plan(scripts, ini, BAZEL_REMOTE_EXECUTOR=url, BAZEL_CACHE_KEY=base).flags)

    assert key(image, URL) == key(image, far), "the image says what an action's programs are"
    distinct = {key(image, URL), key(other, URL), key(none, URL), key(none, far), key(image, URL, "5e2d"), "4f1c"}
    assert len(distinct) == 6


def test_a_disk_cache_is_left_out_where_bazel_refuses_both(scripts: Any) -> None:
    ini = "[remote]\njobs = 2\ndisk_cache = no\n"
    assert "--disk_cache=/cache" in plan(scripts, BAZEL_REMOTE_EXECUTOR=URL).flags
    assert "--disk_cache=/cache" not in plan(scripts, ini, BAZEL_REMOTE_EXECUTOR=URL).flags


def test_credentials_are_in_files_of_their_owner_and_in_no_public_flag(scripts: Any, tmp_path: Path) -> None:
    variable = credentials(headers=[["authorization", 'Bearer "x" y']], ca="CA", certificate="C", key=PEM)
    made = plan(scripts, BAZEL_REMOTE_EXECUTOR=URL, BAZEL_REMOTE_CREDENTIALS=variable)
    assert "Bearer" not in repr(made)
    assert "c2VjcmV0" not in repr(made)
    rc = made.executor.write(tmp_path / "remote")
    assert rc.read_text().splitlines() == [
        'build "--remote_header=authorization=Bearer \\"x\\" y"',
        f'build "--tls_certificate={tmp_path}/remote/ca.pem"',
        f'build "--tls_client_certificate={tmp_path}/remote/certificate.pem"',
        f'build "--tls_client_key={tmp_path}/remote/key.pem"',
    ]
    assert (tmp_path / "remote" / "key.pem").read_text() == PEM
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "remote").iterdir()}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "remote").stat().st_mode) == 0o700


@pytest.mark.parametrize("jobs", ["0", "-1", "many"])
def test_an_invalid_number_of_jobs_ends_the_build(scripts: Any, jobs: str) -> None:
    with pytest.raises(scripts.compile_plan.BadPlan, match="invalid number of remote jobs"):
        plan(scripts, BAZEL_REMOTE_EXECUTOR=URL, BAZEL_REMOTE_JOBS=jobs)


def test_settings_without_remote_execution_are_refused(scripts: Any) -> None:
    with pytest.raises(scripts.compile_plan.BadPlan, match=r"no section \[remote\]"):
        plan(scripts, "[other]\n", BAZEL_REMOTE_EXECUTOR=URL)


@pytest.mark.parametrize("text", ["no base64 s3cret", base64.b64encode(b'["s3cret"]').decode()])
def test_invalid_credentials_are_not_shown(scripts: Any, text: str) -> None:
    with pytest.raises(scripts.compile_plan.BadPlan) as error:
        plan(scripts, BAZEL_REMOTE_EXECUTOR=URL, BAZEL_REMOTE_CREDENTIALS=text)
    assert "s3cret" not in str(error.value)
    assert text not in str(error.value)
