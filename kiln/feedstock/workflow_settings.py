"""The settings of the CI workflow: GitHub Actions', kiln's own, secrets, and limits of CI services."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln.base import files
from kiln.base.errors import RecipeFault, did_you_mean
from kiln.base.patterns import lazy_pattern
from kiln.feedstock.settings import WORKFLOW as SETTINGS_WORKFLOW
from kiln.feedstock.settings import TypedSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.base.position import Place


TABLE = Path(__file__).with_name("ci_limits.csv")


class CiLimit(NamedTuple):
    """A limit of a service: its value, and the unit with the meaning."""

    value: int
    unit: str


@cache
def all_limits() -> dict[tuple[str, str], CiLimit]:
    """Return all limits by service and name."""
    return {(row["service"], row["limit"]): CiLimit(int(row["value"]), row["unit"]) for row in files.csv_rows(TABLE)}


def limit_of_service(service: str, name: str) -> CiLimit:
    """Return a limit of a service."""
    return all_limits()[service, name]


_SECRET = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*")
# The variables that the templates of the workflows set; a unit test compares them.
WORKFLOW = frozenset(
    [
        *("CONFIG", "CI", "GIT_BRANCH", "flow_run_id", "remote_url", "sha", "UPLOAD_ON_BRANCH"),
        *("CONDA_FORGE_DOCKER_RUN_ARGS", "JOBS", "GIB", "CHANNEL", "STAGING", "OTHERS"),
        "ACTIONS_ARTIFACT_MAX_ARTIFACT_COUNT",
    ]
)
# Those of GitHub and its runners, of kiln and conda-forge's scripts, and those that change which programs run.
_SYSTEM = lazy_pattern(
    r"(?:GITHUB|RUNNER|ACTIONS|KILN|LD|DYLD)_\w+|(?:BAZEL|PYTHON|BASH)_?[A-Z]*|PATH|HOME|USER|SHELL|ENV|IFS|PWD|TMPDIR"
    r"|LANG|LC_\w+|TERM|CPU_COUNT|SOURCE_DATE_EPOCH|BUILD_\w+|UPLOAD_PACKAGES|IS_PR_BUILD|FEEDSTOCK_NAME|HOST_USER_ID"
    r"|DOCKER_(?:IMAGE|EXECUTABLE|HOST)|\w+_PROXY|PIP_\w+|CDPATH|FPATH|GLOBIGNORE|EXECIGNORE|PS[0-4]|SHELLOPTS"
    r"|POSIXLY_CORRECT|ZDOTDIR|INPUTRC|LOCPATH|NLSPATH|HOSTALIASES|TEMP|TMP|EDITOR|VISUAL|PAGER|BROWSER|CC|CXX|GZIP"
    r"|[GM]?(?:NU)?MAKEFLAGS|MAKEFILES",
    re.IGNORECASE,
)
# Programs read settings from variables with their name or with such an end; but tokens are no settings.
_SETTING = lazy_pattern(
    r"(?:PERL5?|RUBY|NODE|LUA|JAVA|JDK|TCL|PHP|GUILE|GCONV|GLIBC|MALLOC|OPENSSL|SSL|CURL|WGET|TAR|XZ|ZSTD|UNZIP|ZIP"
    r"|GREP|LESS|CMAKE|CARGO|RUST|RUSTC|GO|NPM|YARN|CONDA|MAMBA|PIXI|DOCKER|PODMAN|CONTAINERS|GIT|SSH|GPG|GNUPG|UV|XDG"
    r"|PROMPT|SYSTEMD|DBUS|PKG_CONFIG)(?:_\w+|LIB|OPT|DB|OPEN|FLAGS|PATH|ROOT|PROXY|ENV)?"
    r"|\w+_(?:OPTIONS|OPTS|FLAGS|CONF|CONFIG|COMMAND|PATH|LIB|PRELOAD|HOME|DIR|SHELL)|_JAVA\w*",
    re.IGNORECASE,
)
_OF_SECRET = lazy_pattern(
    r"\w+_(?:TOKEN|PASSWORD|PASS|SECRET|KEY|KEY_ID|PASSPHRASE|CREDENTIALS|AUTH|USERNAME|USER|LOGIN|PAT)", re.IGNORECASE
)
_OWN = frozenset(name.upper() for name in WORKFLOW)


def secret_names(settings: TypedSettings) -> tuple[str, ...]:
    """Return the names of secrets in settings."""
    names = settings.get_list("secrets", [])
    for name in names:
        if not _SECRET.fullmatch(name):
            raise RecipeFault(
                f"secrets: {name!r} is not the name of a variable",
                at=settings.place_of("secrets"),
                hint="letters, digits and underscores",
            )
    return tuple(dict.fromkeys(names))


def require_unreserved_names(names: Iterable[str], setting: str, at: Place | None = None) -> None:
    """Refuse names of secrets that are other variables of a job; GitHub's secrets are the same in either case."""
    for name in names:
        is_setting = _SETTING.fullmatch(name) and not _OF_SECRET.fullmatch(name)
        if name.upper() in _OWN or _SYSTEM.fullmatch(name) or is_setting:
            owner = "the workflow" if name.upper() in _OWN else "GitHub, the system or a build"
            raise RecipeFault(
                f"{setting}: {name} is a variable of {owner}",
                at=at,
                why="the secret would take its place, and its value could not be told from the variable's",
                hint=f"name the secret MY_{name.upper().lstrip('_')}",
            )


# What kiln publishes to from another machine; see `kiln publish --help`.
CHANNEL = lazy_pattern(
    r"(?!.*/\.\.?(?:/|$))(?:(?:anaconda|prefix):\w[\w.-]*|(?:quetz|artifactory):https://\w[\w./:-]*|s3://\w[\w./-]*)"
)
TRUSTING = "prefix:"  # the channels of servers that trust CI jobs
BUCKET = "s3://"
ENVIRONMENT = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationSettings:
    """A channel, the channel or label from which packages are tested, and what the job proves its right by.

    ``secrets`` are names of secrets and of variables; without any, ``trusted`` says that the server trusts the job.
    ``environment`` is GitHub's, whose protection rules hold for publishing, and that has the secrets.
    """

    channel: str
    staging: str
    secrets: tuple[str, ...]
    trusted: bool
    environment: str

    @classmethod
    def read(cls, own: TypedSettings) -> PublicationSettings:
        """Return the settings in the section, which names a channel.

        Raises:
            RecipeFault: a setting is invalid, missing, or excluded by another one.
        """
        channel = own.get_text("publish_to", "")
        if not CHANNEL.fullmatch(channel):
            raise RecipeFault(
                f"kiln: publish_to: {channel!r} is not a channel of a server", hint="prefix:CHANNEL, anaconda:OWNER"
            )
        trusted = own.get_flag("trusted_publishing", default=False)
        return cls(
            channel=channel,
            staging=_staging_channel(own, channel),
            secrets=_token_secret_names(own, channel, trusted=trusted),
            trusted=trusted,
            environment=own.get_text("publish_environment", ENVIRONMENT),
        )


def _staging_channel(own: TypedSettings, channel: str) -> str:
    """Return the channel for staging, which each server needs, and a bucket has itself."""
    staging = own.get_text("publish_staging", "")
    if channel.startswith(BUCKET):
        if staging:
            raise RecipeFault("kiln: publish_staging: a bucket has a folder for staging itself", hint="remove it")
    elif not staging:
        raise RecipeFault(
            "kiln: publish_staging is missing",
            why="packages are tested from another channel of the server before they are published",
            hint="publish_staging: CHANNEL; a label for anaconda",
        )
    elif not re.fullmatch(r"\w[\w.-]*", staging) or staging == re.split("[:/]", channel)[-1]:
        raise RecipeFault(f"kiln: publish_staging: {staging!r} is not another channel of the server")
    return staging


def _token_secret_names(own: TypedSettings, channel: str, *, trusted: bool) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(own.get_list("publish_token", [])))
    if trusted:
        if names:
            raise RecipeFault("kiln: trusted_publishing takes the place of publish_token", hint="remove one of the two")
        if not channel.startswith(TRUSTING):
            raise RecipeFault(
                f"kiln: trusted_publishing: {channel} has no server that trusts CI jobs",
                why="of the servers that kiln publishes to, prefix.dev does",
                hint="publish_token: the name of a secret",
            )
        return ()
    if not names:
        raise RecipeFault(
            "kiln: publish_token is missing",
            why="it names the secret, and the variable, with the token of publish_to",
            hint="publish_token: PREFIX_API_KEY; or trusted_publishing: true, which prefix.dev has",
        )
    if invalid := [name for name in names if not re.fullmatch("[A-Z][A-Z0-9_]*", name)]:
        raise RecipeFault(f"kiln: publish_token: {invalid[0]!r} is not the name of a variable", hint="PREFIX_API_KEY")
    require_unreserved_names(names, "kiln: publish_token")
    return names


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
        self.publication = PublicationSettings.read(self._own) if self._own.get_text("publish_to", "") else None
        if self.publication is not None:
            self._require_uploads_allowed(self.publication.channel)
        self.cache_size = self._read_cache_size()
        self.gpu_minutes = min(GPU_MINUTES, self.timeout)
        self.build_minutes = self.timeout - KEPT if self.timeout > 2 * KEPT else self.timeout

    def _require_uploads_allowed(self, channel: str) -> None:
        """Refuse a job that `kiln publish` would refuse after all builds."""
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
        size, most = self._own.get_number("compile_cache_size", 0), limit_of_service(GITHUB, "cache size")
        if not 0 <= size <= most.value:
            raise RecipeFault(
                f"kiln: compile_cache_size: {size} is not between 0 and {most.value}",
                why=f"GitHub keeps {most.value} {most.unit}",
            )
        return size

    def chain_job_count(self, group: str, size: Mapping[str, float]) -> int:
        """Return how many jobs of a chain a config may take, by the hours of its size or group; 1 for a single job.

        Hours on more cores than the runner's are taken as so much longer; a chain skips the jobs that it does not need.
        """
        stated, cores = stated_hours(self._own, group, size)
        hours = stated * cores / limit_of_service(GITHUB, "cores").value
        minutes = math.ceil(60 * hours)
        if minutes <= self.build_minutes:
            return 1
        most = limit_of_service(GITHUB, "run hours")
        if minutes > 60 * most.value:
            name = "hours in fleet-sizes.yml or the recipe" if size.get("hours") else "kiln: build_hours"
            raise RecipeFault(
                f"{name}: {hours:.10g} is more than {most.value}", why=f"GitHub allows {most.value} {most.unit}"
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
        return str(_value_of_first_matching_key(self._own, "gpu_runners", keys) or "")

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
        return self.whole.get_mapping(SETTINGS_WORKFLOW).get(name) is not None

    def _workflow_setting(self, name: str, platform: str) -> Any:
        return self.whole.get_workflow_setting(name, provider=GITHUB, platform=platform)


def stated_hours(own: TypedSettings, group: str, size: Mapping[str, float]) -> tuple[float, float]:
    """Return the hours that a config takes, 0 if nothing is stated, and the cores that they are for.

    They are ``hours`` of its ``size``, on its ``cores``, or those of ``kiln: build_hours``, on GitHub's runner, which
    are meant by a size without cores, too.
    """
    runner = limit_of_service(GITHUB, "cores").value
    if hours := size.get("hours"):
        return hours, size.get("cores") or runner
    return int(str(_value_of_first_matching_key(own, "build_hours", _setting_keys_of_group(group)) or 0)), runner


def _value_of_first_matching_key(own: TypedSettings, name: str, keys: Iterable[str]) -> Any:
    """Return the value of the first of the keys that a setting has, or the setting's one value for all."""
    value = own.get(name)
    return next((value[key] for key in keys if key in value), None) if isinstance(value, dict) else value


def _setting_keys_of_group(group: str) -> tuple[str, ...]:
    """Return the keys of a group's settings, the closest first: of its version and platform, of one, of neither."""
    levelled, _, platform = group.partition("-")
    version = levelled.partition("_")[0]
    kind = "cpu" if version == "cpu" else "cuda"
    whole = f"{version}-{platform}" if platform else version
    return tuple(dict.fromkeys((whole, f"{kind}-{platform}" if platform else kind, version, kind)))
