"""The variables of a recipe's compile step: the contract with its script, which may ignore them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kiln.store import executor_credentials_encoding

if TYPE_CHECKING:
    from collections.abc import Mapping


DISK_CACHE, REMOTE_CACHE, EVENTS = "BAZEL_DISK_CACHE", "BAZEL_REMOTE_CACHE", "BAZEL_BUILD_EVENTS"
CPUS, MEMORY, DISTDIR, CACHE_KEY = "BAZEL_CPUS", "BAZEL_MEMORY_MB", "BAZEL_DISTDIR", "BAZEL_CACHE_KEY"
PROFILE, EXECUTOR, CREDENTIALS = "BAZEL_PROFILE", "BAZEL_REMOTE_EXECUTOR", "BAZEL_REMOTE_CREDENTIALS"
JOBS, FALLBACK = "BAZEL_REMOTE_JOBS", "BAZEL_REMOTE_FALLBACK"
SECRETS = (REMOTE_CACHE, EXECUTOR, CREDENTIALS)  # addresses may contain a password


def secret_variable_names(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the names of the secret variables that are set."""
    return tuple(name for name in SECRETS if environment.get(name))


def with_secrets_inside_credentials(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return secret variables, and the secrets inside of the credentials' variable under names of their own."""
    parts = executor_credentials_encoding.secrets_in_encoded_credentials(secrets.get(CREDENTIALS, ""))
    return {**secrets, **{f"{CREDENTIALS}_{number}": part for number, part in enumerate(parts)}}
