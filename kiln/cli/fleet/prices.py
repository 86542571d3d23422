"""``kiln fleet prices``: show the prices of machine types, kiln's own and the user's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kiln.base.text import table

if TYPE_CHECKING:
    from kiln.fleet.options import FleetOptions

HEADER = ("provider", "region", "kind", "name", "price", "per", "currency", "date", "source")


def show_prices(options: FleetOptions) -> int:
    """Show the prices of a provider, or of all, of the machine types that kiln can ask for."""
    from kiln.base.serialization import to_json
    from kiln.fleet.plan import prices as fleet_prices
    from kiln.fleet.plan import run as fleet_plan

    names = {(kind.provider, kind.name) for kind in fleet_plan.own_machine_types()}
    prices = sorted(
        (
            price
            for price in fleet_prices.merged_price_table(options.prices)
            if options.provider in {"", price.provider}
            and (price.kind not in {"on-demand", "spot"} or (price.provider, price.name) in names)
        ),
        key=lambda price: price.offer_key,
    )
    if options.json:
        print(json.dumps(to_json(prices), indent=2))
        return 0
    rows = [
        (
            *(price.provider, price.region, price.kind, price.name, f"{price.price:g}"),
            *(price.unit, price.currency, price.date, price.source),
        )
        for price in prices
    ]
    print(table(HEADER, rows, right=(4,)))
    return 0
