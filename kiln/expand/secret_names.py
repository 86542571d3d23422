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
        is_setting = _SETTING.fullmatch(name) and not _OF_SECRET.fullmatch(name)
        if name.upper() in _OWN or _SYSTEM.fullmatch(name) or is_setting:
            owner = "the workflow" if name.upper() in _OWN else "GitHub, the system or a build"
            raise RecipeFault(
                f"{setting}: {name} is a variable of {owner}",
                at=at,
                why="the secret would take its place, and its value could not be told from the variable's",
                hint=f"name the secret MY_{name.upper().lstrip('_')}",
            )
