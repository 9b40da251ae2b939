"""Virtual memory-mapped communication: export memory, import it elsewhere, move data without the
receiver doing anything.

    session = vmmc.attach()
    export = session.export(4096, name="frames")
    there = session.import_("frames")            # usually in another process
    there.send(0, b"seven")

Every wait takes a `timeout` in seconds (default: the session's, 5 s), releases the interpreter's
lock and can be interrupted. Errors are exceptions of `vmmc.Error`.
"""

from enum import IntFlag as _IntFlag

from ._errors import (
    BadHandle,
    Busy,
    Error,
    Foreign,
    Forked,
    Full,
    Internal,
    Invalid,
    MembersChanged,
    MemoryShort,
    Misaligned,
    NameTaken,
    NoJob,
    NoNode,
    NoRight,
    NodeGone,
    NodeRestarted,
    NodeUnreachable,
    NotAllowed,
    NotMapped,
    NotPermitted,
    OutOfBounds,
    OwnerDied,
    Revoked,
    Stale,
    System,
    TimedOut,
    UnknownName,
    UnknownNode,
    Unsuitable,
    Version,
)
from ._node import attach
from ._vmmc import (
    Binding,
    Buffer,
    BufferRange,
    Connection,
    Continuations,
    Endpoint,
    Event,
    Export,
    Frame,
    Handler,
    Import,
    Job,
    Launched,
    Lent,
    LentRange,
    Message,
    Node,
    Notification,
    Pinned,
    PinnedTable,
    Record,
    Redirection,
    Report,
    Ring,
    Session,
    TableRange,
    Transfer,
    Word,
    Writable,
    __version__,
    launch,
)


class Rights(_IntFlag):
    """What importers may do: fetch, send, atomic operations."""

    READ = 1
    WRITE = 2
    ATOMIC = 4
    ALL = 7


READ = Rights.READ
WRITE = Rights.WRITE
ATOMIC = Rights.ATOMIC

__all__ = [
    "ATOMIC",
    "BadHandle",
    "Binding",
    "Buffer",
    "BufferRange",
    "Busy",
    "Connection",
    "Continuations",
    "Endpoint",
    "Error",
    "Event",
    "Export",
    "Foreign",
    "Forked",
    "Frame",
    "Full",
    "Handler",
    "Import",
    "Internal",
    "Invalid",
    "Job",
    "Launched",
    "Lent",
    "LentRange",
    "MembersChanged",
    "MemoryShort",
    "Message",
    "Misaligned",
    "NameTaken",
    "NoJob",
    "NoNode",
    "NoRight",
    "Node",
    "NodeGone",
    "NodeRestarted",
    "NodeUnreachable",
    "NotAllowed",
    "NotMapped",
    "NotPermitted",
    "Notification",
    "OutOfBounds",
    "OwnerDied",
    "Pinned",
    "PinnedTable",
    "READ",
    "Record",
    "Redirection",
    "Report",
    "Revoked",
    "Rights",
    "Ring",
    "Session",
    "Stale",
    "System",
    "TableRange",
    "TimedOut",
    "Transfer",
    "UnknownName",
    "UnknownNode",
    "Unsuitable",
    "Version",
    "WRITE",
    "Word",
    "Writable",
    "__version__",
    "attach",
    "launch",
]
