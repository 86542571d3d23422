"""The settings of GitHub Actions in conda-forge.yml, and kiln's own in its section ``kiln``."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from kiln.conda_forge_yml import WORKFLOW, TypedSettings
from kiln.errors import RecipeFault, did_you_mean
from kiln.expand import ci_limits
from kiln.expand.secret_names import require_unreserved_names, secret_names

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kiln.expand.publishing_job_settings import PublicationSettings

MINUTES, DAYS = 360, 14
# Events that need no more than their names; source: GitHub's page "Events that trigger workflows".
EVENTS = (
    *("branch_protection_rule", "check_run", "check_suite", "create", "delete", "deployment", "deployment_status"),
    *("discussion", "discussion_comment", "fork", "gollum", "issue_comment", "issues", "label", "merge_group"),
    *("milestone", "page_build", "public", "pull_request", "pull_request_review", "pull_request_review_comment"),
    *("push", "registry_package", "release", "repository_dispatch", "status", "watch"),
)
REFUSED_EVENTS = {
    "pull_request_target": "it would give the secrets of the repository to the pull requests of others",
    "workflow_run": "it would give the secrets of the repository to the runs of others, and names a workflow",
    "schedule": "it needs the times of the runs; write the workflow yourself, named under skip_render",
    "workflow_call": "other workflows would call it; write the workflow yourself, named under skip_render",
}
GITHUB = "github_actions"  # the CI service in conda-forge.yml
SKIP = "skip"  # of free_disk_space: nothing is removed
OWN = "kiln"  # the section of settings that only kiln has
KEPT = 10  # minutes of a job for keeping its logs
LOST = 30  # minutes of a job in a chain that compile nothing: its set-up, fetched packages, packing and uploading
GPU_MINUTES = 120


class ActionsSettings:
    """The settings of GitHub Actions in conda-forge.yml; the defaults without the file.

    ``cache_size`` is in gigabytes, 0 for no compile cache between runs. ``build_minutes`` is the time of a job's build.
    """

    def __init__(self, path: Path) -> None:
        self.whole = TypedSettings.read(path)
        self._github = self.whole.get_nested(GITHUB)
        self.timeout = self._github.get_number("timeout_minutes", MINUTES)
        self.max_parallel = self._github.get_number("max_parallel", 0)
        self.retention = self._github.get_number("artifact_retention_days", DAYS)
        self.cancel = self._github.get_flag("cancel_in_progress", default=True)
        self.self_hosted = self._github.get_flag("self_hosted", default=False)
        self.clone_depth = self.whole.get_text("clone_depth", "")
        self.branch = self.whole.get_text("upload_on_branch", "")
        self.secrets = secret_names(self.whole)
        if self.secrets:
            require_unreserved_names(self.secrets, "secrets", self.whole.place_of("secrets"))
        self.run_arguments = self.whole.get_nested("docker").get_text("run_args", "")
        self._own = self.whole.get_nested(OWN)
        self.publication = self._read_publication_settings()
        if self.publication is not None:
            self._require_uploads_allowed(self.publication.channel)
        self.cache_size = self._read_cache_size()
        self.gpu_minutes = min(GPU_MINUTES, self.timeout)
        self.build_minutes = self.timeout - KEPT if self.timeout > 2 * KEPT else self.timeout

    def _read_publication_settings(self) -> PublicationSettings | None:
        if not self._own.get_text("publish_to", ""):
            return None
        from kiln.expand.publishing_job_settings import PublicationSettings

        return PublicationSettings.read(self._own)

    def _require_uploads_allowed(self, channel: str) -> None:
        """Refuse a job that `kiln publish` would refuse after all builds.

        Raises:
            RecipeFault: another setting forbids its uploads.
        """
        if not self._github.get_flag("upload_packages", default=True):
            raise RecipeFault(
                f"{GITHUB}.upload_packages is false, and kiln: publish_to names a channel",
                at=self.whole.place_of(GITHUB),
                hint="remove one of the two",
            )
        if channel.startswith("anaconda:") and self.whole.get_flag("private_upload", default=False):
            raise RecipeFault(
                "private_upload is true, and kiln cannot ask anaconda.org for it",
                at=self.whole.place_of("private_upload"),
                hint="remove kiln: publish_to, or publish to another channel",
            )

    @property
    def publish_branch(self) -> str:
        """The branch that publishes: upload_on_branch, else the repository's."""
        branch = self.branch or self.whole.get_nested("github").get_text("branch_name", "main")
        if not re.fullmatch(r"[\w./-]+", branch):
            raise RecipeFault(f"kiln: publish_to: {branch!r} is not a branch that a workflow can compare", hint="main")
        return branch

    def _read_cache_size(self) -> int:
        size, most = self._own.get_number("compile_cache_size", 0), ci_limits.limit_of_service(GITHUB, "cache size")
        if not 0 <= size <= most.value:
            raise RecipeFault(
                f"kiln: compile_cache_size: {size} is not between 0 and {most.value}",
                why=f"GitHub keeps {most.value} {most.unit}",
            )
        return size

    def chain_job_count(self, group: str) -> int:
        """Return how many jobs of a chain a config of a group may take, by its estimated hours; 1 for a single job.

        Raises:
            RecipeFault: jobs of a chain would have no time to compile, or the chain is longer than a run may be.
        """
        hours = self._value_of_first_matching_key("build_hours", _setting_keys_of_group(group))
        if not hours:
            return 1
        minutes = 60 * int(str(hours))
        if minutes <= self.build_minutes:
            return 1
        most = ci_limits.limit_of_service(GITHUB, "run hours")
        if minutes > 60 * most.value:
            raise RecipeFault(
                f"kiln: build_hours: {hours} is more than {most.value}", why=f"GitHub allows {most.value} {most.unit}"
            )
        if self.timeout <= 2 * LOST:
            raise RecipeFault(
                f"kiln: build_hours: a chain needs jobs of more than {2 * LOST} minutes, and a job has {self.timeout}",
                hint="raise github_actions: timeout_minutes, or remove build_hours",
            )
        return math.ceil(minutes / (self.timeout - LOST))

    def chain_build_minutes(self, links: int) -> int:
        """Return the minutes that a build has in all jobs of a chain, or in a single job."""
        return self.build_minutes if links == 1 else links * (self.timeout - LOST)

    def gpu_runner_label(self, group: str) -> str:
        """Return the label of the runner that tests a group's packages on a GPU; empty without one.

        A runner for x86 cannot test packages of another platform: these have keys of their own.
        """
        if group.startswith("cpu"):
            return ""
        keys = [key for key in _setting_keys_of_group(group) if ("-" in key) == ("-" in group)]
        return str(self._value_of_first_matching_key("gpu_runners", keys) or "")

    def _value_of_first_matching_key(self, name: str, keys: Iterable[str]) -> Any:
        """Return the value of the first of the keys that a setting has, or the setting's one value for all."""
        value = self._own.get(name)
        return next((value[key] for key in keys if key in value), None) if isinstance(value, dict) else value

    @property
    def skip_render_paths(self) -> tuple[str, ...]:
        """The files and folders that the feedstock keeps itself."""
        return tuple(name for name in self.whole.get_list("skip_render", []) if name.strip("./"))

    @property
    def triggers(self) -> list[str]:
        """The events that start a run."""
        triggers = [trigger for trigger in self._github.get_list("triggers", []) if trigger != "workflow_dispatch"]
        if invalid := [trigger for trigger in triggers if trigger not in EVENTS]:
            raise RecipeFault(
                f"github_actions: triggers: {invalid[0]!r} is not an event that a workflow can name alone",
                at=self.whole.place_of(GITHUB),
                why=REFUSED_EVENTS.get(invalid[0], "GitHub has no such event"),
                hint=did_you_mean(invalid[0], EVENTS) or "triggers: [push, pull_request]",
            )
        return triggers or (["push"] if self.self_hosted else ["push", "pull_request"])

    def free_disk_space_mode(self, platform: str) -> str:
        """Return how much to remove from the runner's disk before the build: ``skip``, ``quick`` or ``max``.

        Source: ``_load_forge_config`` of conda-smithy, also for the former setting.
        """
        if self._has_workflow_setting("free_disk_space"):
            return str(self._workflow_setting("free_disk_space", platform) or SKIP)
        value = self._github.get("free_disk_space")
        if isinstance(value, list):
            return "max" if "docker" in value else "quick" if value else SKIP
        return "quick" if value else SKIP

    def stores_packages_as_artifact(self, platform: str) -> bool:
        """Return whether a job keeps its packages as an artifact."""
        if self._has_workflow_setting("store_build_artifacts"):
            return bool(self._workflow_setting("store_build_artifacts", platform))
        return self._github.get_flag("store_build_artifacts", default=False)

    def swap_size(self, platform: str) -> int:
        """Return the size of a job's swap file in GiB; 0 for none."""
        return int(self._workflow_setting("pagefile_size", platform) or 0)

    def _has_workflow_setting(self, name: str) -> bool:
        return self.whole.get_mapping(WORKFLOW).get(name) is not None

    def _workflow_setting(self, name: str, platform: str) -> Any:
        return self.whole.get_workflow_setting(name, provider=GITHUB, platform=platform)


def _setting_keys_of_group(group: str) -> tuple[str, ...]:
    """Return the keys of a group's settings, the closest first: of its version and platform, of one, of neither."""
    version, _, platform = group.partition("-")
    kind = "cpu" if version == "cpu" else "cuda"
    return tuple(dict.fromkeys((group, f"{kind}-{platform}" if platform else kind, version, kind)))
