"""A config's job with its context: the feedstock, the folders, the rendered outputs, the secrets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import expand, feedstock_folder_check, masking, render
from kiln.build.script_variables import config_caller_variable_names
from kiln.job.required_channels_and_network import needs_network
from kiln.model.rattler_build_settings import OWN_ENGINE
from kiln.store import bazel_variables_of_compile_scripts
from kiln.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from kiln.job.job_descriptions import ConfigJob
    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import RenderedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """A config's job with its feedstock, folders and rendered outputs."""

    job: ConfigJob
    feedstock: Feedstock
    layout: ArtifactLayout
    rendered: RenderedConfig

    @classmethod
    def from_job(cls, job: ConfigJob) -> JobContext:
        """Find the feedstock and render the config."""
        feedstock = feedstock_folder_check.load(Path(job.root))
        return cls(
            job=job,
            feedstock=feedstock,
            layout=ArtifactLayout.for_feedstock(
                feedstock, rehearsal=job.options.rehearsal, compile_cache=job.options.compile_cache
            ),
            rendered=render.render(feedstock, expand.read_config(feedstock, job.config)),
        )

    @property
    def folder(self) -> Path:
        """The folder in which the config is built."""
        return self.layout.work_folder(self.job.config)

    @property
    def lock_file(self) -> Path:
        """The lock file of the config's build."""
        return self.layout.lock_file(self.job.config)

    @property
    def uses_other_engine(self) -> bool:
        """True when another engine than rattler-build makes the packages, by a script instead of kiln's process."""
        return self.job.options.engine != OWN_ENGINE

    @property
    def compile_secrets(self) -> dict[str, str]:
        """The secret variables of the compile step, passed by environment alone; other engines pass none to scripts."""
        compiles = not (self.uses_other_engine or self.job.options.rehearsal)
        names = bazel_variables_of_compile_scripts.secret_variable_names(os.environ) if compiles else ()
        return {name: os.environ[name] for name in names}

    @property
    def caller_script_variables(self) -> dict[str, str]:
        """The caller's variables that the recipe passes to scripts, if set; they are in no file."""
        return {name: os.environ[name] for name in config_caller_variable_names(self.rendered) if name in os.environ}

    def mask_secrets(self) -> None:
        """Have this process mask the secrets of the config's programs, and the password of pip's index."""
        masking.register_secrets(
            (
                *masking.secrets_of_environment(os.environ),
                *masking.secrets_of_script_variables(self.caller_script_variables),
                *bazel_variables_of_compile_scripts.with_secrets_inside_credentials(self.compile_secrets).values(),
            )
        )

    @property
    def has_network(self) -> bool:
        """True when the config's container has the network."""
        return (
            self.uses_other_engine
            or bool(self.compile_secrets)
            or (not self.job.options.rehearsal and needs_network(self.rendered))
        )
