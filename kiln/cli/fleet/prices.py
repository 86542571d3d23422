"""``kiln fleet prices``: show the prices of machine types, kiln's own and the user's."""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kiln.base.errors import UsageError
from kiln.base.text import table
from kiln.cli.fleet.site import ANSIBLE, DEFAULT_REGION, playbook_variable_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from kiln.fleet.model import MachineType
    from kiln.fleet.plan.prices import Price


MACHINE_TYPES = ANSIBLE / "group_vars" / "all" / "machine_types.yml"
HEADER = ("provider", "region", "kind", "name", "price", "per", "currency", "date", "source")
OVH_HOSTS = re.compile(r"(.*\.)?ovh\.(net|us|com|ca)")
OVH_REGIONS = {"EU-WEST-PAR": "3AZ", "EU-SOUTH-MIL": "3AZ"}  # OVH's regions of three zones have prices of their own


def run(options: argparse.Namespace) -> int:
    """Show the table."""
    from kiln.base.serialization import to_json

    prices = sorted_provider_prices(merged_price_table(options.prices, os.environ), options.provider)
    print(json.dumps(to_json(prices), indent=2) if options.json else prices_as_table(prices))
    return 0


def sorted_provider_prices(prices: Iterable[Price], provider: str | None) -> list[Price]:
    """Return the prices of a provider, or of all, of the machine types that kiln can ask for."""
    names = {(machine_type.provider, machine_type.name) for machine_type in own_machine_types()}
    return sorted(
        (
            price
            for price in prices
            if provider in {None, price.provider}
            and (price.kind not in {"on-demand", "spot"} or (price.provider, price.name) in names)
        ),
        key=lambda price: price.offer_key,
    )


@functools.cache
def own_machine_types() -> tuple[MachineType, ...]:
    """Return kiln's own table of machine types, which a command may need several times."""
    from kiln.fleet.plan import choice

    return choice.read_machine_types(MACHINE_TYPES)


def prices_as_table(prices: Iterable[Price]) -> str:
    """Return prices as a table."""
    rows = [
        (
            *(price.provider, price.region, price.kind, price.name, f"{price.price:g}"),
            *(price.unit, price.currency, price.date, price.source),
        )
        for price in prices
    ]
    return table(HEADER, rows, right=(4,))


def user_price_table_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's table of prices."""
    return Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "kiln" / "prices.csv"


def merged_price_table(path: Path | None, environment: Mapping[str, str]) -> tuple[Price, ...]:
    """Return kiln's prices, replaced by those of a table, or of the user's if there is one.

    Raises:
        UsageError: when the table that was named does not exist.
    """
    from kiln.fleet.plan.prices import COLUMNS, read_merged_price_tables

    if path is not None and not path.exists():
        raise UsageError(f"{path} not found", hint=f"a CSV table, whose first line is {','.join(COLUMNS)}")
    own = user_price_table_path(environment)
    paths = [path] if path is not None else [own] if own.exists() else []
    return read_merged_price_tables(*paths)


def price_region(options: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Return the region of a run as the tables of prices call it.

    AWS's is that of the playbooks: their variable ``kiln_aws_region``, or AWS_REGION. An OpenStack of OVH is recognized
    by the address of its Keystone, or the name of the cloud; another one is called by that address's host.
    """
    if options.provider == "aws":
        return (
            playbook_variable_text("kiln_aws_region", options.vars) or environment.get("AWS_REGION") or DEFAULT_REGION
        )
    if options.provider == "openstack":
        return _openstack_region(environment)
    return "here"


def _openstack_region(environment: Mapping[str, str]) -> str:
    host = urlsplit(environment.get("OS_AUTH_URL", "")).hostname or ""
    cloud = environment.get("OS_CLOUD", "")
    if not (OVH_HOSTS.fullmatch(host) if host else cloud.lower().startswith("ovh") or not cloud):
        return host or cloud
    region = environment.get("OS_REGION_NAME", "").upper()
    # Local zones are priced in groups, which only OVH's catalog lists, so each has its own name in the tables.
    return f"OVH {OVH_REGIONS.get(region) or (region if '-LZ-' in region else '')}".strip()
