"""What a cell's build finds around it: conda-forge's variables and mounts, in a container and on the host.

The names and what they mean are conda-smithy's (build-locally.py, run_docker_build.sh): scripts of feedstocks and their
CI rely on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kiln import image
from kiln.model.container import ContainerRun, Limits, Mount, User
from kiln.pipeline.lent import TELL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.bazel.cache import Caches
    from kiln.model.feedstock import Feedstock

ROOT, RECIPE = Path("/home/conda/feedstock_root"), Path("/home/conda/recipe_root")
ON_A_MACHINE = Path("/var/lib/kiln/project")  # of the fleet, where no container is between, as the playbooks have it
HOUSE = Path(__file__).parents[2]  # the folder that holds the kiln package
HOUSE_INSIDE, ENGINE_INSIDE = "/opt/kiln-package", "/opt/kiln-engine"
HOME = "/home/conda"
CACHE_INSIDE, DISTDIR_INSIDE = Path(HOME, "compile-cache"), Path(HOME, "distdir")

# What is handed on as it is, where it is set.
PASSED_ON = (
    *("BUILD_WITH_CONDA_DEBUG", "BUILD_OUTPUT_ID", "CI", "GIT_BRANCH", "UPLOAD_ON_BRANCH"),
    *("flow_run_id", "remote_url", "sha", "GITHUB_ACTIONS", "SOURCE_DATE_EPOCH"),
)
EXTRA = ("flow_run_id", "remote_url", "sha")  # these go into each package's metadata too
NO_ENGINE = 97
NO_ENTRY = ("--entrypoint", "")  # conda-forge's images would make a user first, which takes root
PROCESSES = 16_384  # threads count, and a JVM beside a compiler for each core has many

# How the processes of a run begin; `-m` would import the package, and this module with it, once before.
MAIN = "import sys; from kiln.pipeline.{module} import main; main(sys.argv[1])"

# kiln's own environment in its base image, or whatever Python of the image has the engine; loading it would take long.
# Where none has it, the Python is told that it can be lent to.
START = f"""
for python in {image.ENGINE_HOME}/bin/python /opt/conda/bin/python python3; do
    if "$python" -c 'from importlib.util import find_spec as f; exit(not (f("rattler") and f("rattler_build")))' \\
        2>/dev/null; then
        export PATH="$(dirname "$(command -v "$python")"):$PATH"
        exec "$python" -c "$2" "$1"
    fi
done
for python in /opt/conda/bin/python python3; do
    "$python" -c '{TELL}' 2>/dev/null && break
done
exit {NO_ENGINE}
"""


def variables(feedstock: Feedstock, config: str, *, given: Mapping[str, str], cores: int, uid: int) -> dict[str, str]:
    """Return conda-forge's variables; ``given`` are those that the caller's environment has."""
    return {
        "CONFIG": config,
        "UPLOAD_PACKAGES": "False",
        "IS_PR_BUILD": "True",
        "HOST_USER_ID": str(uid),
        "CPU_COUNT": given.get("CPU_COUNT", str(cores)),
        "FEEDSTOCK_NAME": given.get("FEEDSTOCK_NAME", feedstock.root.name),
        **{name: given[name] for name in PASSED_ON if name in given},
    }


def run_inside(
    feedstock: Feedstock,
    argv: tuple[str, ...],
    *,
    image_name: str,
    environment: Mapping[str, str],
    user: User,
    limits: Limits,
    network: bool,
    options: tuple[str, ...],
    mounts: tuple[Mount, ...] = (),
    secrets: Mapping[str, str] | None = None,
) -> ContainerRun:
    """Return the container in which ``argv`` builds a cell; ``mounts`` come after those of every cell."""
    inside = {
        "HOME": HOME,
        "FEEDSTOCK_ROOT": str(ROOT),
        "RECIPE_ROOT": str(RECIPE),
        "PYTHONPATH": f"{HOUSE_INSIDE}:{ENGINE_INSIDE}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return ContainerRun(
        image=image_name,
        argv=argv,
        environment={**environment, **inside},
        secrets=secrets or {},
        mounts=(
            Mount(source=feedstock.recipe, target=str(RECIPE)),
            Mount(source=feedstock.root, target=str(ROOT), read_only=False),
            Mount(source=HOUSE / "kiln", target=f"{HOUSE_INSIDE}/kiln"),
            *mounts,
        ),
        user=user,
        limits=limits,
        network=network,
        workdir=HOME,
        options=options,
    )


def compile_mounts(feedstock: Feedstock, caches: Caches, key: str, distdir: Path | None) -> tuple[Mount, ...]:
    """Return what a cell's compile needs beside the feedstock: of all caches its own alone, and downloads."""
    hidden = Mount(source=caches.nothing, target=str(within(caches.root, feedstock)))
    own = Mount(source=caches.folder(key), target=str(CACHE_INSIDE), read_only=False)
    return (hidden, own, *(() if distdir is None else (Mount(source=distdir, target=str(DISTDIR_INSIDE)),)))


def start(job_file: Path, *, module: str) -> tuple[str, ...]:
    """Return the program that does what a job file says, which the container sees under that path."""
    return ("sh", "-c", START, "kiln", str(job_file), MAIN.format(module=module))


def within(path: Path, feedstock: Feedstock) -> Path:
    """Return where a path of the feedstock lies in the container."""
    return ROOT / path.relative_to(feedstock.root)
