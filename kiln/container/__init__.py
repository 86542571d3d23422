"""Run a container with Docker or Podman: its mounts, limits and network are a plan; it is removed at the block's end.

Choose an engine::

    choice = choose(None, env=os.environ)  # or "docker", "podman", "none"
    for note in choice.notes:              # the isolation that is missing
        print(note)

An engine counts when it answers, not when its program is installed. ``choice.engine`` is None for a build on the host.

Plan and run a container::

    plan = ContainerRun(
        image="localhost/kiln-base:bookworm",
        argv=("bash", "build.sh"),
        environment={"CONFIG": "linux_64_"},
        secrets={"TOKEN": token},          # in no command line, log or representation
        mounts=(
            Mount(source=recipe, target="/home/conda/recipe_root"),
            Mount(source=out, target="/out", read_only=False),
        ),
        user=User(uid=os.getuid(), gid=os.getgid()),
        limits=Limits(cores=8, memory=16 << 30, processes=4096),
    )
    with Container(choice.engine, plan) as container:
        result = container.run(log=log, on_line=show)
    if result.memory_kills: ...            # out of memory, not an error of the compiler

A plan grants, everything else is withheld: no network, no capabilities, no new privileges, read-only mounts, no swap.
Files written on mounts belong to ``user``, in rootless engines too. A bad exit code is returned, not raised; a refusal
of the engine is a ContainerFault, a missing image that cannot be fetched a DownloadFailed with a hint.

The end of the block removes the container with everything in it. A process that is killed with ``kill -9`` cannot do
that: its containers are labeled with the process, and the next Container that is entered removes them.

On some machines an engine runs nothing as it is installed. ``trial.workable`` runs ``true`` once per process,
recognizes the usual refusals by their messages, and adds the options that avoid them, with ``engine.notes``.

``images`` inspects and fetches images, returns their digest (for cache keys) and makes them from tar archives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from kiln.container.container import Container, remove_leftovers
    from kiln.container.engine import ON_THE_HOST, Engine, EngineChoice, EngineKind, choose

__all__ = ["ON_THE_HOST", "Container", "Engine", "EngineChoice", "EngineKind", "choose", "remove_leftovers"]

__getattr__ = lazy_exports(
    __name__,
    {"container": "Container remove_leftovers", "engine": "ON_THE_HOST Engine EngineChoice EngineKind choose"},
)
