"""The process in which py-rattler runs: ``python -m kiln.rattler_process.worker PARENT LOCKS`` answers requests.

Each request is a line. The process ends when its standard input is closed, or its parent is gone. Through the socket
LOCKS come descriptors of locks: what this process writes must not be swept before it is done, even when the parent is
killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, TextIO

from kiln import channel_url_credentials, interprocess_messages
from kiln.errors import Interrupted, KilnError
from kiln.model.channel_reading_and_install_limits import Limits
from kiln.operating_system.lock_handover import LockReceiver
from kiln.operating_system.machine_resources import limit_memory_and_file_size
from kiln.rattler_process import operations
from kiln.rattler_process.error_json_conversion import failure_to_json
from kiln.rattler_process.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

UNWINDING = 2.0  # seconds for the library to remove its half-written files once its work is cancelled


class RequestServer:
    """A server of one request after the other; ``breach`` is the limit that was exceeded."""

    def __init__(self, parent: int, answers: TextIO, locks: LockReceiver) -> None:
        self.parent, self.answers, self.locks = parent, answers, locks
        self.breach: KilnError | None = None
        self.answered = threading.Event()

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Write one message to the parent."""
        interprocess_messages.write_line(self.answers, interprocess_messages.encode(message))

    def serve_request(self, line: str) -> None:
        """Run the operation of a request, under its limits, and answer."""
        request = interprocess_messages.decode(line) or {}
        channel_url_credentials.register_credentials(request["credentials"])
        try:
            with self._hold_received_lock(request):
                value = asyncio.run(self._execute_within_limits(request))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the parent decides what it means
            self._send_answer_once({"error": failure_to_json(self.breach or error)})
        else:
            self._send_answer_once({"value": value})
        if self.breach is not None:
            os._exit(0)

    @contextlib.contextmanager
    def _hold_received_lock(self, request: Mapping[str, Any]) -> Iterator[None]:
        """Hold the parent's lock, which came with the request; after a failure until this process ends.

        For compiled code may go on with its work then, until the parent ends the process, or is gone itself.
        """
        locks = self.locks.receive_locks() if request["lock"] else []
        yield
        for descriptor in locks:
            os.close(descriptor)

    async def _execute_within_limits(self, request: Mapping[str, Any]) -> Any:
        limits = Limits(**request["limits"])
        loop = asyncio.get_running_loop()
        self.answered.clear()
        task: asyncio.Future[Any] | None = None

        def end_operation(error: KilnError) -> None:
            """Cancel the operation; answer and exit when compiled code cannot be cancelled."""
            self.breach = self.breach or error
            if task is not None:
                loop.call_soon_threadsafe(task.cancel)
            if not self.answered.wait(UNWINDING):
                self._send_answer_once({"error": failure_to_json(self.breach)})
                os._exit(0)

        def end_operation_in_thread(error: KilnError) -> None:
            threading.Thread(target=end_operation, args=(error,), daemon=True).start()

        with contextlib.suppress(NotImplementedError):  # Windows ends a process without a signal
            loop.add_signal_handler(signal.SIGTERM, end_operation_in_thread, Interrupted("the process was terminated"))
        operation = operations.make_operation(
            request["operation"], request["arguments"], limits, self.send_message, end_operation_in_thread
        )
        # The watchdog acts sooner and gives the reason; this holds when memory grows faster than it polls.
        limit_memory_and_file_size(memory=2 * limits.memory + 10**9, file_size=operation.file_size)
        watchdog = Watchdog(limits, operation.watched_task, self.parent, end_operation)
        if isinstance(operation, operations.InstallPackages):
            operation.admission.exceeded = watchdog.exceeded_space_error
        task = asyncio.ensure_future(operation.execute())
        watchdog.start()
        try:
            return await task
        finally:
            watchdog.stopped.set()

    def _send_answer_once(self, message: Mapping[str, Any]) -> None:
        if not self.answered.is_set():
            self.answered.set()
            self.send_message(message)


def main(parent: str, locks: str) -> None:
    """Answer until the input ends, then exit without the library's tear-down (see kiln.__main__)."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="\n")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library's output is not an answer
    server = RequestServer(int(parent), answers, LockReceiver(int(locks)))
    for line in io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"):
        server.serve_request(line)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
