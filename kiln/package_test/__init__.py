"""The test stage: install each package into a fresh prefix, and run its recipe's tests there; test wheels with pip."""

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from kiln.package_test.plan import specs_required_by_test
    from kiln.package_test.tester import PackageTester

__all__ = ["PackageTester", "specs_required_by_test"]

__getattr__ = lazy_exports(
    __name__,
    {
        "plan": "specs_required_by_test",
        "tester": "PackageTester",
    },
)
