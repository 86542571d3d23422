"""The note on an existing host that names its owner: its format, and the scripts that claim and release a host.

The note, /etc/kiln-owner, is created by a link, which fails if it exists: of two controllers that claim a host at the
same moment only one succeeds.
"""

from __future__ import annotations

import re
from typing import Any

# Run as root: each prints the note, the second after claiming the host if it was free.
QUERY = "cat /etc/kiln-owner 2>/dev/null || true"
CLAIM = """
note=$(mktemp /etc/kiln-owner.XXXXXX)
trap 'rm -f "$note"' EXIT
printf '%s' {text} >"$note"
chmod 644 "$note"
sync "$note"
if ln -T "$note" /etc/kiln-owner 2>/dev/null; then echo claimed_now=yes; fi
cat /etc/kiln-owner
"""
NEW = "claimed_now"  # in the answer to that script, when the host was free until then
# The sizes of a host: its cores, its memory in kB, the free kB of the disk that builds use, and its GPUs.
MEASURE = """
echo measured_cores=$(nproc)
echo measured_memory=$(sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo)
echo measured_disk=$(df --output=avail -k /var/lib | tail -n 1)
echo measured_gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
"""
# A host without a note was released already, or never claimed.
RELEASE = """
owner=$(sed -n 's/^owner=//p' /etc/kiln-owner 2>/dev/null || true)
if [ "$owner" != {owner} ]; then exit 0; fi
{script}
rm -f /etc/kiln-owner
"""


def write(*, run: str, owner: str, machine: str, expires: int, origin: str, since: str) -> str:
    """Return the text of a note; none of its characters is special in a shell's single quotes."""
    fields = {"run": run, "owner": owner, "machine": machine, "expires": expires, "from": origin, "since": since}
    return "".join(f"{name}={re.sub(r'[^ -~]', '?', str(value))}\n" for name, value in fields.items())


def parse(text: str) -> dict[str, str]:
    """Return the fields of a note."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


SIZES = ("cores", "memory", "disk", "gpus")
UNITS = {"cores": "cores", "memory": "GB of memory", "disk": "GB of free disk", "gpus": "GPUs"}
SHARE = 0.9  # of the memory and the disk that a machine is said to have: a part is the kernel's and the system's


def type_name(host: dict[str, Any]) -> str:
    """Return the machine type of a host, as kiln names it: by the sizes that the host is given."""
    return "-".join(["static", *(f"{host[name]:g}{name}" for name in SIZES if host.get(name))])


def measured(fields: dict[str, str]) -> dict[str, float]:
    """Return the sizes in the answer of a host: numbers and GB; those that it could not measure are left out."""
    texts = {name: fields.get(f"measured_{name}", "").strip() for name in SIZES}
    numbers = {name: float(text) for name, text in texts.items() if re.fullmatch("[0-9]{1,15}", text)}
    return {name: number * 1024 / 1e9 if name in {"memory", "disk"} else number for name, number in numbers.items()}


def lack(needs: dict[str, Any], sizes: dict[str, float]) -> str:
    """Describe what a host lacks of what the configs of a worker need; empty if it holds them."""
    lacking = [
        f"{sizes[name]:.4g} of {need:g} {UNITS[name]}"
        for name, need in needs.items()
        if name in sizes and sizes[name] < need * (SHARE if name in {"memory", "disk"} else 1)
    ]
    return ", ".join(lacking)


def refusal(host: dict[str, Any], note: dict[str, str]) -> str:
    """Describe why a host of another run cannot be claimed, and how it is released."""
    run, origin, port = note.get("run", "?"), note.get("from", "?"), host.get("port", 22)
    target = f"{host.get('user', 'fleet')}@{host['address']}"
    command = f"ssh{'' if int(port) == 22 else f' -p {port}'} {target} sudo rm /etc/kiln-owner"
    return (
        f"{host['address']} belongs to the run {run} of {origin} since {note.get('since', '?')};"
        f" 'kiln fleet down {run}' there releases it, or if that is no longer possible: {command}"
    )
