from __future__ import annotations

from pathlib import Path

from kiln.feedstock.lint import check

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "lint.md"


def test_the_page_has_a_row_for_each_rule() -> None:
    rows = {
        tuple(cell.strip() for cell in line.strip("|\n").split("|"))
        for line in PAGE.read_text().splitlines()
        if line.count("|") == 6
    }
    shown = {(row[0], row[1], row[3], row[4].strip("`")) for row in rows} - {
        ("id", "severity", "`--fix`", "linter: skip:"),
        ("---",) * 4,
    }
    rules = {(rule.id, rule.severity.value, "yes" if rule.fixable else "", rule.skip) for rule in check.RULES}
    own = {(name, "hint", "", "") for name in (check.REPORT, check.FAILURE, check.OWN_REPORT)}
    assert shown == rules | own


def test_every_fixable_rule_has_a_correction() -> None:
    from kiln.feedstock.lint.fixes import LINE_FIXES

    fixable = {rule.id for rule in check.RULES if rule.fixable}
    assert fixable == {*LINE_FIXES, "R-001", "R-009", "R-011", "R-012"}
