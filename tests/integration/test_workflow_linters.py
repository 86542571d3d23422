"""The linters of workflows find nothing in those of this project, nor in any that kiln writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.expand import workflow
from kiln.model.feedstock import Feedstock
from tests.unit.expand.test_workflow import a_config

ROOT = Path(__file__).parents[2]
PLATFORMS = "provider: {linux_64: github_actions, linux_aarch64: github_actions}\n"
SETTINGS = {
    "defaults": "",
    "all": f"{PLATFORMS}kiln: {{build_hours: {{cuda: 14}}, compile_cache_size: 5, gpu_runners: {{cuda: gpu-t4}}, "
    "publish_to: 'prefix:mine', publish_token: PREFIX_API_KEY}\n"
    "secrets: [MY_TOKEN]\nupload_on_branch: main\nclone_depth: 0\nworkflow_settings: {free_disk_space: max, "
    "pagefile_size: 8, store_build_artifacts: true}\n",
    "chains alone": f"{PLATFORMS}kiln: {{build_hours: 20}}\n",
    "of its own": f"{PLATFORMS}github_actions: {{self_hosted: true, timeout_minutes: 2000}}\n"
    "kiln: {build_hours: 50}\n",
}


def folders(tmp_path: Path) -> list[Path]:
    """Write the workflows of feedstocks with each of the settings; return their folders, and this project's."""
    for name, text in SETTINGS.items():
        root = tmp_path / name.replace(" ", "-")
        root.mkdir()
        (root / "build-locally.py").write_text("import kiln\n")
        (root / "conda-forge.yml").write_text(text)
        configs = [a_config("None", "3.10"), a_config("12.9", "3.10"), a_config("12.9", "3.10", "linux-aarch64")]
        assert workflow.write(Feedstock(root=root), configs)
    return [ROOT / ".github", *(root / ".github" for root in tmp_path.iterdir())]


def program(name: str) -> str:
    """Return a linter, of the environment or of this machine."""
    own = Path(sys.executable).with_name(name)
    path = str(own) if own.exists() else shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on this machine")
    return path


def test_zizmor_finds_nothing(tmp_path: Path) -> None:
    words = (program("zizmor"), "--offline", "--no-progress", "--persona", "regular", *map(str, folders(tmp_path)))
    ended = subprocess.run(words, env=os.environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    files = [str(path) for folder in folders(tmp_path) for path in (folder / "workflows").glob("*.yml")]
    # Labels of runners are the feedstock's own, and shellcheck is run where it is installed.
    words = (program("actionlint"), "-no-color", "-ignore", "label .* is unknown", *files)
    ended = subprocess.run(words, env=os.environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
