"""The test stage: install each package into a fresh prefix, and run its recipe's tests there; test wheels with pip."""

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from kiln.package_test.plan import required_specs
    from kiln.package_test.tester import PackageTester

__all__ = ["PackageTester", "required_specs"]

__getattr__ = lazy_exports(
    __name__,
    {
        "plan": "required_specs",
        "tester": "PackageTester",
    },
)
