"""The only modules that differ between Linux, macOS and Windows: locks, users, processes, limits, files.

Each decides once, when it is imported, by ``sys.platform``; other modules call them and do not test for a system.
"""
