"""The test stage: install each package into a fresh prefix, and run its recipe's tests there; test wheels with pip."""
