"""The ledger: one SQLite file with all runs of a feedstock."""
