"""The container of a config has conda-forge's variables, and sees its mounts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.build.executor.container import ContainerExecutor
from kiln.build.job.job import BuildOptions, ConfigJob, JobContext
from kiln.container.engine import Engine, EngineKind
from kiln.container.plan import ContainerLimits
from kiln.recipe.feedstock import BuildConfig, Feedstock
from kiln.recipe.rendered import RenderedConfig
from kiln.state.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = BuildConfig(name="c", platform="linux-64", variant={}, zip_keys=(), pin_run_as_build={}, image=None)


def test_a_config_finds_conda_forges_variables_in_its_container(tmp_path: Path) -> None:
    feedstock = Feedstock(root=tmp_path)
    (tmp_path / "recipe").mkdir()
    job = ConfigJob(
        root=str(tmp_path),
        config="c",
        key="k",
        shared="s",
        sources="s",
        options=BuildOptions(run_arguments=("--gpus", "all")),
        container="docker",
        image="localhost/i:1",
        cores=2,
        variables={"CONFIG": "c"},
        environment={"TOKEN": "hidden"},
        log="log",
        group="cpu",
        cache_key="cpu",
        compile_memory=1,
    )
    task = JobContext(
        job=job,
        feedstock=feedstock,
        layout=ArtifactLayout.for_feedstock(feedstock),
        rendered=RenderedConfig(config=CONFIG),
        environment={},
    )
    executor = ContainerExecutor(task=task)
    engine = Engine(kind=EngineKind.DOCKER, executable="docker", version="27", environment={})
    plan = executor.plan_container(engine, executor.job_command(task.folder / "job.json"), executor.mounted_folders())
    assert plan.argv[-2] == "/home/conda/feedstock_root/build_artifacts/work/c/job.json"
    assert (plan.environment["CONFIG"], plan.environment["HOME"]) == ("c", "/home/conda")
    assert "TOKEN" not in plan.environment
    assert (plan.image, plan.network, plan.options[-2:]) == ("localhost/i:1", False, ("--gpus", "all"))
    assert isinstance(plan.limits, ContainerLimits)
    assert plan.limits.cores == 2
    targets = {mount.target: mount.read_only for mount in plan.mounts}
    assert targets["/home/conda/recipe_root"], "the recipe is read only"
    assert [name for name, read_only in targets.items() if not read_only] == [
        "/home/conda/feedstock_root/build_artifacts/work/c",
        "/home/conda/compile-cache",
    ]
