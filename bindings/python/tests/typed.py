"""What programs with types write: `mypy --strict` takes all of it, on every Python that is supported. Run, it does nothing but import."""

from __future__ import annotations

import array
import mmap
import pickle
import socket

import numpy
import numpy.typing

import vmmc
import vmmc.mp
import vmmc.rpc


def bytes_like(there: vmmc.Import, export: vmmc.Export) -> None:
    for data in (b"bytes", bytearray(8), memoryview(b"view"), array.array("d", [1.0]), mmap.mmap(-1, 4096)):
        there.send(0, data)
    there.fetch_into(0, bytearray(8))
    export.write(0, b"x")
    for offset, length in ((0, 1), (2, 3)):
        part: bytes = there.fetch(offset, length)
        export.write(offset, part)


def arrays(session: vmmc.Session, there: vmmc.Import) -> None:
    field: numpy.typing.NDArray[numpy.float64] = numpy.zeros((10, 10))
    there.send(0, field)
    there.send(0, field[0], notify=True, counter=800)
    there.send(0, vmmc.Pinned(field))
    there.fetch_into(0, field)
    there.fetch_into(0, vmmc.Pinned(field))
    there.send(0, [field, field[1], b"tail"])
    there.fetch_into(0, [field])
    there.gather_send([(0, field[0]), (800, b"tail")], notify=True)
    transfer: vmmc.Transfer = there.post_send(0, field)
    moved: int = transfer.wait(1.0)
    lent = session.lend(field)
    there.send(0, lent.range(0, moved))
    export = session.export(field, name="field", rights=vmmc.READ | vmmc.WRITE, copy=True)
    buffer = session.buffer(field)
    there.send(0, [buffer, buffer.range(8), lent])
    there.post_fetch(0, buffer.range(0, 8)).wait()
    export.write(0, field)


def waits(session: vmmc.Session, export: vmmc.Export, ring: vmmc.Ring, transfer: vmmc.Transfer) -> None:
    line, other_end = socket.socketpair()
    place: int = session.wait_any([session, export, ring, transfer, line, other_end.fileno()], 1.0)
    if place == session.wait_any((vmmc.Word(export, 0, at_least=place), vmmc.Writable(line)), timeout=0.0):
        session.wait_any([ring])
    value: int = export.wait_word(0, at_least=place, any_bit=None, timeout=1.0)
    conditions: list[vmmc.Word] = [vmmc.Word(export, value), vmmc.Word(export, 0, equal=1, not_equal=2)]
    session.wait_any(conditions)


def continuations(session: vmmc.Session, there: vmmc.Import) -> None:
    moved: list[int] = []
    every: vmmc.Continuations = session.continuations()

    def sent(transfer: vmmc.Transfer) -> None:
        moved.append(transfer.wait())
        every.add(there.post_fetch(0, bytearray(8)), lambda fetch: moved.append(fetch.wait()))

    every.add(there.post_send(0, b"x"), sent)
    while every:
        session.wait_any([session, every], 1.0)
        count: int = every.run() or every.wait(timeout=1.0)
        moved.append(count + len(every))


def messages(session: vmmc.Session) -> None:
    endpoint = session.endpoint("orders", frames=4, frame_bytes=4096, access="anyone", notify=True)
    with session.connect("orders", node="beta", wait=1.0) as orders:
        orders.send(b"two", numpy.zeros(4), timeout=1.0)
        orders.send(b"two", at_once=True)
    for message in endpoint:
        node: str | None = session.node_of(message.sender)
        letter: bytes = bytes(message.payload) if message.payload else message.control
        print(node, letter, len(message.payload or b""))
    taken: vmmc.Message | None = endpoint.poll()
    place: int = session.wait_any([endpoint], 1.0)
    print(taken, place, endpoint.counts()["messages"])


class Files:
    @vmmc.rpc.method
    def size(self, name: str) -> int:
        return len(name)

    @vmmc.rpc.deferred
    def read(self, reply: vmmc.rpc.Reply, name: str) -> None:
        reply.answer(name.encode()) if reply.left > 0 and not reply.cancelled else reply.fail("late")


async def calls(session: vmmc.Session) -> None:
    with vmmc.rpc.serve(session, "files", Files(), threads=2, access="anyone") as server:
        files: vmmc.rpc.Client = vmmc.rpc.connect(session, "files", node="beta", timeout=1.0, encoding=pickle)
        pending: vmmc.rpc.Pending[int] = files.within(2.0).size.start("a")
        size: int = await pending if not pending.done() else pending.wait(1.0)
        result, bulk = files.raw.call(vmmc.rpc.number("size"), numpy.zeros(4), bulk=b"x", wants_bulk=True)
        print(size, result + (bulk or b""), server.counts()["done"])
        region: vmmc.rpc.Region = files.region(4, 1 << 16)
        view = memoryview(await files.size.into(region, 0, 4096).start("a"))
        print(len(view), len(region), session.export(region.memory))

    def handle(call: vmmc.rpc.RawCall) -> None:
        call.pass_on(files.raw, call.method, call.arguments) if call.method == 7 else call.answer(call.bulk())

    vmmc.rpc.serve_raw(session, "raw", handle).close()
    try:
        files.size("b")
    except vmmc.CallError as error:
        if not error.may_have_happened:
            files.size("b")


def rings(session: vmmc.Session, there: vmmc.Import) -> None:
    ring = session.ring(64 << 10, name="inbox", access="anyone")
    there.append(b"please", word=7, notify=True)
    for record in ring:
        text: bytes = record.data
        node: str | None = session.node_of(record.sender)
        there.append(text, word=len(node or ""), at_once=True)
    taken: vmmc.Record | None = ring.take()
    there.append(taken.data if taken else ring.wait(1.0).data)
    ring.close()


def tokens(session: vmmc.Session, answers: vmmc.Connection) -> None:
    endpoint = session.endpoint("answers", tokens=8, token_bytes=1 << 20)
    with endpoint.token_buffer() as buffer:
        answers.send_by_token(b"here", buffer.token, numpy.zeros(4), at_once=True)
        by_token: vmmc.ByToken | None = endpoint.wait().by_token
        if by_token is not None and by_token.length is not None and not buffer.cancel():
            print(buffer.wait(1.0), bytes(buffer), buffer.read(0, by_token.length), buffer.capacity)
        elif by_token is not None and by_token.dropped == "too long":
            answers.check()


def members(session: vmmc.Session) -> None:
    with vmmc.mp.among(session, "typed", 0, ["alpha", None], timeout=10) as some:
        world: vmmc.mp.Group = some.world
        request: vmmc.mp.Request = world.start_send(1, numpy.zeros(4), tag=7)
        data, status = world.receive(source=1, tag=7, mask=0xFF, timeout=1.0)
        place = numpy.zeros((4, 4), dtype="f4")
        length: int = world.receive_into(place, status.source).length + len(data)
        done: vmmc.mp.Status | None = request.test()
        first: int | None = vmmc.mp.wait_any([request, world.start_receive(bytearray(4))], 1.0)
        statuses: list[vmmc.mp.Status] = vmmc.mp.wait_all([request])
        world.allreduce(place, "max")
        everybody: bytes | None = world.allgather(array.array("i", [1]))
        half: vmmc.mp.Group | None = world.split(world.rank % 2)
        memory: vmmc.mp.Memory = some.memory(1 << 20)
        world.send(1, memory.range(0, 100))
        print(length, done, first, statuses, everybody, half, memory.memory.array("f8"))
