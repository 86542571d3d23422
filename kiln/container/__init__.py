"""Run a container with Docker or Podman: its mounts, limits and network are a plan; it is removed at the block's end.

``choose_engine`` finds an engine that answers; an installed program does not suffice. ``Container`` runs a plan, which
is a `kiln.model.container.ContainerRun`.

A plan grants, everything else is withheld: no network, no capabilities, no new privileges, read-only mounts, no swap.
Files written on mounts belong to ``user``, in rootless engines too. A bad exit code is returned, not raised; a refusal
of the engine is a ContainerFault, a missing image that cannot be fetched a DownloadFailed with a hint.

The end of the block removes the container with everything in it. A process that is killed with ``kill -9`` cannot do
that: its containers are labeled with the process, and the next Container that is entered removes them.

On some machines an engine runs nothing as it is installed: ``engine_workarounds`` finds the options that it needs.
"""
