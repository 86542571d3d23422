"""The settings of the pool's engine, field by field against those of NativeLink's own source."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import jinja2
import pytest

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "ansible" / "roles" / "kiln_pool" / "templates"
FIELDS = ROOT / "tests" / "fixtures" / "nativelink-1.6.6.csv"
VARIABLES = {
    "inventory_hostname": "kiln-a-pool-1",
    "kiln_pool_address": "192.0.2.7:8080",
    "kiln_pool_size": "40",
    "kiln_pool_actions": "16",
    "kiln_pool_image": "docker://example.org/image@sha256:4f1c",
    "kiln_pool_ignored": ["OSFamily", "cache-silo-key"],
}


def fields() -> dict[str, dict[str, tuple[str, str]]]:
    """Return the fields of each type, with what they hold and whether they are required."""
    result: dict[str, dict[str, tuple[str, str]]] = {}
    lines = (line for line in FIELDS.read_text().splitlines() if not line.startswith("#"))
    for row in csv.DictReader(lines):
        result.setdefault(row["type"], {})[row["field"]] = (row["value"], row["required"])
    return result


def faults(value: Any, kind: str, where: str, types: dict[str, dict[str, tuple[str, str]]]) -> list[str]:
    """Return what serde would refuse in a value of a type."""
    if kind.endswith("[]") and isinstance(value, list):
        return [fault for item in value for fault in faults(item, kind[:-2], where, types)]
    if kind.endswith("{}") and isinstance(value, dict):
        return [fault for name, item in value.items() for fault in faults(item, kind[:-2], f"{where}.{name}", types)]
    if kind not in types or not isinstance(value, dict):
        accepted = {"text": isinstance(value, str), "number": type(value) is int, **dict.fromkeys(types, False)}
        is_valid = accepted[kind] if kind in accepted else value in kind.split("|")
        return [] if is_valid else [f"{where}: not of type {kind}: {value!r}"]
    return _object_faults(value, kind, where, types)


def _object_faults(
    value: dict[str, Any], kind: str, where: str, types: dict[str, dict[str, tuple[str, str]]]
) -> list[str]:
    known = dict(types[kind])
    if "one_of" in known:  # the fields of an enumeration next to those of the object
        known |= types[known.pop("one_of")[0]]
    choices = [name for name, (_, required) in known.items() if required == "one_of"]
    result = [f"{where}: unknown field {name}" for name in value if name not in known]
    result += [
        f"{where}: {name} is missing" for name, (_, need) in known.items() if need == "yes" and name not in value
    ]
    if choices and sum(name in value for name in choices) != 1:
        result.append(f"{where}: not exactly one of {', '.join(choices)}")
    for name in known.keys() & value.keys():
        result += faults(value[name], known[name][0], f"{where}.{name}", types)
    return result


def rendered(name: str) -> dict[str, Any]:
    """Return a template's JSON, rendered with the filters that Ansible has."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.globals["dict"] = dict
    environment.filters |= {
        "to_json": json.dumps,
        "zip": zip,
        "combine": lambda one, other: {**one, **other},
    }
    result: dict[str, Any] = json.loads(environment.from_string((TEMPLATES / name).read_text()).render(VARIABLES))
    return result


@pytest.mark.parametrize("name", ["server.json.j2", "worker.json.j2"])
def test_each_field_exists_in_nativelink_with_this_type(name: str) -> None:
    assert faults(rendered(name), "Config", "", fields()) == []


@pytest.mark.parametrize("name", ["server.json.j2", "worker.json.j2"])
def test_stores_and_schedulers_that_are_named_exist(name: str) -> None:
    settings = rendered(name)
    names = {entry["name"] for part in ("stores", "schedulers") for entry in settings.get(part, ())}
    texts = re.findall(r'"(?:cas_store|ac_store|cas_fast_slow_store|scheduler)": "(\w+)"', json.dumps(settings))
    assert texts
    assert set(texts) <= names


def test_only_clients_with_a_certificate_of_the_run_are_admitted() -> None:
    (server,) = rendered("server.json.j2")["servers"]
    assert server["listener"]["http"]["tls"]["client_ca_file"] == "/etc/kiln-pool/ca.pem"


def test_the_image_decides_and_other_properties_are_ignored() -> None:
    (scheduler,) = rendered("server.json.j2")["schedulers"]
    properties = scheduler["simple"]["supported_platform_properties"]
    assert properties == {"container-image": "exact", "OSFamily": "ignore", "cache-silo-key": "ignore"}
    (worker,) = rendered("worker.json.j2")["workers"]
    assert worker["local"]["platform_properties"] == {"container-image": {"values": [VARIABLES["kiln_pool_image"]]}}
    assert worker["local"]["max_inflight_tasks"] == 16


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"max_open_file": 1}, ".global: unknown field max_open_file"),
        ({"max_open_files": "16384"}, ".global.max_open_files: not of type number: '16384'"),
    ],
)
def test_a_field_that_nativelink_refuses_is_found(change: dict[str, object], fault: str) -> None:
    settings = rendered("server.json.j2")
    settings["global"] |= change
    assert faults(settings, "Config", "", fields()) == [fault]
