"""The test stage: install each package into a fresh prefix, and run its recipe's tests there; test wheels with pip."""

from kiln.package_test.plan import required_specs
from kiln.package_test.tester import PackageTester

__all__ = ["PackageTester", "required_specs"]
