"""The environment of a config's build: conda-forge's variables and paths, in a container and on the host.

The names and their meanings are conda-smithy's (build-locally.py, run_docker_build.sh): scripts of feedstocks and their
CI rely on them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.model.feedstock import Feedstock

ROOT, RECIPE = Path("/home/conda/feedstock_root"), Path("/home/conda/recipe_root")
WORKER_ROOT = Path("/var/lib/kiln/project")  # on a fleet's worker, without a container, as in the playbooks
PACKAGE_ROOT = Path(__file__).parents[2]  # the folder that holds the kiln package
PACKAGE_INSIDE, ENGINE_INSIDE = "/opt/kiln-package", "/opt/kiln-engine"
HOME = "/home/conda"
INSIDE = {  # the variables of each container
    "HOME": HOME,
    "FEEDSTOCK_ROOT": str(ROOT),
    "RECIPE_ROOT": str(RECIPE),
    "PYTHONPATH": f"{PACKAGE_INSIDE}:{ENGINE_INSIDE}",
    "PYTHONDONTWRITEBYTECODE": "1",
}
CACHE_INSIDE, DISTDIR_INSIDE = Path(HOME, "compile-cache"), Path(HOME, "distdir")

# Variables that are passed on unchanged, where they are set.
CONTRACT = (
    *("BUILD_WITH_CONDA_DEBUG", "BUILD_OUTPUT_ID", "CI", "GIT_BRANCH", "UPLOAD_ON_BRANCH"),
    *("flow_run_id", "remote_url", "sha", "GITHUB_ACTIONS", "SOURCE_DATE_EPOCH"),
    "KILN_LIMITS",
)
EXTRA = ("flow_run_id", "remote_url", "sha")  # these go into each package's metadata, too
NO_ENTRY = ("--entrypoint", "")  # the entry point of conda-forge's images adds a user first, which needs root
PROCESSES = 16_384  # threads count; a JVM along with a compiler for each core has many

# The start of a run's processes; `-m` would import the package, and this module with it, a first time.
MAIN = "import sys; from kiln.{module} import main; main(*sys.argv[1:])"


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs the ``main`` of one of kiln's modules by this Python."""
    return (sys.executable, "-c", MAIN.format(module=module), *arguments)


def conda_forge_variables(
    feedstock: Feedstock, config: str, *, caller: Mapping[str, str], cores: int, uid: int
) -> dict[str, str]:
    """Return conda-forge's variables; ``caller`` is the caller's environment."""
    return {
        "CONFIG": config,
        "UPLOAD_PACKAGES": "False",
        "IS_PR_BUILD": "True",
        "HOST_USER_ID": str(uid),
        "CPU_COUNT": caller.get("CPU_COUNT", str(cores)),
        "FEEDSTOCK_NAME": caller.get("FEEDSTOCK_NAME", feedstock.root.name),
        **{name: caller[name] for name in CONTRACT if name in caller},
    }


def container_path(path: Path, feedstock: Feedstock) -> Path:
    """Return a path of the feedstock as the container sees it."""
    return ROOT / path.relative_to(feedstock.root)
