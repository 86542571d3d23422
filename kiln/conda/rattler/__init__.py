"""A process in which py-rattler reads channels and packages, under limits on time, memory and disk space.

The compiled code that decodes a channel's files ignores deadlines, and ends its whole process when memory is
refused. So it runs in a separate process, which the kernel and a watchdog hold to the limits.
"""
