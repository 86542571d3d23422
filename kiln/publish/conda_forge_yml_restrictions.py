"""The settings in conda-forge.yml that forbid a publication."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import limits
from kiln.conda_forge_yml import TypedSettings
from kiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

# The services with a setting upload_packages, which are values of conda-forge's variable CI, and their own variables.
_SERVICES = {"github_actions": "GITHUB_ACTIONS", "azure": "TF_BUILD"}


def require_publication_allowed(
    path: Path, target: str, *, environment: Mapping[str, str], current_branch: Callable[[], str]
) -> None:
    """Refuse a publication to a target that conda-forge.yml forbids.

    ``current_branch`` returns the branch of the feedstock's checkout, empty when it is unknown; conda-forge's variable
    GIT_BRANCH precedes it. Source: upload_or_check_non_existence.py of conda-forge-ci-setup.

    Raises:
        UsageError: the branch is another one, uploads from this CI service are off, or must be private.
        KilnError: the file is malformed.
    """
    settings = limits.run_bounded(lambda: TypedSettings.read(path))
    service = _current_ci_service(environment)
    if service and not settings.get_nested(service).get_flag("upload_packages", default=True):
        raise UsageError(
            f"{service}.upload_packages is false",
            at=settings.place_of(service),
            why="this job may not publish packages",
            hint="remove the setting, or publish from another machine",
        )
    expected = settings.get_text("upload_on_branch", "")
    branch = (environment.get("GIT_BRANCH") or current_branch()) if expected else ""
    if expected and branch != expected:
        raise UsageError(
            f"upload_on_branch is {expected!r}, and this is {branch or 'an unknown branch'}",
            at=settings.place_of("upload_on_branch"),
            why="packages of other branches are not published",
            hint=f"git switch {expected}" if branch else f"GIT_BRANCH={expected}, if this is its commit",
        )
    if target.startswith("anaconda:") and settings.get_flag("private_upload", default=False):
        raise UsageError(
            "private_upload is true, and kiln cannot ask anaconda.org for it",
            at=settings.place_of("private_upload"),
            why="the packages would be public",
            hint="kiln publish --bundle DIR, then anaconda upload --private",
        )


def _current_ci_service(environment: Mapping[str, str]) -> str:
    """Return the CI service of this job, empty for another one or none; CI is true where a job does not set it."""
    if environment.get("CI") in _SERVICES:
        return environment["CI"]
    return next((name for name, own in _SERVICES.items() if environment.get(own, "").lower() == "true"), "")
