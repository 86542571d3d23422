"""Locks that a child process holds together with its parent: handed to it while it runs."""

from __future__ import annotations

import os
import socket

_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # macOS has none


class LockSender:
    """The parent's side: a socket whose other end, ``number``, the child inherits."""

    def __init__(self) -> None:
        self._own, self._childs = socket.socketpair()
        self.number = self._childs.fileno()
        self.inherited = (self.number,)

    def close_child_end(self) -> None:
        """Close the child's end here."""
        self._childs.close()

    def send_lock(self, lock: int) -> None:
        """Hand over a lock, by its descriptor."""
        socket.send_fds(self._own, [b"\0"], [lock])

    def close(self) -> None:
        """Close this end."""
        self._own.close()


class LockReceiver:
    """The child's side."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)

    def receive_locks(self) -> list[int]:
        """Return the descriptors of the locks that came."""
        locks = socket.recv_fds(self._socket, 1, 1, _CLOSE_ON_EXEC)[1]
        for lock in locks:
            os.set_inheritable(lock, False)
        return locks
