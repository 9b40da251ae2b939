"""Exceptions. Each kind of error of the library has its class; where Python has a class for the
same thing, it is a base too.
"""


class Error(Exception):
    """Anything that VMMC reports. The message names the thing, the numbers and the next step.

    Of a remote call `may_have_happened` says whether it may have been carried out all the same.
    """

    may_have_happened: bool = False


class Invalid(Error, ValueError):
    """An argument makes no sense, or the call is misplaced."""


class BadHandle(Error, ValueError):
    """Not an object that can be used."""


class OutOfBounds(Error, IndexError):
    """A range outside of its memory, or a rank that does not exist."""


class Misaligned(Error, ValueError):
    """A word that is not a multiple of 8 from the start."""


class TimedOut(Error, TimeoutError):
    """The deadline passed."""


class NoRight(Error, PermissionError):
    """The export or import does not carry the right."""


class NotPermitted(Error, PermissionError):
    """The user is not allowed."""


class Revoked(Error, ConnectionError):
    """The exporter took the export back."""


class OwnerDied(Error, ConnectionError):
    """The exporting process is gone."""


class NodeGone(Error, ConnectionError):
    """This process's node is gone."""


class NodeUnreachable(Error, ConnectionError):
    """Another node does not answer, or there is no way to it."""


class NodeRestarted(Error, ConnectionError):
    """Another node restarted; what was there is gone."""


class NoNode(Error, ConnectionError):
    """No node runs and none could be started."""


class UnknownNode(Error, LookupError):
    """No node of that name."""


class UnknownName(Error, LookupError):
    """No export of that name or id."""


class NameTaken(Error, ValueError):
    """The name is taken."""


class Stale(Error, ValueError):
    """Something that has ended."""


class Full(Error, RuntimeError):
    """A table, queue or bound is full."""


class MemoryShort(Error, MemoryError):
    """Not enough memory."""


class Unsuitable(Error, ValueError):
    """Memory that cannot be taken over."""


class NotMapped(Error, BufferError):
    """The import is not mapped, and this needs a mapping."""


class NotAllowed(Error, RuntimeError):
    """The export does not allow it."""


class Foreign(Error, ValueError):
    """It belongs to another session."""


class Busy(Error, RuntimeError):
    """In use, by another thread for example."""


class Forked(Error, RuntimeError):
    """The session belongs to the parent of this process; attach anew after a fork."""


class Version(Error, RuntimeError):
    """Library and node are of different releases."""


class System(Error, OSError):
    """The operating system refused."""


class Internal(Error, RuntimeError):
    """An error inside of the library; please report it."""


class NoJob(Error, RuntimeError):
    """The process is not part of a job."""


class MembersChanged(Error, RuntimeError):
    """The members of the job have changed; Job.changes() tells how."""


class CallError(Error):
    """A remote call has no result."""


class NoMethod(CallError, LookupError):
    """The service has no such method."""


class BadArguments(CallError, ValueError):
    """The service could not read the arguments of the call."""


class ServerBusy(CallError):
    """The service has too much to do; call again later."""


class Cancelled(CallError):
    """The call was withdrawn by its caller."""


class Failed(CallError):
    """The handler of the call says that it failed."""


class Panicked(CallError):
    """The handler of the call panicked."""


class NoAnswer(CallError):
    """The handler of the call let go of it without an answer."""


class BadResult(CallError, ValueError):
    """The result of the call makes no sense."""


class ResultTooLong(CallError):
    """The result of the call is longer than a result can be."""


class ArgumentsTooLong(CallError, ValueError):
    """Arguments and bulk of the call are longer than those of a call can be."""


class BulkDropped(CallError):
    """The bulk result of the call did not get into the buffer of the client."""


class Lost(CallError, ConnectionError):
    """The server was lost before it answered, or the one that it left the call to."""


# By the numbers of the library, which are also the status codes of the C interface.
_BY_NUMBER: dict[int, type[Error]] = {
    1: Invalid,
    2: BadHandle,
    3: OutOfBounds,
    4: Misaligned,
    5: TimedOut,
    6: NoRight,
    7: NotPermitted,
    8: Revoked,
    9: OwnerDied,
    10: NodeGone,
    11: NodeUnreachable,
    12: NodeRestarted,
    13: NoNode,
    14: UnknownNode,
    15: UnknownName,
    16: NameTaken,
    17: Stale,
    18: Full,
    19: MemoryShort,
    20: Unsuitable,
    21: NotMapped,
    22: NotAllowed,
    23: Foreign,
    24: Busy,
    25: Forked,
    26: Version,
    27: System,
    29: Internal,
    30: NoJob,
    31: MembersChanged,
    32: NoMethod,
    33: BadArguments,
    34: ServerBusy,
    35: Cancelled,
    36: Failed,
    37: Panicked,
    38: NoAnswer,
    39: BadResult,
    40: ResultTooLong,
    41: ArgumentsTooLong,
    42: BulkDropped,
    43: Lost,
}

for _class in _BY_NUMBER.values():
    # As users see them, in tracebacks and in pickles.
    _class.__module__ = "vmmc"
for _class in (Error, CallError):
    _class.__module__ = "vmmc"


def make(number: int, message: str, may_have_happened: bool = False) -> Error:
    """The exception of a kind."""
    error = _BY_NUMBER.get(number, Error)(message)
    error.may_have_happened = may_have_happened
    return error
