"""The fleet's environment: which Python it takes, and which part of the collections' wheel."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from kiln.base import bootstrap
from kiln.base.environment import COLLECTIONS, FLEET, RUN
from kiln.base.errors import UnsupportedPython

ROOT = Path(__file__).parents[3]


def test_a_python_too_old_for_ansible_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 14, "final", 0))
    with pytest.raises(UnsupportedPython, match=r"needs Python 3\.11 or newer") as caught:
        bootstrap.ensure_fleet_environment(tmp_path)
    assert "python3.11" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_only_the_wanted_collections_are_unpacked(tmp_path: Path) -> None:
    wheel = tmp_path / "all.whl"
    names = ("amazon/aws/plugins/a.py", "amazon/aws/tests/t.py", "amazon/awsome/b.py", "cisco/ios/c.py")
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(f"ansible_collections/{name}", "")
        archive.writestr("ansible-12.dist-info/METADATA", "")
    bootstrap.unpack_collections(wheel, tmp_path / "site")
    result = [str(file.relative_to(tmp_path / "site")) for file in (tmp_path / "site").rglob("*") if file.is_file()]
    assert result == ["ansible_collections/amazon/aws/plugins/a.py"]


def test_the_collections_are_one_wheel_with_its_hash() -> None:
    text = (ROOT / "requirements" / COLLECTIONS).read_text()
    assert text.count("--hash=sha256:") == text.count("==") == 1


def test_who_brings_an_ansible_of_his_own_gets_the_same_collections() -> None:
    expected = yaml.safe_load((ROOT / "ansible" / "requirements.yml").read_text())["collections"]
    assert tuple(sorted(item["name"] for item in expected)) == bootstrap.NEEDED_COLLECTIONS


def test_the_fleets_packages_are_those_of_a_run_and_more() -> None:
    run, fleet = (bootstrap._unconditional_requirements(ROOT, name) for name in (RUN, FLEET))
    assert run <= fleet
