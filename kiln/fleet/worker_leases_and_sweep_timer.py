"""The leases of workers, which bound their cost when the controller never returns, as far as a provider allows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kiln.fleet.plan import WorkerArrangement

LEASE = 5400.0  # seconds: an hour without a network loses no build, with some minutes to spare
LIFETIME = 86400.0  # seconds after which a worker ends itself, renewed or not, unless its plan takes longer
FREE = ("local", "static", "slurm")
ENDS_ITSELF = ("aws",)  # a worker that shuts down is terminated; elsewhere it has to delete itself, or be deleted
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@+-]+")


def greatest_cost_text(way: WorkerArrangement) -> str:
    """Describe the greatest cost of an arrangement after the controller is gone for good."""
    machine_type, hours = way.machine_type, LEASE / 3600
    total = sum(kind.hourly_price(spot=spot) for kind, spot in way.machines) * hours
    most = f"{total:.2f} {machine_type.currency} at most" if way.is_priced else "as much as they do in that time"
    if machine_type.provider in FREE:
        return "nothing is charged for these workers"
    if machine_type.provider in ENDS_ITSELF:
        return (
            f"should this computer never return, workers terminate themselves within {hours:.1f} h, which costs {most}"
        )
    return (
        f"should this computer never return, workers delete themselves within {hours:.1f} h, which costs {most}"
        f", if the cloud grants each a credential for that (the run says if it does"
        f" not); else {machine_type.provider} charges for them until they are deleted, and only a sweep from another"
        f" computer bounds that (kiln fleet sweep --provider {machine_type.provider} --print-timer)"
    )


def sweep_timer_script(
    provider: str, argv: Sequence[str], *, folder: str, environment: Mapping[str, str], every: float
) -> str:
    """Return a shell script that makes systemd sweep a provider every so many seconds, for the user who runs it.

    ``environment`` must hold no secret; these are read from a file of the user.
    """
    name = f"kiln-sweep-{provider}"
    settings = "".join(
        f"Environment={_quote_for_systemd(f'{key}={text}')}\n" for key, text in sorted(environment.items())
    )
    return f"""#!/bin/sh
# Every {every / 60:.0f} minutes: delete {provider}'s workers that have ended or expired, of all runs.
# Run this on a computer that is always on. Secrets go into ~/.config/kiln/{name}.env, as NAME=VALUE.
set -eu
units=${{XDG_CONFIG_HOME:-$HOME/.config}}/systemd/user
mkdir -p "$units"
cat >"$units/{name}.service" <<'END'
[Unit]
Description=Delete stale workers of kiln's fleet at {provider}

[Service]
Type=oneshot
WorkingDirectory={folder.replace("%", "%%")}
EnvironmentFile=-%h/.config/kiln/{name}.env
{settings}ExecStart={" ".join(_quote_for_systemd(word).replace("$", "$$") for word in argv)}
END
cat >"$units/{name}.timer" <<'END'
[Unit]
Description=Delete stale workers of kiln's fleet at {provider}, periodically

[Timer]
OnActiveSec=0
OnUnitInactiveSec={every:.0f}

[Install]
WantedBy=timers.target
END
systemctl --user daemon-reload
systemctl --user enable --now {name}.timer
loginctl enable-linger
"""


def _quote_for_systemd(text: str) -> str:
    text = text.replace("%", "%%")
    return text if _PLAIN.fullmatch(text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
