"""Tables of prices, and the machine types with their prices."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path

import pytest

from kiln.base.errors import MalformedYaml
from kiln.fleet.model import MachineType
from kiln.fleet.plan import choice, prices
from kiln.fleet.plan.prices import Price, merged_price_table, with_regional_prices

TYPES = Path(__file__).parents[4] / "ansible" / "group_vars" / "all" / "machine_types.yml"
PRICE = Price(
    provider="aws",
    region="eu-west-1",
    kind="on-demand",
    name="c7i.4xlarge",
    price=0.765,
    unit="hour",
    currency="USD",
    date="2026-11-20",
    source="a list, with a comma",
)
TYPE = MachineType(provider="aws", type="compute-16", name="c7i.4xlarge", cores=16, memory=32, disk=150)


def row(**changes: object) -> Price:
    return dataclasses.replace(PRICE, **changes)  # type: ignore[arg-type] # fields by name


def table_of(*rows: Price) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in dataclasses.fields(Price)])
    writer.writeheader()
    writer.writerows(map(dataclasses.asdict, rows))
    return text.getvalue()


def test_every_machine_type_has_a_price_with_its_source_and_date() -> None:
    table = merged_price_table(None)
    regions = {"aws": "us-east-1", "openstack": "OVH", "local": "here", "static": "here"}
    for machine_type in choice.read_machine_types(TYPES):
        priced = with_regional_prices(machine_type, table, region=regions[machine_type.provider])
        assert priced.source, machine_type
        assert bool(priced.hourly and priced.date) == (machine_type.provider not in prices.FREE)


def test_the_table_has_the_current_families_and_no_p3() -> None:
    families = {machine_type.name.partition(".")[0] for machine_type in choice.read_machine_types(TYPES)}
    assert {"c6a", "c6i", "c7a", "c7i", "c8a", "c8i", "g4dn", "g5", "g6"} <= families
    assert not families & {"p3", "c5"}
    sizes = {item.name: (item.cores, item.memory, item.disk) for item in choice.read_machine_types(TYPES)}
    assert (sizes["c3-32"], sizes["c3-64"]) == ((16, 32, 400), (32, 64, 400))


def test_an_hour_of_a_worker_has_its_disk_and_its_address() -> None:
    priced = with_regional_prices(TYPE, merged_price_table(None), region="us-east-1")
    assert (priced.hourly, priced.address_hourly, priced.egress) == (0.714, 0.005, 0.09)
    assert priced.disk_hourly == pytest.approx(150 * 0.08 / 720)
    assert priced.hourly_price(spot=False) == pytest.approx(0.714 + 150 * 0.08 / 720 + 0.005)
    spot = dataclasses.replace(priced, spot_hourly=0.3)
    assert spot.hourly_price(spot=True) == pytest.approx(0.3 + 150 * 0.08 / 720 + 0.005)
    assert priced.not_counted == ()


def test_a_region_without_prices_has_not_those_of_another_and_the_user_s_table_adds_them(tmp_path: Path) -> None:
    unpriced = with_regional_prices(TYPE, merged_price_table(None), region="eu-west-1")
    assert (unpriced.is_priced, unpriced.hourly_price(spot=False), unpriced.currency, unpriced.source) == (
        False,
        0.0,
        "",
        "",
    )
    path = tmp_path / "prices.csv"
    path.write_text(table_of(PRICE))
    priced = with_regional_prices(TYPE, merged_price_table(path), region="eu-west-1")
    assert (priced.hourly, priced.region, priced.source) == (0.765, "eu-west-1", "a list, with a comma")
    assert priced.not_counted == ("disk", "address", "egress")
    other = dataclasses.replace(TYPE, name="c6a.4xlarge")
    assert not with_regional_prices(other, merged_price_table(path), region="eu-west-1").is_priced
    assert priced.is_priced


def test_a_price_of_the_user_s_table_replaces_kiln_s(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(table_of(row(region="us-east-1", price=0.7), row(region="us-east-1", kind="spot", price=0.25)))
    priced = with_regional_prices(TYPE, merged_price_table(path), region="us-east-1")
    assert (priced.hourly, priced.spot_hourly, priced.address_hourly) == (0.7, 0.25, 0.005)


def test_a_spot_price_has_the_source_and_date_of_its_own_row() -> None:
    spot = row(kind="spot", price=0.25, source="my spot history", date="2026-11-22")
    priced = with_regional_prices(TYPE, [PRICE, spot], region="eu-west-1")
    assert (priced.source, priced.date) == (PRICE.source, PRICE.date)
    assert (priced.spot_source, priced.spot_date) == ("my spot history", "2026-11-22")
    foreign = [PRICE, row(kind="spot", price=0.25, currency="EUR", source="elsewhere")]
    assert with_regional_prices(TYPE, foreign, region="eu-west-1").spot_source == "", "as its price is not used"


def test_prices_in_another_currency_are_not_added_up() -> None:
    table = [PRICE, row(kind="disk", name="gp3", unit="GB-month", currency="EUR")]
    assert with_regional_prices(TYPE, table, region="eu-west-1").not_counted == ("disk", "address", "egress")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("provider,", "vendor,", "invalid columns"),
        ("0.765", "nan", "invalid price 'nan'"),
        ("0.765", "-1", "invalid price '-1'"),
        ("0.765", "cheap", "invalid price 'cheap'"),
        (",hour,", ",GB,", "invalid kind or unit of a price: on-demand per GB"),
        ("on-demand", "leased", "invalid kind or unit"),
        ("2026-11-20", "yesterday", "invalid date 'yesterday'"),
        (",USD", ",", "invalid currency"),
        (",USD", "", "invalid source"),
        ("USD", "USD,more", "invalid number of fields"),
        ("c7i.4xlarge", "c7i\x1b[31m", "invalid name"),
    ],
)
def test_an_invalid_table_is_refused_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(table_of(PRICE).replace(old, new, 1))
    with pytest.raises(MalformedYaml) as refused:
        prices.read_price_table(path)
    assert message in str(refused.value)
    assert f"{path}:{1 if 'columns' in message else 2}" in str(refused.value)


def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(MalformedYaml, match="is not a table of prices"):
        prices.read_price_table(path)
    with path.open("wb") as file:
        file.truncate(prices.LARGEST_TABLE + 1)
    with pytest.raises(MalformedYaml, match="bytes"):
        prices.read_price_table(path)
