"""Long trials, run by hand: `python -m tests.trials.NAME` in the environment of the tests prints its figures."""
