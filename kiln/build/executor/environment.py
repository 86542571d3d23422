"""The variables, paths, mounts and network of a config's build, in a container and on the host."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kiln.base import files
from kiln.base.errors import BuildFailed, KilnError, RecipeFault
from kiln.base.patterns import existing_subdirs
from kiln.base.position import Place
from kiln.base.system import files as system_files
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.build.job.job import channel_sources
from kiln.container.plan import Mount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.rendered import RenderedConfig


ROOT, RECIPE = Path("/home/conda/feedstock_root"), Path("/home/conda/recipe_root")
WORKER_ROOT = Path("/var/lib/kiln/project")  # on a fleet's worker, without a container, as in the playbooks
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


BASH = "/bin/bash"
HINT = "the script has no network: grant it in the recipe (extra: network: [{}]), or --network always"
# Messages of programs that try to use a missing network.
WANTED_NETWORK = re.compile(
    r"could not resolve|temporary failure in name resolution|name or service not known|network is unreachable"
    r"|unknown host|failed to resolve|getaddrinfo|uses the network, which fails",  # the last is the doctor's headline
    re.IGNORECASE,
)
OVER = "over"  # a file of this name ends the loop

# A waiting process looks for a file, and is woken by a pipe: no message is lost that was sent before it waited.
RINGS = 'echo 1<>"{}/bell"'

# A replacement of bash, for the engine and for tests: conda_build.sh and run_test.sh are a recipe's scripts.
SHELL = f"""#!/bin/sh
case "$*" in
*conda_build.sh | *run_test.sh) [ -z "${{KILN_APART:-}}" ] || exec {BASH} "$@" ;;
*) exec {BASH} "$@" ;;
esac
queue=$(dirname "$(dirname "$0")")
call=$(mktemp -d "$queue/XXXXXX")
mkfifo "$call/said" "$call/bell"
(umask 077 && export -p >"$call/environment")
pwd >"$call/place"
printf '%s\n' "$@" >"$call/words"
: >"$call/ready"
{RINGS.format("$queue")}
cat "$call/said" &
reader=$!
{BASH} -c '
exec 3<>"$1/bell"
until [ -e "$1/code" ] || [ -e "$2/{OVER}" ]; do read -r -t 1 _ <&3; done
' kiln "$call" "$queue"
for pause in 0.01 0.04 0.05 0.1 0.2 0.3 0.3; do # a background process of the script may keep its output open forever
    kill -0 "$reader" 2>/dev/null || break
    sleep "$pause"
done
left=60 # seconds for the engine to take the rest, where nobody writes any more
while [ -e "$call/whole" ] && [ "$left" -gt 0 ] && kill -0 "$reader" 2>/dev/null; do
    left=$((left - 1))
    sleep 1
done
kill "$reader" 2>/dev/null
[ -e "$call/code" ] || echo "the container in which scripts run without the network has ended" >&2
exit "$(cat "$call/code" || echo 1)"
"""

# One script; its variables, which may be secrets, are removed from the folder at once.
ONE = f'. "$0/environment"; rm "$0/environment"; cd "$(cat "$0/place")" && exec {BASH} "$@"'

# The loop; before the exit code it writes whether the output is whole: no process of the script holds it open.
LOOP = f"""
exec 4<>"$1/bell"
while [ ! -e "$1/{OVER}" ]; do
    for ready in "$1"/*/ready; do
        [ -e "$ready" ] || continue
        call=${{ready%/ready}}
        rm "$ready"
        mapfile -t words <"$call/words"
        exec 3>"$call/said"
        env -i KILN_APART=1 /bin/sh -c '{ONE}' "$call" "${{words[@]}}" \
            >&3 2>&1 </dev/null 3>&- 4>&-
        echo "$?" >"$call/code.part"
        exec 3>&-
        ls -l /proc/[0-9]*/fd 2>/dev/null | grep '^l.w' | grep -qF -- "-> $call/said" || : >"$call/whole"
        mv "$call/code.part" "$call/code"
        {RINGS.format("$call")}
    done
    read -r -t 1 _ <&4
done
exit 0
"""


@contextlib.contextmanager
def shared_script_queue(queue: Path) -> Iterator[Callable[[], None]]:
    """Make the folder that both containers see; yield a function that ends the loop, and may be called repeatedly.

    The function uses descriptors from before the containers' start: scripts can replace folder and pipe by links.
    """
    files.remove(queue)
    (queue / "bin").mkdir(parents=True)
    os.mkfifo(queue / "bell")
    files.write_text(queue / "bin" / "bash", SHELL)
    (queue / "bin" / "bash").chmod(0o755)
    folder = os.open(queue, os.O_RDONLY | system_files.FOLDER)
    bell = os.open("bell", os.O_RDWR | system_files.NO_LINK, dir_fd=folder)
    try:
        yield partial(_end_script_loop, folder, bell)
    finally:
        os.close(bell)
        os.close(folder)


def script_loop_command(queue: Path) -> tuple[str, ...]:
    """Return the command of the container without the network; ``queue`` is the folder as that container sees it."""
    return (BASH, "-c", LOOP, "kiln", str(queue))


def _end_script_loop(folder: int, bell: int) -> None:
    """End the loop after its current script; a shell that still waits for a script reports that the container ended."""
    with contextlib.suppress(OSError):  # a script has removed the folder, and ends with its container
        with contextlib.suppress(FileNotFoundError):
            os.unlink(OVER, dir_fd=folder)
        os.close(os.open(OVER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder))
    with contextlib.suppress(BlockingIOError):
        os.write(bell, b"\n")


def environment_with_queue_shell(queue: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which bash is the program that passes scripts on."""
    return {**variables, "PATH": f"{queue / 'bin'}{os.pathsep}{variables.get('PATH', os.defpath)}"}


def isolated_script_count(queue: Path) -> int:
    """Return how many scripts were run without the network."""
    return len(list(queue.glob("*/code")))


def require_isolated_script_run(queue: Path, before: int, step: str) -> None:
    """Refuse the result of a script that was run by another bash, and so with the network."""
    if isolated_script_count(queue) == before:
        raise BuildFailed(
            f"{step} ran its script outside the container without the network",
            why="the engine found another bash, one in the build environment for example",
            hint=HINT.format(step),
        )


def add_network_hint(error: KilnError, step: str) -> None:
    """Set an error's hint to granting the network, when the script tried to use it."""
    if WANTED_NETWORK.search(f"{error.what}\n{error.why}"):
        error.hint = HINT.format(step)


def is_network_granted(step: str, granted: Iterable[str]) -> bool:
    """Return whether the network is granted to a step's script, by its name or a pattern."""
    return any(fnmatchcase(step, pattern) for pattern in granted)


HIDDEN = frozenset({".git", "build_artifacts", ".venv", ".venv-fleet"})  # in the feedstock, never mounted
_FILES_OF_ABOUT = ("license_file", "prelink_message", "recipe_log_file")
PUBLISHED = ".kiln/index"  # the index of a channel that kiln has published


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedFolders:
    """The folders of this machine that a config's build uses, along with the feedstock's.

    ``work`` is the config's, ``packages`` the cache of fetched packages, ``compile_cache`` Bazel's, ``distdir`` the
    downloads, ``wheels`` a rehearsal's. ``shared_packages`` are packages of the channel that another config has made.
    """

    work: Path
    packages: Path
    compile_cache: Path | None = None
    distdir: Path | None = None
    wheels: Path | None = None
    shared_packages: tuple[Path, ...] = ()


def script_container_mounts(
    feedstock: Feedstock, rendered: RenderedConfig, folders: MountedFolders
) -> tuple[Mount, ...]:
    """Return the mounts of every container of a config; a container of scripts has only these."""
    read_only = {
        RECIPE: feedstock.recipe,
        **{container_path(path, feedstock): path for path in (feedstock.recipe, feedstock.config_folder)},
        Path(PACKAGE_INSIDE, "kiln"): PACKAGE_ROOT / "kiln",
        **({} if folders.distdir is None else {DISTDIR_INSIDE: folders.distdir}),
        **({} if folders.wheels is None else {container_path(folders.wheels, feedstock): folders.wheels}),
        **_paths_outside_recipe(feedstock, rendered),
    }
    for path in (feedstock.recipe, feedstock.config_folder):
        _require_inside_feedstock(path.resolve(), feedstock, str(path.relative_to(feedstock.root)), rendered.file)
    cache = folders.compile_cache
    return (
        *(Mount(source=source, target=str(target)) for target, source in read_only.items()),
        Mount(source=folders.work, target=str(container_path(folders.work, feedstock)), read_only=False),
        *(() if cache is None else (Mount(source=cache, target=str(CACHE_INSIDE), read_only=False),)),
    )


def engine_container_mounts(feedstock: Feedstock, config: BuildConfig, folders: MountedFolders) -> tuple[Mount, ...]:
    """Return the further mounts of the engine's container: packages and channels."""
    packages = folders.packages
    return (
        *(Mount(source=path, target=str(container_path(path, feedstock))) for path in folders.shared_packages),
        *_local_channel_mounts(feedstock, config),
        *(
            ()
            if packages.is_relative_to(folders.work)
            else (Mount(source=packages, target=str(container_path(packages, feedstock)), read_only=False),)
        ),
    )


def _paths_outside_recipe(feedstock: Feedstock, rendered: RenderedConfig) -> dict[Path, Path]:
    """Return the paths outside its own folder that the recipe names, by their paths in the container."""
    root, recipe = feedstock.root.resolve(), feedstock.recipe.resolve()
    places: dict[Path, Path] = {}
    for name in _paths_named_by_recipe(rendered):
        place = (recipe / name).resolve()
        if not place.is_relative_to(recipe) and place.exists():
            _require_inside_feedstock(place, feedstock, name, rendered.file)
            places |= {ROOT / path.relative_to(root): path for path in _visible_entries(place, root)}
    return places


def _paths_named_by_recipe(rendered: RenderedConfig) -> Iterator[str]:
    """Yield the paths that a recipe names, relative to itself."""
    for source in rendered.sources:
        yield from (*([] if source.path is None else [source.path]), *source.patches)
        yield from (url for url in source.url if "://" not in url)
        if source.checkout is not None and source.checkout.url.startswith("."):
            yield source.checkout.url
    stagings, outputs = rendered.stagings, rendered.outputs
    for script in (*(staging.script for staging in stagings), *(output.script for output in outputs)):
        yield from [] if script.file is None else [script.file]
    for output in rendered.outputs:
        for key in _FILES_OF_ABOUT:
            yield from output.about_texts(key)
        for test in output.tests:
            yield from (*test.files, *([] if test.script.file is None else [test.script.file]))


def _require_inside_feedstock(place: Path, feedstock: Feedstock, name: str, file: str) -> None:
    """Refuse a path outside the feedstock, or in a hidden folder."""
    root = feedstock.root.resolve()
    if place.is_relative_to(root) and not HIDDEN.intersection(place.relative_to(root).parts[:1]):
        return
    raise RecipeFault(
        f"{name} leads to {place}, which containers do not see",
        at=Place(file=file),
        why=f"of this machine they see what the recipe names inside of {root}, without {', '.join(sorted(HIDDEN))}",
        hint="copy it into the recipe's folder, or build with --container none",
    )


def _visible_entries(place: Path, root: Path) -> Iterator[Path]:
    """Yield a path; for the feedstock's root, each entry that is not hidden."""
    if place != root:
        yield place
        return
    for entry in sorted(root.iterdir()):
        if entry.name not in HIDDEN and not entry.is_symlink():
            yield entry


def _local_channel_mounts(feedstock: Feedstock, config: BuildConfig) -> Iterator[Mount]:
    """Yield the parts of the channels on this machine, under their own paths; a channel has an index."""
    for name in channel_sources(config):
        folder = _local_channel_folder(name)
        if folder is None:
            continue
        inside = folder.is_relative_to(ROOT)  # a path in the container
        place = feedstock.root / folder.relative_to(ROOT) if inside else folder
        subdirs = existing_subdirs(place)
        is_channel = any(next((place / subdir).glob("repodata*.json*"), None) for subdir in subdirs)
        for part in (*subdirs, PUBLISHED) if is_channel else ():
            if (place / part).is_dir() and not (place / part).is_symlink():
                yield Mount(source=place / part, target=str(folder / part))


def _local_channel_folder(channel: str) -> Path | None:
    """Return the folder of a channel on this machine; None for a remote one."""
    if channel.startswith("file:"):
        channel = unquote(urlsplit(channel).path)
    return Path(os.path.normpath(channel)) if channel.startswith("/") else None
