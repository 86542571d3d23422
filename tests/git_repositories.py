"""Git repositories that tests make."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS = ("user.name=a", "user.email=a@example.org", "init.defaultBranch=main")


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, without the user's settings and always at the same moment; return its output, stripped."""
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    moment = dict.fromkeys(("GIT_COMMITTER_DATE", "GIT_AUTHOR_DATE"), "@0 +0000")
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", **moment}
    argv = ("git", *settings, *words)
    return subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout.strip()
