"""A cell's job together with what it is about: the feedstock, the folders, what the cell renders to, its secrets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import expand, load, render
from kiln.build import callers_variables
from kiln.pipeline import compiling
from kiln.pipeline.layout import Layout
from kiln.pipeline.outline import needs_network

if TYPE_CHECKING:
    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import Rendered
    from kiln.pipeline.jobs import CellJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A cell to build, as its own process knows it."""

    job: CellJob
    feedstock: Feedstock
    layout: Layout
    rendered: Rendered

    @classmethod
    def of(cls, job: CellJob) -> Task:
        """Find the feedstock and render the cell."""
        feedstock = load.find(Path(job.root))
        return cls(
            job=job,
            feedstock=feedstock,
            layout=Layout.of(feedstock, rehearsal=job.rehearsal),
            rendered=render.render(feedstock, expand.read(feedstock, job.config)),
        )

    @property
    def folder(self) -> Path:
        """Where the cell is built."""
        return self.layout.work(self.job.config)

    @property
    def lock(self) -> Path:
        """Held by whoever builds the cell."""
        return self.layout.lock(self.job.config)

    @property
    def is_foreign(self) -> bool:
        """Whether another engine than rattler-build makes the packages, by a script instead of kiln's own process."""
        return self.job.engine != "rattler-build"

    @property
    def module(self) -> str:
        """Whose ``main`` the building process runs."""
        return "rehearsal" if self.job.rehearsal else "builder"

    @property
    def distdir(self) -> Path | None:
        """The folder of downloads."""
        return None if self.job.distdir is None else Path(self.job.distdir)

    @property
    def secrets(self) -> dict[str, str]:
        """What reaches the compile step by its environment alone; other engines hand nothing of the kind to scripts."""
        compiles = not (self.is_foreign or self.job.rehearsal)
        return {} if not compiles else {name: os.environ[name] for name in compiling.secrets(os.environ)}

    @property
    def scripted(self) -> dict[str, str]:
        """The caller's variables that the recipe wants, so far as they are set; this process has them, no file."""
        return {name: os.environ[name] for name in callers_variables(self.rendered) if name in os.environ}

    @property
    def network(self) -> bool:
        """Whether a container of this cell reaches the network."""
        return self.is_foreign or bool(self.secrets) or (not self.job.rehearsal and needs_network(self.rendered))
