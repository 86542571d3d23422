"""The names of the secrets that CI gives to builds, by conda-forge.yml.

They may not be variables of the workflow, of conda-forge, or of the system.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.conda_forge_yml import TypedSettings
    from kiln.model.source_position import Place

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
    r"|DOCKER_(?:IMAGE|EXECUTABLE|HOST)|\w+_PROXY|GIT_(?:ASKPASS|SSH|SSH_COMMAND|DIR|CONFIG\w*|EXEC_PATH)|PIP_\w+"
    r"|NODE_OPTIONS",
    re.IGNORECASE,
)
_OWN = frozenset(name.upper() for name in WORKFLOW)


def secret_names(settings: TypedSettings) -> tuple[str, ...]:
    """Return the names of secrets in settings.

    Raises:
        RecipeFault: a name cannot be a variable's.
    """
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
    """Refuse names of secrets that are other variables of a job; GitHub's secrets are the same in either case.

    Raises:
        RecipeFault: with the first such name.
    """
    for name in names:
        if name.upper() in _OWN or _SYSTEM.fullmatch(name):
            owner = "the workflow" if name.upper() in _OWN else "GitHub, the system or a build"
            raise RecipeFault(
                f"{setting}: {name} is a variable of {owner}",
                at=at,
                why="the secret would take its place, and its value could not be told from the variable's",
                hint=f"name the secret MY_{name.upper().lstrip('_')}",
            )
