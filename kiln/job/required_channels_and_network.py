"""A config's needs from outside: channels, Pythons and network access."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln import channel_url_credentials
from kiln.matchspec_notation import package_name
from kiln.package_test.specs_and_script import specs_required_by_test

if TYPE_CHECKING:
    from kiln.model.matrix_config import BuildConfig
    from kiln.model.rendered import RenderedConfig


def channels_needed_by_config(rendered: RenderedConfig) -> tuple[str, ...]:
    """Return the variant's channels, or conda-forge; empty when no package from outside is required."""
    own_names = {output.name for output in rendered.outputs}
    outputs = [output for output in rendered.outputs if not output.skip]
    sections = [*(staging.requirements for staging in rendered.stagings), *(output.requirements for output in outputs)]
    specs = [spec for needs in sections for spec in (*needs.build, *needs.host, *needs.run)]
    tests = [test for output in outputs for test in output.tests]
    specs += [spec for test in tests for spec in (*specs_required_by_test(test), *test.downstreams)]
    names = {package_name(spec) for spec in specs}
    if not {name for name in names - own_names if not name.startswith("__")}:
        return ()
    return channel_sources(rendered.config)


def channel_sources(config: BuildConfig) -> tuple[str, ...]:
    """Return the channels that a config's variant names, by priority; see `kiln.channel_url_credentials` for theirs."""
    channels = config.variant.get("channel_sources", ("conda-forge",))[0]
    return channel_url_credentials.register_credentials(name for part in channels.split(",") if (name := part.strip()))


def python_versions_of_config(config: BuildConfig) -> frozenset[str]:
    """Return the minor versions of Python in a config's variant, ``3.11``."""
    values = config.variant.get("python", ())
    return frozenset(match[0] for value in values if (match := re.match(r"3\.\d+", value)))


def needs_network(rendered: RenderedConfig) -> bool:
    """Return whether a config's build needs packages or sources that are not on this machine."""
    remote = [name for name in channels_needed_by_config(rendered) if not name.startswith(("file:", "/"))]
    return bool(
        remote
        or rendered.network
        or any(source.url or source.git_url or source.checkout for source in rendered.sources)
    )
