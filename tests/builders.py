"""What most tests start from: feedstocks of the fixtures and small ones, configs, renderings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.build.engine.plan import plan_outputs
from kiln.build.job.job import BuildJob, BuildOptions, ConfigJob
from kiln.build.steps import StagedFiles
from kiln.feedstock import config_file, matrix, rerender
from kiln.recipe import feedstock as model
from kiln.recipe import pins, render
from kiln.recipe.feedstock import BuildConfig
from kiln.recipe.rendered import Output, RenderedConfig, Staging
from kiln.state.results import Artifact, PackageReport, TestReport, TestVerdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.build.steps import BuildStep
    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import Source

FIXTURES = Path(__file__).parent / "fixtures"
PINNING = FIXTURES / "pinning" / "conda_build_config.yaml"
NAMES = sorted(path.name for path in (FIXTURES / "feedstocks").iterdir())
LINUX_ONLY = "provider:\n  osx_64: null\n  win_64: null\n"


def expected(name: str) -> dict[str, Any]:
    """Return the reference tools' results for a fixture."""
    results: dict[str, Any] = json.loads((FIXTURES / "feedstocks" / name / "expected.json").read_text())
    return results


def copied(name: str, folder: Path) -> Feedstock:
    """Return a fixture, copied to where it may be written."""
    shutil.copytree(FIXTURES / "feedstocks" / name, folder / name)
    return model.load(folder / name)


def write_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files by their paths in a folder."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def feedstock(
    folder: Path,
    recipe: str,
    variants: str = "",
    forge: str = LINUX_ONLY,
    files: Mapping[str, str] | None = None,
    *,
    v1: bool = False,
    configs: Mapping[str, str] | None = None,
) -> Feedstock:
    """Write and load a feedstock: a recipe in one of the formats, variants, settings, configs, other files by path."""
    texts = {
        "recipe/recipe.yaml" if v1 else "recipe/meta.yaml": recipe,
        "conda-forge.yml": forge + "conda_build_tool: rattler-build\n" * v1,
        **({"recipe/conda_build_config.yaml": variants} if variants or not v1 else {}),
        **{f".ci_support/{name}.yaml": text for name, text in (configs or {}).items()},
        **(files or {}),
    }
    write_files(folder, texts)
    return model.load(folder)


def expanded(folder: Path, recipe: str, variants: str = "", forge: str = LINUX_ONLY, **more: Any) -> Feedstock:
    """Write a feedstock with the configs that it expands to."""
    found = feedstock(folder, recipe, variants, forge, **more)
    rerender.write_ci_support(found, matrix.configs(found))
    return found


def rendered(found: Feedstock, name: str | None = None) -> RenderedConfig:
    """Render a config of a feedstock: the only one that it expands to, or the written one of that name."""
    if name is not None:
        return render.render(found, config_file.read_config(found, name))
    (only,) = matrix.configs(found)
    return render.render(found, only)


def closed(found: Feedstock, name: str | None = None) -> RenderedConfig:
    """Render a config of a feedstock, see `rendered`, with its pins as a plan has them."""
    return pins.close_static_pins(rendered(found, name))


def config(name: str = "linux_64_", platform: str = "linux-64", **variant: str) -> BuildConfig:
    """Return a config of one value per key."""
    values = {key: (value,) for key, value in variant.items()}
    return BuildConfig(name=name, platform=platform, variant=values, pin_run_as_build={})


def rendered_config(*outputs: Output, sources: tuple[Source, ...] = (), **variant: str) -> RenderedConfig:
    """Return what a rendering of these outputs gives, without a recipe."""
    return RenderedConfig(config=config(**variant), outputs=outputs, stagings=(Staging(sources=sources),))


def output(name: str = "app", **fields: Any) -> Output:
    """Return an output of a rendering, plain but for these fields."""
    plain = {"version": "1", "build_number": 0, "build_string": "0", "subdir": "linux-64"}
    return Output(name=name, **{**plain, "run_exports": {}, "about": {}, "used": {}, **fields})


def steps_of_outputs(rendering: RenderedConfig, recipe: Path, folder: Path) -> tuple[BuildStep, ...]:
    """Return the steps that build the outputs of a rendering in a folder, whose shared steps are taken as done."""
    compiled = {staging.name: StagedFiles(folder=folder / "c") for staging in rendering.stagings}
    return plan_outputs(rendering, recipe_folder=recipe, folder=folder, channels=(), compiled=compiled, extra={})


def build_job(root: Path, **fields: Any) -> BuildJob:
    """Return the job of a build's process, in a feedstock's folder."""
    paths = {"root": root, "recipe": root / "recipe", "folder": root / "work", "cache": root / "cache"}
    paths |= {"result": root / "result.json", "channel": root / "channel"}
    return BuildJob(**{**paths, "config": "linux_64_", "options": BuildOptions(), "extra": {}, **fields})


def config_job(root: Path, **fields: Any) -> ConfigJob:
    """Return the job of a config's process."""
    texts = dict.fromkeys(("key", "shared", "sources", "log"), "x")
    plain = {"config": "c", "options": BuildOptions(), "container": "docker", "cores": 2, "group": "cpu"}
    more = {"variables": {}, "environment": {}, "cache_key": "cpu", "compile_memory": 1}
    return ConfigJob(**{"root": str(root), **texts, **plain, **more, **fields})


def package_report(name: str = "p", *, verdict: TestVerdict = TestVerdict.PASSED, **fields: Any) -> PackageReport:
    """Return the report of a built package, p-1-0 for linux-64; ``fields`` are its artifact's."""
    named = {"name": name, "version": "1", "build_string": "0", "subdir": "linux-64", "config": "a", **fields}
    path = Path(named["subdir"], f"{name}-{named['version']}-{named['build_string']}.conda")
    artifact = Artifact(**{"path": path, "sha256": "5", "size": 1, **named})
    tests = TestReport(package=name, verdict=verdict)
    return PackageReport(artifact=artifact, build_seconds=1.0, reused=False, tests=tests)
