"""Notifications, transfers, messages and changes of a job for asyncio.

    inbox = vmmc.aio.Notifications(session)
    async for notification in inbox.of(export): ...
    one = await inbox.next(export, timeout=1.0)
    async for message in vmmc.aio.messages(session, endpoint): ...
    async for what, rank in vmmc.aio.changes(job): ...

A `Notifications` takes all notifications of its session while it is open, and queues those of
exports that nobody awaits; wait for those with it, not with `export.wait_notification`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import AsyncIterator, Optional

from ._errors import NodeGone, TimedOut
from ._vmmc import Endpoint, Export, Job, Message, Notification, Session, Transfer

# Notifications that queue for one export, as in the library; further ones are counted in `lost`.
QUEUE_MAX = 4096
# Seconds between two looks at an embedded node, whose news no descriptor tells.
_LOOK_EMBEDDED_S = 0.01


class _Closed(RuntimeError):
    """It was closed while somebody waited."""


class Notifications:
    """The notifications of a session in the running event loop."""

    def __init__(self, session: Session) -> None:
        self.lost = 0
        self._session = session
        self._loop = asyncio.get_running_loop()
        embedded = session.node_info()["embedded"]
        self._queues: dict[int, deque[Notification]] = {}
        self._news = asyncio.Event()
        self._loop.add_reader(session.fileno(), self._collect)
        self._look: Optional[asyncio.TimerHandle] = None
        self._open = True
        self._collect()
        # A daemon's descriptor tells of all news, and of its end.
        if embedded:
            self._look_again()

    def close(self) -> None:
        """Ends it; what has been queued is gone."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._session.fileno())
            if self._look is not None:
                self._look.cancel()
            self._news.set()

    async def next(self, export: Optional[Export] = None, timeout: Optional[float] = None) -> Notification:
        """The next notification of an export, or of any; without a timeout it waits for ever."""
        async def wait() -> Notification:
            while True:
                found = self._take(export)
                if found is not None:
                    return found
                if not self._open:
                    raise _Closed("the Notifications object is closed")
                if not self._session.alive:
                    raise NodeGone("wait for a notification: the node is gone; start it again and attach anew")
                self._news.clear()
                await self._news.wait()

        try:
            return await asyncio.wait_for(wait(), timeout)
        except TimeoutError as error:
            if isinstance(error, TimedOut):
                raise
            raise TimedOut(f"wait for a notification: nothing came within {timeout} s") from None

    async def of(self, export: Optional[Export] = None) -> AsyncIterator[Notification]:
        """All notifications of an export, or of all, until it is closed."""
        while self._open:
            try:
                notification = await self.next(export)
            except _Closed:
                return
            yield notification

    def __enter__(self) -> Notifications:
        return self

    def __exit__(self, *_reasons: object) -> None:
        self.close()

    def _take(self, export: Optional[Export]) -> Optional[Notification]:
        self._collect()
        queues = self._queues.values() if export is None else filter(None, [self._queues.get(export.id)])
        for queue in queues:
            if queue:
                return queue.popleft()
        return None

    def _collect(self) -> None:
        while (notification := self._session.take_notification()) is not None:
            queue = self._queues.setdefault(notification.export_id, deque())
            if len(queue) >= QUEUE_MAX:
                self.lost += 1
            else:
                queue.append(notification)
            self._news.set()
        if not self._session.alive:
            # The descriptor stays readable.
            self._loop.remove_reader(self._session.fileno())
            self._news.set()

    def _look_again(self) -> None:
        if self._open:
            self._collect()
            self._look = self._loop.call_later(_LOOK_EMBEDDED_S, self._look_again)


async def wait(transfer: Transfer, timeout: Optional[float] = None) -> int:
    """Waits for a transfer without holding up the event loop; gives the bytes moved."""
    done = transfer.poll()
    if done is not None:
        return done
    return await asyncio.get_running_loop().run_in_executor(None, transfer.wait, timeout)


async def messages(session: Session, endpoint: Endpoint) -> AsyncIterator[Message]:
    """The messages of an endpoint of the session's, made with notify, as they come."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    descriptor = endpoint.fileno()
    # A daemon's descriptor tells of all messages, and of its end.
    patience = _LOOK_EMBEDDED_S if session.node_info()["embedded"] else None

    def told() -> None:
        # Not again before the endpoint was polled: until then the descriptor stays readable.
        loop.remove_reader(descriptor)
        news.set()

    try:
        while True:
            while (message := endpoint.poll()) is not None:
                yield message
            if not session.alive:
                raise NodeGone("wait for a message: the node is gone; start it again and attach anew")
            loop.add_reader(descriptor, told)
            try:
                await asyncio.wait_for(news.wait(), patience)
            except TimeoutError:
                pass
            news.clear()
    finally:
        loop.remove_reader(descriptor)


async def changes(job: Job) -> AsyncIterator[tuple[str, int]]:
    """The changes among the members of a job, as they come."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    descriptor = job.fileno()

    def told() -> None:
        # Not again before `changes` was called: until then the descriptor stays readable.
        loop.remove_reader(descriptor)
        news.set()

    try:
        while True:
            loop.add_reader(descriptor, told)
            await news.wait()
            news.clear()
            for change in job.changes():
                yield change
    finally:
        loop.remove_reader(descriptor)
