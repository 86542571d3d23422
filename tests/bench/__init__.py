"""The benchmark: how long things take, next to what they may take. It asserts nothing; machines differ."""
