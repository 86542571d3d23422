"""The plan of a run on workers: machine types, prices, quotas."""
