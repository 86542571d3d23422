"""What a process is told arrives as it was written; a cell's job is read once."""

from __future__ import annotations

from pathlib import Path

from kiln.pipeline.jobs import BuildJob, CellJob

BUILD = BuildJob(
    root=Path("/f"),
    recipe=Path("/f/recipe"),
    config="a",
    folder=Path("/f/work"),
    cache=Path("/f/cache"),
    result=Path("/f/result.json"),
    extra={"sha": "1"},
    keep_failed=False,
    stall=60.0,
    channel=Path("/f/channel"),
    queue=Path("/f/scripts"),
    taken=[],
)
CELL = CellJob(
    root="/f",
    config="a",
    key="k",
    shared="s",
    engine="rattler-build",
    container="docker",
    options=("--gpus", "all"),
    cores=2,
    variables={"CONFIG": "a"},
    environment={"PATH": "/bin"},
    log="/f/log",
    group="cpu",
    cache_key="c",
    share=1,
    stall=60.0,
)


def test_a_building_processs_job_comes_back_with_its_paths(tmp_path: Path) -> None:
    BUILD.write(tmp_path / "job.json")
    assert BuildJob.read(tmp_path / "job.json") == BUILD


def test_a_cells_job_is_gone_once_it_was_read(tmp_path: Path) -> None:
    CELL.write(tmp_path / "job.json")
    assert CellJob.read(tmp_path / "job.json") == CELL
    assert not (tmp_path / "job.json").exists()
