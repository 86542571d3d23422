"""Feedstocks with each kind of workflow that kiln writes, for tests of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.feedstock import rerender
from kiln.recipe.feedstock import Feedstock
from tests.unit.feedstock.test_rerender import a_config

if TYPE_CHECKING:
    from pathlib import Path

PLATFORMS = "provider: {linux_64: github_actions, linux_aarch64: github_actions}\n"
EVERYTHING = (
    f"{PLATFORMS}kiln: {{build_hours: {{cuda: 14}}, compile_cache_size: 5, gpu_runners: {{cuda: gpu-t4}}, "
    "publish_to: 'prefix:mine', publish_staging: aside, publish_token: PREFIX_API_KEY}\n"
    "secrets: [MY_TOKEN]\nupload_on_branch: main\nclone_depth: 0\ndocker: {run_args: --gpus all}\n"
    "workflow_settings: {free_disk_space: max, pagefile_size: 8, store_build_artifacts: true}\n"
)
SETTINGS = {
    "defaults": "",
    "everything": EVERYTHING,
    "trusted": EVERYTHING.replace("publish_token: PREFIX_API_KEY", "trusted_publishing: true"),
    "bucket": "kiln: {publish_to: 's3://bucket/channel', publish_token: [AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY]}\n",
    "chains alone": f"{PLATFORMS}kiln: {{build_hours: 20}}\n",
    "of its own": f"{PLATFORMS}github_actions: {{self_hosted: true, timeout_minutes: 2000}}\n"
    "kiln: {build_hours: 50}\n",
    "several": f"{PLATFORMS}kiln: {{build_hours: {{cuda: 14}}, gpu_runners: {{cuda: gpu-t4}}, "
    "publish_to: 'prefix:mine', publish_staging: aside, publish_token: PREFIX_API_KEY}\n"
    "github_actions: {max_parallel: 4, cancel_in_progress: false, triggers: [push, pull_request, merge_group]}\n"
    "workflow_settings: {store_build_artifacts: [{platform: linux_aarch64, value: true}]}\n",
    "other systems": "provider: {linux_64: github_actions, osx_64: azure, osx_arm64: github_actions, "
    "win_64: github_actions}\n"
    "kiln: {publish_to: 'prefix:mine', publish_staging: aside, trusted_publishing: true}\n",
}


def written(folder: Path) -> dict[str, Path]:
    """Write the workflows of feedstocks with each of the settings; return the folders of the workflows."""
    folders = {}
    for name, text in SETTINGS.items():
        root = folder / name.replace(" ", "-")
        root.mkdir()
        (root / "build-locally.py").write_text("import kiln\n")
        (root / "conda-forge.yml").write_text(text)
        configs = [a_config("None", "3.10"), a_config("12.9", "3.10"), a_config("12.9", "3.10", "linux-aarch64")]
        if name == "several":  # more than GitHub allows in one matrix
            configs = [
                replace(config, name=f"{config.name}_{number:03}") for number in range(100) for config in configs
            ]
        if name == "other systems":
            configs += [a_config("None", "3.10", platform) for platform in ("osx-64", "osx-arm64", "win-64")]
        assert rerender.write_workflows(Feedstock(root=root), configs)
        folders[name] = root / ".github" / "workflows"
    return folders
