"""The picture of a plan: the arrangements by time and cost, as a page without scripts that stands alone."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from kiln.base.text import duration
from kiln.fleet.plan.output import arrangement_text, choice_reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln.fleet.plan.plan import FleetPlan, WorkerArrangement


WIDTH, HEIGHT, MARGIN = 720, 420, 64
_STYLE = """\
:root { color-scheme: light dark; --ink: #1f2328; --paper: #fff; --soft: #656d76; --line: #d0d7de; --mark: #0969da; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --soft: #8d96a0; --line: #30363d; --mark: #58a6ff; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
body { max-width: 760px; margin: 2em auto; padding: 0 1em; }
svg { width: 100%; height: auto; } svg text { font-size: 13px; fill: var(--soft); }
.grid { stroke: var(--line); } .front { fill: none; stroke: var(--soft); stroke-dasharray: 4 4; }
.way { fill: var(--paper); stroke: var(--ink); stroke-width: 1.5; } .chosen { fill: var(--mark); stroke: var(--mark); }
svg .name { fill: var(--ink); } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3em .8em .3em 0; border-bottom: 1px solid var(--line); }
.n { text-align: right; font-variant-numeric: tabular-nums; } tr.chosen td { font-weight: 600; }
"""


def plan_as_html(plan: FleetPlan) -> str:
    """Return the page: which arrangement was chosen and why, all of the front as a picture, and as a table."""
    rows = "\n".join(_table_row(way, is_chosen=way is plan.selection) for way in plan.front)
    picture = _picture(plan) if len(plan.front) > 1 else ""
    title = f"{arrangement_text(plan.selection)}: {duration(plan.selection.seconds)}, {plan.selection.cost_text}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(choice_reason(plan))}.</p>
{picture}
<table>
<thead><tr><th>workers</th><th class="n">time</th><th class="n">cost</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</body>
</html>
"""


def _table_row(way: WorkerArrangement, *, is_chosen: bool) -> str:
    mark = ' class="chosen"' if is_chosen else ""
    cells = f'<td class="n">{duration(way.seconds)}</td><td class="n">{escape(way.cost_text)}</td>'
    return f"<tr{mark}><td>{escape(arrangement_text(way))}</td>{cells}</tr>"


def _picture(plan: FleetPlan) -> str:
    """Return the arrangements as points on logarithmic axes, on which the knee was chosen."""
    times, costs = [way.seconds / 3600 for way in plan.front], [way.cost for way in plan.front]
    across, up = _Axis(times, MARGIN, WIDTH - MARGIN), _Axis(costs, HEIGHT - MARGIN, MARGIN / 2)
    points = [(across.place(hours), up.place(cost)) for hours, cost in zip(times, costs, strict=True)]
    lines = [
        *(f'<path class="grid" d="M{x:.0f} {MARGIN / 2:.0f}V{HEIGHT - MARGIN}"/>' for _, x in across.ticks()),
        *(
            f'<text x="{x:.0f}" y="{HEIGHT - MARGIN + 20}" text-anchor="middle">{t:g} h</text>'
            for t, x in across.ticks()
        ),
        *(f'<path class="grid" d="M{MARGIN} {y:.0f}H{WIDTH - MARGIN}"/>' for _, y in up.ticks()),
        *(f'<text x="{MARGIN - 8}" y="{y + 4:.0f}" text-anchor="end">{cost:g}</text>' for cost, y in up.ticks()),
        f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 16}" text-anchor="middle">hours until all is built</text>',
        f'<text x="8" y="14">{escape(plan.selection.machine_type.currency)}</text>',
        '<polyline class="front" points="{}"/>'.format(" ".join(f"{x:.0f},{y:.0f}" for x, y in points)),
    ]
    for way, (x, y) in zip(plan.front, points, strict=True):
        chosen, name = way is plan.selection, escape(arrangement_text(way))
        tip = f"<title>{name}: {duration(way.seconds)}, {escape(way.cost_text)}</title>"
        kind = "way chosen" if chosen else "way"
        lines.append(f'<circle class="{kind}" cx="{x:.0f}" cy="{y:.0f}" r="{7 if chosen else 5}">{tip}</circle>')
        if chosen or way in {plan.fastest, plan.cheapest}:
            anchor = "end" if x > WIDTH / 2 else "start"
            lines.append(f'<text class="name" x="{x:.0f}" y="{y - 12:.0f}" text-anchor="{anchor}">{name}</text>')
    label = "arrangements by time and cost, on logarithmic axes; the table below has the same"
    body = "\n".join(lines)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">\n{body}\n</svg>'


class _Axis:
    """A logarithmic axis from ``begin`` to ``end``, in the units of the picture, for values above 0."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.low, self.high = min(values) / 1.1, max(values) * 1.1
        self.begin, self.end = begin, end

    def place(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[tuple[float, float]]:
        """Return round values with their places."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [step * 10.0**power for power in powers for step in (1, 2, 3, 4, 5, 7)]
        return [(value, self.place(value)) for value in values if self.low <= value <= self.high]
