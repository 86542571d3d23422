"""The sources of a record: each with its address and its hashes or its revision, and without passwords."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from kiln.model.build_config import BuildConfig
from kiln.model.rendered import Checkout, Rendered, Source, Staging
from kiln.release import attest

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = BuildConfig(name="c", platform="linux-64", variant={}, zip_keys=(), pin_run_as_build={}, image=None)


def test_sources_are_recorded_without_their_passwords(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    sources = (
        Source(path="a.txt"),
        Source(url=("https://a.org/a.zip",), hashes={"sha512": "5"}, content_hashes={"sha256": "2"}, no_hoist=True),
        Source(checkout=Checkout(program="svn", url="https://a.org/b", revision="7", user="me", password="swordfish")),
        Source(checkout=Checkout(program="hg", url="https://me:swordfish@a.org/c")),
        Source(git_url="https://me:swordfish@a.org/d"),
        Source(url=("https://me:swordfish@a.org/e",)),
    )
    rendered = Rendered(config=CONFIG, stagings=(Staging(sources=sources),))
    matrix = cast("Any", SimpleNamespace(feedstock=SimpleNamespace(recipe=tmp_path)))
    record = attest._sources(matrix, rendered)
    assert "swordfish" not in str(record)
    assert record[:3] == (
        {"path": "a.txt", "digest": hashlib.sha256(b"a").hexdigest()},
        {
            "url": ("https://a.org/a.zip",),
            "hashes": {"sha512": "5"},
            "content_hashes": {"sha256": "2"},
            "no_hoist": True,
        },
        {"checkout": {"program": "svn", "url": "https://a.org/b", "revision": "7"}},
    )
