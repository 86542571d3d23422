"""The workflows that kiln writes, run without GitHub: from the builds over a chain of jobs to the channel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

from kiln.base import files
from kiln.feedstock import config_file, rerender, workflow_settings
from kiln.feedstock.init import scaffold
from kiln.feedstock.workflow_settings import GITHUB
from kiln.publish.servers import servers
from kiln.recipe.feedstock import Feedstock
from tests.identity_provider import REQUEST_TOKEN
from tests.integration.publish_servers.helpers import served
from tests.workflow_run import SKIPPED, SUCCESS, WorkflowRun

ROOT = Path(__file__).parents[3]

CPU, CUDA, OTHER = "linux_64_cuda_compiler_versionNone", "linux_64_cuda_compiler_version12.9", "osx_64_"
BUDGET = 20  # seconds of the first job of the chain
# The second output does not end before the build was stopped once, where cuda_compiler_version is not None.
META = """\
package: {name: small, version: '1'}
source: {path: .}
build: {number: 0, string: 'cuda{{ cuda_compiler_version|replace(".", "") }}_0'}
outputs:
  - name: first
    script: first.sh
    test: {commands: ['test -f $PREFIX/share/first']}
  - name: second
    script: second.sh
    requirements: {run: ['{{ pin_subpackage("first", exact=True) }}']}
    test: {commands: ['test -f $PREFIX/share/second', 'test -f $PREFIX/share/first']}
about: {license: MIT, license_file: LICENSE, summary: A file, home: 'https://example.org'}
"""
FIRST = 'echo "$cuda_compiler_version" >>"LIST"; mkdir -p "$PREFIX/share"; echo 1 >"$PREFIX/share/first"\n'
SECOND = """\
if [ "$cuda_compiler_version" != None ] && ! [ -e "LIST.began" ]; then touch "LIST.began"; sleep 600; fi
mkdir -p "$PREFIX/share"; echo 2 >"$PREFIX/share/second"
"""


def contents(folder: Path) -> dict[str, str]:
    """Return the files of a feedstock with two configs for GitHub, and one for another service."""
    variants = {CPU: "None", CUDA: "12.9"}
    return {
        "recipe/meta.yaml": META,
        "recipe/first.sh": FIRST.replace("LIST", str(folder / "list")),
        "recipe/second.sh": SECOND.replace("LIST", str(folder / "list")),
        "recipe/LICENSE": "MIT\n",
        "conda-forge.yml": "provider: {linux_64: github_actions, osx_64: azure}\n"
        "kiln: {publish_to: 'prefix:release', publish_staging: trial, trusted_publishing: true, "
        "build_hours: {cuda: 14}, compile_cache_size: 1, gpu_runners: {cuda: a-gpu}}\n"
        "secrets: [MY_TOKEN]\n",
        "outputs.txt": "first\nsecond\n",
        # no engine of the machine that runs the tests: a build on the host
        "build-locally.py": scaffold.SCRIPT_FILE.read_text().replace('"build", ', '"build", "--container", "none", '),
        "requirements/kiln.txt": "kiln\n",
        ".gitignore": scaffold.IGNORED_TEXT,
        f".ci_support/{OTHER}.yaml": "target_platform:\n- osx-64\ncuda_compiler_version:\n- None\n",
    } | {
        f".ci_support/{name}.yaml": f"target_platform:\n- linux-64\ncuda_compiler_version:\n- '{version}'\n"
        for name, version in variants.items()
    }


def programs(folder: Path) -> Path:
    """Return a folder with the program of a machine with a GPU."""
    files.write_text(folder / "nvidia-smi", "#!/bin/sh\necho a GPU\n")
    (folder / "nvidia-smi").chmod(0o755)
    return folder


def set_up(checkout: Path) -> None:
    """Make the environment that build-locally.py finds complete, of this test's own packages."""
    folder = checkout / ".venv"
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "kiln.pth").write_text("".join(f"{path}\n" for path in paths))
    (folder / "kiln-requirements.txt").write_text(f"# {folder}\n{(checkout / 'requirements' / 'kiln.txt').read_text()}")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A feedstock in git, with a workflow for each of its configs, since a matrix may have one job alone."""
    root = tmp_path / "feedstock"
    for name, text in contents(tmp_path).items():
        files.write_text(root / name, text)
    limits = workflow_settings.all_limits()
    one = limits[GITHUB, "matrix jobs"]._replace(value=1)
    monkeypatch.setattr(workflow_settings, "all_limits", lambda: {**limits, (GITHUB, "matrix jobs"): one})
    feedstock = Feedstock(root=root)
    assert len(rerender.write_workflows(feedstock, config_file.read_configs(feedstock, [CPU, CUDA, OTHER]))) == 3
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), (*identity, "commit", "-qm", "a")):
        subprocess.run(("git", *words), cwd=root, check=True)
    return root


@pytest.fixture
def run(repository: Path, server: str, tmp_path: Path) -> WorkflowRun:
    """A run on the repository, of which the first job of a chain has seconds for its build."""

    def before_step(step: str, variables: dict[str, str], temporary: Path) -> None:
        if "CHANNEL" in variables:
            assert variables["CHANNEL"] == "prefix:release"  # on prefix.dev itself
            variables["CHANNEL"] = f"prefix:{server}/release"
        if step == "Build" and (temporary / "began").exists() and not (tmp_path / "list.began").exists():
            (temporary / "began").write_text(f"{time.time() - 350 * 60 + BUDGET:.0f}\n")

    kept = {name: value for name, value in os.environ.items() if name in {"LANG", "TMPDIR"}}
    return WorkflowRun(
        folder=tmp_path / "github",
        repository=repository,
        variables={**kept, "PATH": f"{programs(tmp_path / 'bin')}:{os.environ['PATH']}"},
        secrets={"": {"MY_TOKEN": "a-secret-of-builds"}},
        identity={
            servers.REQUEST_URL: f"{server}/identity?api-version=2.0",
            servers.REQUEST_TOKEN: REQUEST_TOKEN,
        },
        machine=set_up,
        before_step=before_step,
    )


@pytest.mark.sampled
def test_the_jobs_of_a_run_build_hand_on_test_and_publish_all_configs(run: WorkflowRun, tmp_path: Path) -> None:
    assert run.run("build.yml") == SUCCESS, run.log()
    chain = [run.results[f"build-2/chain/1/job-{link}"] for link in (1, 2, 3)]
    assert chain == [SUCCESS, SUCCESS, SKIPPED], run.log()
    others = {name: result for name, result in run.results.items() if "job-" not in name}
    assert others == dict.fromkeys(("build", "build-2", "build-2/chain", "build-2/gpu", "publish"), SUCCESS)
    assert run.artifacts() == [
        f"handover-{CUDA}-1",
        *(f"logs-{name}" for name in (f"{CUDA}-1", f"{CUDA}-2", CPU)),
        *(f"packages-{name}" for name in (CUDA, CPU)),
        "publications",
    ]
    artifacts = run.folder / "artifacts"
    built = {path.name: files.sha256(path) for path in artifacts.glob("packages-*/linux-64/*.conda")}
    published = {name.removeprefix("linux-64/"): sha256 for name, sha256 in served(tmp_path).items()}
    assert published == built
    assert sorted(built) == [f"{name}-1-cuda{cuda}_0.conda" for name in ("first", "second") for cuda in ("129", "None")]
    assert served(tmp_path, "trial") == {}
    statements = [path.read_text() for path in (artifacts / "publications").glob("*/provenance/*/*.intoto.json")]
    logs = [files.sha256(path) for path in artifacts.glob("packages-*/logs/*/*.log")]
    assert len(statements) == len(built)
    assert all(any(f'"{log}"' in text for log in logs) for text in statements), "the jobs' logs came with the packages"
    assert sorted((tmp_path / "list").read_text().split()) == ["12.9", "None"], "each step was finished once"
    assert "3 tests passed" in run.output["build-2/gpu/1: Test"]
    assert any("interrupted" in text for text in run.summaries)
    assert len((tmp_path / "minted").read_text().split()) == 1
    assert "a-secret-of-builds" not in run.log()
    assert REQUEST_TOKEN not in run.log()
