"""Installed packages and a request, for tests of slim images."""

from __future__ import annotations

from dataclasses import replace

from kiln.image import contents

PACKAGE = contents.InstalledPackage(
    name="tensorflow",
    version="2.21.0",
    build="cuda129py311h0_200",
    file_name="tensorflow-2.21.0-cuda129py311h0_200.conda",
    sha256="ab",
    license="Apache-2.0",
    depends=("__cuda", "python >=3.11"),
    constrains=("__cuda >=12.5",),
    timestamp=1_700_000_000_999,
    files=("bin/tool", "lib/libx.so", "include/x.h"),
    rehearsal=False,
)
NUMPY = replace(
    PACKAGE, name="numpy", version="2.4.6", depends=("__glibc >=2.17", "__cuda"), constrains=(), timestamp=5_000
)
REQUEST = contents.ImageRequest(
    kind=contents.read_image_kind("tensorflow"), channels=("c",), specs=("tensorflow",), suite="bookworm", cuda="12.9"
)
