"""Given a rendered config, exactly these packages are made, in this order, in this way."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BuildFailed
from kiln.build.engine import failures, scripts
from kiln.build.engine.plan import outputs_in_build_order, plan_compile, plan_outputs, plan_rehearsal
from kiln.build.engine.run import (
    HANDED_OVER,
    UNPACK,
    engine_environment,
    recipe_with_merged_secrets,
    secret_names_of_step,
    source_fetch_environment,
)
from kiln.build.engine.scripts import lines_without_shell_trace
from kiln.build.steps import RunExport, StagedFiles
from kiln.recipe import pins
from kiln.recipe.feedstock import BuildConfig
from kiln.recipe.rendered import (
    BuildPlatforms,
    BuildSettings,
    LinkingSettings,
    Output,
    OutputTest,
    PackageSettings,
    Pin,
    PrefixSettings,
    PythonSettings,
    RenderedConfig,
    Requirements,
    Script,
    Source,
    Staging,
)
from tests import builders

if TYPE_CHECKING:
    from kiln.build.steps import BuildStep, CompileStep

CPU = BuildConfig(name="cpu", platform="linux-64", variant={"python": ("3.11.* *_cpython",)}, pin_run_as_build={})
CUDA = BuildConfig(name="cuda", platform="linux-64", variant={"cuda_compiler_version": ("12.9",)}, pin_run_as_build={})


def output(name: str, *, host: tuple[str, ...] = (), run: tuple[str, ...] = (), **more: Any) -> Output:
    test = OutputTest(imports=("app",), script=Script(lines=("app --help",)), requires=("gcc 14",), files=("t.py",))
    return builders.output(
        name,
        version="2.21.0",
        build_number=200,
        build_string="cuda129h1234567_200",
        requirements=Requirements(build=("gcc_linux-64 14.*",), host=host, run=run),
        track_features=("tensorflow-cpu",) if name == "app" else (),
        run_exports={"weak": ("lib 2.21.0",)} if name == "lib" else {},
        tests=(test,),
        script=Script(file="split.sh"),
        entry_points=("app = app:main",) if name == "app" else (),
        about={"home": "https://example.org", "license": "Apache-2.0", "license_file": "LICENSE"},
        used={"__cuda": "__cuda"},
        **more,
    )


LIB = output("lib", run=("__cuda",))
APP = output("app", host=("python 3.11.* *_cpython", "lib 2.21.0 cuda129h1234567_200"), run=("lib 2.21.0", "python"))
STAGING = Staging(
    script=Script(file="build.sh"),
    requirements=Requirements(host=("python 3.11.*",)),
    sources=(Source(git_url="https://g", git_rev="v1", folder="src", patches=("a.patch",)),),
    package=("whole", "2.21.0", 200),
)
META = output("meta", run=("app 2.21.0 cuda*",))


def planned(rendered: RenderedConfig, compiled: Path | None = None, **more: Any) -> tuple[BuildStep, ...]:
    return plan_outputs(
        rendered,
        recipe_folder=Path("/r"),
        folder=Path("/w"),
        channels=("conda-forge",),
        compiled={} if compiled is None else {"compile": StagedFiles(folder=compiled)},
        extra={"sha": "1"},
        **more,
    )


def rehearsed(*outputs: Output, config: BuildConfig = CPU, wheel: str = "/w.whl") -> tuple[BuildStep, ...]:
    return plan_rehearsal(
        RenderedConfig(config=config, outputs=outputs),
        recipe_folder=Path("/r"),
        folder=Path("/making"),
        channels=("file:///channel",),
        wheel=Path(wheel),
    )


def compiling(rendered: RenderedConfig, staging: Staging, **more: Any) -> CompileStep:
    folders: dict[str, Any] = {
        "recipe_folder": Path("/r"),
        "folder": Path("/c"),
        "settings": Path("/config/compile.env"),
    }
    return plan_compile(rendered, staging, **folders, channels=("x",), **more)


def test_each_output_comes_after_those_it_needs() -> None:
    skipped = output("gpu", skip=True)
    assert [item.name for item in outputs_in_build_order((META, APP, skipped, LIB))] == ["lib", "app", "meta"]


def test_a_cycle_of_outputs_is_refused() -> None:
    with pytest.raises(BuildFailed, match="depend on each other"):
        outputs_in_build_order((output("a", host=("b",)), output("b", host=("a",))))


def test_the_plan_of_a_rehearsal() -> None:
    lib, app = rehearsed(APP, LIB, config=CUDA, wheel="/wheels/it's.whl")
    assert (lib.folder, lib.channels) == (Path("/making/lib"), ("file:///channel",))
    assert lib.index == {"license": "Apache-2.0"}
    assert lib.environment == {"CONDA_OVERRIDE_CUDA": "12.9"}
    assert app.index == {"license": "Apache-2.0", "track_features": "tensorflow-cpu"}
    assert app.recipe["package"] == {"name": "app", "version": "2.21.0"}
    assert app.recipe["build"]["string"] == "cuda129h1234567_200"
    assert app.recipe["build"]["python"]["entry_points"] == ["app = app:main"]
    assert app.recipe["build"]["script"]["content"] == [
        "export RECIPE_DIR=/r",
        "export cuda_compiler_version=12.9",
        *lines_without_shell_trace(("mkdir -p dist", "ln -s '/wheels/it'\"'\"'s.whl' dist/")),
        "bash -e /r/split.sh",
        *lines_without_shell_trace(
            (*scripts.compile_modules_lines(APP), *failures.refuse_special_files_lines(Path("/making/app")))
        ),
    ]
    assert "build" not in app.recipe["requirements"]
    assert "skip_pyc_compilation" not in app.recipe["build"]["python"]
    assert app.recipe["requirements"]["host"] == ["python 3.11.* *_cpython", "lib ==2.21.0 cuda129h1234567_200"]
    assert lib.recipe["requirements"]["run_exports"] == {"weak": ["lib ==2.21.0"]}
    assert app.recipe["about"] == {"license_file": ["LICENSE"]}
    assert app.edits["hash_input"] == {"__cuda": "__cuda"}
    assert app.edits["about"] == {"home": "https://example.org", "license": "Apache-2.0", "license_file": "LICENSE"}
    assert app.recipe["extra"] == {"rehearsal": True}
    assert app.recipe["tests"] == []
    assert [entry["to"] for entry in app.edits["files"]] == [
        *("recipe", "recipe/meta.yaml.template", "recipe/conda_build_config.yaml", "."),
        *("test/test_time_dependencies.json", "test/run_test.py", "test/run_test.sh", "test"),
    ]


def test_a_rehearsal_has_what_the_tools_of_its_omitted_build_section_export() -> None:
    tools = Requirements(build=("gcc_linux-64 14.*", "sysroot_linux-64 2.28.*"), run=("__cuda",))
    ignoring = BuildSettings(ignore_run_exports=("__glibc",))
    runs = [
        rehearsed(dataclasses.replace(LIB, requirements=tools, settings=settings))[0].recipe["requirements"]["run"]
        for settings in (BuildSettings(), ignoring)
    ]
    assert runs == [["__cuda", "__glibc >=2.28,<3.0.a0"], ["__cuda"]]


def test_a_rehearsal_installs_link_scripts() -> None:
    (step,) = rehearsed(dataclasses.replace(LIB, settings=BuildSettings(link_scripts={"post-link": "post-link.sh"})))
    line = 'install -D -m 775 /r/post-link.sh "$PREFIX/bin/".lib-post-link.sh'
    assert step.recipe["build"]["script"]["content"][-3] == line


def test_the_plan_of_a_build_has_its_compilers_and_no_mark() -> None:
    (step,) = planned(RenderedConfig(config=CPU, outputs=(LIB,)))
    assert step.recipe["requirements"]["build"] == ["gcc_linux-64 14.*"]
    assert step.recipe["extra"] == {"sha": "1"}
    assert step.recipe["build"]["dynamic_linking"] == {"binary_relocation": True}
    assert step.recipe["build"]["prefix_detection"] == {"ignore_binary_files": False}
    assert step.environment == {}


def test_overlinking_is_an_error_by_conda_forge_yml_unless_the_recipe_decides() -> None:
    forge = PackageSettings(error_overlinking=True, channel_priority="disabled")

    def behavior(output: Output) -> str:
        (step,) = planned(RenderedConfig(config=CPU, outputs=(output,)), forge=forge)
        assert step.settings == forge
        return str(step.recipe["build"]["dynamic_linking"].get("overlinking_behavior"))

    decided = BuildSettings(linking=LinkingSettings(error_overlinking=False))
    assert behavior(LIB) == "error"
    assert behavior(dataclasses.replace(LIB, settings=decided)) == "ignore"


def test_packages_of_a_release_have_its_level_and_those_of_a_rehearsal_the_fast_one() -> None:
    (release,) = planned(RenderedConfig(config=CPU, outputs=(LIB,)), forge=PackageSettings(level=16))
    (rehearsal,) = rehearsed(LIB)
    assert (release.settings.level, rehearsal.settings.level) == (16, 1)


def test_a_cross_compiled_config_has_two_platforms() -> None:
    cross = dataclasses.replace(CPU, platform="linux-aarch64", build_platform="linux-64")
    assert (cross.is_cross, CPU.is_cross) == (True, False)
    for config, expected in (
        (cross, BuildPlatforms(target="linux-aarch64", build="linux-64")),
        (CPU, BuildPlatforms()),
    ):
        rendered = RenderedConfig(config=config, outputs=(LIB,))
        compiled = compiling(rendered, Staging(script=Script(file="build.sh")))
        assert (planned(rendered)[0].platforms, compiled.platforms) == (expected, expected)


def test_a_recipe_decides_what_becomes_of_its_binaries() -> None:
    as_is = dataclasses.replace(LIB, binary_relocation=False, detect_binary_files_with_prefix=False)
    (step,) = planned(RenderedConfig(config=CPU, outputs=(as_is,)))
    assert step.recipe["build"]["dynamic_linking"] == {"binary_relocation": False}
    assert step.recipe["build"]["prefix_detection"] == {"ignore_binary_files": True}
    (step,) = planned(RenderedConfig(config=CPU, outputs=(dataclasses.replace(LIB, binary_relocation=("lib/a*",)),)))
    assert step.recipe["build"]["dynamic_linking"] == {"binary_relocation": ["lib/a*"]}


def test_programs_that_fetch_sources_get_no_secret() -> None:
    environment = {"PATH": "/bin", "REMOTE": "x", "MY_TOKEN": "y", "SSH_AUTH_SOCK": "/s", "https_proxy": "p"}
    fetching = source_fetch_environment(environment, ("REMOTE", "PATH"))
    assert fetching == {"PATH": "/bin", "SSH_AUTH_SOCK": "/s", "https_proxy": "p"}


def test_several_packages_share_the_compiles_work_directory() -> None:
    rendered = RenderedConfig(
        config=CUDA,
        name="whole",
        outputs=tuple(dataclasses.replace(item, staging="compile") for item in (LIB, APP)),
        stagings=(STAGING,),
    )
    step = compiling(rendered, STAGING, secrets=("REMOTE",))
    assert step.title == "compile"
    assert step.recipe["source"] == [
        {"git": "https://g", "rev": "v1", "target_directory": "src", "patches": ["/r/a.patch"]}
    ]
    assert step.recipe["requirements"] == {"build": [], "host": ["python 3.11.*"]}
    content = step.recipe["build"]["script"]["content"]
    assert content.index(". /config/compile.env") < content.index("bash -e /r/build.sh")
    refusal = content.index(*failures.refuse_special_files_lines(Path("/c")))
    assert content.index("bash -e /r/build.sh") < refusal < len(content) - 1, "before the archive is made, too"
    assert {"export PKG_NAME=whole", "export PKG_VERSION=2.21.0", "export PKG_BUILDNUM=200"} <= set(content)
    assert "secrets" not in step.recipe["build"]["script"], "secrets of a run do not change the result"
    assert recipe_with_merged_secrets(step)["build"]["script"] == {
        "content": [*UNPACK, *content],
        "secrets": [HANDED_OVER],
    }
    value = engine_environment(secret_names_of_step(step), {"REMOTE": "it's\nhere", "PATH": "/bin"})
    assert value == {"PATH": "/bin", HANDED_OVER: "export REMOTE='it'\"'\"'s\nhere'"}
    lib, app = planned(rendered, compiled=Path("/c"))
    assert "source" not in lib.recipe
    assert 'export SRC_DIR="$(cat /c/work_directory)"' in app.recipe["build"]["script"]["content"]
    assert 'cd "$SRC_DIR"' in lib.recipe["build"]["script"]["content"]


def test_what_runs_for_each_of_several_pythons_is_made_for_each() -> None:
    both = [dataclasses.replace(APP, build_string=f"py{item}", variant={"python": item}) for item in ("310", "311")]
    steps = planned(RenderedConfig(config=CPU, outputs=tuple(both)))
    assert [step.folder.name for step in steps] == ["app-py310", "app-py311"]
    assert "export python=310" in steps[0].recipe["build"]["script"]["content"]


LIBRARY = Staging(
    name="library",
    script=Script(lines=("make",)),
    requirements=Requirements(host=("zlib", "python"), versions={"zlib": "1.3", "python": "3.11.* *_cpython"}),
    settings=BuildSettings(ignore_run_exports=("zlib",)),
    variant={"flavor": "sweet"},
    copied=True,
)


def test_a_staging_output_is_compiled_without_the_name_of_a_package() -> None:
    rendered = RenderedConfig(config=CPU, outputs=(), stagings=(LIBRARY,))
    step = compiling(rendered, LIBRARY)
    assert step.title == "compile library"
    assert step.recipe["requirements"] == {
        "build": [],
        "host": ["zlib 1.3.*", "python 3.11.* *_cpython"],
        "ignore_run_exports": {"by_name": ["zlib"]},
    }
    content = step.recipe["build"]["script"]["content"]
    assert "export flavor=sweet" in content
    assert any(line.startswith("unset PKG_NAME") for line in content)
    assert not any(line.startswith("export PKG_") for line in content)


def planned_to_inherit(output: Output) -> BuildStep:
    exports = (RunExport(spec="zlib >=1", package="zlib-devel"), RunExport(spec="c >=2", package="c-devel"))
    (step,) = plan_outputs(
        RenderedConfig(config=CPU, outputs=(output,), stagings=(LIBRARY,)),
        recipe_folder=Path("/r"),
        folder=Path("/w"),
        channels=(),
        compiled={"library": StagedFiles(folder=Path("/c"), run_exports=exports)},
        extra={},
    )
    return step


def test_an_output_takes_over_run_exports_but_for_those_that_it_ignores() -> None:
    lib = dataclasses.replace(LIB, staging="library")
    assert planned_to_inherit(lib).recipe["requirements"]["run"] == ["__cuda", "zlib >=1", "c >=2"]
    without = dataclasses.replace(lib, staged_exports=False)
    assert planned_to_inherit(without).recipe["requirements"]["run"] == ["__cuda"]
    for ignored in (
        BuildSettings(ignore_run_exports=("zlib",)),
        BuildSettings(ignore_run_exports_from=("zlib-devel",)),
    ):
        step = planned_to_inherit(dataclasses.replace(lib, settings=ignored))
        assert step.recipe["requirements"]["run"] == ["__cuda", "c >=2"]
        assert "ignore_run_exports" in step.recipe["requirements"]


def test_only_an_output_with_a_script_gets_a_copy_of_the_work_directory() -> None:
    lib = dataclasses.replace(LIB, staging="library", about={"license_file": ("LICENSES/*",)})
    with_script = "\n".join(planned_to_inherit(lib).recipe["build"]["script"]["content"])
    assert 'find "$kiln_work"' in with_script
    picking = dataclasses.replace(lib, script=Script(), files=("lib/*",))
    without = "\n".join(planned_to_inherit(picking).recipe["build"]["script"]["content"])
    assert 'find "$kiln_work"' not in without
    assert "for kiln_file in LICENSES/*; do" in without
    assert "tar" in with_script
    assert "tar" in without
    layered = dataclasses.replace(lib, sources=(Source(path="own"),))
    assert "--skip-old-files -xf -" in "\n".join(planned_to_inherit(layered).recipe["build"]["script"]["content"])


def test_settings_and_names_of_a_recipe_reach_the_engine() -> None:
    pin = Pin(name="numpy", subpackage=False, min_pin="x.x", max_pin=None, upper="3", by_engine=True)
    app = dataclasses.replace(
        APP,
        script=Script(lines=("make ${{ label }}",), names={"label": "x"}),
        settings=BuildSettings(python=PythonSettings(skip_pyc=("*",)), prefix=PrefixSettings(ignore=("a",))),
        files=("lib",),
        pins=(("run", 1, pin),),
    )
    (step,) = planned(RenderedConfig(config=CPU, outputs=(app,)))
    assert step.recipe["context"] == {"label": "x"}
    assert step.recipe["build"]["python"] == {"skip_pyc_compilation": ["*"], "entry_points": ["app = app:main"]}
    assert step.recipe["build"]["prefix_detection"] == {"ignore_binary_files": False, "ignore": ["a"]}
    assert step.recipe["requirements"]["run"] == [
        "lib ==2.21.0",
        '${{ pin_compatible("numpy", lower_bound="x.x", upper_bound="3") }}',
    ]


def test_every_kind_of_test_is_in_the_packages_metadata() -> None:
    tests = (
        OutputTest(imports=("a",), pip_check=True, pythons=("3.11",), by_engine=True),
        OutputTest(modules={"perl": ("B",)}, by_engine=True),
        OutputTest(contents={"bin": ["p"]}, by_engine=True),
        OutputTest(downstreams=("user 1", "other"), by_engine=True),
        OutputTest(script=Script(file="check.py", environment={"A": "1"}), files=("d/*",), by_engine=True),
    )
    (step,) = planned(RenderedConfig(config=CPU, outputs=(dataclasses.replace(LIB, tests=tests),)))
    assert step.recipe["tests"] == [
        {"python": {"imports": ["a"], "pip_check": True, "python_version": ["3.11"]}},
        {"perl": {"uses": ["B"]}},
        {"package_contents": {"bin": ["p"]}},
        {"downstream": "user ==1"},
        {"downstream": "other"},
        {
            "script": {"file": "check.py", "env": {"A": "1"}},
            "requirements": {"run": []},
            "files": {"recipe": ["d/*"], "source": []},
        },
    ]
    assert step.packed == ("check.py", "d/*")


def planned_alone(item: Output) -> BuildStep:
    (step,) = plan_outputs(
        pins.close_static_pins(RenderedConfig(config=CPU, outputs=(item,))),
        recipe_folder=Path("/recipe"),
        folder=Path("/f"),
        channels=(),
        compiled={},
        extra={"rehearsal": True},
    )
    return step


def test_a_plain_version_of_an_environment_stands_for_all_that_begin_with_it() -> None:
    needs = Requirements(build=("make 4",), host=("python 3.11", "zlib >=1", "b 2 h1"), run=("python 3.11",))
    requirements = planned_alone(dataclasses.replace(LIB, requirements=needs)).recipe["requirements"]
    assert requirements["build"] == ["make 4.*"]
    assert requirements["host"] == ["python 3.11.*", "zlib >=1", "b ==2 h1"]
    assert requirements["run"] == ["python 3.11.*"]
    exact = dataclasses.replace(LIB, requirements=needs, settings=BuildSettings(by_engine=True))
    assert planned_alone(exact).recipe["requirements"]["host"] == ["python ==3.11", "zlib >=1", "b ==2 h1"]


def test_an_absolute_license_is_the_recipes_own() -> None:
    step = planned_alone(dataclasses.replace(LIB, about={"license_file": ("/recipe/legal/LICENSE", "COPYING")}))
    assert step.recipe["about"] == {"license_file": ["legal/LICENSE", "COPYING"]}
    assert '(cd /recipe && cp -r --parents legal/LICENSE "$SRC_DIR/")' in step.recipe["build"]["script"]["content"]
    outside = planned_alone(dataclasses.replace(LIB, about={"license_file": ("/recipe/../etc/passwd",)}))
    assert outside.recipe["about"] == {"license_file": ["/recipe/../etc/passwd"]}
    assert not any("passwd" in line for line in outside.recipe["build"]["script"]["content"])
