"""Remote calls: functions of another process, on this node or another one.

    @vmmc.rpc.method
    def greet(name: str) -> str:
        return f"hello, {name}"

    with vmmc.rpc.serve(session, "greeter", greet): ...            # in one process

    greeter = vmmc.rpc.connect(session, "greeter")                 # in another one
    greeter.greet("world")                                         # "hello, world"
    await greeter.greet.start("world")                             # the same in an event loop

Arguments and results are JSON, but for one bytes-like argument and a bytes-like result, which go as
they are. What else goes, in what form, is told by `docs/python.md`; it is of Python alone. Services
that are written in Rust or C have methods by number, and bytes: `RawClient` and `serve_raw`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import inspect
import json
import logging
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, Generic, Literal, Optional, Protocol, TypeVar, Union

from ._errors import BadResult, Cancelled, Error, Invalid, TimedOut
from ._vmmc import RpcCall as RawCall
from ._vmmc import RpcClient as RawClient
from ._vmmc import RpcPending as RawPending
from ._vmmc import RpcRegion as Region
from ._vmmc import RpcServer as RawServer
from ._vmmc import Session

__all__ = [
    "Client",
    "Encoding",
    "Failure",
    "JSON",
    "Method",
    "Pending",
    "RawCall",
    "RawClient",
    "RawPending",
    "RawServer",
    "Region",
    "Reply",
    "Server",
    "connect",
    "current",
    "deferred",
    "method",
    "number",
    "serve",
    "serve_raw",
]

_log = logging.getLogger("vmmc.rpc")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_T = TypeVar("_T")
_Users = Union[Literal["same user", "anyone"], Sequence[int]]
# A bulk result: a copy, or a view of the region where it landed.
_Bulk = Union[bytes, memoryview]

# The first byte of what Python calls with: no encoding of arguments in Rust begins so by chance.
_MAGIC = b"\xff"
# The first byte of a result: an encoded value or bytes, each in the result or in the bulk.
_VALUE, _BYTES, _LONG_VALUE, _BULK = b"v", b"b", b"V", b"B"
# Values whose encoding is longer go as bulk where the caller has a buffer: others go in frames.
_VALUE_BYTES_MAX = 15 << 10
# Seconds that the end of a server waits for the loop of its async methods.
_LOOP_END_S = 5.0


class Failure(Exception):
    """A method raises it to say that it failed, and how: its caller gets `vmmc.Failed` with that
    text. Other exceptions tell the caller too, and are logged with their traceback.
    """


class Encoding(Protocol):
    """How values go: any object with these two, as the module pickle has them. Client and server
    use the same.
    """

    def dumps(self, value: Any, /) -> bytes:
        """A value as bytes."""
        ...

    def loads(self, data: bytes, /) -> Any:
        """The value again; raises whatever it likes of other bytes."""
        ...


class _Json:
    """JSON as the module json writes it: tuples become lists, and keys of dicts strings."""

    _encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
    _decoder = json.JSONDecoder()

    def dumps(self, value: Any, /) -> bytes:
        return self._encoder.encode(value).encode()

    def loads(self, data: bytes, /) -> Any:
        return self._decoder.decode(data.decode())

    def __repr__(self) -> str:
        return "vmmc.rpc.JSON"


JSON: Encoding = _Json()


def number(text: str) -> int:
    """The number of a method: FNV-1a of the text without white space, folded to 16 bits, never 0.

    A method of a Python service has that of its name. One of a Rust trait has that of its signature
    as it stands in the trait, as in "fn size(&self, name: &str) -> Option<u64>".
    """
    value = 0x811C9DC5
    for byte in "".join(text.split()).encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return max((value >> 16) ^ (value & 0xFFFF), 1)


# As a client needs it for each call.
_number_of = lru_cache(maxsize=1024)(number)


def method(function: _Function) -> _Function:
    """Makes a function a method of the services that it, or an object of its class, is given to.
    What it returns is the result. An async function runs in an event loop.
    """
    function.__vmmc_method__ = "plain"  # type: ignore[attr-defined]
    return function


def deferred(function: _Function) -> _Function:
    """As `method`; the function gets a `Reply` before its other arguments, to answer whenever it
    can, from any thread, or to leave the call to another server. What it returns is ignored.
    """
    function.__vmmc_method__ = "deferred"  # type: ignore[attr-defined]
    return function


def _is_bytes(value: object) -> bool:
    """Whether it goes as it is: it has the buffer protocol."""
    if value is None or isinstance(value, (str, int, float, list, tuple, dict)):
        return False
    try:
        memoryview(value).release()  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


class _NoCall(ValueError):
    """Bytes that no Python client sends."""


def _encode_call(encoding: Encoding, name: str, arguments: Sequence[Any], keywords: dict[str, Any]) -> tuple[bytes, Any]:
    """What goes out: arguments, and bulk or None."""
    bulk: Any = None
    place: Union[int, str, None] = None
    values: list[Any] = list(arguments)
    keywords = dict(keywords)
    places: list[tuple[Union[int, str], Any]] = [*enumerate(values), *keywords.items()]
    for where, value in places:
        if not _is_bytes(value):
            continue
        if place is not None:
            raise Invalid(f"{name}: one bytes-like argument goes as bulk, and no more; join them, or pass text")
        bulk, place = value, where
        if isinstance(where, int):
            values[where] = None
        else:
            keywords[where] = None
    parts: list[Any] = [name, values]
    if keywords or place is not None:
        parts.append(keywords)
    if place is not None:
        parts.append(place)
    try:
        return _MAGIC + encoding.dumps(parts), bulk
    except Exception as error:
        raise Invalid(f"{name}: the arguments cannot be encoded: {error}; pass what {encoding!r} takes") from error


def _decode_call(encoding: Encoding, data: bytes, bulk: Callable[[], bytes]) -> tuple[str, list[Any], dict[str, Any]]:
    """Name, arguments and keywords. Raises _NoCall or whatever the encoding does."""
    if data[:1] != _MAGIC:
        raise _NoCall
    parts = encoding.loads(data[1:])
    if not isinstance(parts, list) or not 2 <= len(parts) <= 4:
        raise _NoCall
    name, values = parts[0], parts[1]
    keywords = parts[2] if len(parts) > 2 else {}
    place = parts[3] if len(parts) > 3 else None
    if not isinstance(name, str) or not isinstance(values, list) or not isinstance(keywords, dict):
        raise _NoCall
    if isinstance(place, str) and place in keywords:
        keywords[place] = bulk()
    elif isinstance(place, int) and 0 <= place < len(values):
        values[place] = bulk()
    elif place is not None:
        raise _NoCall
    return name, values, keywords


def _decode_result(encoding: Encoding, service: str, name: str, result: bytes, bulk: Optional[_Bulk]) -> Any:
    kind, rest = result[:1], result[1:]
    try:
        if kind == _VALUE:
            return encoding.loads(rest)
        if kind == _BYTES:
            return rest
        if kind == _LONG_VALUE and bulk is not None:
            return encoding.loads(bytes(bulk))
        if kind == _BULK and bulk is not None:
            return bulk
        why = "it is none of a Python service"
    except Exception as error:  # whatever an encoding raises
        why = f"{type(error).__name__}: {error}"
    failed = BadResult(f'service "{service}": the result of {name} could not be read: {why}; check that both sides are of one version')
    failed.may_have_happened = True
    raise failed


def _answer(encoding: Encoding, call: RawCall, value: Any) -> None:
    """Answers a call with a value."""
    if _is_bytes(value):
        if call.wants_bulk:
            call.answer(_BULK, value)
        else:
            call.answer(_BYTES + bytes(value))
        return
    encoded = encoding.dumps(value)
    if len(encoded) > _VALUE_BYTES_MAX and call.wants_bulk:
        call.answer(_LONG_VALUE, encoded)
    else:
        call.answer(_VALUE + encoded)


class Pending(Generic[_T]):
    """A call under way, to be waited for, polled or awaited. Its end withdraws the call."""

    def __init__(self, raw: RawPending, decode: Callable[[bytes, Optional[_Bulk]], _T]) -> None:
        self._raw = raw
        self._decode = decode
        self._outcome: Union[tuple[_T], BaseException, None] = None

    def _take(self, find: Callable[[], Optional[tuple[bytes, Optional[_Bulk]]]]) -> bool:
        if self._outcome is None:
            try:
                found = find()
                if found is not None:
                    self._outcome = (self._decode(*found),)
            except Error as error:
                self._outcome = error
        return self._outcome is not None

    def done(self) -> bool:
        """Whether there is a result, or an error. Takes answers that have come."""
        return self._take(self._raw.poll)

    def wait(self, timeout: Optional[float] = None) -> _T:
        """The result; waits for it until the call's time is over, or no longer than that. Then it
        raises TimedOut, and the call goes on.
        """
        if not self._take(lambda: self._raw.wait(timeout)):
            error = TimedOut(f"no answer within {timeout} s; wait again, the call goes on, or cancel it")
            error.may_have_happened = True
            raise error
        return self._result()

    def cancel(self) -> None:
        """Withdraws the call: no handler begins that has not begun, and nobody gets its result."""
        self._raw.cancel()
        if self._outcome is None:
            self._outcome = Cancelled("the call was withdrawn")
            self._outcome.may_have_happened = True

    def _result(self) -> _T:
        if isinstance(self._outcome, tuple):
            return self._outcome[0]
        assert self._outcome is not None
        raise self._outcome

    async def _awaited(self) -> _T:
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def told() -> None:
            try:
                loop.call_soon_threadsafe(news.set)
            except RuntimeError:
                pass  # The loop was closed, and nobody awaits.

        try:
            while not self.done():
                news.clear()
                self._raw.when_done(told)
                await news.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._result()

    def __await__(self) -> Generator[Any, None, _T]:
        return self._awaited().__await__()


class Method:
    """A method of a service, as the client has it: call it, or `start` it."""

    def __init__(self, client: Client, name: str, landing: Optional[tuple[Region, int, int]] = None) -> None:
        self._client = client
        self._name = name
        self._number = _number_of(name)
        self._landing = landing

    def into(self, region: Region, start: int = 0, length: Optional[int] = None) -> Method:
        """The same method, whose bytes-like result lands in these bytes of a region of the client, to
        the end of the region without `length`, and stays there: the result is a view of them. From
        the call until its outcome is fetched no other call can have any of them.
        """
        return Method(self._client, self._name, (region, start, len(region) - start if length is None else length))

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        """Calls, and waits for the result."""
        client = self._client
        encoded, bulk = _encode_call(client._encoding, self._name, arguments, keywords)
        call = client.raw.call
        return self._decode(*call(self._number, encoded, bulk=bulk, into=self._landing, timeout=client._timeout))

    def start(self, /, *arguments: Any, **keywords: Any) -> Pending[Any]:
        """Calls, and does not wait: the result can be waited for or awaited."""
        client = self._client
        encoded, bulk = _encode_call(client._encoding, self._name, arguments, keywords)
        start = client.raw.start
        begun = start(self._number, encoded, bulk=bulk, into=self._landing, timeout=client._timeout)
        return Pending(begun, self._decode)

    def _decode(self, result: bytes, bulk: Optional[_Bulk]) -> Any:
        return _decode_result(self._client._encoding, self._client.raw.service, self._name, result, bulk)

    def __repr__(self) -> str:
        return f'<vmmc.rpc method {self._name} of service "{self._client.raw.service}">'


class Client:
    """A way to a service: its attributes are the methods. Made by `connect`, for any threads."""

    def __init__(self, raw: RawClient, encoding: Encoding = JSON, timeout: Optional[float] = None) -> None:
        self.raw = raw
        self._encoding = encoding
        self._timeout = timeout

    def __getattr__(self, name: str) -> Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return Method(self, name)

    def method(self, name: str) -> Method:
        """A method by its name, also if the client itself has something of that name."""
        return Method(self, name)

    def region(self, calls: int, length: int) -> Region:
        """Memory of so many bytes for results of up to so many calls at a time (Method.into). A
        client has up to 64 regions. Who may answer, and is of this node, can write all of it.
        """
        return self.raw.region(calls, length)

    def within(self, timeout: float) -> Client:
        """The same client, whose calls wait so many seconds for their answers."""
        return Client(self.raw, self._encoding, timeout)

    def close(self) -> None:
        """Closes it; calls under way go on."""
        self.raw.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_reasons: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self.raw)


def connect(
    session: Session,
    service: str,
    *,
    node: Optional[str] = None,
    owner: Optional[int] = None,
    timeout: Optional[float] = None,
    answered_by: Optional[_Users] = None,
    frames: Optional[int] = None,
    frame_bytes: Optional[int] = None,
    bulk_buffers: Optional[int] = None,
    bulk_bytes: Optional[int] = None,
    encoding: Encoding = JSON,
) -> Client:
    """Connects to a service, whose server has to run meanwhile, and need not exist yet.

    `timeout`: seconds for that, and for the answers of calls; default the session's. `answered_by`:
    who may answer, "same user", "anyone" or user ids. Results come in frames (4 of 16 KiB for each
    process that answers), bytes and long ones in a bulk buffer (8 of 64 KiB).
    """
    raw = RawClient(
        session,
        service,
        node=node,
        owner=owner,
        timeout=timeout,
        answered_by=answered_by,
        frames=frames,
        frame_bytes=frame_bytes,
        bulk_buffers=bulk_buffers,
        bulk_bytes=bulk_bytes,
    )
    return Client(raw, encoding)


class Reply:
    """The answer of a method that is marked `deferred`: to be given later, from any thread, or left
    to another server. Its end without that tells the caller that there is no answer.
    """

    def __init__(self, call: RawCall, encoding: Encoding) -> None:
        self._call = call
        self._encoding = encoding

    def answer(self, value: Any = None) -> None:
        """Gives the result."""
        try:
            _answer(self._encoding, self._call, value)
        except Error:
            raise
        except Exception as error:
            raise Invalid(f"the result cannot be encoded: {error}; give what {self._encoding!r} takes") from error

    def fail(self, message: str) -> None:
        """Says that it failed, and how: the caller gets `vmmc.Failed`."""
        self._call.fail(message)

    def pass_on(self, to: Client) -> None:
        """Leaves the call to another server of Python, with the same method and arguments; it
        answers the caller itself. After an exception the call is still to be answered.
        """
        self._call.pass_on(to.raw, self._call.method, self._call.arguments)

    @property
    def left(self) -> float:
        """Seconds until the caller stops waiting."""
        return self._call.left

    @property
    def cancelled(self) -> bool:
        """Whether the caller has withdrawn the call: what works for long looks now and then."""
        return self._call.cancelled

    @property
    def sender(self) -> tuple[int, int, int]:
        """Who sent the call here: session, process, import; `Session.node_of` names the node."""
        return self._call.sender


_current: contextvars.ContextVar[Reply] = contextvars.ContextVar("vmmc.rpc.current")


def current() -> Reply:
    """The call that the running method is to answer, for `left`, `cancelled` and `sender`."""
    try:
        return _current.get()
    except LookupError:
        raise Invalid("no call is being answered here; ask inside of a method") from None


class _Served:
    """A method of a service."""

    def __init__(self, name: str, function: Callable[..., Any], kind: str) -> None:
        self.name = name
        self.function = function
        self.is_deferred = kind == "deferred"
        self.is_async = inspect.iscoroutinefunction(function)
        try:
            self._signature: Optional[inspect.Signature] = inspect.signature(function)
        except ValueError:
            self._signature = None  # A function of C that tells none.

    def takes(self, arguments: list[Any], keywords: dict[str, Any]) -> bool:
        """Whether it can be called so."""
        try:
            if self._signature is not None:
                self._signature.bind(*arguments, **keywords)
        except TypeError:
            return False
        return True


class _Dispatch:
    """The methods of a service, and how they run. It knows nothing of the server, whose end so does
    not wait for a garbage collection.
    """

    def __init__(self, encoding: Encoding, loop: Optional[asyncio.AbstractEventLoop]) -> None:
        self.encoding = encoding
        self.loop = loop
        self.loop_thread: Optional[threading.Thread] = None
        self.methods: dict[int, _Served] = {}
        # The loop itself holds its tasks weakly.
        self.tasks: set[asyncio.Task[None]] = set()

    def add(self, name: str, function: Callable[..., Any], kind: str) -> None:
        own = number(name)
        if own in self.methods:
            other = self.methods[own].name
            why = "twice" if other == name else f"and {other}, which have the same number; call one of them something else"
            raise Invalid(f"a service with the method {name} {why}")
        self.methods[own] = _Served(name, function, kind)

    def needs_loop(self) -> bool:
        return any(served.is_async for served in self.methods.values())

    def start_loop(self) -> None:
        """The loop that runs now, or one on a thread of its own."""
        if self.loop is None and self.needs_loop():
            try:
                self.loop = asyncio.get_running_loop()
            except RuntimeError:
                self.loop = asyncio.new_event_loop()
                self.loop_thread = threading.Thread(target=self.loop.run_forever, name="vmmc-rpc-loop", daemon=True)
                self.loop_thread.start()

    def end_loop(self) -> None:
        if self.loop_thread is None or self.loop is None:
            return
        loop, thread = self.loop, self.loop_thread
        self.loop_thread = None

        def stop() -> None:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.call_soon(loop.stop)

        loop.call_soon_threadsafe(stop)
        if thread is not threading.current_thread():
            thread.join(_LOOP_END_S)
            if not thread.is_alive():
                loop.close()

    def __call__(self, call: RawCall) -> None:
        served = self.methods.get(call.method)
        if served is None:
            call.no_method()
            return
        try:
            name, arguments, keywords = _decode_call(self.encoding, call.arguments, call.bulk)
        except Exception:  # whatever an encoding raises
            call.bad_arguments()
            return
        if name != served.name:
            call.no_method()
            return
        reply = Reply(call, self.encoding)
        if served.is_deferred:
            arguments = [reply, *arguments]
        if not served.takes(arguments, keywords):
            call.bad_arguments()
            return
        context = contextvars.copy_context()
        context.run(_current.set, reply)
        if not served.is_async:
            context.run(self._run, reply, served, arguments, keywords)
            return
        assert self.loop is not None
        begin = partial(self._begin, reply, served, arguments, keywords)
        try:
            self.loop.call_soon_threadsafe(begin, context=context)
        except RuntimeError:
            call.fail("the event loop of the service has ended")

    def _run(self, reply: Reply, served: _Served, arguments: list[Any], keywords: dict[str, Any]) -> None:
        try:
            value = served.function(*arguments, **keywords)
            if not served.is_deferred:
                reply.answer(value)
        except Exception as error:
            self._failed(reply, served, error)

    def _begin(self, *call: Any) -> None:
        """In the loop."""
        task = asyncio.get_running_loop().create_task(self._run_async(*call))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run_async(self, reply: Reply, served: _Served, arguments: list[Any], keywords: dict[str, Any]) -> None:
        try:
            value = await served.function(*arguments, **keywords)
            if not served.is_deferred:
                reply.answer(value)
        except Exception as error:
            self._failed(reply, served, error)

    def _failed(self, reply: Reply, served: _Served, error: Exception) -> None:
        expected = isinstance(error, Failure)
        if not expected:
            _log.error("the method %s raised", served.name, exc_info=error)
        try:
            reply.fail(str(error) if expected else f"{type(error).__name__}: {error}")
        except Error:
            pass  # It was answered before.


# Servers whose threads run Python: they end before the interpreter does.
_open: weakref.WeakSet[Server] = weakref.WeakSet()


class Server:
    """A service, served until it is closed or nobody holds this. Made by `serve`, `serve_raw`."""

    def __init__(self, raw: RawServer, dispatch: Optional[_Dispatch] = None) -> None:
        self.raw = raw
        self._dispatch = dispatch
        _open.add(self)

    @property
    def service(self) -> str:
        """Name of the service."""
        return self.raw.service

    @property
    def serving(self) -> bool:
        """Whether it serves: not when it was closed, or its node has gone."""
        return self.raw.serving

    def counts(self) -> dict[str, int]:
        """What became of calls so far: handled, done, failed, busy, late, cancelled, passed_on,
        misbehaved.
        """
        return self.raw.counts()

    def close(self) -> None:
        """Ends it, after the methods that run; calls that no method has begun are not answered.
        Not in a method of its own: that raises Busy.
        """
        self.raw.close()
        if self._dispatch is not None:
            self._dispatch.end_loop()

    def __del__(self) -> None:
        try:
            self.close()
        except Error:
            pass  # Its own method let go of it, or this is the child of a fork.

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_reasons: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f'<vmmc.rpc server of service "{self.service}">'


@atexit.register
def _end_all() -> None:
    for server in list(_open):
        try:
            server.close()
        except Error:
            pass  # Its own method ends the program, or this is the child of a fork.


def _methods_of(what: Any) -> Iterable[tuple[str, Callable[..., Any], str]]:
    """The methods of a function, or of an object with some."""
    kind = getattr(what, "__vmmc_method__", None)
    if kind is not None:
        yield what.__name__, what, kind
        return
    found = False
    for name in dir(type(what)):
        kind = getattr(getattr(type(what), name, None), "__vmmc_method__", None)
        if kind is not None:
            found = True
            yield name, getattr(what, name), kind
    if not found:
        raise Invalid(f"{what!r} has no methods for a service; mark them with @vmmc.rpc.method")


def serve(
    session: Session,
    service: str,
    *what: Any,
    threads: int = 0,
    queue: Optional[int] = None,
    access: Optional[_Users] = None,
    frames: Optional[int] = None,
    frame_bytes: Optional[int] = None,
    encoding: Encoding = JSON,
    loop: Optional[asyncio.AbstractEventLoop] = None,
) -> Server:
    """Serves a service: functions that are marked `method` or `deferred`, and objects whose
    functions are.

    `threads`: methods run on so many; with none, on the one that takes the calls, one after the
    other. Async methods run in `loop`, else in the loop that runs here now, else in one of the
    server's own. `queue`: calls that wait for a thread, default 256; further ones are `ServerBusy`.
    `access`: who may call, "same user", "anyone" or user ids. Arguments and bulk of a call come in
    frames, of which each client has 4 of 16 KiB.
    """
    dispatch = _Dispatch(encoding, loop)
    for one in what:
        for name, function, kind in _methods_of(one):
            dispatch.add(name, function, kind)
    if not dispatch.methods:
        raise Invalid(f'service "{service}" has no methods; give functions that are marked @vmmc.rpc.method')
    dispatch.start_loop()
    try:
        raw = RawServer(
            session, service, dispatch, threads=threads, queue=queue, access=access, frames=frames, frame_bytes=frame_bytes
        )
    except BaseException:
        dispatch.end_loop()
        raise
    return Server(raw, dispatch)


def serve_raw(
    session: Session,
    service: str,
    function: Callable[[RawCall], object],
    *,
    threads: int = 0,
    queue: Optional[int] = None,
    access: Optional[_Users] = None,
    frames: Optional[int] = None,
    frame_bytes: Optional[int] = None,
) -> Server:
    """Serves a service by one function, which gets each call: a method by number, and bytes. It
    answers the call, then or later, from any thread. Choices as for `serve`.
    """
    return Server(
        RawServer(session, service, function, threads=threads, queue=queue, access=access, frames=frames, frame_bytes=frame_bytes)
    )
