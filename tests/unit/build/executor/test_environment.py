"""The mounts of a config's containers, as a value."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed, RecipeFault
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.build.executor import environment as executor_environment
from kiln.build.executor.environment import (
    MountedFolders,
    conda_forge_variables,
    engine_container_mounts,
    script_container_mounts,
)
from kiln.container.plan import Mount
from kiln.feedstock import matrix
from kiln.recipe import render
from kiln.recipe.feedstock import BuildConfig, Feedstock
from kiln.recipe.rendered import Checkout, RenderedConfig, Script, Source, Staging
from tests import builders
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


INSIDE = "/home/conda/feedstock_root"


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    """A feedstock with every kind of file."""
    root = tmp_path / "f"
    for name in ("recipe/sub", ".ci_support", ".git/hooks", ".venv", "build_artifacts/work/c", "kiln", "src"):
        (root / name).mkdir(parents=True)
    for name in ("recipe/meta.yaml", "LICENSE", "src/a.c", "build_artifacts/ledger.sqlite"):
        (root / name).touch()
    return Feedstock(root=root)


def config(*channels: str) -> BuildConfig:
    variant = {"channel_sources": (",".join(channels),)} if channels else {}
    return BuildConfig(name="c", platform="linux-64", variant=variant, zip_keys=(), pin_run_as_build={}, image=None)


def rendered(*paths: str, script: str | None = None) -> RenderedConfig:
    sources = tuple(Source(path=path) for path in paths)
    return RenderedConfig(config=config(), stagings=(Staging(sources=sources, script=Script(file=script)),))


def folders(feedstock: Feedstock, **more: Path | tuple[Path, ...]) -> MountedFolders:
    artifacts = feedstock.artifacts
    value = {"work": artifacts / "work" / "c", "packages": artifacts / "container-cache", **more}
    return MountedFolders(**value)  # type: ignore[arg-type]


def test_containers_see_files_and_repositories_that_the_recipe_names(feedstock: Feedstock) -> None:
    (feedstock.root / "up").mkdir()
    sources = (
        Source(url=("../src/a.c", "https://a.org/b")),
        Source(checkout=Checkout(program="hg", url="../up")),
        Source(checkout=Checkout(program="svn", url="https://a.org/c")),
    )
    mounts = script_container_mounts(
        feedstock, RenderedConfig(config=config(), stagings=(Staging(sources=sources),)), folders(feedstock)
    )
    seen = {mount.target: mount.source for mount in mounts if mount.read_only}
    assert seen[f"{INSIDE}/src/a.c"] == feedstock.root / "src" / "a.c"
    assert seen[f"{INSIDE}/up"] == feedstock.root / "up"
    assert not any("a.org" in target for target in seen)


def test_containers_see_the_files_that_about_names(feedstock: Feedstock) -> None:
    about = {"license_file": ["../LICENSE"], "prelink_message": "../src/a.c", "recipe_log_file": "../log.json"}
    (feedstock.root / "log.json").touch()
    (output,) = render.render(*_described(feedstock.root / "other", about)).outputs
    mounts = script_container_mounts(feedstock, RenderedConfig(config=config(), outputs=(output,)), folders(feedstock))
    seen = {mount.target for mount in mounts}
    assert {f"{INSIDE}/{name}" for name in ("LICENSE", "src/a.c", "log.json")} <= seen


def _described(folder: Path, about: Mapping[str, object]) -> tuple[Feedstock, BuildConfig]:
    """Return a feedstock whose package has these values in ``about``, and its config."""
    written_feedstock = builders.feedstock(folder, f"package:\n  name: a\n  version: 1\nabout: {json.dumps(about)}\n")
    return written_feedstock, matrix.configs(written_feedstock)[0]


def test_containers_write_the_work_folder_and_caches_and_read_the_recipe(feedstock: Feedstock, tmp_path: Path) -> None:
    root, artifacts = feedstock.root, feedstock.artifacts
    used = folders(
        feedstock,
        compile_cache=artifacts / "compile-cache" / "k",
        distdir=tmp_path / "downloads",
        shared_packages=(artifacts / "linux-64" / "lib-1-0.conda",),
    )
    assert script_container_mounts(feedstock, rendered("src", "../src/a.c"), used) == (
        Mount(source=root / "recipe", target="/home/conda/recipe_root"),
        Mount(source=root / "recipe", target=f"{INSIDE}/recipe"),
        Mount(source=root / ".ci_support", target=f"{INSIDE}/.ci_support"),
        Mount(source=PACKAGE_ROOT / "kiln", target="/opt/kiln-package/kiln"),
        Mount(source=tmp_path / "downloads", target="/home/conda/distdir"),
        Mount(source=root / "src" / "a.c", target=f"{INSIDE}/src/a.c"),
        Mount(source=artifacts / "work" / "c", target=f"{INSIDE}/build_artifacts/work/c", read_only=False),
        Mount(source=artifacts / "compile-cache" / "k", target="/home/conda/compile-cache", read_only=False),
    )
    assert engine_container_mounts(feedstock, config(), used) == (
        Mount(
            source=artifacts / "linux-64" / "lib-1-0.conda", target=f"{INSIDE}/build_artifacts/linux-64/lib-1-0.conda"
        ),
        Mount(
            source=artifacts / "container-cache", target=f"{INSIDE}/build_artifacts/container-cache", read_only=False
        ),
    )


def test_a_cache_in_the_work_folder_and_a_rehearsals_wheels(feedstock: Feedstock) -> None:
    wheels = feedstock.artifacts / "rehearsal" / "wheels"
    used = folders(feedstock, packages=feedstock.artifacts / "work" / "c" / "cache", wheels=wheels)
    assert engine_container_mounts(feedstock, config(), used) == ()
    seen = Mount(source=wheels, target=f"{INSIDE}/build_artifacts/rehearsal/wheels")
    assert seen in script_container_mounts(feedstock, rendered(), used)


def test_git_and_build_artifacts_are_never_mounted(feedstock: Feedstock) -> None:
    (feedstock.root / "link").symlink_to("/etc")
    mounts = script_container_mounts(feedstock, rendered(".."), folders(feedstock))
    assert {mount.target.removeprefix(f"{INSIDE}/") for mount in mounts if INSIDE in mount.target} == {
        *(".ci_support", "LICENSE", "build_artifacts/work/c", "kiln", "recipe", "src")
    }
    assert [mount.target for mount in mounts if not mount.read_only] == [f"{INSIDE}/build_artifacts/work/c"]


@pytest.mark.parametrize(
    "named", ["../.git", "../build_artifacts", "../.venv", "../..", "/etc", "link", "sub/../link/x"]
)
def test_paths_outside_and_hidden_folders_are_refused(feedstock: Feedstock, named: str) -> None:
    (feedstock.root / ".." / "x").touch()
    (feedstock.recipe / "link").symlink_to("../..")
    with pytest.raises(RecipeFault, match="which containers do not see"):
        script_container_mounts(feedstock, rendered(named), folders(feedstock))
    with pytest.raises(RecipeFault):
        script_container_mounts(feedstock, rendered(script=named), folders(feedstock))


@pytest.mark.parametrize("name", ["recipe", ".ci_support"])
def test_a_recipe_that_is_a_link_outside_is_refused(feedstock: Feedstock, tmp_path: Path, name: str) -> None:
    (feedstock.root / name).rename(tmp_path / name)
    (feedstock.root / name).symlink_to(tmp_path / name)
    with pytest.raises(RecipeFault, match=f"{name} leads to"):
        script_container_mounts(feedstock, rendered(), folders(feedstock))


def test_of_a_local_channel_packages_and_index_are_seen_and_nothing_else(feedstock: Feedstock, tmp_path: Path) -> None:
    channel, plain, inner = tmp_path / "a channel", tmp_path / "plain", feedstock.root / "channel"
    for folder in (channel / "noarch", channel / ".kiln" / "index", plain / "noarch", inner / "linux-64"):
        folder.mkdir(parents=True)
    (channel / "linux-64").symlink_to("/etc")
    (channel / "private").touch()
    (channel / "noarch" / "repodata.json").touch()
    (inner / "linux-64" / "repodata.json.zst").touch()
    named = (channel.as_uri(), str(plain), f"file://{INSIDE}/channel", "conda-forge", "https://example.org/c")
    assert engine_container_mounts(feedstock, config(*named), folders(feedstock))[:-1] == (
        Mount(source=channel / "noarch", target=f"{channel}/noarch"),
        Mount(source=channel / ".kiln" / "index", target=f"{channel}/.kiln/index"),
        Mount(source=inner / "linux-64", target=f"{INSIDE}/channel/linux-64"),
    )


FEEDSTOCK = Feedstock(root=Path("/f/some-feedstock"))


def test_the_variables_are_conda_forges() -> None:
    assert conda_forge_variables(
        FEEDSTOCK, "linux_64_", caller={"CI": "1", "sha": "abc", "TOKEN": "hidden"}, cores=4, uid=1000
    ) == {
        "CONFIG": "linux_64_",
        "UPLOAD_PACKAGES": "False",
        "IS_PR_BUILD": "True",
        "HOST_USER_ID": "1000",
        "CPU_COUNT": "4",
        "FEEDSTOCK_NAME": "some-feedstock",
        "CI": "1",
        "sha": "abc",
    }
    said = {"CPU_COUNT": "2", "FEEDSTOCK_NAME": "other"}
    assert conda_forge_variables(FEEDSTOCK, "c", caller=said, cores=4, uid=0).items() >= said.items()


pytestmark = pytest.mark.processes


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Path]:
    """A queue with its loop at work, whose environment has a word that no script should see."""
    folder = tmp_path / "a queue"
    environment = {**os.environ, "LOOPS_OWN": "1"}
    with (
        executor_environment.shared_script_queue(folder) as close,
        subprocess.Popen(executor_environment.script_loop_command(folder), env=environment) as loop,
    ):
        yield folder
        close()
        assert loop.wait() == 0


def bash(queue: Path, script: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    value = executor_environment.environment_with_queue_shell(queue, {"PATH": os.environ["PATH"], **variables})
    argv = (str(queue / "bin" / "bash"), *words, str(script))
    return subprocess.run(argv, env=value, cwd=script.parent, text=True, capture_output=True, check=False)


def test_a_recipes_script_runs_in_the_loop_as_it_would_have_here(queue: Path, tmp_path: Path) -> None:
    script = tmp_path / "conda_build.sh"
    script.write_text(
        'echo "$KILN_APART,$LOOPS_OWN,$MINE,$PWD"; echo error >&2; bash run_test.sh; false; echo not here'
    )
    (tmp_path / "run_test.sh").write_text("echo one within another")
    ended = bash(queue, script, "-e", MINE="it's\n'mine'")
    assert ended.stdout == f"1,,it's\n'mine',{tmp_path}\nerror\none within another\n"
    assert ended.returncode == 1
    assert executor_environment.isolated_script_count(queue) == 1
    executor_environment.require_isolated_script_run(queue, 0, "compile")


def test_other_scripts_run_here(queue: Path, tmp_path: Path) -> None:
    script = tmp_path / "other.sh"
    script.write_text('echo "here${KILN_APART:-}"; exit 4')
    ended = bash(queue, script)
    assert (ended.stdout, ended.returncode) == ("here\n", 4)
    with pytest.raises(BuildFailed, match="build small ran its script outside the container without the network"):
        executor_environment.require_isolated_script_run(queue, 0, "build small")


def test_a_background_process_of_a_script_does_not_delay_the_engine(queue: Path, tmp_path: Path) -> None:
    script = tmp_path / "run_test.sh"
    script.write_text("sleep 600 & echo $!")
    ended = bash(queue, script)
    assert ended.returncode == 0
    os.kill(int(ended.stdout), 9)


def test_an_engine_that_is_slow_to_read_gets_all_that_a_script_has_said(queue: Path, tmp_path: Path) -> None:
    script, shell = tmp_path / "conda_build.sh", queue / "bin" / "bash"
    script.write_text("seq 20000")
    shell.write_text(shell.read_text().replace("0.01 0.04 0.05 0.1 0.2 0.3 0.3", "0"))  # as if they were over
    value = executor_environment.environment_with_queue_shell(queue, {"PATH": os.environ["PATH"]})
    with subprocess.Popen((shell, script), env=value, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        until(lambda: executor_environment.isolated_script_count(queue) == 1, "the script has ended")
        assert process.stdout.read().split()[-1] == b"20000"
    assert process.returncode == 0


def test_a_script_fails_when_its_container_has_ended(tmp_path: Path) -> None:
    script = tmp_path / "conda_build.sh"
    script.touch()
    with executor_environment.shared_script_queue(tmp_path / "queue") as close:
        close()
    ended = bash(tmp_path / "queue", script)
    assert ended.returncode == 1
    assert "the container in which scripts run without the network has ended" in ended.stderr


def test_the_network_is_granted_by_names_and_patterns() -> None:
    granted = executor_environment.is_network_granted
    assert granted("compile", ("compile",))
    assert granted("build small", ("compile", "build *"))
    assert not granted("test small", ("build *",))
    assert not granted("compile", ())
