"""The checks of packages before they are installed: they are what their index says, and stay inside the prefix.

rattler 0.28 makes none of these checks: it follows ``../`` in a package's list of files, and does not compare the hash
of a package that it takes from a folder.
"""
