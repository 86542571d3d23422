"""Price lists of providers, in the shape in which they publish them."""

from __future__ import annotations

import csv
import io
import json
import os
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import MalformedYaml
from kiln.fleet.plan import choice
from kiln.fleet.plan import prices as plan_prices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.fleet.plan.prices import Price

TYPES = Path(__file__).parents[4] / "ansible" / "group_vars" / "all" / "machine_types.yml"
PUBLISHED = "2026-08-17T20:36:27Z"
LINUX = {
    "servicecode": "AmazonEC2",
    "instanceType": "c7i.4xlarge",
    "tenancy": "Shared",
    "operatingSystem": "Linux",
    "licenseModel": "No License required",
    "usagetype": "BoxUsage:c7i.4xlarge",
    "operation": "RunInstances",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
    "preInstalledSw": "NA",
    "regionCode": "us-east-1",
}
GP3 = {"usagetype": "EBS:VolumeUsage.gp3", "volumeApiName": "gp3", "regionCode": "us-east-1"}
ADDRESS = {"usagetype": "USE1-PublicIPv4:InUseAddress", "regionCode": "us-east-1"}
TRAFFIC = {
    "usagetype": "DataTransfer-Out-Bytes",
    "transferType": "AWS Outbound",
    "fromRegionCode": "us-east-1",
    "toLocation": "External",
}
# Attributes, unit and price of products, some of which are not those that a fleet uses.
PRODUCTS: dict[str, tuple[dict[str, str], str, list[str]]] = {
    "LINUX": (LINUX, "Hrs", ["0.7140000000"]),
    "DEDICATED": ({**LINUX, "tenancy": "Dedicated"}, "Hrs", ["9.0"]),
    "WINDOWS": ({**LINUX, "operatingSystem": "Windows"}, "Hrs", ["9.0"]),
    "SQL": ({**LINUX, "preInstalledSw": "SQL Std"}, "Hrs", ["9.0"]),
    "RESERVED": ({**LINUX, "capacitystatus": "AllocatedCapacityReservation"}, "Hrs", ["9.0"]),
    "BLOCK": ({**LINUX, "marketoption": "CapacityBlock"}, "Hrs", ["9.0"]),
    "UNUSED": ({**LINUX, "instanceType": "c6a.8xlarge", "regionCode": "eu-west-1"}, "Hrs", ["0.0000000000", "1.3"]),
    "JG3KUJMBRGHV3N8G": (GP3, "GB-Mo", ["0.0800000000"]),
    "IOPS": ({**GP3, "usagetype": "EBS:VolumeP-IOPS.gp3"}, "IOPS-Mo", ["0.005"]),
    "ADDRESS": (ADDRESS, "Hrs", ["0.0050000000"]),
    "TRAFFIC": (TRAFFIC, "GB", ["0.0000000000", "0.0900000000", "0.0850000000"]),
    "INSIDE": ({**TRAFFIC, "transferType": "InterRegion Outbound"}, "GB", ["9.0"]),
}
EXPECTED = {
    ("aws", "us-east-1", "on-demand", "c7i.4xlarge", 0.714),
    ("aws", "eu-west-1", "on-demand", "c6a.8xlarge", 1.3),
    ("aws", "us-east-1", "disk", "gp3", 0.08),
    ("aws", "us-east-1", "address", "ipv4", 0.005),
    ("aws", "us-east-1", "egress", "internet", 0.09),
}


def offer_file() -> dict[str, Any]:
    return {
        "formatVersion": "v1.0",
        "disclaimer": "for information only",
        "offerCode": "AmazonEC2",
        "version": "20260817203627",
        "publicationDate": PUBLISHED,
        "products": {
            sku: {"sku": sku, "productFamily": "Compute Instance", "attributes": attributes}
            for sku, (attributes, _, _) in PRODUCTS.items()
        },
        "terms": {
            "OnDemand": {sku: term(sku, unit, prices) for sku, (_, unit, prices) in PRODUCTS.items()},
            "Reserved": {"LINUX": {"x": {"priceDimensions": {}}}},
        },
        "attributesList": {},
    }


def term(sku: str, unit: str, prices: Iterable[str]) -> dict[str, Any]:
    dimensions = {
        f"{sku}.JRTCKXETXF.{number}": {"unit": unit, "beginRange": "0", "pricePerUnit": {"USD": price}}
        for number, price in enumerate(prices)
    }
    return {f"{sku}.JRTCKXETXF": {"offerTermCode": "JRTCKXETXF", "sku": sku, "priceDimensions": dimensions}}


def offer_table() -> str:
    """Return the same offers as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerows([["FormatVersion", "v1.0"], ["Disclaimer", "for information, and no more"]])
    writer.writerows([["Publication Date", PUBLISHED], ["Version", "1"], ["OfferCode", "AmazonEC2"]])
    titles = {**{name: title.title() for name, title in plan_prices.COLUMNS.items()}, "usagetype": "usageType"}
    writer.writerow(["SKU", "TermType", "Unit", "PricePerUnit", "Currency", *titles.values()])
    for sku, (attributes, unit, prices) in PRODUCTS.items():
        columns = [attributes.get(name, "") for name in titles]
        writer.writerows([sku, "OnDemand", unit, price, "USD", *columns] for price in prices)
        writer.writerow([sku, "Reserved", unit, "77", "USD", *columns])
    return text.getvalue()


def summary(prices: Iterable[Price]) -> set[tuple[str, str, str, str, float]]:
    return {(*price.offer_key, price.price) for price in prices}


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_an_offer_file_has_the_prices_of_machines_disks_addresses_and_traffic(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"AmazonEC2-us-east-1.{kind}"
    path.write_text(json.dumps(offer_file(), indent=1) if kind == "json" else offer_table())
    prices = plan_prices.read_price_list(path)
    assert summary(prices) == EXPECTED
    assert {(price.date, price.currency) for price in prices} == {("2026-08-17", "USD")}
    assert prices[0].source == f"AWS's price list AmazonEC2: {path.name}"


def test_a_large_offer_file_is_read_in_little_memory(tmp_path: Path) -> None:
    path, padding = tmp_path / "index.json", "x" * 2000
    data = offer_file()
    other = {"sku": "OTHER", "attributes": {"operatingSystem": "Windows", "text": padding}}
    data["products"] |= {f"OTHER{number}": other for number in range(10_000)}
    data["terms"]["OnDemand"] |= {f"OTHER{number}": term("OTHER", "Hrs", [padding]) for number in range(2_000)}
    path.write_text(json.dumps(data))
    del data
    assert path.stat().st_size > 20 << 20
    tracemalloc.start()
    try:
        assert summary(plan_prices.read_price_list(path)) == EXPECTED
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


def test_of_the_spot_prices_of_a_region_the_dearest_zone_counts(tmp_path: Path) -> None:
    entry = {
        "AvailabilityZone": "us-east-1a",
        "InstanceType": "c7i.4xlarge",
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": "0.281500",
        "Timestamp": "2026-11-20T10:04:33+00:00",
    }
    others = [
        {**entry, "AvailabilityZone": "us-east-1b", "SpotPrice": "0.301"},
        {**entry, "AvailabilityZone": "us-east-1-bos-1a", "SpotPrice": "0.9"},
        {**entry, "ProductDescription": "Windows", "SpotPrice": "0.9"},
    ]
    path = tmp_path / "spot.json"
    path.write_text(json.dumps({"SpotPriceHistory": [entry, *others]}))
    (price,) = plan_prices.read_price_list(path)
    assert (*price.offer_key, price.price, price.date) == (
        "aws",
        "us-east-1",
        "spot",
        "c7i.4xlarge",
        0.301,
        "2026-11-20",
    )


def test_the_prices_of_a_list_with_any_name_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / f"Preisübersicht{'x' * 200}.json"
    path.write_text(json.dumps(offer_file()))
    table = tmp_path / "prices.csv"
    plan_prices.write_price_table(table, plan_prices.read_price_list(path))
    assert summary(plan_prices.read_price_table(table)) == EXPECTED


def addon(
    plan: str, price: int, *, unit: str = "hour", product: str = "publiccloud-instance", regions: Iterable[str] = ()
) -> dict[str, Any]:
    pricing = {"price": price, "intervalUnit": unit, "capacities": ["consumption"], "mode": "default"}
    region = {"name": "region", "isCustom": False, "isMandatory": True, "values": [*regions]}
    return {
        "planCode": plan,
        "invoiceName": "x",
        "product": product,
        "pricings": [pricing],
        "configurations": [region] if regions else [],
    }


def test_each_machine_type_of_the_table_is_priced_by_a_list_that_has_it(tmp_path: Path) -> None:
    kinds = [kind for kind in choice.read_machine_types(TYPES) if kind.provider in {"aws", "openstack"}]
    aws = [kind.name for kind in kinds if kind.provider == "aws"]
    data = offer_file()
    data["products"] = {name: {"sku": name, "attributes": {**LINUX, "instanceType": name}} for name in aws}
    data["terms"]["OnDemand"] = {name: term(name, "Hrs", ["1.5"]) for name in aws}
    ovh = [addon(f"{kind.name}.consumption", 150000000) for kind in kinds if kind.provider == "openstack"]
    lists = {"aws": data, "openstack": {"locale": {"currencyCode": "EUR"}, "addons": ovh}}
    paths = [tmp_path / f"{name}.json" for name in lists]
    for path, content in zip(paths, lists.values(), strict=True):
        path.write_text(json.dumps(content))
    prices = plan_prices.merge_price_tables(*map(plan_prices.read_price_list, paths))
    regions = {"aws": "us-east-1", "openstack": "OVH"}
    assert {plan_prices.with_regional_prices(kind, prices, region=regions[kind.provider]).hourly for kind in kinds} == {
        1.5
    }


def test_ovh_s_local_zones_have_the_price_of_their_group_as_far_as_the_catalog_lists_them(tmp_path: Path) -> None:
    addons = [
        addon("c3-32.consumption", 33200000, regions=["GRA11", "BHS5"]),
        addon("c3-32.consumption.LZ.AF", 61000000, regions=["AF-NORTH-LZ-RBA-A"]),
        addon("c3-32.consumption.LZ.EUROZONE", 35000000, regions=["EU-WEST-LZ-MRS-A", "EU-WEST-LZ-BRU-A"]),
        addon("c3-32.consumption.LZ", 40000000),
    ]
    path = tmp_path / "cloud.json"
    path.write_text(json.dumps({"locale": {"currencyCode": "EUR"}, "addons": addons}))
    prices = {price.region: price.price for price in plan_prices.read_price_list(path)}
    assert prices == {
        "OVH": 0.332,
        "OVH AF-NORTH-LZ-RBA-A": 0.61,
        "OVH EU-WEST-LZ-MRS-A": 0.35,
        "OVH EU-WEST-LZ-BRU-A": 0.35,
        "OVH LZ": 0.4,
    }


def test_ovh_s_catalog_has_prices_by_the_hour_for_each_kind_of_region(tmp_path: Path) -> None:
    addons = [
        addon("c3-32.consumption", 33200000),
        addon("c3-32.consumption.3AZ", 36500000),
        addon("c3-32.monthly.postpaid", 9900000000, unit="month"),
        addon("volume.classic.consumption", 5600, product="publiccloud-volume"),
    ]
    path = tmp_path / "cloud.json"
    path.write_text(json.dumps({"catalogId": 1, "locale": {"currencyCode": "EUR"}, "plans": [], "addons": addons}))
    os.utime(path, (1_790_000_000, 1_790_000_000))
    prices = plan_prices.read_price_list(path)
    assert summary(prices) == {
        ("openstack", "OVH", "on-demand", "c3-32", 0.332),
        ("openstack", "OVH 3AZ", "on-demand", "c3-32", 0.365),
    }
    assert {(price.currency, price.date) for price in prices} == {("EUR", "2026-09-21")}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "not a list",
        '"SKU","TermType"\n',
        '{"terms": {"OnDemand": {"A": {}}}, "products": {}}',
        json.dumps({**offer_file(), "publicationDate": "yesterday"}),
        '{"SpotPriceHistory": [{"AvailabilityZone": 7}]}',
        '{"addons": [{"planCode": "c3-32.consumption", "product": "publiccloud-instance", "pricings": 7}]}',
        json.dumps(offer_file())[:3000],
    ],
)
def test_a_file_that_is_no_price_list_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "list"
    path.write_text(text)
    with pytest.raises(MalformedYaml, match="price") as refused:
        plan_prices.read_price_list(path)
    assert str(path) in str(refused.value)
    with pytest.raises(MalformedYaml):
        plan_prices.read_price_list(tmp_path / "missing")
