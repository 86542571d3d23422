"""Refusals are known by the words of real engines, and each has its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MissingTool
from kiln.base.system import machine
from kiln.container.engine import REFUSALS, Engine, EngineKind, KnownRefusal, avoid_refusal, trial_command

if TYPE_CHECKING:
    from pathlib import Path

RLIMITS, CRUN = REFUSALS

SAID = (
    ("Error: runc: runc create failed: error setting rlimits for ready process: error setting rlimit type 7", RLIMITS),
    ("Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied", RLIMITS),
    ("Error: OCI runtime error: crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv2", CRUN),
    ("Error: short-name resolution enforced but cannot prompt without a TTY", None),
)


def engine(path: str = "") -> Engine:
    return Engine(kind=EngineKind.PODMAN, executable="podman", version="4.3.1", environment={"PATH": path})


@pytest.mark.parametrize(("said", "expected"), SAID)
def test_a_refusal_is_known_by_its_words(said: str, expected: KnownRefusal | None) -> None:
    assert [item for item in REFUSALS if item.words.search(said)] == ([expected] if expected else [])


def test_an_answer_adds_options_to_every_run_and_a_note() -> None:
    answered = avoid_refusal(engine(), RLIMITS)
    assert answered.options[0] == "--ulimit"
    assert answered.options[1].startswith("nofile=")
    assert answered.notes == (RLIMITS.note,)
    assert set(answered.options) < set(trial_command(answered, "image"))


def test_limits_are_this_processs_but_not_above_what_podman_leaves_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    hard = {"nofile": 20000, "nproc": 96365}
    monkeypatch.setattr(machine, "resource_hard_limit", lambda name: hard[name])
    assert avoid_refusal(engine(), RLIMITS).options == (
        *("--ulimit", "nofile=20000:20000"),
        *("--ulimit", "nproc=32768:32768"),
    )
    hard["nofile"] = machine.UNLIMITED
    assert "nofile=1048576:1048576" in avoid_refusal(engine(), RLIMITS).options


def test_runc_takes_cruns_place(tmp_path: Path) -> None:
    (tmp_path / "runc").touch(mode=0o755)
    assert avoid_refusal(engine(str(tmp_path)), CRUN).options == ("--runtime", str(tmp_path / "runc"))


def test_without_runc_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingTool, match="runc, which can, is not here"):
        avoid_refusal(engine(), CRUN)


def test_a_foreign_image_is_tried_as_its_platform() -> None:
    assert "--platform" not in trial_command(engine(), "image:1")
    assert trial_command(engine(), "image:1", "linux/arm64")[-5:] == (
        *("--platform", "linux/arm64", "--entrypoint", "true", "image:1"),
    )
