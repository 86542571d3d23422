"""The names of the files of an index."""

REPODATA, CURRENT, EXPORTS = "repodata.json", "current_repodata.json", "run_exports.json"
BASE, INSTRUCTIONS = "repodata_from_packages.json", "patch_instructions.json"
LISTING, SHARDS = "repodata_shards.msgpack.zst", "shards"
VARIANTS = (f"{BASE}.zst", *(f"{name}.bz2" for name in (REPODATA, CURRENT, EXPORTS, BASE)))  # written where they exist
STALE = f"{REPODATA}.jlap"  # patches from older indexes, which become invalid; clients without it read the whole
CHANNELDATA = "channeldata.json"  # of the whole channel
PACKAGES = (".conda", ".tar.bz2")  # the endings of package files
