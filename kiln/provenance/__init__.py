"""The provenance of packages: records chained by hashes, signed when there is a key, and bills of materials."""
