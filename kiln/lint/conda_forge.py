"""Rules for feedstocks of conda-forge only."""
RULES = ()
