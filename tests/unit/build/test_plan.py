"""Given a rendered config, exactly these packages are made, in this order, in this way."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.build import in_order, plan_compile, plan_outputs, plan_rehearsal
from kiln.build.engine import HANDED_OVER, UNPACK, handed_over, recipe_of, secrets_of
from kiln.errors import BuildFailed
from kiln.model.build_config import BuildConfig
from kiln.model.build_settings import BuildSettings
from kiln.model.plan import Platforms, StagedFiles
from kiln.model.rendered import Output, OutputTest, Rendered, Requirements, Script, Source, Staging

if TYPE_CHECKING:
    from kiln.model.plan import BuildStep

CPU = BuildConfig(name="cpu", platform="linux-64", variant={"python": ("3.11.* *_cpython",)}, pin_run_as_build={})
CUDA = BuildConfig(name="cuda", platform="linux-64", variant={"cuda_compiler_version": ("12.9",)}, pin_run_as_build={})


def output(name: str, *, host: tuple[str, ...] = (), run: tuple[str, ...] = (), skip: bool = False) -> Output:
    return Output(
        name=name,
        version="2.21.0",
        build_number=200,
        build_string="cuda129h1234567_200",
        subdir="linux-64",
        requirements=Requirements(build=("gcc_linux-64 14.*",), host=host, run=run),
        track_features=("tensorflow-cpu",) if name == "app" else (),
        run_exports={"weak": ("lib 2.21.0",)} if name == "lib" else {},
        tests=(
            OutputTest(imports=("app",), script=Script(lines=("app --help",)), requires=("gcc 14",), files=("t.py",)),
        ),
        script=Script(file="split.sh"),
        entry_points=("app = app:main",) if name == "app" else (),
        about={"home": "https://example.org", "license": "Apache-2.0", "license_file": "LICENSE"},
        used={"__cuda": "__cuda"},
        skip=skip,
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


def test_each_output_comes_after_those_it_needs() -> None:
    assert [each.name for each in in_order((META, APP, LIB))] == ["lib", "app", "meta"]


def test_a_skipped_output_is_not_made() -> None:
    assert [each.name for each in in_order((output("gpu", skip=True), LIB))] == ["lib"]


def test_a_cycle_of_outputs_is_refused() -> None:
    with pytest.raises(BuildFailed, match="depend on each other"):
        in_order((output("a", host=("b",)), output("b", host=("a",))))


def test_the_plan_of_a_rehearsal() -> None:
    rendered = Rendered(config=CUDA, outputs=(APP, LIB))
    lib, app = plan_rehearsal(
        rendered,
        recipe_folder=Path("/feedstock/recipe"),
        folder=Path("/making"),
        channels=("file:///channel",),
        wheel=Path("/wheels/it's.whl"),
    )
    assert (lib.folder, lib.channels) == (Path("/making/lib"), ("file:///channel",))
    assert lib.index == {"license": "Apache-2.0"}
    assert lib.environment == {"CONDA_OVERRIDE_CUDA": "12.9"}
    assert app.index == {"license": "Apache-2.0", "track_features": "tensorflow-cpu"}
    assert app.recipe["package"] == {"name": "app", "version": "2.21.0"}
    assert app.recipe["build"]["string"] == "cuda129h1234567_200"
    assert app.recipe["build"]["python"]["entry_points"] == ["app = app:main"]
    assert app.recipe["build"]["script"]["content"] == [
        "export RECIPE_DIR=/feedstock/recipe",
        "export cuda_compiler_version=12.9",
        "mkdir -p dist",
        "ln -s '/wheels/it'\"'\"'s.whl' dist/",
        "bash -e /feedstock/recipe/split.sh",
    ]
    assert "build" not in app.recipe["requirements"]
    assert app.recipe["requirements"]["host"] == ["python 3.11.* *_cpython", "lib ==2.21.0 cuda129h1234567_200"]
    assert lib.recipe["requirements"]["run_exports"] == {"weak": ["lib ==2.21.0"]}
    assert app.recipe["about"] == {"license_file": ["LICENSE"]}
    assert app.edits == {
        "hash_input": {"__cuda": "__cuda"},
        "about": {"home": "https://example.org", "license": "Apache-2.0", "license_file": "LICENSE"},
    }
    assert app.recipe["extra"] == {"rehearsal": True}
    assert app.recipe["tests"] == [
        {"python": {"imports": ["app"], "pip_check": False}},
        {
            "script": ["app --help"],
            "requirements": {"run": ["gcc ==14"]},
            "files": {"recipe": ["t.py"], "source": []},
        },
    ]


def test_a_rehearsal_installs_link_scripts() -> None:
    linked = dataclasses.replace(LIB, settings=BuildSettings(link_scripts={"post-link": "post-link.sh"}))
    (step,) = plan_rehearsal(
        Rendered(config=CPU, outputs=(linked,)),
        recipe_folder=Path("/r"),
        folder=Path("/making"),
        channels=(),
        wheel=Path("/w.whl"),
    )
    line = 'install -D -m 775 /r/post-link.sh "$PREFIX/bin/".lib-post-link.sh'
    assert step.recipe["build"]["script"]["content"][-1] == line


def planned(rendered: Rendered, compiled: Path | None = None) -> tuple[BuildStep, ...]:
    return plan_outputs(
        rendered,
        recipe_folder=Path("/r"),
        folder=Path("/w"),
        channels=("conda-forge",),
        compiled={} if compiled is None else {"compile": StagedFiles(folder=compiled)},
        extra={"sha": "1"},
    )


def test_the_plan_of_a_build_has_its_compilers_and_no_mark() -> None:
    (step,) = planned(Rendered(config=CPU, outputs=(LIB,)))
    assert step.recipe["requirements"]["build"] == ["gcc_linux-64 14.*"]
    assert step.recipe["extra"] == {"sha": "1"}
    assert step.recipe["build"]["dynamic_linking"] == {"binary_relocation": True}
    assert step.recipe["build"]["prefix_detection"] == {"ignore_binary_files": False}
    assert step.environment == {}


def test_packages_of_a_release_have_its_level_and_those_of_a_rehearsal_the_fast_one(tmp_path: Path) -> None:
    rendered = Rendered(config=CPU, outputs=(LIB,))
    (release,) = plan_outputs(
        rendered, recipe_folder=tmp_path, folder=tmp_path, channels=(), compiled={}, extra={}, level=16
    )
    (rehearsal,) = plan_rehearsal(
        rendered, recipe_folder=tmp_path, folder=tmp_path, channels=(), wheel=tmp_path / "a.whl"
    )
    assert (release.level, rehearsal.level) == (16, 1)


def test_a_cross_compiled_config_has_two_platforms(tmp_path: Path) -> None:
    cross = dataclasses.replace(CPU, platform="linux-aarch64", build_platform="linux-64")
    assert (cross.is_cross, CPU.is_cross) == (True, False)
    for config, wanted in ((cross, Platforms(target="linux-aarch64", build="linux-64")), (CPU, Platforms())):
        rendered = Rendered(config=config, outputs=(LIB,))
        compiling = plan_compile(
            rendered,
            Staging(script=Script(file="build.sh")),
            recipe_folder=tmp_path,
            folder=tmp_path,
            channels=(),
            settings=tmp_path / "settings",
        )
        assert (planned(rendered)[0].platforms, compiling.platforms) == (wanted, wanted)


def test_a_recipe_decides_what_becomes_of_its_binaries() -> None:
    as_is = dataclasses.replace(LIB, binary_relocation=False, detect_binary_files_with_prefix=False)
    (step,) = planned(Rendered(config=CPU, outputs=(as_is,)))
    assert step.recipe["build"]["dynamic_linking"] == {"binary_relocation": False}
    assert step.recipe["build"]["prefix_detection"] == {"ignore_binary_files": True}
    (step,) = planned(Rendered(config=CPU, outputs=(dataclasses.replace(LIB, binary_relocation=("lib/a*",)),)))
    assert step.recipe["build"]["dynamic_linking"] == {"binary_relocation": ["lib/a*"]}


def test_a_single_package_has_the_sources_itself() -> None:
    single = dataclasses.replace(LIB, sources=(Source(url=("https://a/b",), sha256="5"),))
    (step,) = planned(Rendered(config=CPU, outputs=(single,)))
    assert step.recipe["source"] == [{"url": ["https://a/b"], "sha256": "5"}]


def test_several_packages_share_the_compiles_work_directory() -> None:
    rendered = Rendered(
        config=CUDA,
        name="whole",
        outputs=tuple(dataclasses.replace(each, staging="compile") for each in (LIB, APP)),
        stagings=(STAGING,),
    )
    step = plan_compile(
        rendered,
        STAGING,
        recipe_folder=Path("/r"),
        folder=Path("/c"),
        channels=("x",),
        settings=Path("/config/compile.env"),
        secrets=("REMOTE",),
    )
    assert step.title == "compile"
    assert step.recipe["source"] == [
        {"git": "https://g", "rev": "v1", "target_directory": "src", "patches": ["/r/a.patch"]}
    ]
    assert step.recipe["requirements"] == {"build": [], "host": ["python 3.11.*"]}
    content = step.recipe["build"]["script"]["content"]
    assert content.index(". /config/compile.env") < content.index("bash -e /r/build.sh")
    assert {"export PKG_NAME=whole", "export PKG_VERSION=2.21.0", "export PKG_BUILDNUM=200"} <= set(content)
    assert "secrets" not in step.recipe["build"]["script"], "what a run is told in secret does not decide the result"
    assert recipe_of(step)["build"]["script"] == {
        "content": [*UNPACK, *content],
        "secrets": [HANDED_OVER],
    }
    given = handed_over(secrets_of(step), {"REMOTE": "it's\nhere", "PATH": "/bin"})
    assert given == {"PATH": "/bin", HANDED_OVER: "export REMOTE='it'\"'\"'s\nhere'"}
    lib, app = planned(rendered, compiled=Path("/c"))
    assert "source" not in lib.recipe
    assert 'export SRC_DIR="$(cat /c/work_directory)"' in app.recipe["build"]["script"]["content"]
    assert 'cd "$SRC_DIR"' in lib.recipe["build"]["script"]["content"][-3:]


def test_what_runs_for_each_of_several_pythons_is_made_for_each() -> None:
    both = [dataclasses.replace(APP, build_string=f"py{each}", variant={"python": each}) for each in ("310", "311")]
    steps = planned(Rendered(config=CPU, outputs=tuple(both)))
    assert [step.folder.name for step in steps] == ["app-py310", "app-py311"]
    assert "export python=310" in steps[0].recipe["build"]["script"]["content"]
