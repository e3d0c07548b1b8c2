"""A pool of worker processes that can be killed one by one when a request runs too long.

Lives here: starting, feeding, timing, killing and replacing the processes. What a worker
computes does not live here; nothing here knows about mathematics or rewards.

The processes are plain `subprocess.Popen` children that read one JSON request per line and write
one JSON reply per line. `multiprocessing` is not used: it refuses children of daemonic processes,
imports the caller's `__main__` again, and unpickles what the child sends.
"""

import json
import math
import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rlnorm.errors import WorkerError

# The worker ends itself by a kernel timer at the limit exactly (see `math_worker`); the parent's
# own kill is for a worker that the timer cannot end, and comes this much later.
KILL_GRACE_S = 0.5
# A request in flight when its worker dies for no reason of its own (out-of-memory killer, an
# operator's `kill`) is tried again this often before it is given up as the cause.
RETRIES_AFTER_DEATH = 1
# The same for a worker killed while it starts.
START_ATTEMPTS = 3


class Failure(Enum):
    """Why a request has no reply."""

    TIMEOUT = "timeout"
    DIED = "died"


class WorkerStartError(WorkerError):
    """A worker process ended, or said nothing, before it was ready for its first request."""


@dataclass(eq=False)
class _Batch:
    remaining: int
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


@dataclass(eq=False)
class _Task:
    line: bytes
    batch: _Batch
    outcome: dict[str, Any] | Failure | None = None
    deaths: int = 0


class _Worker:
    """One child process and the unread part of its output."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env), bufsize=0
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin_fd = self.process.stdin.fileno()
        self.stdout_fd = self.process.stdout.fileno()
        # Non-blocking, so that a worker that has stopped reading cannot block the thread past
        # the deadline.
        os.set_blocking(self.stdin_fd, False)
        self._buffer = b""

    def exchange(self, to_write: bytes, deadline: float) -> tuple[bytes, list[dict[str, Any]]]:
        """Write what fits, read what is there; the unwritten rest and the replies.

        Raises `TimeoutError` when `deadline` (`time.monotonic()` seconds) passes without either,
        and `EOFError` when the worker has closed its end.
        """
        poller = select.poll()  # not select(): a trainer may hold more than 1,024 descriptors
        poller.register(self.stdout_fd, select.POLLIN)
        if to_write:
            poller.register(self.stdin_fd, select.POLLOUT)
        events = dict(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
        if not events:
            raise TimeoutError
        if self.stdin_fd in events:
            try:
                to_write = to_write[os.write(self.stdin_fd, to_write) :]
            except BrokenPipeError:
                to_write = b""  # the end of its output tells the same, after its last replies
            except BlockingIOError:
                pass  # less room than one write: wait for the next turn
        if self.stdout_fd not in events:
            return to_write, []
        data = os.read(self.stdout_fd, 1 << 16)
        if not data:
            raise EOFError
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return to_write, [json.loads(line) for line in lines]

    def stop(self) -> int:
        """Kill the process, reap it and close the pipes; its exit status."""
        self.process.kill()
        return self.reap()

    def reap(self) -> int:
        try:
            status = self.process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:  # it closed its output and lives on
            self.process.kill()
            status = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return status


class ProcessPool:
    """Runs JSON requests on `workers` child processes; may be called from any number of threads.

    `command` starts a worker. A worker writes one line `{"ready": true}` when its imports are
    done, then answers each request line with one reply line, in order. A reply that holds
    `"exiting": true` announces that the worker ends after it. It is expected to end itself by
    SIGALRM once a request has run for `timeout_s` seconds.

    Requests travel in chunks of at most `chunk_size`, but every one is answered and timed by
    itself: when one is stuck, only that one fails and the rest of its chunk goes to another
    worker. Processes are started with the first call of `run`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        workers: int,
        timeout_s: float,
        env: Mapping[str, str],
        chunk_size: int = 32,
        startup_timeout_s: float = 120.0,
    ) -> None:
        if workers < 1 or chunk_size < 1:
            raise ValueError(f"workers ({workers}) and chunk_size ({chunk_size}) must be 1 or more")
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise ValueError(f"timeout_s must be a positive number of seconds, not {timeout_s}")
        self._command = list(command)
        self._env = dict(env)
        self._workers = workers
        self._timeout_s = timeout_s
        self._chunk_size = chunk_size
        self._startup_timeout_s = startup_timeout_s
        self._queue: deque[_Task] = deque()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._live: set[_Worker] = set()
        self._closed = False
        self._owner_pid = os.getpid()

    def run(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | Failure]:
        """The reply to each request, in order, or why there is none.

        Raises `WorkerStartError` when no worker can be started, and `RuntimeError` when the pool
        is closed meanwhile or is used in a forked copy of the process that made it.
        """
        if not requests:
            return []
        if os.getpid() != self._owner_pid:
            raise RuntimeError("this pool belongs to another process: make one after the fork")
        batch = _Batch(remaining=len(requests))
        tasks = [_Task(json.dumps(request).encode() + b"\n", batch) for request in requests]
        with self._changed:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._start_threads()
            self._queue.extend(tasks)
            self._changed.notify_all()
        batch.done.wait()
        if batch.error is not None:
            raise batch.error
        outcomes = [task.outcome for task in tasks]
        assert None not in outcomes
        return outcomes  # type: ignore[return-value]

    def pids(self) -> list[int]:
        """Process ids of the workers alive now."""
        with self._changed:
            return [worker.process.pid for worker in self._live]

    def close(self) -> None:
        """Kill and reap every worker. Calls still waiting raise. May be called twice."""
        with self._changed:
            self._closed = True
            live = list(self._live)
            self._changed.notify_all()
        for worker in live:
            worker.process.kill()
        for thread in self._threads:
            thread.join()
        with self._changed:
            self._fail_queued(RuntimeError("the pool was closed"))

    def _start_threads(self) -> None:
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._serve, name=f"pool-worker-{i}", daemon=True)
                for i in range(self._workers)
            ]
            for thread in self._threads:
                thread.start()

    def _serve(self) -> None:
        """One thread per worker process: take a chunk, run it, until the pool is closed."""
        worker: _Worker | None = None
        chunk: deque[_Task] = deque()
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._queue)
                    if self._closed:
                        return
                    # Half of an even share, so that the last chunks end at about the same time.
                    share = math.ceil(len(self._queue) / (2 * self._workers))
                    while self._queue and len(chunk) < min(share, self._chunk_size):
                        chunk.append(self._queue.popleft())
                if worker is None:
                    try:
                        worker = self._start_worker()
                    except WorkerStartError as error:
                        with self._changed:
                            self._queue.extendleft(reversed(chunk))
                            chunk.clear()
                            if self._closed:
                                return  # close() killed it, and tells the callers
                            self._fail_queued(error)
                        continue
                if not self._run_chunk(worker, chunk):
                    with self._changed:
                        self._live.discard(worker)
                        # In front: they have waited longest.
                        self._queue.extendleft(reversed(chunk))
                        chunk.clear()
                        self._changed.notify_all()
                    worker = None
        except BaseException as error:
            # A fault of the pool itself must reach the callers, who would wait for ever.
            with self._changed:
                self._closed = True
                self._changed.notify_all()
                self._queue.extend(chunk)
                self._fail_queued(error)
            raise
        finally:
            if worker is not None:
                worker.stop()
                with self._changed:
                    self._live.discard(worker)

    def _start_worker(self) -> _Worker:
        for attempt in range(1, START_ATTEMPTS + 1):
            worker = _Worker(self._command, self._env)
            with self._changed:
                self._live.add(worker)
                closed = self._closed
            deadline = time.monotonic() + (0.0 if closed else self._startup_timeout_s)
            killed = False
            try:
                replies: list[dict[str, Any]] = []
                while not replies:
                    _, replies = worker.exchange(b"", deadline)
                if replies[0].get("ready") is True:
                    return worker
                reason = f"it said {replies[0]}"
            except TimeoutError:
                reason = f"not ready after {self._startup_timeout_s:g} s"
            except ValueError as error:
                reason = f"it wrote something else than a reply ({error})"
            except EOFError:
                status = worker.reap()
                reason = f"it ended with status {status}; see its standard error"
                killed = status < 0
            worker.stop()
            with self._changed:
                self._live.discard(worker)
            # A worker that fails by itself (a missing package) would only fail again.
            if not killed or closed or attempt == START_ATTEMPTS:
                break
        raise WorkerStartError(f"worker {' '.join(self._command)}: {reason}")

    def _run_chunk(self, worker: _Worker, chunk: deque[_Task]) -> bool:
        """Run the chunk, taking each answered task out of it. False when the worker is gone."""
        limit = self._timeout_s + KILL_GRACE_S
        to_write = b"".join(task.line for task in chunk)
        deadline = time.monotonic() + limit
        while chunk:
            try:
                to_write, replies = worker.exchange(to_write, deadline)
            except TimeoutError:
                worker.stop()
                self._finish(chunk.popleft(), Failure.TIMEOUT)
                return False
            except EOFError:
                if worker.reap() == -signal.SIGALRM:
                    self._finish(chunk.popleft(), Failure.TIMEOUT)
                elif chunk[0].deaths >= RETRIES_AFTER_DEATH:
                    self._finish(chunk.popleft(), Failure.DIED)
                else:
                    chunk[0].deaths += 1
                return False
            for reply in replies:
                self._finish(chunk.popleft(), reply)
                deadline = time.monotonic() + limit
                if reply.get("exiting"):
                    worker.stop()
                    return False
        return True

    def _finish(self, task: _Task, outcome: dict[str, Any] | Failure) -> None:
        task.outcome = outcome
        with self._changed:
            task.batch.remaining -= 1
            if task.batch.remaining == 0:
                task.batch.done.set()

    def _fail_queued(self, error: BaseException) -> None:
        """Give up every task in the queue. The caller holds the lock."""
        while self._queue:
            batch = self._queue.popleft().batch
            batch.error = error
            batch.done.set()
