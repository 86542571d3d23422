"""The files and the submission of a job: sizes, dependency, no secret, and results behind no link."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base.errors import UsageError
from kiln.fleet.slurm import attempts
from kiln.fleet.slurm.attempts import AttemptFolder
from kiln.fleet.slurm.executor import copy_build_results
from kiln.fleet.slurm.site import SlurmSettings, SlurmSite, check_sbatch_options
from kiln.state.results import JobSize
from tests.integration.fleet.helpers import CONFIGS, ROOT, SMALL
from tests.waiting import until

CONFIG = CONFIGS[0]
PROJECT = Path("/s/kiln/abc")
NODE_JOB = ROOT / "kiln" / "fleet" / "slurm" / "node_job.py"


def site_of(tmp_path: Path, **settings: object) -> SlurmSite:
    defaults = {"folder": tmp_path / "shared", "cores": 16, "memory": 32 << 30}
    return SlurmSite(
        run="r1",
        folder=tmp_path / "run",
        settings=SlurmSettings(**{**defaults, **settings}),  # type: ignore[arg-type]
        feedstock=SMALL,
        project=ROOT,
        python=Path(sys.executable),
        ledger=tmp_path / "ledger.sqlite",
        environment={"PATH": os.environ["PATH"], "ANACONDA_API_TOKEN": "s3cret"},
        variables={"CI": "azure"},
        options=("--container", "none"),
    )


def attempt_of(site: SlurmSite, number: int = 1) -> AttemptFolder:
    return AttemptFolder.create(site, PROJECT, config=CONFIG, number=number, key="k")


def test_a_job_has_the_sizes_of_the_run_and_the_options_of_the_site(tmp_path: Path) -> None:
    site = site_of(tmp_path, partition="long", account="tf", time=720, extra=("--constraint=avx512",))
    attempt = attempt_of(site)
    options = attempts.sbatch_options(site, attempt, worker="kiln-r1-2", config=CONFIG, number=1, after="")
    assert options == [
        "--job-name=kiln-r1-2",
        f"--comment=kiln r1 {CONFIG} 1",
        f"--chdir={attempt.folder}",
        f"--output={attempt.folder}/slurm.out",
        "--open-mode=append",
        "--export=NONE",
        "--nodes=1",
        "--ntasks=1",
        "--requeue",
        "--cpus-per-task=16",
        "--mem=32768M",
        "--time=720",
        "--partition=long",
        "--account=tf",
        "--constraint=avx512",
    ]
    argv = attempts.build_command(site, PROJECT, attempt.feedstock, CONFIG)
    assert argv[argv.index("--cores") :] == [
        *("--cores", "16", "--memory", "29491MiB", "--container", "none"),
    ]


def test_a_config_may_have_sizes_of_its_own(tmp_path: Path) -> None:
    size = JobSize(cores=32, gpus=1, time_limit=90.0)
    site = dataclasses.replace(site_of(tmp_path, time=720), sizes={CONFIG: size, "small": JobSize(memory=4.0)})
    assert attempts.sbatch_size_options(site.job_size(CONFIG)) == [
        "--cpus-per-task=32",
        "--mem=32768M",
        "--gres=gpu:1",
        "--time=2",
    ]
    assert attempts.sbatch_size_options(site.job_size("small")) == [
        "--cpus-per-task=16",
        "--mem=3814M",
        "--time=720",
    ]
    argv = attempts.build_command(site, PROJECT, tmp_path, CONFIG)
    assert argv[argv.index("--cores") + 1] == "32"


@pytest.mark.parametrize(
    ("extra", "gres"),
    [
        ("--exclude=n1", "gpu:2"),
        ("--gres=gpu:a100:1", "gpu:a100:2"),
        ("--gres=gpu:1,tmpdisk:10", "gpu:2,tmpdisk:10"),
        ("--gres=gpu:a100", "gpu:a100:2"),
    ],
)
def test_a_configs_gpus_are_requested_besides_further_devices(tmp_path: Path, extra: str, gres: str) -> None:
    site = dataclasses.replace(site_of(tmp_path, extra=(extra,)), sizes={CONFIG: JobSize(gpus=2)})

    def options_of(config: str) -> list[str]:
        options = attempts.sbatch_options(site, attempt_of(site), worker="w", config=config, number=1, after="")
        return [option for option in options if option.startswith("--gres")]

    assert options_of(CONFIG) == [f"--gres={gres}"]
    assert options_of(CONFIGS[1]) == [extra] * extra.startswith("--gres")


def test_a_warm_build_depends_on_the_success_of_its_cold_one(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    options = attempts.sbatch_options(site, attempt_of(site), worker="w", config=CONFIG, number=1, after="41")
    index = options.index("--dependency=afterok:41")
    assert options[index : index + 2] == ["--dependency=afterok:41", "--kill-on-invalid-dep=yes"]


def test_the_files_of_a_job_hold_no_secret_and_are_the_users_alone(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    attempt = attempt_of(site)
    for file in site.shared_folder.rglob("*"):
        assert not file.is_file() or b"s3cret" not in file.read_bytes()
    assert site.shared_folder.stat().st_mode & 0o077 == 0
    assert json.loads((attempt.folder / "job.json").read_text())["environment"] == {"CI": "azure"}
    assert sorted(path.name for path in attempt.feedstock.iterdir()) == [".ci_support", "conda-forge.yml", "recipe"]
    assert attempt.script_path.read_text().splitlines()[-1] == (
        f"exec {PROJECT}/.venv/bin/python -I {PROJECT}/kiln/fleet/slurm/node_job.py {attempt.folder}"
    )


def test_the_latest_attempt_counts(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    assert AttemptFolder.latest_of_config(site, CONFIG) is None
    attempt_of(site).store_job_number("41")
    second = attempt_of(site, 10)
    assert (AttemptFolder.latest_of_config(site, CONFIG), second.job_number, second.job_state["state"]) == (
        second,
        "",
        "submitted",
    )


@pytest.mark.parametrize("option", ["-p", "--", "partition=x", "--dependency=singleton", "--out=x", "--export=ALL"])
def test_options_of_sbatch_that_kiln_sets_are_refused(option: str) -> None:
    with pytest.raises(UsageError):
        check_sbatch_options([option])


@pytest.mark.parametrize(
    "option",
    ["--version", "--help", "--usage", "--quiet", "--verbose", "--uid=0", "--gid=0", "--container=x", "--const=avx512"],
)
def test_options_that_change_what_sbatch_does_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match="is not accepted"):
        check_sbatch_options([option])


def test_options_for_nodes_and_priorities_are_passed_on() -> None:
    options = ("--constraint=avx512", "--exclude=n1,n2", "--nice", "--reservation=r", "--gres=gpu:1")
    assert check_sbatch_options(options) == options
    with pytest.raises(UsageError) as refused:
        check_sbatch_options(["--constrain=avx512"])
    assert "did you mean 'constraint'" in refused.value.hint


def test_settings_are_stored_for_later_commands(tmp_path: Path) -> None:
    settings = site_of(tmp_path, partition="long", extra=("--exclude=n1",)).settings
    assert SlurmSettings.read_from_run_folder(tmp_path / "run") is None
    settings.store_in_run_folder(tmp_path / "run")
    assert SlurmSettings.read_from_run_folder(tmp_path / "run") == settings


def test_results_are_copied_without_following_links(tmp_path: Path) -> None:
    attempt = attempt_of(site_of(tmp_path))
    packages = attempt.artifacts / "linux-64"
    packages.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    (packages / "a-1-0.conda").symlink_to(secret)
    (packages / "b-1-0.conda").write_text("b")
    names = ("linux-64/a-1-0.conda", "linux-64/b-1-0.conda", "../linux-64/c.conda", "etc/passwd")
    artifacts = [{"artifact": {"subdir": name.rpartition("/")[0], "path": f"/x/{name}", "size": 1}} for name in names]
    report = {"configs": [{"config": CONFIG, "packages": artifacts}]}
    (attempt.folder / "report.json").write_text(json.dumps(report))
    (attempt.folder / "log").symlink_to(secret)
    copy_build_results(attempt, tmp_path / "target", CONFIG)
    files = sorted(str(file.relative_to(tmp_path / "target")) for file in (tmp_path / "target").rglob("*.*"))
    assert files == ["packages/linux-64/b-1-0.conda", "report.json", "state.json"]
    assert not (tmp_path / "target" / "log").exists()


# Runs a job, and passes a signal on sooner than a node does.
SHORT_GRACE = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(NODE_JOB.parent)!r})
import node_job
node_job.GRACE = 0.2
sys.exit(node_job.NodeJob(Path(sys.argv[1])).run_job())
"""


def node_job(
    folder: Path, script: str, *, program: tuple[str, ...] = (str(NODE_JOB),), **variables: str
) -> subprocess.Popen[bytes]:
    job = {"argv": [sys.executable, "-c", script], "environment": {"ADDED": "yes"}, "key": "k"}
    (folder / "job.json").write_text(json.dumps(job))
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1", **variables}
    return subprocess.Popen((sys.executable, "-I", *program, folder), env=environment)


def state_of(folder: Path) -> dict[str, object]:
    file = folder / "state.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


@pytest.mark.processes
def test_a_job_stores_the_result_and_the_output_of_its_build(tmp_path: Path) -> None:
    script = "import os, sys; print(os.environ['ADDED']); sys.stderr.write('log'); sys.exit(17)"
    assert node_job(tmp_path, script).wait() == 17, "so that no job is started that depends on its success"
    state = state_of(tmp_path)
    assert (state["state"], state["exit_code"], state["id"], state["node"], state["key"]) == (
        "ended",
        17,
        "12",
        "n1",
        "k",
    )
    assert (tmp_path / "report.json").read_text() == "yes\n"
    assert (tmp_path / "log").read_text() == "log"


@pytest.mark.processes
def test_a_terminated_job_has_no_exit_code(tmp_path: Path) -> None:
    script = "import time; print('ready', flush=True); time.sleep(60)"
    process = node_job(tmp_path, script, program=("-c", SHORT_GRACE))
    until(lambda: (tmp_path / "report.json").exists() and (tmp_path / "report.json").read_text(), "it runs", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 1
    assert (state_of(tmp_path)["result"], state_of(tmp_path)["exit_code"]) == ("terminated", None)
