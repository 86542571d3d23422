"""The secret variables of an environment, by their names and by the URLs in their values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.lazy_pattern import lazy_pattern
from kiln.masking import urls
from kiln.masking.mask import is_maskable

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = lazy_pattern(
    r"TOKEN|API_?KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL|(?:^|_)PASS$|(?:^|_)PWD$",
    re.IGNORECASE,
)
_PARTS = ("token", "key", "secret", "pass", "cred", "pwd")  # each name that _NAME matches contains one of these
_FOLDERS = frozenset({"PWD", "OLDPWD"})
_PLACE = lazy_pattern(r"_(?:FILE|PATH|DIR|URL|URI|HOST|NAME|TYPE|ENDPOINT|EXPIRATION)S?$|^(?:OLD)?PWD$", re.IGNORECASE)


# Variables that recipes pass to their scripts, and others that are never secret.
_PUBLIC = lazy_pattern(
    r"PATH|HOME|USER|LANG|LC_\w+|TERM|TMPDIR|SHELL|PWD|CI|CONFIG|CPU_COUNT|FEEDSTOCK_NAME|UPLOAD_PACKAGES|IS_PR_BUILD"
    r"|HOST_USER_ID|BUILD_WITH_CONDA_DEBUG|BUILD_OUTPUT_ID|GIT_BRANCH|UPLOAD_ON_BRANCH|flow_run_id|sha|GITHUB_ACTIONS"
    r"|SOURCE_DATE_EPOCH|SSL_CERT_(?:FILE|DIR)|REQUESTS_CA_BUNDLE|NO_PROXY|no_proxy|PYENV_ROOT|XDG_\w+"
)


def is_public_variable(name: str) -> bool:
    """Return whether a variable is one of the system's, or of conda-forge's, that are not secret."""
    return _PUBLIC.fullmatch(name) is not None


def is_secret_variable(name: str) -> bool:
    """Return whether a variable is secret by its name: ``*TOKEN*``, ``*PASSWORD*``, but not ``*_FILE``."""
    if name in _FOLDERS or (name.isascii() and not any(part in name.lower() for part in _PARTS)):
        return False  # almost all variables, for which no expression is compiled
    return _NAME.search(name) is not None and _PLACE.search(name) is None


def secrets_of_script_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets among the variables that a recipe requests: all but the public ones."""
    values = [value for name, value in environment.items() if not is_public_variable(name)]
    return (*values, *secrets_of_environment(environment))


_SWITCH = lazy_pattern(r"\d*|y|n|yes|no|on|off|all", re.IGNORECASE)


def unmaskable_variable_names(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of script variables that may be secret, and are too short to be masked."""
    return tuple(
        name
        for name, value in variables.items()
        if value
        and not is_maskable(value)
        and not is_public_variable(name)
        and (is_secret_variable(name) or not _SWITCH.fullmatch(value))
    )


def secrets_of_environment(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets of an environment: the values of secret variables, and the credentials in any URL."""
    secrets = [value for name, value in environment.items() if is_secret_variable(name)]
    secrets += [secret for value in environment.values() for secret in urls.secrets_in_urls(value)]
    return tuple(dict.fromkeys(secrets))
