"""One container, on Docker or Podman: what it may see, use and reach is a value, and it is gone when its block ends.

Where to run::

    choice = choose(None, env=os.environ)  # or "docker", "podman", "none"
    for note in choice.notes:              # what isolation is missing, for a person to read
        print(note)

An engine counts when it answers, not when its program lies there. ``choice.engine`` is None for a build on the host.

What to run, and running it::

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
        ended = container.run(log=log, on_line=show)
    if ended.out_of_memory: ...            # told apart from a compiler's complaint

What a plan does not grant is withheld: no network, no capabilities, no new privileges, read-only mounts, no swap.
Files written on mounts belong to ``user``, in rootless engines too. A bad exit code is returned, not raised; what the
engine itself refuses is a ContainerFault, an image that cannot be had a DownloadFailed that says what to do.

``container.start()``, ``exec``, ``copy_in``, ``copy_out`` and ``stop`` are for a container that lives longer than one
program. The end of the block removes it with everything in it. A process that is killed with ``kill -9`` cannot do
that: its containers carry its name as a label, and whoever enters a Container next removes them.

On some machines an engine runs nothing as it is installed. ``trial.workable`` finds that out by running ``true`` once
per process, knows the usual refusals by their words, and adds the options with which it works; ``engine.notes`` tell.

``images`` looks images up, fetches them, tells their digest (for cache keys) and makes them from tar archives.
"""

from kiln.container.container import Container, remove_leftovers
from kiln.container.engine import ON_THE_HOST, Choice, Engine, Kind, choose

__all__ = ["ON_THE_HOST", "Choice", "Container", "Engine", "Kind", "choose", "remove_leftovers"]
