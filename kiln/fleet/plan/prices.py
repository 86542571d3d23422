"""The tables of prices, and providers' public price lists read into them."""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import io
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kiln.base import files
from kiln.base.errors import MalformedYaml
from kiln.base.position import Place

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from kiln.fleet.model import MachineType


CHUNK = 1 << 20  # characters that are read at a time
LARGEST_VALUE = 16 << 20  # characters of a value that is decoded as a whole
_DECODER = json.JSONDecoder()
_NUMBER = ("", *"0123456789.eE+-")
_SPACE = re.compile(r"[ \t\n\r]*")

KeyPath = tuple[str, ...]


def iterate_json_members(file: IO[str], inside: Container[KeyPath]) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the members of a document with their paths, in its order.

    The objects and arrays whose paths are ``inside`` are not yielded, but their members; the root, ``()``, always is.
    An element of an array has the path of the array.

    Raises:
        ValueError: when the document is invalid, or a value is too large or nested too deeply.
    """
    reader = _JsonStreamReader(file)
    yield from _iterate_members_at_position(reader, (), inside)


def _iterate_members_at_position(
    reader: _JsonStreamReader, path: KeyPath, inside: Container[KeyPath]
) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the members of the object or array that begins here."""
    opening = reader.read_expected_character("{[")
    closing = "}" if opening == "{" else "]"
    if reader.peek_character() == closing:
        reader.read_expected_character(closing)
        return
    while True:
        member = path
        if opening == "{":
            member = (*path, str(reader.read_value()))
            reader.read_expected_character(":")
        if opening == "{" and member in inside and reader.peek_character() in "{[":
            yield from _iterate_members_at_position(reader, member, inside)
        else:
            yield member, reader.read_value()
        if reader.read_expected_character("," + closing) == closing:
            return


class _JsonStreamReader:
    """A JSON text, of which a part is in memory."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._text = ""
        self._at = 0

    def peek_character(self) -> str:
        """Return the next character after white space; empty at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = self._at if space is None else space.end()
            if self._at < len(self._text) or not self._read_next_chunk():
                return self._text[self._at : self._at + 1]

    def read_expected_character(self, characters: str) -> str:
        """Return the next character after white space, which has to be one of several."""
        character = self.peek_character()
        if not character or character not in characters:
            raise ValueError(f"{character or 'the end'!r} instead of one of {characters!r}")
        self._at += 1
        return character

    def read_value(self) -> Any:
        """Return the value that begins here."""
        self.peek_character()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if not self._read_next_chunk():
                    raise
            except RecursionError as error:
                raise ValueError("nested too deeply") from error
            else:
                # A number may go on in the next part, such as 0.5 after "0" or "0.".
                if self._text[end : end + 1] not in _NUMBER or not self._read_next_chunk():
                    self._at = end
                    return value

    def _read_next_chunk(self) -> bool:
        """Read the next part; return False at the end."""
        if len(self._text) - self._at > LARGEST_VALUE:
            raise ValueError(f"a value of more than {LARGEST_VALUE:,} characters")
        part = self._file.read(CHUNK)
        self._text, self._at = self._text[self._at :] + part, 0
        return bool(part)


PRICES = Path(__file__).with_name("prices.csv")
LARGEST_TABLE = 8 << 20  # bytes of a table
# The unit of each kind of price. A worker is charged for its type, on demand or spot, its disk and its address; what
# is fetched from it is charged as egress.
UNITS = {"on-demand": "hour", "spot": "hour", "disk": "GB-month", "address": "hour", "egress": "GB"}
MONTH = 720.0  # hours of a GB-month: AWS's page of EBS prices computes with a month of 30 days
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


_COLUMNS = tuple(field.name for field in dataclasses.fields(Price))


def read_price_table(path: Path) -> tuple[Price, ...]:
    """Read a table of prices, which is CSV.

    Raises:
        MalformedYaml: when it cannot be read, or a row has an invalid field; the message names the line.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST_TABLE:
            raise MalformedYaml(f"{path} has {size:,} bytes", why=f"a table of prices has {LARGEST_TABLE:,} at most")
        return _parse_price_table(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MalformedYaml(f"{path} is not a table of prices", why=str(error)) from error


def _parse_price_table(text: str, path: Path) -> tuple[Price, ...]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    if tuple(reader.fieldnames or ()) != _COLUMNS:
        hint = f"its first line is {','.join(_COLUMNS)}"
        raise MalformedYaml("invalid columns of a table of prices", at=Place(file=str(path), line=1), hint=hint)
    return tuple(_parse_price_row(row, Place(file=str(path), line=reader.line_num)) for row in reader)


def _parse_price_row(row: Mapping[str, str], at: Place) -> Price:
    texts = {name: row.get(name) for name in _COLUMNS}
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


def prices_as_csv(prices: Iterable[Price]) -> str:
    """Return a table of prices as CSV, ordered by offer."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for price in sorted(prices, key=lambda price: price.offer_key):
        values = (getattr(price, name) for name in _COLUMNS)
        writer.writerow([f"{value:.10g}" if isinstance(value, float) else value for value in values])
    return text.getvalue()


def write_price_table(path: Path, prices: Iterable[Price]) -> None:
    """Write a table of prices.

    Raises:
        MalformedYaml: when it could not be read again; a table that is there stays as it is.
    """
    text = prices_as_csv(prices)
    if len(text) > LARGEST_TABLE:
        raise MalformedYaml(
            f"{path} would have {len(text):,} bytes", why=f"a table of prices has {LARGEST_TABLE:,} at most"
        )
    _parse_price_table(text, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, text)


def merge_price_tables(*tables: Iterable[Price]) -> tuple[Price, ...]:
    """Return the prices of several tables: of two prices of an offer, that of the later table."""
    return tuple({price.offer_key: price for table in tables for price in table}.values())


def read_merged_price_tables(*paths: Path) -> tuple[Price, ...]:
    """Return the prices of kiln's own table, and of tables whose prices replace its prices."""
    return merge_price_tables(read_price_table(PRICES), *map(read_price_table, paths))


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
    """Return the dearest price of a kind, in the currency of the machine type."""
    prices = [price for (other, _), price in offers.items() if other == kind and price.currency == currency]
    return max(prices, key=lambda price: price.price, default=None)


MOST = 50_000  # prices that are kept of a list
PREAMBLE = 20  # lines of an offer file in CSV before its columns
# The attributes of a product in JSON, and the columns that hold them in CSV, in which case varies between services.
COLUMNS = {
    "instanceType": "instance type",
    "operatingSystem": "operating system",
    "preInstalledSw": "pre installed s/w",
    "capacitystatus": "capacitystatus",
    "marketoption": "marketoption",
    "tenancy": "tenancy",
    "operation": "operation",
    "usagetype": "usagetype",
    "volumeApiName": "volume api name",
    "regionCode": "region code",
    "fromRegionCode": "from region code",
    "transferType": "transfer type",
    "toLocation": "to location",
}
MACHINES = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "operation": "RunInstances",
}
_ZONE = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d+)[a-z]")
_OVH_PLAN = re.compile(r"([a-z0-9][a-z0-9-]*)\.consumption(?:\.([\w.]+))?")
OVH_UNITS = 10**8  # of the catalog's integers make one of the currency
OVH = "OVH"
_LOCAL_ZONES = re.compile(r"LZ(\..*)?")  # groups of regions with one price: LZ, LZ.AF, LZ.EU, LZ.EUROZONE
_REGION = re.compile(r"[A-Z0-9-]{1,64}")
# The objects and arrays whose members are read one by one.
INSIDE = frozenset({(name,) for name in ("products", "terms", "addons", "SpotPriceHistory")}) | {
    ("terms", "OnDemand"),
    ("terms", "Reserved"),
}
Offer = tuple[str, str, str]  # the region, the kind and the name of a price


def read_price_list(path: Path) -> tuple[Price, ...]:
    """Return the prices of a price list, whose kind is recognized.

    Raises:
        MalformedYaml: when it is not a price list, or damaged, or without a price that is used.
    """
    prices: dict[tuple[str, ...], Price] = {}
    place = Place(file=str(path))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for price in _iterate_prices(file, path):
                known = prices.get(price.offer_key)
                if known is None or price.price > known.price:  # the first, dearest tier of traffic
                    prices[price.offer_key] = price
                if len(prices) > MOST:
                    raise MalformedYaml(f"a price list with more than {MOST:,} prices", at=place)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        why = f"{type(error).__name__}: {error}"[:300]
        raise MalformedYaml("not a price list, or a damaged one", at=place, why=why) from error
    if not prices:
        raise MalformedYaml("no price of a machine, disk, address or of traffic", at=place, hint=KNOWN)
    return tuple(prices.values())


OTHER = re.compile(r"[^\x20-\x7e]")  # characters that a table of prices cannot hold
KNOWN = "an offer file of AmazonEC2, AmazonVPC or AWSDataTransfer, spot prices, or OVH's cloud catalog"


def _price_source_text(what: str, path: Path) -> str:
    """Return the source of a list's prices, with the name of its file as far as a table can hold it."""
    return f"{what}: {OTHER.sub('?', path.name)[:100]}"


def _iterate_prices(file: IO[str], path: Path) -> Iterator[Price]:
    first = file.read(1)
    file.seek(0)
    if first != "{":
        yield from _aws_prices_in_csv(file, path)
        return
    document = _JsonPriceList(path)
    for member, value in iterate_json_members(file, INSIDE):
        if member[:2] == ("terms", "Reserved"):
            return  # what follows is not used, and is the larger part
        yield from document.prices_of_member(member, value)
    yield from document.prices_at_end_of_list()


class _JsonPriceList:
    """A price list in JSON, of which the members arrive one after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._texts: dict[str, str] = {}  # the texts at the top: of the date, the service, the currency
        self._has_products = False
        self._products: dict[str, Offer] = {}
        self._plans: list[dict[str, Any]] = []

    def prices_of_member(self, member: tuple[str, ...], value: Any) -> Iterator[Price]:
        """Yield the prices of a member, as far as they are known."""
        match member:
            case ("products", sku):
                self._store_product_offer(sku, value)
            case ("terms", "OnDemand", sku) if self._has_products:
                yield from self._prices_of_product(sku, value)
            case ("terms", *_):
                raise ValueError("terms before products")
            case ("addons",):
                self._plans += _ovh_plans(value)
            case ("SpotPriceHistory",):
                yield from _aws_spot_prices(value, self._path)
            case ("locale",):
                self._texts["currency"] = str(value["currencyCode"])
            case (name,) if isinstance(value, str):
                self._texts[name] = value[:100]

    def _prices_of_product(self, sku: str, terms: Any) -> Iterator[Price]:
        if sku in self._products:
            yield from _aws_prices_of_terms(self._products.pop(sku), terms, self._texts, self._path)

    def _store_product_offer(self, sku: str, value: Any) -> None:
        if isinstance(value, dict) and "attributes" in value:
            self._has_products = True
            if offer := _offer_of_aws_product({str(name): str(text) for name, text in value["attributes"].items()}):
                self._products[sku] = offer
        if len(self._products) > MOST:
            raise ValueError(f"more than {MOST:,} products")

    def prices_at_end_of_list(self) -> Iterator[Price]:
        """Yield the prices for which the whole list had to be read."""
        if self._plans:
            yield from _ovh_prices(self._plans, self._texts["currency"], self._path)


def _offer_of_aws_product(attributes: Mapping[str, str]) -> Offer | None:
    """Return the region, the kind and the name of a product of AWS; None for one that is not used."""
    usage = attributes.get("usagetype", "")
    region = attributes.get("regionCode", "")
    if all(attributes.get(name) == text for name, text in MACHINES.items()):
        market = attributes.get("marketoption") or "OnDemand"
        name = attributes.get("instanceType", "")
        return (region, "on-demand", name) if region and name and market == "OnDemand" else None
    if usage.endswith("EBS:VolumeUsage.gp3") and attributes.get("volumeApiName") == "gp3":
        return (region, "disk", "gp3") if region else None
    if usage.endswith("PublicIPv4:InUseAddress"):
        return (region, "address", "ipv4") if region else None
    if usage.endswith("DataTransfer-Out-Bytes") and attributes.get("toLocation") == "External":
        source = attributes.get("fromRegionCode") or region
        return (source, "egress", "internet") if source and attributes.get("transferType") == "AWS Outbound" else None
    return None


def _aws_prices_of_terms(offer: Offer, terms: Any, texts: Mapping[str, str], path: Path) -> Iterator[Price]:
    for term in terms.values():
        for dimension in term["priceDimensions"].values():
            for currency, amount in dimension["pricePerUnit"].items():
                date, service = texts.get("publicationDate", ""), texts.get("offerCode", "")
                yield from _aws_price_of_offer(
                    offer, str(dimension["unit"]), str(amount), currency, date, service, path
                )


def _aws_price_of_offer(
    offer: Offer, unit: str, amount: str, currency: str, date: str, service: str, path: Path
) -> Iterator[Price]:
    """Yield the price of an offer, unless it is a free one or has another unit."""
    region, kind, name = offer
    units = {"hour": ("Hrs", "Hours"), "GB-month": ("GB-Mo", "GB-month"), "GB": ("GB",)}[UNITS[kind]]
    price = float(amount)
    if unit in units and price > 0:
        yield Price(
            provider="aws",
            region=region,
            kind=kind,
            name=name,
            price=price,
            unit=UNITS[kind],
            currency=currency,
            date=dt.date.fromisoformat(date[:10]).isoformat(),
            source=_price_source_text(f"AWS's price list {service}", path),
        )


def _aws_prices_in_csv(file: IO[str], path: Path) -> Iterator[Price]:
    preamble: dict[str, str] = {}
    rows = csv.reader(file, strict=True)
    for number, row in enumerate(rows):
        if row and row[0] == "SKU":
            columns = {title.lower(): index for index, title in enumerate(row)}
            break
        if number > PREAMBLE:
            raise ValueError("no line with columns, of which the first is SKU")
        preamble |= {row[0]: row[1]} if len(row) == 2 else {}
    else:
        raise ValueError("no line with columns, of which the first is SKU")
    date, service = preamble["Publication Date"], preamble.get("OfferCode", "")
    used = {name: columns[title] for name, title in COLUMNS.items() if title in columns}
    term, unit, amount, currency = (columns[name] for name in ("termtype", "unit", "priceperunit", "currency"))
    for row in rows:
        if (
            row
            and row[term] == "OnDemand"
            and (offer := _offer_of_aws_product({name: row[at] for name, at in used.items()}))
        ):
            yield from _aws_price_of_offer(offer, row[unit], row[amount], row[currency], date, service, path)


def _aws_spot_prices(value: Any, path: Path) -> Iterator[Price]:
    """Yield a spot price; of the zones of a region the dearest counts, since any of them may be used."""
    for entry in value if isinstance(value, list) else [value]:
        zone = _ZONE.fullmatch(entry["AvailabilityZone"])
        if zone is not None and entry["ProductDescription"].startswith("Linux/UNIX"):
            yield Price(
                provider="aws",
                region=zone[1],
                kind="spot",
                name=str(entry["InstanceType"]),
                price=float(entry["SpotPrice"]),
                unit=UNITS["spot"],
                currency="USD",
                date=dt.date.fromisoformat(str(entry["Timestamp"])[:10]).isoformat(),
                source=_price_source_text("the dearest zone in describe-spot-price-history", path),
            )


def _ovh_plans(value: Any) -> list[dict[str, Any]]:
    """Return what is used of an add-on of the catalog: the prices by the hour of a machine type."""
    for addon in value if isinstance(value, list) else [value]:
        plan = _OVH_PLAN.fullmatch(str(addon.get("planCode", "")))
        if plan is None or addon.get("product") != "publiccloud-instance":
            continue
        for pricing in addon["pricings"]:
            if "consumption" in pricing["capacities"] and pricing.get("intervalUnit", "hour") == "hour":
                zone, price = plan[2] or "", int(pricing["price"]) / OVH_UNITS
                return [{"name": plan[1], "zone": region, "price": price} for region in _ovh_zones(zone, addon)]
    return []


def _ovh_zones(zone: str, addon: Mapping[str, Any]) -> list[str]:
    """Return where a price counts: in a kind of regions, or in each region of a group of local zones.

    Only the catalog says which regions a group has; if it does not, the price is kept under the group's name.
    """
    if not _LOCAL_ZONES.fullmatch(zone):
        return [zone]
    values = [item["values"] for item in addon.get("configurations") or () if item["name"] == "region"]
    regions = [str(region).upper() for listed in values for region in listed]
    return [region for region in regions if _REGION.fullmatch(region)] or [zone]


def _ovh_prices(catalog: list[dict[str, Any]], currency: str, path: Path) -> Iterator[Price]:
    date = dt.datetime.fromtimestamp(path.stat().st_mtime, tz=dt.timezone.utc).date()
    for plan in catalog:
        yield Price(
            provider="openstack",
            region=f"{OVH} {plan['zone']}".strip(),
            kind="on-demand",
            name=plan["name"],
            price=plan["price"],
            unit=UNITS["on-demand"],
            currency=currency,
            date=date.isoformat(),
            source=_price_source_text("OVH's public cloud catalog, without VAT", path),
        )
