"""A plan as text says what is known of its time and its disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import RecipeFault
from kiln.base.system.machine import MachineResources
from kiln.build.job.job import BuildOptions, RunOptions
from kiln.build.rehearsal.wheels import LockedWheel, RehearsalPlan, StandIn
from kiln.feedstock import config_file, matrix, rerender
from kiln.feedstock.sources import SourceFile
from kiln.recipe import render
from kiln.run import recipe_checks
from kiln.run.plan import RunPlan, check_recipe, plan_as_text, stated_time
from kiln.state.results import ConfigRun, ConfigState
from kiln.state.store.layout import ArtifactLayout
from tests import builders
from tests.builders import LINUX_ONLY
from tests.unit.recipe.v1.test_rendering import feedstock as feedstock_v1

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.rendered import RenderedConfig


META = "package:\n  name: a\n  version: 1\n"


def a_plan(*, estimate: float | None, **more: Any) -> RunPlan:
    waiting = ConfigRun(config="a", state=ConfigState.WAITING, group="cpu", cold=True, estimate=estimate)
    fixed = {
        "options": RunOptions(configs=("a",), command="kiln build a", build=BuildOptions()),
        "layout": ArtifactLayout(root=Path("build_artifacts")),
        "cores": 8,
        "container": "docker",
        "image": None,
        "configs": (waiting,),
        "jobs_of": {},
        "seconds": estimate,
        "disk": 500_000_000,
        "share": MachineResources(cores=8, memory=16 * 10**9),
        "notes": (),
    }
    return RunPlan(**{**fixed, **more})


def test_the_disk_of_a_config_that_was_never_built_is_a_lower_bound() -> None:
    assert plan_as_text(a_plan(estimate=None)).splitlines()[-2:] == [
        "temporary disk: at least 500 MB, no similar config was built here yet",
        "time: unknown, no similar config was built here yet",
    ]


@pytest.mark.parametrize(
    ("settings", "stated"),
    [
        ("", ""),
        ("kiln: {build_hours: 24}\n", "; the feedstock states up to 24 h each on 4 cores"),
        ("kiln: {build_hours: {cuda: 24, cpu: 3}}\n", "; the feedstock states up to 3 h each on 4 cores"),
    ],
)
def test_a_time_that_was_never_measured_is_what_the_feedstock_states(
    settings: str, stated: str, tmp_path: Path
) -> None:
    feedstock = builders.expanded(tmp_path, META, forge=f"{LINUX_ONLY}{settings}")
    (name,) = feedstock.config_names
    waiting = ConfigRun(config=name, state=ConfigState.WAITING, group="cpu")
    plan = a_plan(estimate=None, configs=(waiting,))
    text = plan_as_text(plan, stated_time(feedstock, plan))
    assert text.endswith(f"time: unknown, no similar config was built here yet{stated}")


def test_the_disk_of_a_config_that_was_built_is_that_of_its_last_build() -> None:
    lines = plan_as_text(a_plan(estimate=90.0, disk=40 * 10**9)).splitlines()
    assert lines[-2:] == ["temporary disk: 40 GB", "time: 1 min 30 s"]


@pytest.mark.parametrize(("compiles", "line"), [(True, "build first of cpu  a"), (False, "build  a")])
def test_a_group_is_named_where_its_configs_share_a_compile(compiles: bool, line: str) -> None:
    assert plan_as_text(a_plan(estimate=None, compiles=compiles)).splitlines()[0] == line


def test_the_recipes_own_command_is_named_for_one_config_and_for_several() -> None:
    lines = plan_as_text(a_plan(estimate=None, plan_command="python3 show.py CONFIG")).splitlines()
    assert lines[-3:] == [
        "",
        "the compile's commands, by a program of the recipe that a dry run does not start:",
        "python3 show.py a",
    ]
    several = tuple(ConfigRun(config=name, state=ConfigState.WAITING, group="cpu") for name in ("a", "b"))
    text = plan_as_text(a_plan(estimate=None, configs=several, plan_command="python3 show.py CONFIG"))
    assert text.endswith("\npython3 show.py CONFIG")


def test_a_rehearsal_says_what_it_is_made_from_once_for_configs_that_share_it() -> None:
    wheel = LockedWheel(name="six", version="1.17", file="six.whl", size=1, sha256="a", pythons=("3.11",))
    made = StandIn(name="gcc_linux-64", version="12.2")
    source = SourceFile(name="a.tar.gz", sha256="b", url="https://x/a.tar.gz", origin="pip's index")
    plan = RehearsalPlan(python="3.11", dependencies=(wheel,), stand_ins=(made,), sources=(source,))
    waiting = tuple(ConfigRun(config=name, state=ConfigState.WAITING, group="cpu") for name in ("a", "b", "c"))
    rehearsals = {"a": plan.summary, "b": plan.summary, "c": RehearsalPlan(python="3.12").summary}
    text = plan_as_text(a_plan(estimate=None, configs=waiting, rehearsals=rehearsals))
    assert text.splitlines()[-9:] == [
        "",
        "a, b from:",
        "    python        3.11",
        "    wheels        six 1.17",
        "    this machine  gcc_linux-64 12.2",
        "    sources       a.tar.gz (pip's index)",
        "",
        "c from:",
        "    python        3.12",
    ]


def require_keys(feedstock: Feedstock, configs: Iterable[BuildConfig], *, engine: str) -> None:
    check_recipe(feedstock, tuple(configs), RunOptions(configs=(), command="", build=BuildOptions(engine=engine)))


def test_the_checks_share_one_rendering_of_each_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # they are all within one limit of time, which a large matrix that is rendered twice would exceed
    rendered = []

    def render_once(feedstock: Feedstock, config: BuildConfig) -> RenderedConfig:
        rendered.append(config.name)
        return original(feedstock, config)

    original = render.render
    monkeypatch.setattr(render, "render", render_once)
    feedstock = builders.feedstock(tmp_path, f"{META}build:\n  string: a{{{{ letter }}}}\n", "letter: [a, b]  # all\n")
    configs = matrix.configs(feedstock)
    (note,), first = check_recipe(feedstock, configs, RunOptions(configs=(), command=""))
    assert note.startswith(".ci_support is not up to date"), "it was never rendered here"
    assert rendered == [config.name for config in configs]
    assert len(rendered) == 2
    assert first.outputs[0].build_string == "aa"


def test_a_key_of_another_engine_is_refused_with_the_own_alone(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, f"{META}build:\n  pin_depends: strict\n")
    configs = matrix.configs(feedstock)
    with pytest.raises(RecipeFault, match="build/pin_depends"):
        require_keys(feedstock, configs, engine="rattler-build")
    require_keys(feedstock, configs, engine="conda-build")


def test_patterns_of_overlinking_are_refused_with_the_setting_of_conda_forge_yml(tmp_path: Path) -> None:
    recipe = f"{META}build:\n  overlinking_ignore_patterns:\n    - lib/a.so\n"
    feedstock = builders.feedstock(tmp_path, recipe, forge=f"{LINUX_ONLY}conda_build:\n  error_overlinking: true\n")
    configs = matrix.configs(feedstock)
    with pytest.raises(RecipeFault, match="no build/overlinking_ignore_patterns where overlinking is an error"):
        require_keys(feedstock, configs, engine="rattler-build")
    require_keys(feedstock, configs, engine="conda-build")
    feedstock.meta.write_text(f"{recipe}  error_overlinking: false\n")
    require_keys(feedstock, configs, engine="rattler-build")


def test_an_unknown_key_is_refused_with_every_engine(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, f"{META}  vrsion: 2\n")
    configs = matrix.configs(feedstock)
    for engine in ("rattler-build", "conda-build", "mambabuild"):
        with pytest.raises(RecipeFault, match="unknown key 'package/vrsion'"):
            require_keys(feedstock, configs, engine=engine)


NAMES = ("there.py", "install.sh", "patches/Fix.patch")
FILES = """package:
  name: a
  version: 1
source:
  path: "../nowhere"
  patches:
    - patches/fix.patch
outputs:
  - name: b
    script: instal.sh  # install.sh
  - name: c
    script: there.py
"""


def test_scripts_patches_and_sources_that_do_not_exist_are_refused_with_their_places(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, FILES, files={f"recipe/{name}": "" for name in NAMES})
    configs = matrix.configs(feedstock)
    with pytest.raises(RecipeFault) as refusal:
        require_keys(feedstock, configs, engine="rattler-build")
    assert [line for line in str(refusal.value).splitlines() if "why" not in line] == [
        "recipe/meta.yaml:5:10: source/path: '../nowhere' does not exist",
        "  try: add recipe/../nowhere, or correct its name",
        "recipe/meta.yaml:7:7: source/patches: 'patches/fix.patch' does not exist",
        "  try: did you mean 'patches/Fix.patch'?",
        "recipe/meta.yaml:10:13: script: 'instal.sh' does not exist",
        "  try: did you mean 'install.sh'?",
    ]
    require_keys(feedstock, configs, engine="conda-build")  # its own rules


def test_files_of_the_recipe_that_exist_are_accepted(tmp_path: Path) -> None:
    files = {"recipe/there.py": "", "recipe/instal.sh": "", "nowhere/a.c": "", "recipe/patches/fix.patch": ""}
    feedstock = builders.feedstock(tmp_path, FILES, files=files)
    require_keys(feedstock, matrix.configs(feedstock), engine="rattler-build")


FILES_V1 = """recipe:
  name: a
  version: 1
outputs:
  - staging:
      name: s
    source:
      path: ../nowhere
      patches:
        - fix.patch
        - ${{ RECIPE_DIR }}/late.patch
    build:
      script:
        file: compile.sh
  - package:
      name: b
    inherit: s
    build:
      script: install
"""


def test_files_of_a_recipe_yaml_are_refused_in_the_same_way(tmp_path: Path) -> None:
    feedstock = feedstock_v1(tmp_path, FILES_V1)
    configs = [config_file.read_config(feedstock, "linux_64_")]
    with pytest.raises(RecipeFault) as refusal:
        require_keys(feedstock, configs, engine="rattler-build")
    assert [line for line in str(refusal.value).splitlines() if line.startswith("recipe/")] == [
        "recipe/recipe.yaml:8:13: source/path: '../nowhere' does not exist",
        "recipe/recipe.yaml:10:11: source/patches: 'fix.patch' does not exist",
        "recipe/recipe.yaml:14:15: script: 'compile.sh' does not exist",
    ]
    for name in ("nowhere/a", "recipe/fix.patch", "recipe/compile.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    require_keys(feedstock, configs, engine="rattler-build")


SCRIPT_AND_HASH = f"""package:
  name: a
  version: 1
source:
  url: https://example.org/a-1.tar.gz
  sha256: {60 * "0"}
build:
  script: build.sh
"""


def test_a_script_and_a_hash_that_cannot_be_right_are_refused(tmp_path: Path) -> None:
    feedstock = feedstock_v1(tmp_path, SCRIPT_AND_HASH)
    refused, _ = recipe_checks.faults_and_warnings(feedstock)
    assert [str(error).splitlines()[0] for error in refused] == [
        f"recipe/recipe.yaml:6:11: source/sha256 is '{60 * '0'}'",
        "recipe/recipe.yaml:8:11: script: 'build.sh' does not exist",
    ]
    (feedstock.recipe / "build.sh").write_bytes(b"set -e\r\nmake\r\n")
    refused, _ = recipe_checks.faults_and_warnings(feedstock)
    assert [error.what for error in refused][1:] == ["build.sh has the line ends of Windows"]


def test_a_variable_that_scripts_get_and_the_caller_lacks_is_noted(tmp_path: Path) -> None:
    meta = "package:\n  name: a\n  version: 1\nbuild:\n  script_env:\n    - FOO\n    - BAR=1\n    - BAZ\n"
    feedstock = builders.feedstock(tmp_path, meta)
    configs = matrix.configs(feedstock)
    rerender.write_ci_support(feedstock, configs)
    (note,), _ = check_recipe(feedstock, configs, RunOptions(configs=(), command="", client={"BAZ": ""}))
    assert note.splitlines()[::2] == [
        "recipe/meta.yaml:6:7: FOO is not set: the scripts to which the recipe gives it go without",
        "  try: export FOO before the build, or take it out of the recipe",
    ]
