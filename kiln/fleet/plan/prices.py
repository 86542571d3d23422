"""The tables of prices: kiln's own, and the user's, whose prices come first."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kiln.base.errors import MalformedYaml, UsageError
from kiln.base.position import Place
from kiln.fleet.options import AWS_REGION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.fleet.model import MachineType
    from kiln.fleet.options import FleetOptions


PRICES = Path(__file__).with_name("prices.csv")
LARGEST_TABLE = 8 << 20  # bytes of a table
# The unit of each kind of price. A worker is charged for its type, on demand or spot, its disk and its address; what
# is fetched from it is charged as egress.
UNITS = {"on-demand": "hour", "spot": "hour", "disk": "GB-month", "address": "hour", "egress": "GB"}
MONTH = 720.0  # hours of a GB-month: AWS's page of EBS prices computes with a month of 30 days
OVH_HOSTS = re.compile(r"(.*\.)?ovh\.(net|us|com|ca)")
OVH_REGIONS = {"EU-WEST-PAR": "3AZ", "EU-SOUTH-MIL": "3AZ"}  # OVH's regions of three zones have prices of their own
# Providers whose workers cost nothing, wherever they are.
FREE = ("local", "static")
_TEXT = re.compile(r"[\x20-\x7e]{1,200}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of an offer: ``name`` is a machine type's name at the provider, or of a disk, address or traffic."""

    provider: str
    region: str
    kind: str
    name: str
    price: float
    unit: str
    currency: str
    date: str
    source: str

    @property
    def offer_key(self) -> tuple[str, str, str, str]:
        """The offer, of which a table has one price."""
        return self.provider, self.region, self.kind, self.name


COLUMNS = tuple(field.name for field in dataclasses.fields(Price))


def read_price_table(path: Path) -> tuple[Price, ...]:
    """Read a table of prices, which is CSV."""
    try:
        size = path.stat().st_size
        if size > LARGEST_TABLE:
            raise MalformedYaml(f"{path} has {size:,} bytes", why=f"a table of prices has {LARGEST_TABLE:,} at most")
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")), strict=True)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            hint = f"its first line is {','.join(COLUMNS)}"
            raise MalformedYaml("invalid columns of a table of prices", at=Place(file=str(path), line=1), hint=hint)
        return tuple(_parse_price_row(row, Place(file=str(path), line=reader.line_num)) for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MalformedYaml(f"{path} is not a table of prices", why=str(error)) from error


def _parse_price_row(row: Mapping[str, str], at: Place) -> Price:
    texts = {name: row.get(name) for name in COLUMNS}
    # The region may be empty, for a cloud that has none.
    invalid = [name for name, text in texts.items() if not (text and _TEXT.fullmatch(text)) and name != "region"]
    if invalid or None in row or not _TEXT.fullmatch(f" {texts['region']}"):
        raise MalformedYaml(f"invalid {(invalid or ['number of fields'])[0]} of a price", at=at)
    kind, unit, number = str(texts["kind"]), str(texts["unit"]), _parse_price_number(str(texts["price"]))
    if UNITS.get(kind) != unit:
        hint = "; ".join(f"{name} per {per}" for name, per in UNITS.items())
        raise MalformedYaml(f"invalid kind or unit of a price: {kind} per {unit}", at=at, hint=hint)
    if number is None:
        raise MalformedYaml(f"invalid price {texts['price']!r}", at=at, hint="a number such as 0.714")
    if not _DATE.fullmatch(str(texts["date"])):
        raise MalformedYaml(f"invalid date {texts['date']!r} of a price", at=at, hint="write it as 2026-11-22")
    return Price(**{**{name: str(text) for name, text in texts.items()}, "price": number})  # type: ignore[arg-type]


def _parse_price_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 <= number < 1e6 else None


def merged_price_table(path: Path | None) -> tuple[Price, ...]:
    """Return the prices of kiln's own table, and of the user's, which replace its prices."""
    paths = (PRICES,) if path is None else (PRICES, path)
    return tuple({price.offer_key: price for path in paths for price in read_price_table(path)}.values())


def price_region(options: FleetOptions) -> str:
    """Return the region of a run as the tables of prices call it.

    AWS's is that of the playbooks: their variable ``kiln_aws_region``, or AWS_REGION. An OpenStack of OVH is recognized
    by the address of its Keystone, or the name of the cloud; another one is called by that address's host.
    """
    environment = options.environment
    if options.provider == "aws":
        return options.variable_text("kiln_aws_region") or environment.get("AWS_REGION") or AWS_REGION
    if options.provider != "openstack":
        return "here"
    host = urlsplit(environment.get("OS_AUTH_URL", "")).hostname or ""
    cloud = environment.get("OS_CLOUD", "")
    if not (OVH_HOSTS.fullmatch(host) if host else cloud.lower().startswith("ovh") or not cloud):
        return host or cloud
    region = environment.get("OS_REGION_NAME", "").upper()
    # Local zones are priced in groups, which only OVH's catalog lists, so each has its own name in the tables.
    return f"OVH {OVH_REGIONS.get(region) or (region if '-LZ-' in region else '')}".strip()


def price_row_hint(machine_type: MachineType, kind: str) -> str:
    """Return how to make a price known that the tables lack."""
    row = f"{machine_type.provider},{machine_type.region},{kind},{machine_type.name},PRICE,hour,CURRENCY,DATE,SOURCE"
    return f"add this line to ~/.config/kiln/prices.csv, or to a file for --prices: {row}"


def require_price(
    kind: MachineType, option: str, *, spot: bool = False, what: str = "", otherwise: str = "leave the option out"
) -> None:
    """Refuse a machine type whose price an option needs, if one is named, or whose spot price is, and is unknown.

    ``what`` is its name in the message, ``otherwise`` what else to do than to say the price.
    """
    name, where = what or kind.name, kind.region or kind.provider
    if spot and kind.spot_hourly is None:
        row = f"{price_row_hint(kind, 'spot')} (aws ec2 describe-spot-price-history says it); or {otherwise}"
        raise UsageError(
            f"no spot price of {name} in {where} is known, so --spot cannot be planned",
            why="spot prices change by the hour, so kiln has none of its own",
            hint=row if kind.provider == "aws" else "leave out --spot: this provider has no spot workers",
        )
    if option and not kind.is_priced:
        raise UsageError(
            f"the price of {name} is unknown, so {option} cannot be kept",
            why=f"the tables have no price of it in {where}, and it would count as free",
            hint=f"{price_row_hint(kind, 'on-demand')}; or {otherwise}",
        )


def with_regional_prices(machine_type: MachineType, prices: Iterable[Price], *, region: str) -> MachineType:
    """Return a machine type with the prices of a region; without one there it has none.

    That of another region would be wrong.
    """
    if machine_type.provider in FREE:
        return dataclasses.replace(machine_type, spot_hourly=0.0, region="here", source="machines that you have")
    offers = {
        (price.kind, price.name): price
        for price in prices
        if (price.provider, price.region) == (machine_type.provider, region)
    }
    hourly = offers.get(("on-demand", machine_type.name))
    if hourly is None:
        return dataclasses.replace(machine_type, is_priced=False, currency="", region=region)
    extras = {kind: _dearest_price(offers, kind, hourly.currency) for kind in ("disk", "address", "egress")}
    spot = offers.get(("spot", machine_type.name))
    if spot is not None and spot.currency != hourly.currency:
        spot = None
    disk = extras["disk"]
    return dataclasses.replace(
        machine_type,
        hourly=hourly.price,
        spot_hourly=None if spot is None else spot.price,
        disk_hourly=0.0 if disk is None else disk.price * machine_type.disk / MONTH,
        address_hourly=0.0 if extras["address"] is None else extras["address"].price,
        egress=0.0 if extras["egress"] is None else extras["egress"].price,
        not_counted=tuple(kind for kind, price in extras.items() if price is None),
        currency=hourly.currency,
        region=region,
        source=hourly.source,
        date=hourly.date,
        spot_source="" if spot is None else spot.source,
        spot_date="" if spot is None else spot.date,
    )


def _dearest_price(offers: Mapping[tuple[str, str], Price], kind: str, currency: str) -> Price | None:
    prices = [price for (other, _), price in offers.items() if other == kind and price.currency == currency]
    return max(prices, key=lambda price: price.price, default=None)
