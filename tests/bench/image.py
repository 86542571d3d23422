"""The size of a slim image next to the naive one: slim Debian, its Python, and ``pip install tensorflow``.

Sizes are those of all files unpacked, as engines show them. Needs mmdebstrap, root, and what a rehearsal needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.files import human_readable_size
from kiln.image import apt
from tests.bench.timing import ROOT, seconds

if TYPE_CHECKING:
    from tests.bench.timing import Row

PRODUCTS = ("tensorflow", "tensorflow-cpu")


def rows() -> list[Row]:
    """Make the slim image of this clone's rehearsal, and the naive ones of upstream's two wheels."""
    channel, version = rehearsed()
    with tempfile.TemporaryDirectory() as folder:
        words = ("--from", channel, "--output", f"{folder}/slim.tar", "--json")
        argv = (sys.executable, "-m", "kiln", "-C", str(ROOT), "image", "tensorflow", *words)
        made: list[str] = []
        took = seconds(lambda: made.append(subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout))
        slim = sum(size for _, size in json.loads(made[0])["layers"])
        result = [("slim image, made", f"{took:.0f} s", ""), ("slim image, unpacked", human_readable_size(slim), "")]
        for product in PRODUCTS:
            size = naive(Path(folder), f"{product}=={version}")
            limit = "0.60" if product == "tensorflow" else ""
            result += [
                (f"pip install {product} on slim Debian", human_readable_size(size), ""),
                ("slim : this", f"{slim / size:.2f}", limit),
            ]
    return result


def rehearsed() -> tuple[str, str]:
    """Return the channel of this clone's rehearsal, and TensorFlow's version in it."""
    argv = (sys.executable, "-m", "kiln", "-C", str(ROOT), "build", "--rehearse", "--json")
    (config,) = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)["configs"]
    path = Path(config["packages"][0]["artifact"]["path"])
    return str(path.parents[1]), path.name.rsplit("-", 2)[1]


def naive(folder: Path, requirement: str) -> int:
    """Return the bytes of all files in Debian's smallest system with a Python into which pip installed TensorFlow."""
    wheels, archive, sources = folder / "wheels", folder / "naive.tar", folder / "sources.list"
    settings = folder / "apt.conf"
    sources.write_text("".join(f"{line}\n" for line in apt.sources_list_lines("bookworm", env=os.environ)))
    settings.write_text(apt.apt_conf(env=os.environ))
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--python-version", "3.11")
    platforms = [word for minor in (17, 27, 28) for word in ("--platform", f"manylinux_2_{minor}_x86_64")]
    old = (
        "--platform",
        "manylinux2014_x86_64",
        "--platform",
        "manylinux2010_x86_64",
        "--platform",
        "manylinux1_x86_64",
    )
    subprocess.run((*pip, *platforms, *old, "--dest", wheels, requirement), check=True)
    hook = (
        f'mkdir "$1/wheels" && mount --bind "{wheels}" "$1/wheels" && chroot "$1" python3 -m pip --isolated install '
        f"--quiet --break-system-packages --no-cache-dir --no-index --find-links /wheels {requirement}; "
        'umount "$1/wheels" && rmdir "$1/wheels"'
    )
    options = ("--variant=minbase", "--format=tar", "--include=python3,python3-pip", f"--aptopt={settings}")
    trimmed = (
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        '--aptopt=APT::Install-Recommends "false"',
    )
    words = ("mmdebstrap", "--quiet", *options, *trimmed, f"--customize-hook={hook}", "bookworm", archive, sources)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(archive) as files:
        size = sum(member.size for member in files if member.isreg())
    archive.unlink()
    return size
