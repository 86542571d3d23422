"""Releases to be judged, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kiln.publish.model import Candidate, PackageContents, Release
from kiln.recipe.rendered import Output, Requirements
from kiln.state.results import Artifact, ConfigState, TestVerdict


def candidate(name: str = "small", config: str = "config", **contents_of: Any) -> Candidate:
    index = {"name": name, "version": "1", "build": "0", "subdir": "linux-64", "depends": ["python >=3.11", "six"]}
    path = Path(f"/built/linux-64/{name}-1-0.conda")
    artifact = Artifact(
        path=path, sha256="aa", size=1, config=config, name=name, version="1", build_string="0", subdir="linux-64"
    )
    fields: dict[str, Any] = {
        "sha256": "aa",
        "size": 1,
        "index": index,
        "about": {"license": "MIT", "extra": {"sha": "1" * 40}},
    }
    fields |= {"licenses": ("LICENCE",), "paths": (f"share/{name}",), **contents_of}
    return Candidate(
        path=path,
        configs=(config,),
        artifact=artifact,
        verdict=TestVerdict.PASSED,
        contents=PackageContents(**fields),
        output=Output(
            name=name,
            version="1",
            build_number=0,
            build_string="0",
            subdir="linux-64",
            requirements=Requirements(run=("python >=3.11", "six")),
            run_exports={},
            about={},
            used={},
        ),
        needs_nothing_else=True,
    )


def release(*candidates: Candidate, **changed: Any) -> Release:
    fields: dict[str, Any] = {
        "configs": {"config": ConfigState.DONE},
        "expected": {"config": tuple(f"linux-64/{item.path.name}" for item in candidates)},
        "candidates": candidates,
        "allowed": ("*",),
    }
    return Release(**{**fields, **changed})
