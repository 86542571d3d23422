"""Read providers' public price lists: AWS's offer files, answers about spot prices, OVH's catalog.

An offer file has some hundred megabytes and more, so it is read as a stream; only the prices that are used are kept.
"""

from __future__ import annotations

import csv
import datetime as dt
import re
from typing import IO, TYPE_CHECKING, Any

from kiln.errors import MalformedYaml
from kiln.fleet.large_json_reader import iterate_json_members
from kiln.fleet.price_table import UNITS, Price
from kiln.model.source_position import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

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


# AWS


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


# OVH


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
