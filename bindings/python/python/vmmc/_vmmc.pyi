"""The native module. Buffers are any object with the buffer protocol; timeouts are seconds, None
the session's.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, Unpack, final

from typing_extensions import Buffer as _HasBuffer

from . import Rights

__all__ = [
    "Binding",
    "Buffer",
    "BufferRange",
    "ByToken",
    "Connection",
    "Continuations",
    "Endpoint",
    "Event",
    "Export",
    "Frame",
    "Group",
    "Handler",
    "Import",
    "Job",
    "Launched",
    "Lent",
    "LentRange",
    "Memory",
    "MemoryRange",
    "Message",
    "Messages",
    "Node",
    "Notification",
    "Pinned",
    "PinnedTable",
    "Record",
    "Redirection",
    "Report",
    "Request",
    "Ring",
    "RpcCall",
    "RpcClient",
    "RpcPending",
    "RpcRegion",
    "RpcServer",
    "Session",
    "Status",
    "TableRange",
    "TokenBuffer",
    "Transfer",
    "Word",
    "Writable",
    "__version__",
    "attach",
    "launch",
    "mp_wait_any",
    "run_node",
]

__version__: str

class _HasArray(Protocol):
    """NumPy's arrays have the buffer protocol, but their stubs say so from Python 3.12 on only;
    this they have everywhere.
    """

    @property
    def __array_interface__(self) -> Any: ...

_Bytes: TypeAlias = _HasBuffer | _HasArray
_Source: TypeAlias = "_Bytes | Buffer | BufferRange | Pinned | Lent | LentRange | TableRange"
_Target: TypeAlias = "_Bytes | Buffer | BufferRange | Pinned"

_Op: TypeAlias = Literal["sum", "product", "min", "max", "and", "or", "xor"]

class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...

_OfSession: TypeAlias = "Session | Export | Ring | Endpoint | Transfer | Continuations | Redirection | Word"
_Awaited: TypeAlias = "_OfSession | Writable | int | _HasDescriptor"

class _Condition(TypedDict, total=False):
    """What a word must be: all that are given."""

    equal: int | None
    not_equal: int | None
    at_least: int | None
    at_most: int | None
    any_bit: int | None

@final
class Session:
    """A process's attachment to its node: the door to exports, imports, buffers and notifications.
    As a context manager it leaves the node at the end.
    """

    @property
    def node(self) -> str:
        """Name of the node."""
    @property
    def addresses(self) -> list[str]:
        """UDP addresses that the node listens on."""
    @property
    def process_id(self) -> int:
        """Id of this process on its node."""
    @property
    def alive(self) -> bool:
        """Whether the node is still there, as far as is known without asking it."""
    @property
    def timeout(self) -> float:
        """Default of all waits, seconds."""
    def export(
        self,
        what: int | _Bytes,
        *,
        name: str | None = None,
        rights: int | Rights | None = None,
        access: Literal["same user", "anyone"] | Sequence[int] | None = None,
        notify: bool = False,
        redirectable: bool = False,
        mappable: bool = True,
        copy: bool = False,
        share_edges: bool = False,
    ) -> Export:
        """Exports new memory (a number of bytes), a vmmc.Buffer's, or the memory of a writable
        object, in place.

        In place costs one copy of the object's pages now and one at the end; the object cannot be
        resized meanwhile. An object on whole pages of its own is mapped by importers of this node.
        One that starts inside a page is reached through the engine; if other objects may lie on its
        first or last page it is refused unless share_edges says that they may move along. copy
        exports a copy.
        """
    def ring(
        self,
        bytes: int,
        *,
        name: str | None = None,
        access: Literal["same user", "anyone"] | Sequence[int] | None = None,
        notify: bool = False,
    ) -> Ring:
        """A ring for so many bytes of records: 8 KiB to 4 MiB, a multiple of 8; 32 of them go
        beside the data of each. Importers ask for Rights.WRITE, and append.
        """
    def endpoint(
        self,
        name: str,
        *,
        frames: int | None = None,
        frame_bytes: int | None = None,
        tokens: int | None = None,
        token_bytes: int | None = None,
        access: Literal["same user", "anyone"] | Sequence[int] | None = None,
        notify: bool = False,
        mappable: bool = True,
    ) -> Endpoint:
        """An endpoint, to which others connect and send messages. Each sender has so many frames
        for payloads (default none, up to 64), of so many bytes (default 4096, a multiple of 8, up
        to 65536); a longer payload takes several side by side. It has `tokens` buffers for
        payloads by token (default none, up to 4096), of `token_bytes` (default 65536). notify gives
        it a fileno(). Without mappable senders of this node go through the node, which then lets
        none of them write more than it may.
        """
    def connect(
        self, endpoint: str, *, node: str | None = None, owner: int | None = None, wait: float | None = None
    ) -> Connection:
        """Connects to an endpoint, whose owner has to poll or wait meanwhile. `node` and `owner`
        are those of an import. `wait` are the seconds for all, also for an endpoint that does not
        exist yet.
        """
    def import_(
        self,
        what: str | int,
        *,
        node: str | None = None,
        owner: int | Literal["any"] | None = None,
        rights: int | Rights | None = None,
        wait: float | None = None,
        own_order: bool = False,
    ) -> Import:
        """Imports by name or id; `node` is a name or address:port of another node. Names belong to
        users: one of this process's own user is taken, or else one of root, unless `owner` is the
        id of another user, or "any". `wait` waits so many seconds for an export that does not exist
        yet. With `own_order` a short operation through it follows what went through it before, and
        need not wait for what this process has sent through other imports.
        """
    def buffer(self, what: int | _Bytes | Export, *, share_edges: bool = False) -> Buffer:
        """Registers new memory (a number of bytes), a writable object's in place, or that of an
        export, for transfers without copies.
        """
    def limits(self) -> dict[str, int]:
        """Bounds of the session, for programs that plan."""
    def stats(self) -> dict[str, int]:
        """What the session has done so far."""
    def node_info(self, details: bool = False, *, timeout: float | None = None) -> dict[str, Any]:
        """Description of the node; with details its exports, imports and processes too."""
    def ping(self, node: str, *, timeout: float | None = None) -> float:
        """Round trip to another node, by name or address:port, seconds."""
    def node_of(self, sender: tuple[int, int, int]) -> str | None:
        """Name of the node of a notification's sender; None if the session with it has ended."""
    def add_peer(self, addresses: Sequence[str]) -> None:
        """Makes the node know a peer; several addresses are several paths to it."""
    def stop_node(self) -> None:
        """Ends the node, for all its processes."""
    def leave(self) -> None:
        """Leaves the node at once: exports end, later calls fail. Views of memory stay."""
    def step(self) -> None:
        """Runs an embedded node once."""
    def wait_notification(self, timeout: float | None = None) -> Notification:
        """The next notification of any export without a handler of its own."""
    def wait_any(self, what: Sequence[_Awaited], timeout: float | None = None) -> int:
        """Waits until one of several things is there; gives its place among them, the first if
        there are several. Takes nothing: take_notification, Ring.take, Transfer.poll and so on do.

        A thing is this session (a notification of any export without a handler of its own), an
        Export (a notification of it), a vmmc.Word, a Ring (a record), an Endpoint (a message, or a
        sender to let in), a Transfer or Redirection (it is over, in whatever way), Continuations
        (one is over, which their run() then calls), a descriptor or an object with fileno()
        (readable), or a vmmc.Writable. Leave descriptors open meanwhile.
        """
    def continuations(self) -> Continuations:
        """A list of functions that follow the ends of transfers of this session; empty."""
    def take_notification(self) -> Notification | None:
        """A notification if one is there."""
    def on_notification(self, function: Callable[[Notification], object]) -> Handler:
        """Calls a function on a thread of its own for every notification of exports without a
        handler of their own.
        """
    def block_notifications(self) -> None:
        """Notifications queue up and are not delivered, until they are unblocked."""
    def unblock_notifications(self) -> None:
        """What has queued is delivered."""
    def lend(self, memory: _Bytes) -> Lent:
        """An object's memory that stays where it is as long as the result lives: sends of it ask
        nobody whether it does, and make no system call.
        """
    def pinned_table(self, entries: int) -> PinnedTable:
        """A table of so many translations, a page each, that the program places itself."""
    def forget(self, memory: _Bytes) -> None:
        """Ends the pinning of an object's memory by vmmc.Pinned."""
    def fileno(self) -> int:
        """A descriptor for event loops: readable when take_notification may have something, and for
        ever when the node has gone (alive says so). See vmmc.aio.
        """
    def __enter__(self) -> Session: ...
    def __exit__(self, *_reasons: object) -> None: ...

@final
class Export:
    """Memory that others may import. It has the buffer protocol: memoryview(export) and
    numpy.asarray(export) are the memory. It ends with its last reference, with `unexport`, or with
    the `with` block; views stay valid.
    """

    @property
    def id(self) -> int:
        """Id for importers."""
    @property
    def name(self) -> str | None:
        """Name for importers."""
    @property
    def in_place(self) -> bool:
        """Whether it is the memory of the object that was given."""
    @property
    def ended(self) -> bool:
        """Whether it has ended."""
    def read(self, offset: int = 0, len: int | None = None) -> bytes:
        """Copies bytes out."""
    def read_into(self, offset: int, into: _Bytes) -> None:
        """Copies bytes out into a writable object."""
    def write(self, offset: int, data: _Bytes) -> None:
        """Copies bytes in; the last one becomes visible last."""
    def load(self, offset: int) -> int:
        """An aligned 64-bit word; what was sent before it by the same process is then visible."""
    def store(self, offset: int, value: int) -> None:
        """Stores an aligned 64-bit word, after all that was stored before."""
    def wait_word(
        self,
        offset: int,
        *,
        timeout: float | None = None,
        **condition: Unpack[_Condition],
    ) -> int:
        """Waits until an aligned 64-bit word satisfies all conditions given; gives it."""
    def wait_notification(self, timeout: float | None = None) -> Notification:
        """The next notification of this export, which must be made with notify=True."""
    def take_notification(self) -> Notification | None:
        """A notification of this export if one is there."""
    def on_notification(self, function: Callable[[Notification], object]) -> Handler:
        """Calls a function on a thread of its own for every notification of this export."""
    def block_notifications(self) -> None:
        """Notifications of this export queue up and are not delivered, until they are unblocked."""
    def unblock_notifications(self) -> None:
        """What has queued is delivered."""
    def redirect(self, offset: int, len: int, to: Buffer, to_offset: int = 0) -> Redirection:
        """Lets data that comes to a range go to a buffer instead; the export must be made with
        redirectable=True.
        """
    def post_redirect(self, offset: int, len: int, to: Buffer, to_offset: int = 0) -> Redirection:
        """As redirect, but does not wait for the node, to post thousands of buffers ahead; what
        only the node can find wrong is told by wait and report.
        """
    def consume(self, offset: int, len: int) -> None:
        """The data in this range has been used; the next arrival counts as new."""
    def unexport(self, *, moving: bool = False) -> Literal["gate", "moved"]:
        """Ends the export; afterwards no byte arrives. "moved": the content went onto other pages,
        which views of this object see.
        """
    def array(self, dtype: Any = None, shape: int | Sequence[int] | None = None, offset: int = 0) -> Any:
        """The memory as a NumPy array, without a copy."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __enter__(self) -> Export: ...
    def __exit__(self, *_reasons: object) -> None: ...

@final
class Buffer:
    """Memory registered with the node, for transfers without copies. It has the buffer protocol."""

    @property
    def in_place(self) -> bool:
        """Whether it is the memory of the object that was given."""
    def write(self, offset: int, data: _Bytes) -> None:
        """Copies bytes in."""
    def read_into(self, offset: int, into: _Bytes) -> None:
        """Copies bytes out into a writable object."""
    def range(self, start: int = 0, len: int | None = None) -> BufferRange:
        """`len` bytes from `start` on, as a source or target; without len, to the end."""
    def array(self, dtype: Any = None, shape: int | Sequence[int] | None = None, offset: int = 0) -> Any:
        """The memory as a NumPy array, without a copy."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Import:
    """Access to another process's export. On the path "mapped" it has the buffer protocol,
    read-only: memoryview(there) is the exporter's memory, and stays valid after the end of the
    export (with the bytes of then) and of this object.
    """

    @property
    def rights(self) -> int:
        """Rights granted, as vmmc.Rights."""
    @property
    def moved(self) -> dict[str, int]:
        """What this process moved through it by copies of its own; all 0 if it is not mapped."""
    @property
    def id(self) -> int:
        """Its id in this process: the last part of what a receiver finds as sender of a
        notification.
        """
    @property
    def export_id(self) -> int:
        """Id of the export behind it."""
    @property
    def owner(self) -> int:
        """User id of the exporting process, as its node says."""
    @property
    def node(self) -> str:
        """Name of the exporting node."""
    @property
    def path(self) -> Literal["mapped", "engine", "network"]:
        """How its transfers go."""
    def explain(self) -> str:
        """Which path its transfers take, and why not a better one."""
    def explanation(self) -> dict[str, Any]:
        """The same for programs."""
    def check(self) -> None:
        """Raises what every transfer would raise, if it can no longer be used."""
    def send(
        self, offset: int, source: _Source | Sequence[_Source], *, notify: bool = False, word: int | None = None, counter: int | None = None, timeout: float | None = None
    ) -> None:
        """Deliberate update: sends the source to the export. notify tells the receiver, and so does
        word, a number that the notification carries; counter is the offset of a word that grows by
        one after the data.

        A source is any object with the buffer protocol (a copy), a vmmc.Buffer or a range of one,
        vmmc.Pinned, Lent or a range of it, a range of a PinnedTable (no copy on the way), or a list
        of sources, which go to consecutive places.
        """
    def post_send(
        self, offset: int, source: _Source | Sequence[_Source], *, notify: bool = False, word: int | None = None, counter: int | None = None, timeout: float | None = None
    ) -> Transfer:
        """Posts a send: does not wait. What is copied may be reused; leave the rest alone until the
        transfer is done.
        """
    def gather_send(
        self, pieces: Sequence[tuple[int, _Bytes]], *, notify: bool = False, word: int | None = None, counter: int | None = None, timeout: float | None = None
    ) -> None:
        """Sends up to 1,024 pieces, pairs of offset and bytes, each to its own place in the export,
        in one operation with one notification.
        """
    def post_gather_send(
        self, pieces: Sequence[tuple[int, _Bytes]], *, notify: bool = False, word: int | None = None, counter: int | None = None, timeout: float | None = None
    ) -> Transfer:
        """Posts a gather-send: does not wait; the data is copied."""
    def append(
        self, data: _Bytes | None = None, *, word: int = 0, notify: bool = False, at_once: bool = False, timeout: float | None = None
    ) -> None:
        """Appends a record of up to 512 bytes to a ring; while the ring has no room it tries again,
        unless at_once, and then raises vmmc.Full. word stands in the record.
        """
    def post_append(
        self, data: _Bytes | None = None, *, word: int = 0, notify: bool = False, timeout: float | None = None
    ) -> Transfer:
        """Posts an append: does not wait, and tries once. When one finds no room, those posted
        behind it find none either, until wait or poll has said so or the transfer has gone.
        """
    def fetch(self, offset: int, len: int, *, timeout: float | None = None) -> bytes:
        """Remote fetch."""
    def fetch_into(self, offset: int, target: _Target | Sequence[_Target], *, timeout: float | None = None) -> None:
        """Fetches into a target: a writable object, or without a copy on the way a vmmc.Buffer, a
        range of one or vmmc.Pinned; or into a list of targets, consecutive bytes.
        """
    def post_fetch(self, offset: int, target: _Target | Sequence[_Target], *, timeout: float | None = None) -> Transfer:
        """Posts a fetch into a target: does not wait. Leave the target alone until the transfer is
        done.
        """
    def fetch_add(self, offset: int, value: int, *, timeout: float | None = None) -> int:
        """Adds to an aligned 64-bit word; gives the old value.

        Needs Rights.ATOMIC, which an import has only if it asks for it: rights=Rights.ALL.
        """
    def compare_swap(self, offset: int, expected: int, desired: int, *, timeout: float | None = None) -> int:
        """Stores a value in an aligned 64-bit word if it is the expected one; gives the old value.

        Needs Rights.ATOMIC, which an import has only if it asks for it: rights=Rights.ALL.
        """
    def swap(self, offset: int, value: int, *, timeout: float | None = None) -> int:
        """Stores a value in an aligned 64-bit word; gives the old value.

        Needs Rights.ATOMIC, which an import has only if it asks for it: rights=Rights.ALL.
        """
    def fetch_gather(self, ranges: Sequence[tuple[int, int]], *, timeout: float | None = None) -> bytes:
        """Fetches several (offset, length) ranges."""
    def flush(self, *, timeout: float | None = None) -> None:
        """Returns when all that this process sent before is in memory there; raises the error of an
        earlier send that failed after it had returned.
        """
    def bind(self, *, combining: bool = False) -> Binding:
        """Binds it for automatic update: plain stores to views of the binding appear in the export.
        """
    def array(self, dtype: Any = None, shape: int | Sequence[int] | None = None, offset: int = 0) -> Any:
        """The mapped memory as a read-only NumPy array, without a copy."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Binding:
    """An import bound for automatic update. It has the buffer protocol, writable: stores appear in
    the export, and reach nobody after its end.
    """

    @property
    def is_open(self) -> bool:
        """Whether the export still exists."""
    def flush(self, *, timeout: float | None = None) -> None:
        """Returns when all stores so far are in the export's memory; raises if the export has
        ended.
        """
    def array(self, dtype: Any = None, shape: int | Sequence[int] | None = None, offset: int = 0) -> Any:
        """The export's memory as a writable NumPy array, without a copy."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Transfer:
    """A transfer under way. Dropping it abandons the answer, not the transfer."""

    def poll(self) -> int | None:
        """The bytes moved if it is done, None while it is under way."""
    def wait(self, timeout: float | None = None) -> int:
        """Waits for it; gives the bytes moved. May be called again after vmmc.TimedOut."""

@final
class Continuations:
    """Transfers under way, each with a function for its end; Session.continuations makes it.

    There is no thread: the functions are called in run and wait, by the thread that calls these.
    len() is how many were not called, so that `while all: all.wait()` sees to all of them. What was
    not called when this object goes is not called any more.
    """

    def add(self, transfer: Transfer, function: Callable[[Transfer], object]) -> None:
        """Calls function(transfer) when the transfer is over: then its wait() gives the bytes moved
        or raises its error, at once. Until then the transfer cannot be asked (vmmc.Busy). The
        function may add others.
        """
    def run(self) -> int:
        """Calls the functions of all transfers that are over, and not of those that they add; says
        how many. Steps an embedded node; never waits. What a function raises comes out of this, and
        the next call calls those that are left.
        """
    def wait(self, timeout: float | None = None) -> int:
        """Waits until a transfer is over, and calls functions as run does; 0 only if there are no
        transfers.
        """
    def __len__(self) -> int: ...

@final
class Word:
    """An aligned 64-bit word of an export that satisfies all conditions given, as something for
    Session.wait_any to wait for.
    """

    def __new__(cls, export: Export, offset: int, **condition: Unpack[_Condition]) -> Word: ...

@final
class Writable:
    """A descriptor, or an object with fileno(), that can be written to, as something for
    Session.wait_any to wait for.
    """

    def __new__(cls, descriptor: int | _HasDescriptor) -> Writable: ...

@final
class Lent:
    """Memory of an object, which can be neither freed nor resized as long as this lives, or stands
    in a table. Made by Session.lend.
    """

    def range(self, start: int = 0, len: int | None = None) -> LentRange:
        """`len` bytes from `start` on, as a source; without len, to the end."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...

@final
class PinnedTable:
    """Translations of lent memory, under indices that the program chooses. Made by
    Session.pinned_table. What was placed is kept as long as the table.
    """

    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def place(self, index: int, lent: Lent, *, timeout: float | None = None) -> None:
        """Pins lent memory, which must be whole pages (mmap.mmap(-1, size) is), and writes its
        translations into the entries from `index` on. What stood there goes.
        """
    def remove(self, index: int, count: int = 1) -> None:
        """Empties entries; vmmc.Busy while a send from the table is under way."""
    def range(self, index: int, start: int, len: int) -> TableRange:
        """What stands in it, `len` bytes from byte `start` of the entry at `index` on, as a source.
        """

@final
class Pinned:
    """Any object's memory, named by its address, as a source or target: its whole pages are pinned
    at first use and stay pinned. For large arrays that move again and again.
    """

    def __new__(cls, memory: _Bytes) -> Pinned: ...

@final
class BufferRange:
    """A part of a buffer, as a source or target. Made by Buffer.range."""

@final
class LentRange:
    """A part of a lent object, as a source. Made by Lent.range."""

@final
class TableRange:
    """Bytes that stand in a table, as a source. Made by PinnedTable.range."""

@final
class Ring:
    """An export that many processes append records to. Made by Session.ring. Iterating takes the
    records that are there.
    """

    @property
    def id(self) -> int:
        """Its id as an export, for importers."""
    @property
    def name(self) -> str | None:
        """Its name for importers."""
    @property
    def size(self) -> int:
        """Bytes of records that it holds at most, each with 32 bytes beside its data."""
    def take(self) -> Record | None:
        """The oldest record, which makes room for others; None if there is none."""
    def wait(self, timeout: float | None = None) -> Record:
        """The oldest record; waits for one."""
    def close(self) -> None:
        """Ends it: importers are told, and what was not taken is gone."""
    def __iter__(self) -> Ring: ...
    def __next__(self) -> Record: ...
    def __enter__(self) -> Ring: ...
    def __exit__(self, *_reasons: object) -> None: ...

@final
class Record:
    """What somebody appended to a ring."""

    @property
    def data(self) -> bytes:
        """Its bytes."""
    @property
    def word(self) -> int:
        """The word that its sender gave it."""
    @property
    def sender(self) -> tuple[int, int, int]:
        """Who appended it: the session with its node (0: this node), the process there, its import.

        `Session.node_of` names the node.
        """

@final
class Endpoint:
    """Where messages of many senders come in. Made by Session.endpoint. Iterating takes the
    messages that are there. One thread uses it at a time.
    """

    @property
    def name(self) -> str:
        """Its name for senders."""
    @property
    def senders(self) -> int:
        """Senders that are connected now."""
    def counts(self) -> dict[str, int]:
        """What became of messages and senders so far: messages taken, senders accepted, refused for
        want of room, and cut off because what they wrote was no message (misbehaved).
        """
    def poll(self) -> Message | None:
        """The next message; None if there is none. Lets in senders that have asked."""
    def wait(self, timeout: float | None = None) -> Message:
        """The next message; waits for one, and lets in senders meanwhile."""
    def token_buffer(self) -> TokenBuffer:
        """A free buffer for a payload by token, of an endpoint made with tokens; Full: all are in
        use. Any thread may ask, also while another one waits for messages.
        """
    def fileno(self) -> int:
        """A descriptor for event loops, of an endpoint made with notify: readable when poll may
        have something, and for ever when the node has gone. See vmmc.aio.
        """
    def close(self) -> None:
        """Ends it and its connections; what was not taken is gone."""
    def __iter__(self) -> Endpoint: ...
    def __next__(self) -> Message: ...
    def __enter__(self) -> Endpoint: ...
    def __exit__(self, *_reasons: object) -> None: ...

@final
class Connection:
    """A way to an endpoint. Made by Session.connect. One thread uses it at a time."""

    @property
    def endpoint(self) -> str:
        """Name of the endpoint."""
    @property
    def payload_max(self) -> int:
        """Bytes of payload that one message can have: of all frames together."""
    def send(
        self,
        control: _Bytes,
        payload: _Source | Sequence[_Source] | None = None,
        *,
        at_once: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Sends a control message of up to 128 bytes, and a payload, of whatever kind of source;
        waits for room, or raises Full at once. Messages of a connection come in the order of these
        calls, each behind its payload.
        """
    def send_by_token(
        self,
        control: _Bytes,
        token: _Bytes,
        payload: _Source | Sequence[_Source],
        *,
        at_once: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Sends a control message, and a payload, of whatever kind of source, to the buffer of a token
        of the endpoint's owner. One that lets nothing in does not hold up the message, whose receiver is told why.
        """
    def check(self) -> None:
        """Raises what every send would raise, if the connection is broken."""
    def outstanding(self, timeout: float | None = None) -> int:
        """Messages sent that the owner has not taken yet, by what it says now; between nodes it is
        asked, which takes a round trip.
        """
    def flush(self, timeout: float | None = None) -> None:
        """Waits until all that was sent is visible to the owner, who may not have taken it yet."""
    def close(self) -> None:
        """Ends it. What it has sent is taken."""
    def __enter__(self) -> Connection: ...
    def __exit__(self, *_reasons: object) -> None: ...

@final
class Message:
    """A message that has come to an endpoint."""

    @property
    def control(self) -> bytes:
        """The control message."""
    @property
    def payload(self) -> Frame | None:
        """The payload; None: it has none."""
    @property
    def by_token(self) -> ByToken | None:
        """What became of a payload that was sent by token; None: there was none."""
    @property
    def sender(self) -> tuple[int, int, int]:
        """Who sent it: the session with its node (0: this node), the process there, its import.

        `Session.node_of` names the node.
        """

@final
class ByToken:
    """What became of a payload that was sent by token."""

    @property
    def token(self) -> bytes:
        """The token."""
    @property
    def length(self) -> int | None:
        """Bytes in its buffer; None: the payload was dropped."""
    @property
    def dropped(self) -> Literal["wrong", "too long", "used", "cancelled"] | None:
        """Why the payload was dropped; None: it was not."""

@final
class TokenBuffer:
    """A buffer that waits for one payload by its token, or has it. Made by Endpoint.token_buffer.
    Its end cancels the token.
    """

    @property
    def token(self) -> bytes:
        """What names it, for one payload: 20 bytes, to be sent to whoever has the payload."""
    @property
    def capacity(self) -> int:
        """Bytes that a payload can have."""
    def poll(self) -> int | None:
        """Bytes of the payload; None: none has come."""
    def wait(self, timeout: float | None = None) -> int:
        """Waits for the payload; gives its bytes."""
    def cancel(self) -> bool:
        """Cancels the token. True: nothing has come, and nothing will; False: a payload has come,
        or is coming.
        """
    def read(self, offset: int | None = None, length: int | None = None) -> bytes:
        """A copy of bytes of the buffer; of the payload without arguments."""
    def __bytes__(self) -> bytes: ...
    def close(self) -> None:
        """Gives it back, as its end does; its token lets nothing in any more."""
    def __enter__(self) -> TokenBuffer: ...
    def __exit__(self, *_reasons: object) -> None: ...

@final
class Frame:
    """A payload that has come. Its memory is the program's until this is closed or ends; only then
    its sender may use it again. A hostile sender can write it all the same.
    """

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def read(self, offset: int | None = None, length: int | None = None) -> bytes:
        """A copy of bytes of the payload; of all of it without arguments."""
    def close(self) -> None:
        """Gives its memory back to the sender, as its end does."""
    def __enter__(self) -> Frame: ...
    def __exit__(self, *_reasons: object) -> None: ...

@final
class Notification:
    """A sender says: data has come."""

    @property
    def export_id(self) -> int:
        """The export that received data."""
    @property
    def offset(self) -> int:
        """First byte of the transfer."""
    @property
    def len(self) -> int:
        """Its bytes."""
    @property
    def last_word(self) -> int:
        """Its last (up to) eight bytes, little endian."""
    @property
    def word(self) -> int:
        """The word that its sender put in; else 0."""
    @property
    def sender(self) -> tuple[int, int, int]:
        """Who sent it: the session with its node (0: this node), the process there, its import.

        Equal for all that came through one import; `Session.node_of` names the node.
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Handler:
    """A notification handler, until it is closed."""

    def close(self) -> None:
        """Ends it, after the call it is in."""
    def __enter__(self) -> Handler: ...
    def __exit__(self, *_reasons: object) -> None: ...

@final
class Report:
    """What happened to the bytes of a redirected range; ranges are (offset in the export, bytes).
    """

    @property
    def copied(self) -> list[tuple[int, int]]:
        """Had come before, and were copied."""
    @property
    def redirected(self) -> list[tuple[int, int]]:
        """Went straight to the new place."""
    @property
    def pending(self) -> list[tuple[int, int]]:
        """Have not come."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Redirection:
    """A posted redirection. Dropping it cancels it."""

    def report(self) -> Report:
        """What has happened so far."""
    def wait(self, timeout: float | None = None) -> Report:
        """Waits until all bytes have come."""
    def cancel(self) -> Report:
        """Ends it: data that has not come goes to the export again."""

@final
class Node:
    """A node that lives in this process, and runs while callers wait."""

    def __new__(
        cls,
        name: str = "embedded",
        *,
        listen: Sequence[str] = ...,
        peers: Sequence[str] = ...,
        plain: bool = False,
        key_file: str | None = None,
    ) -> Node: ...
    @property
    def name(self) -> str:
        """Its name."""
    @property
    def addresses(self) -> list[str]:
        """UDP addresses that it listens on, for the `peers` of others."""
    def attach(self, *, timeout: float | None = None) -> Session:
        """Attaches this process to it."""

@final
class Job:
    """This process's membership in a job that `vmmc run` or vmmc.launch started."""

    @staticmethod
    def attach() -> Job:
        """Joins the job that this process was started for."""
    @property
    def rank(self) -> int:
        """Number of this process in the job."""
    @property
    def size(self) -> int:
        """Ranks of the job as of the last `changes`, those that have gone included."""
    @property
    def id(self) -> str:
        """Id of the job."""
    @property
    def members(self) -> list[int]:
        """Ranks that run, as of the last `changes`."""
    @property
    def session(self) -> Session:
        """The session that the job uses."""
    def node_of(self, rank: int) -> str:
        """Name of the node of a rank."""
    def state_of(self, rank: int) -> Literal["running", "left", "ended", "failed"]:
        """State of a rank, as of the last `changes`."""
    def name_of(self, rank: int, name: str) -> str:
        """The full name of an export of a rank."""
    def export(
        self,
        name: str,
        what: int | _Bytes,
        *,
        rights: int | Rights | None = None,
        access: Literal["same user", "anyone"] | Sequence[int] | None = None,
        notify: bool = False,
        redirectable: bool = False,
        mappable: bool = True,
        copy: bool = False,
        share_edges: bool = False,
    ) -> Export:
        """Exports under a name of this rank."""
    def import_(
        self,
        rank: int,
        name: str,
        *,
        rights: int | Rights | None = None,
        wait: float | None = None,
        own_order: bool = False,
    ) -> Import:
        """Imports what a rank has exported under a name, waiting for it; see `Session.import_`."""
    def barrier(self, timeout: float | None = None) -> None:
        """Waits until all members are here."""
    def allgather(self, value: bytes, timeout: float | None = None) -> list[bytes]:
        """Gives every member the (short) values of all."""
    def changes(self) -> list[tuple[Literal["joined", "left", "ended", "failed"], int]]:
        """What has changed among the members since the last call."""
    def wait_changes(self, timeout: float) -> list[tuple[Literal["joined", "left", "ended", "failed"], int]]:
        """Waits until the set of members changes, or the time has passed."""
    def fileno(self) -> int:
        """A descriptor for event loops, readable when `changes` may have something."""
    def leave(self) -> None:
        """Says goodbye: however this process ends from now on is no failure of the job."""
    def grow(self, ranks: int) -> None:
        """Asks for more ranks of the same program."""

@final
class Event:
    """Something that happened in a job."""

    @property
    def kind(self) -> str:
        """"started", "not started", "output", "error output", "exited", "left", "joined", "node
        lost", "ended".
        """
    @property
    def ranks(self) -> list[int]:
        """Whom it is about."""
    @property
    def data(self) -> bytes:
        """What a rank printed."""
    @property
    def number(self) -> int:
        """Process id of a rank that was started, code of one that exited (negative: the signal that
        ended it).
        """
    @property
    def text(self) -> str:
        """Why, where there is a reason."""

@final
class Launched:
    """A job that runs; iterating gives its events until it has ended. It ends with its object."""

    @property
    def id(self) -> str:
        """Id of the job."""
    @property
    def size(self) -> int:
        """Ranks, those that have ended included."""
    def node_of(self, rank: int) -> str | None:
        """Name of the node of a rank."""
    def state_of(self, rank: int) -> Literal["running", "left", "ended", "failed"] | None:
        """State of a rank."""
    def next_event(self, timeout: float | None = None) -> Event | None:
        """The next event, or None when the time has passed or after "ended"."""
    def write_input(self, rank: int, data: bytes) -> int:
        """Gives a rank bytes on its standard input; says how many were taken."""
    def close_input(self, rank: int) -> None:
        """Ends the standard input of a rank."""
    def signal(self, signal: int) -> None:
        """Sends a signal to all ranks."""
    def end(self) -> None:
        """Ends the job: SIGTERM, and SIGKILL a second later."""
    def kill(self) -> None:
        """Ends the job at once, by force."""
    def grow(self, ranks: int) -> list[int]:
        """Adds ranks; says which ones."""
    def __iter__(self) -> Launched: ...
    def __next__(self) -> Event: ...

def attach(node: str | None = None, *, start: bool = True, timeout: float | None = None) -> Session: ...
def launch(
    program: str | os.PathLike[str],
    *args: str | os.PathLike[str],
    ranks: int = 1,
    places: Sequence[tuple[str | None, int]] | None = None,
    node: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    keep_going: bool = False,
    input: int | None = None,
    timeout: float | None = None,
) -> Launched:
    """Starts a job: `ranks` processes of a program on this node, or as many as `places` says on
    (node, ranks).
    """

def run_node(options: Sequence[str]) -> None:
    """Runs a node in this process until it is told to stop; options as those of `vmmc node run`."""

@final
class RpcClient:
    """A way to a service whose methods have numbers, and take and give bytes; vmmc.rpc.RawClient.
    Any number of threads use it.
    """

    def __new__(
        cls,
        session: Session,
        service: str,
        *,
        node: str | None = None,
        owner: int | None = None,
        timeout: float | None = None,
        answered_by: Literal["same user", "anyone"] | Sequence[int] | None = None,
        frames: int | None = None,
        frame_bytes: int | None = None,
        bulk_buffers: int | None = None,
        bulk_bytes: int | None = None,
    ) -> RpcClient:
        """Connects; choices as for vmmc.rpc.connect."""
    @property
    def service(self) -> str:
        """Name of the service."""
    @property
    def outstanding(self) -> int:
        """Calls that have no outcome yet."""
    def call(
        self,
        method: int,
        arguments: _Bytes,
        *,
        bulk: _Bytes | None = None,
        wants_bulk: bool | None = None,
        into: tuple[RpcRegion, int, int] | None = None,
        timeout: float | None = None,
    ) -> tuple[bytes, bytes | memoryview | None]:
        """Calls a method, and waits: result, and bulk if the server gave some. `bulk` goes along as
        it is. Bulk comes back only into a buffer of the client: by default if one is free; True: or
        the call is an error. With `into` it lands in a region, from this byte on, in so many bytes
        at the most, and is a view of it.
        """
    def start(
        self,
        method: int,
        arguments: _Bytes,
        *,
        bulk: _Bytes | None = None,
        wants_bulk: bool | None = None,
        into: tuple[RpcRegion, int, int] | None = None,
        timeout: float | None = None,
    ) -> RpcPending:
        """As call, and does not wait."""
    def region(self, calls: int, length: int) -> RpcRegion:
        """Memory of so many bytes for bulk results of up to so many calls at a time."""
    def poll(self) -> None:
        """Takes answers that have come, for calls that are polled."""
    def close(self) -> None:
        """Closes it; calls under way go on."""
    def __enter__(self) -> RpcClient: ...
    def __exit__(self, *_reasons: object) -> None: ...

@final
class RpcRegion:
    """Memory of a client for bulk results, which stay where they land; vmmc.rpc.Region. Made by
    RpcClient.region.
    """

    @property
    def memory(self) -> Buffer:
        """Its memory, to read, to send or answer from, or to export."""
    def __len__(self) -> int:
        """Bytes."""

@final
class RpcPending:
    """A call under way. Its end withdraws it."""

    def poll(self) -> tuple[bytes, bytes | memoryview | None] | None:
        """Result and bulk, once they are there; else None. Gives them, or the error, once."""
    def wait(self, timeout: float | None = None) -> tuple[bytes, bytes | memoryview | None] | None:
        """The same; waits until the call's time is over, or no longer than `timeout`."""
    def when_done(self, function: Callable[[], object]) -> None:
        """Calls a function, from whatever thread, when poll has something; at once if it has. One
        at a time: a later one takes the place of the former.
        """
    def cancel(self) -> None:
        """Withdraws the call: no handler begins that has not begun, and nobody gets its result."""

@final
class RpcServer:
    """A service whose calls go to one function; see vmmc.rpc.serve_raw."""

    def __new__(
        cls,
        session: Session,
        service: str,
        function: Callable[[RpcCall], object],
        *,
        threads: int | None = None,
        queue: int | None = None,
        access: Literal["same user", "anyone"] | Sequence[int] | None = None,
        frames: int | None = None,
        frame_bytes: int | None = None,
    ) -> RpcServer: ...
    @property
    def service(self) -> str:
        """Name of the service."""
    @property
    def serving(self) -> bool:
        """Whether it serves: not when it was closed, or its node has gone."""
    def counts(self) -> dict[str, int]:
        """What became of calls so far."""
    def close(self) -> None:
        """Ends it, after the functions that run. Not inside of one: that raises Busy."""

@final
class RpcCall:
    """A call, until it is answered; vmmc.rpc.RawCall. Its end without an answer tells the caller
    that there is none.
    """

    @property
    def method(self) -> int:
        """Number of the method."""
    @property
    def arguments(self) -> bytes:
        """The arguments."""
    @property
    def wants_bulk(self) -> bool:
        """Whether the caller has a buffer for a bulk result."""
    @property
    def sender(self) -> tuple[int, int, int]:
        """Who sent it here, the caller or who has passed it on: session, process, import."""
    @property
    def left(self) -> float:
        """Seconds until the caller stops waiting."""
    @property
    def cancelled(self) -> bool:
        """Whether the caller has withdrawn it."""
    def bulk(self) -> bytes:
        """A copy of the bulk that came with it."""
    def answer(self, result: _Bytes, bulk: _Source | Sequence[_Source] | None = None) -> None:
        """Answers, with bulk if the caller wants some, from any source of a send or several one
        after the other. To a caller of another node this returns when that node has what is
        registered memory. After an exception it is still to be answered.
        """
    def fail(self, message: str) -> None:
        """Says that it failed, and how, in up to 512 bytes."""
    def no_method(self) -> None:
        """Says that there is no such method."""
    def bad_arguments(self) -> None:
        """Says that the arguments are none of this method."""
    def pass_on(self, client: RpcClient, method: int, arguments: _Bytes) -> None:
        """Leaves it to another server, with its bulk; that one answers the caller itself. After an
        exception it is still to be answered.
        """

@final
class Messages:
    """A process as one that sends and receives messages by rank and tag; see vmmc.mp. Any thread
    makes calls. As a context manager it leaves at the end.
    """

    @staticmethod
    def attach(*, timeout: float | None = None) -> Messages:
        """The members of the job that this process was started for."""
    @staticmethod
    def over(job: Job, *, timeout: float | None = None) -> Messages:
        """The members of a job, as it is now."""
    @staticmethod
    def among(
        session: Session, name: str, rank: int, nodes: Sequence[str | None], *, timeout: float | None = None
    ) -> Messages:
        """Processes or threads that know each other by a name, each with its own session. For each
        rank its node's name or address; None: the node of this process.
        """
    @property
    def rank(self) -> int:
        """Number of this member."""
    @property
    def size(self) -> int:
        """Members."""
    @property
    def world(self) -> Group:
        """All members."""
    @property
    def session(self) -> Session:
        """The session that they use."""
    def memory(self, length: int) -> Memory:
        """New memory, zeroed, in which long messages land without a copy on the way."""
    def poll(self) -> None:
        """Takes what has come and sends on what waits, without a wait: for programs that compute
        for long while others want something of them.
        """
    def counts(self) -> dict[str, int]:
        """What became of messages so far: sent at once ("eager"), after a question ("asked"; of
        those short ones, "asked_short"), come before a receive ("unexpected"); members that were
        cut off ("misbehaved").
        """
    def leave(self) -> None:
        """Says goodbye to the others; further calls are vmmc.Stale."""
    def abort(self, code: int, text: str) -> None:
        """Ends all members: this process with the code, the calls of the others with vmmc.Failed,
        which has code and text. It does not return.
        """
    def __enter__(self) -> Messages: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Group:
    """Some of the members, or all: messages of one group are never received in another.

    `source` and `tag` of a receive say whose messages it is for, and with which tag; None: any.
    `mask`: only these bits of the tag matter.
    """

    @property
    def rank(self) -> int:
        """Number of this member in the group."""
    @property
    def size(self) -> int:
        """Members."""
    def member(self, rank: int) -> int:
        """Number among all members of a member of the group."""
    def duplicate(self, *, timeout: float | None = None) -> Group:
        """The same members as a group of their own; all of them call this."""
    def split(self, colour: int | None, key: int = 0, *, timeout: float | None = None) -> Group | None:
        """Groups of those that say the same colour, in order of key, then of rank; all members call
        this. None: those that say none are in no group.
        """
    def send(self, to: int, data: _Bytes | Memory | MemoryRange, tag: int = 0, *, timeout: float | None = None) -> None:
        """Sends a message. On return the object may be used again, which says nothing of whether it
        was received. Short ones go at once; long ones wait for the receive.
        """
    def receive(
        self,
        source: int | None = None,
        tag: int | None = None,
        *,
        mask: int | None = None,
        timeout: float | None = None,
    ) -> tuple[bytes, Status]:
        """Receives the oldest message that it is for, of whatever length."""
    def receive_into(
        self,
        into: _Bytes | Memory | MemoryRange,
        source: int | None = None,
        tag: int | None = None,
        *,
        mask: int | None = None,
        timeout: float | None = None,
    ) -> Status:
        """The same into a writable object. A message that is longer is lost, and vmmc.OutOfBounds."""
    def exchange(
        self,
        to: int,
        data: _Bytes | Memory | MemoryRange,
        into: _Bytes | Memory | MemoryRange,
        source: int | None = None,
        tag: int | None = None,
        *,
        send_tag: int = 0,
        mask: int | None = None,
        timeout: float | None = None,
    ) -> Status:
        """Sends one message and receives another one: two that do this with each other do not wait
        for each other in vain.
        """
    def start_send(self, to: int, data: _Bytes | Memory | MemoryRange, tag: int = 0) -> Request:
        """Begins to send a message; nobody changes the object until the request is over."""
    def start_receive(
        self,
        into: _Bytes | Memory | MemoryRange,
        source: int | None = None,
        tag: int | None = None,
        *,
        mask: int | None = None,
    ) -> Request:
        """Begins to receive a message into a writable object."""
    def probe(
        self,
        source: int | None = None,
        tag: int | None = None,
        *,
        mask: int | None = None,
        timeout: float | None = None,
    ) -> Status:
        """Waits for a message, which stays."""
    def try_probe(
        self, source: int | None = None, tag: int | None = None, *, mask: int | None = None
    ) -> Status | None:
        """What the next receive would get, if it is here."""
    def barrier(self, *, timeout: float | None = None) -> None:
        """Waits until all members are in it."""
    def broadcast(self, buffer: _Bytes, root: int = 0, *, timeout: float | None = None) -> None:
        """Gives all members the bytes of one, in an object that all have of one length."""
    def gather(
        self, own: _Bytes, root: int = 0, *, into: _Bytes | None = None, timeout: float | None = None
    ) -> bytes | None:
        """Gives one member the bytes of all, in order of rank; each has as many. They come as bytes,
        or into an object; None elsewhere.
        """
    def gather_varied(
        self,
        own: _Bytes,
        lengths: Sequence[int] | None,
        root: int = 0,
        *,
        into: _Bytes | None = None,
        timeout: float | None = None,
    ) -> bytes | None:
        """The same of as many bytes as each has; the root knows the lengths."""
    def scatter(
        self, all: _Bytes | None, into: _Bytes, root: int = 0, *, timeout: float | None = None
    ) -> None:
        """Gives each member its part of what one has, in order of rank; the others give none."""
    def allgather(self, own: _Bytes, *, into: _Bytes | None = None, timeout: float | None = None) -> bytes | None:
        """Gives all members the bytes of all, in order of rank; each has as many."""
    def allgather_varied(
        self, own: _Bytes, lengths: Sequence[int], *, into: _Bytes | None = None, timeout: float | None = None
    ) -> bytes | None:
        """The same of as many bytes as each has; all know the lengths."""
    def all_to_all(self, data: _Bytes, *, into: _Bytes | None = None, timeout: float | None = None) -> bytes | None:
        """Gives each member its part of what each other one has for it: as many bytes for each."""
    def all_to_all_varied(
        self,
        data: _Bytes,
        lengths: Sequence[int],
        into_lengths: Sequence[int],
        *,
        into: _Bytes | None = None,
        timeout: float | None = None,
    ) -> bytes | None:
        """The same of as many bytes as each has for each; both sides know the lengths."""
    def reduce(self, values: _Bytes, op: _Op = "sum", root: int = 0, *, timeout: float | None = None) -> None:
        """Combines the numbers of all members, one by one, in place at one of them; the others keep
        theirs. Numbers are integers of 8 to 64 bits, float32 and float64, as the buffer says.
        """
    def allreduce(self, values: _Bytes, op: _Op = "sum", *, timeout: float | None = None) -> None:
        """The same, at all of them: all have the same bits."""
    def scan(self, values: _Bytes, op: _Op = "sum", *, timeout: float | None = None) -> None:
        """The same, of the members up to this one."""

@final
class Status:
    """What is known of a message."""

    @property
    def source(self) -> int:
        """Its sender."""
    @property
    def tag(self) -> int:
        """Its tag."""
    @property
    def length(self) -> int:
        """Its bytes."""

@final
class Request:
    """A send or a receive under way. Its end without a wait leaves a send to itself, and takes a
    receive back that has no message yet.
    """

    def wait(self, timeout: float | None = None) -> Status:
        """Waits until it is over. vmmc.TimedOut leaves it as it was. Later calls give the same."""
    def test(self) -> Status | None:
        """The message, if it is over; None while it is under way."""
    def cancel(self) -> None:
        """Takes it back if nothing has happened yet: it is then vmmc.Cancelled. A message that is on
        its way is not taken back.
        """

@final
class Memory:
    """Memory in which long messages land without a copy on the way. Members of the same node that
    send into a range of it can write all of it.
    """

    @property
    def memory(self) -> Buffer:
        """All of it, with the buffer protocol."""
    def range(self, start: int = 0, length: int | None = None) -> MemoryRange:
        """`length` bytes from `start` on, to send or to receive into; without length, to the end."""
    def __len__(self) -> int:
        """Bytes."""
    def __bool__(self) -> bool: ...

@final
class MemoryRange:
    """A part of such memory."""

    def __len__(self) -> int:
        """Bytes."""
    def __bool__(self) -> bool: ...

def mp_wait_any(requests: Sequence[Request], timeout: float | None = None) -> int | None:
    """See vmmc.mp.wait_any."""
