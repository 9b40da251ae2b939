"""Messages by rank and tag among the members of a job.

    messages = vmmc.mp.attach()                   # in a process that `vmmc run` has started
    world = messages.world                        # all members
    if world.rank == 0:
        world.send(1, b"hello", tag=7)
    elif world.rank == 1:
        data, status = world.receive(source=0, tag=7)

What is sent, and received into, is any object with the buffer protocol whose bytes are contiguous:
bytes, bytearrays, NumPy arrays; or a range of a `Memory`. A request holds its object until it is
over; until then nobody changes what is sent, or looks at what is received.

Every call that waits takes a `timeout` in seconds; the default is that of the messages, an hour.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ._vmmc import Group, Job, Memory, MemoryRange, Messages, Request, Session, Status, mp_wait_any

__all__ = [
    "Group",
    "Memory",
    "MemoryRange",
    "Messages",
    "Request",
    "Status",
    "among",
    "attach",
    "over",
    "wait_all",
    "wait_any",
]


def attach(*, timeout: float | None = None) -> Messages:
    """The members of the job that this process was started for. `timeout`: how long calls wait."""
    return Messages.attach(timeout=timeout)


def over(job: Job, *, timeout: float | None = None) -> Messages:
    """The members of a job, as it is now. Ranks that join it later are not among them."""
    return Messages.over(job, timeout=timeout)


def among(
    session: Session, name: str, rank: int, nodes: int | Sequence[str | None], *, timeout: float | None = None
) -> Messages:
    """Processes or threads that know each other by a name, without a job. Each has its own session
    and rank. `nodes`: how many they are, all on this node; or for each rank its node's name or
    address, None for the node of this process.
    """
    places = [None] * nodes if isinstance(nodes, int) else list(nodes)
    return Messages.among(session, name, rank, places, timeout=timeout)


def wait_any(requests: Sequence[Request], timeout: float | None = None) -> int | None:
    """Waits until one of some requests of the same messages is over, and says which: its `wait` then
    gives its status, or raises its error, at once. None: there are no requests.
    """
    return mp_wait_any(requests, timeout)


def wait_all(requests: Iterable[Request], timeout: float | None = None) -> list[Status]:
    """Waits until all requests are over; gives their statuses in their order. The first error is
    raised, and the other requests go on.
    """
    end = None if timeout is None else time.monotonic() + timeout
    return [request.wait(None if end is None else max(0.0, end - time.monotonic())) for request in requests]
