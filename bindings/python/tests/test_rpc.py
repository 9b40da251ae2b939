"""Remote calls as programs use them, over an embedded node: values, errors, event loops, and what
ends in the middle.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import weakref
from collections.abc import Callable

import vmmc
import vmmc.rpc as rpc

try:
    import numpy
except ImportError:
    numpy = None

# Longer than anything takes on a loaded machine.
PATIENCE_S = 30.0


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.001)


class Various:
    """What methods do right and wrong."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.seen: list[object] = []

    @rpc.method
    def echo(self, *values, **keywords):
        return [list(values), keywords] if keywords else values[0] if len(values) == 1 else list(values)

    @rpc.method
    def kind(self, value, other=None):
        return [type(value).__name__, len(value), other]

    @rpc.method
    def long(self, length):
        return length * "x"

    @rpc.method
    def fails(self):
        raise rpc.Failure("no more paper")

    @rpc.method
    def raises(self):
        return {}["key"]

    @rpc.method
    def odd(self):
        return {1, 2}

    @rpc.method
    def waits(self):
        self.seen.append(rpc.current().sender)
        while not self.go.wait(0.001):
            if rpc.current().cancelled:
                self.seen.append("cancelled")
                return None
        return rpc.current().left > 0

    @rpc.deferred
    def later(self, reply, value):
        threading.Timer(0.01, reply.answer, [value]).start()

    @rpc.deferred
    def never(self, reply):
        pass

    @rpc.deferred
    def twice(self, reply):
        reply.answer(1)
        try:
            reply.answer(2)
        except vmmc.Stale as error:
            self.seen.append(str(error))

    @rpc.method
    async def sleeps(self, value):
        await asyncio.sleep(0.01)
        self.seen.append(rpc.current().left)
        return value

    @rpc.method
    async def fails_later(self):
        await asyncio.sleep(0)
        raise rpc.Failure("later")

    def hidden(self):
        """No method of the service."""


class Case(unittest.TestCase):
    """Each test has a node of its own."""

    def setUp(self) -> None:
        self.node = vmmc.Node(f"py-{os.getpid()}-{self._testMethodName[:30]}", plain=True)
        self.session = self.node.attach(timeout=PATIENCE_S)

    def tearDown(self) -> None:
        self.session.leave()
        del self.session, self.node
        gc.collect()


class Calls(Case):
    def setUp(self) -> None:
        super().setUp()
        self.various = Various()
        self.server = rpc.serve(self.session, "various", self.various, threads=2)
        self.client = rpc.connect(self.session, "various")

    def tearDown(self) -> None:
        # A server waits for its methods.
        self.various.go.set()
        self.client.close()
        self.server.close()
        del self.client, self.server, self.various
        super().tearDown()

    def test_values_of_every_kind_go_there_and_back(self) -> None:
        for value in [None, True, 7, -2.5, "", "grüße ✓", [1, [2]], {"a": {"b": None}}, "x" * 12_000]:
            self.assertEqual(self.client.echo(value), value)
        self.assertEqual(self.client.long(40_000), "x" * 40_000)
        self.assertEqual(self.client.echo(1, 2), [1, 2])
        self.assertEqual(self.client.echo(1, name="two"), [[1], {"name": "two"}])
        for value in [b"", b"bytes", bytearray(b"array"), memoryview(b"view"), bytes(16_000)]:
            self.assertEqual(self.client.echo(value), bytes(value))
            self.assertEqual(self.client.kind(value), ["bytes", len(value), None])
        self.assertEqual(self.client.kind(other=1, value=b"by name"), ["bytes", 7, 1])
        if numpy is not None:
            self.assertEqual(self.client.kind(numpy.arange(4, dtype="u8"), 1), ["bytes", 32, 1])
        # Without a free buffer bytes come in a frame.
        small = rpc.connect(self.session, "various", bulk_buffers=1, bulk_bytes=1000)
        waiting = small.waits.start()
        self.assertEqual(small.echo(b"short"), b"short")
        self.assertEqual(len(small.long(170_000)), 170_000)
        self.various.go.set()
        self.assertIs(waiting.wait(), True)
        with self.assertRaises(vmmc.BulkDropped) as dropped:
            small.echo(bytes(1001))
        self.assertTrue(dropped.exception.may_have_happened)

    def test_results_land_in_a_region_and_stay(self) -> None:
        region = self.client.region(2, 3 << 16)
        self.assertEqual((len(region), len(memoryview(region.memory))), (3 << 16, 3 << 16))
        first = self.client.echo.into(region, 0, 4096)(b"first")
        self.assertIsInstance(first, memoryview)
        # Another client, and no buffer of it, has results of any length.
        long = self.client.echo.into(region, 1 << 16)(b"long" * 25_000)
        self.assertEqual((bytes(first), bytes(long[-4:]), len(long)), (b"first", b"long", 100_000))
        self.assertEqual(bytes(memoryview(region.memory)[:5]), b"first")
        self.assertEqual(self.client.kind.into(region)(b"a value"), ["bytes", 7, None])
        self.assertEqual(self.client.long.into(region)(40_000), "x" * 40_000)
        waiting = self.client.waits.into(region, 0, 100).start()
        for start, length, says in [(50, 10, "another token"), (3 << 16, 1, "bytes"), (4096, 1 << 63, "bytes")]:
            with self.assertRaisesRegex(vmmc.Error, says):
                self.client.echo.into(region, start, length)(b"")
        with self.assertRaises(vmmc.BulkDropped):
            self.client.echo.into(region, 100, 3)(b"long")
        self.various.go.set()
        self.assertIs(waiting.wait(), True)

        async def later() -> bytes:
            return bytes(await self.client.echo.into(region, 0, 100).start(b"in a loop"))

        self.assertEqual(asyncio.run(later()), b"in a loop")
        # What has landed is sent on, exported, and outlives the region.
        with self.session.export(region.memory, name="cached"):
            self.assertEqual(self.session.import_("cached").fetch(0, 9), b"in a loop")
        self.assertEqual(self.client.echo(memoryview(region.memory)[3:7]), b"a lo")
        view = self.client.echo.into(region, 8, 8)(b"stays")
        del region
        gc.collect()
        self.assertEqual(bytes(view), b"stays")

    def test_each_error_has_its_exception(self) -> None:
        for name, arguments, kind, may_have_happened, says in [
            ("fails", [], vmmc.Failed, True, "no more paper"),
            ("later_than_that", [], vmmc.NoMethod, False, "has no method"),
            ("hidden", [], vmmc.NoMethod, False, "has no method"),
            ("kind", [], vmmc.BadArguments, False, "could not read"),
            ("kind", [1, 2, 3], vmmc.BadArguments, False, "could not read"),
            ("never", [], vmmc.NoAnswer, True, "gave no answer"),
            ("echo", ["x" * (32 << 20)], vmmc.ArgumentsTooLong, False, "share longer memory"),
            ("echo", [b"one", b"two"], vmmc.Invalid, False, "goes as bulk"),
            ("echo", [object()], vmmc.Invalid, False, "cannot be encoded"),
            ("fails_later", [], vmmc.Failed, True, "later"),
        ]:
            with self.subTest(name), self.assertRaises(kind) as raised:
                self.client.method(name)(*arguments)
            self.assertEqual(raised.exception.may_have_happened, may_have_happened, name)
            self.assertIn(says, str(raised.exception))
        with self.assertLogs("vmmc.rpc", "ERROR") as logged, self.assertRaises(vmmc.Failed) as raised:
            self.client.raises()
        self.assertIn("KeyError", str(raised.exception))
        self.assertIn("the method raises raised", logged.output[0])
        with self.assertLogs("vmmc.rpc", "ERROR"), self.assertRaises(vmmc.Failed):
            self.client.odd()
        self.assertIsInstance(raised.exception, vmmc.CallError)
        with self.assertRaises(vmmc.TimedOut) as late:
            self.client.within(0.02).waits()
        self.assertTrue(late.exception.may_have_happened)
        self.assertIsInstance(late.exception, TimeoutError)
        self.assertEqual(self.client.twice(), 1)
        until(lambda: any("answered once" in str(seen) for seen in self.various.seen))

    def test_calls_go_on_while_nobody_waits(self) -> None:
        waiting = self.client.waits.start()
        self.assertFalse(waiting.done())
        with self.assertRaises(vmmc.TimedOut):
            waiting.wait(0.01)
        self.assertEqual(self.client.echo("meanwhile"), "meanwhile")
        self.assertEqual(self.client.raw.outstanding, 1)
        self.various.go.set()
        self.assertIs(waiting.wait(), True)
        self.assertTrue(waiting.done() and waiting.wait(), "the result stays")
        self.various.go.clear()
        withdrawn = self.client.waits.start()
        until(lambda: len(self.various.seen) == 2)
        withdrawn.cancel()
        with self.assertRaises(vmmc.Cancelled):
            withdrawn.wait()
        until(lambda: "cancelled" in self.various.seen)
        # What nobody holds is withdrawn too.
        self.client.waits.start()
        gc.collect()
        until(lambda: self.client.raw.outstanding == 0)
        self.assertEqual(self.client.later([1]), [1])

    def test_a_key_press_ends_a_call(self) -> None:
        def interrupt(*_args: object) -> None:
            raise KeyboardInterrupt

        former = signal.signal(signal.SIGUSR1, interrupt)
        try:
            threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR1]).start()
            with self.assertRaises(KeyboardInterrupt):
                self.client.waits()
        finally:
            signal.signal(signal.SIGUSR1, former)
        until(lambda: "cancelled" in self.various.seen)
        self.assertEqual(self.client.echo("alive"), "alive")

    def test_calls_are_awaited(self) -> None:
        async def main() -> None:
            values = await asyncio.gather(*[self.client.sleeps.start(number) for number in range(30)])
            self.assertEqual(values, list(range(30)))
            self.assertEqual(await self.client.echo.start(b"bytes"), b"bytes")
            with self.assertRaises(vmmc.Failed):
                await self.client.fails_later.start()
            with self.assertRaises(vmmc.TimedOut):
                await self.client.within(0.02).waits.start()
            held = self.client.waits.start()
            with self.assertRaises(TimeoutError):
                await asyncio.wait_for(held, 0.02)
            self.assertEqual(self.client.raw.outstanding, 0, "it was withdrawn")
            done = self.client.echo.start("there")
            done.wait()
            self.assertEqual(await done, "there")

        asyncio.run(main())
        self.assertTrue(all(0 < left <= PATIENCE_S for left in self.various.seen if isinstance(left, float)))

    def test_calls_are_left_to_others(self) -> None:
        @rpc.deferred
        def read(reply: rpc.Reply, name: str, data: bytes) -> None:
            with self.assertRaises(vmmc.Stale):
                reply.pass_on(closed)
            reply.pass_on(other)
            with self.assertRaises(vmmc.Stale):
                reply.answer(None)

        def behind(name: str, data: bytes) -> object:
            return data[::-1] if name == "data" else [name, len(data)]

        last = rpc.serve(self.session, "last", self.named("read", behind))
        other = rpc.connect(self.session, "last")
        closed = rpc.connect(self.session, "last")
        closed.close()
        with rpc.serve(self.session, "first", read) as first, rpc.connect(self.session, "first") as client:
            self.assertEqual(client.read("data", b"abc"), b"cba")
            self.assertEqual(client.read("other", b"abc"), ["other", 3])
            self.assertEqual(first.counts()["passed_on"], 2)
        last.close()

    @staticmethod
    def named(name: str, function: Callable[..., object]) -> Callable[..., object]:
        function.__name__ = name
        return rpc.method(function)

    def test_two_methods_of_one_number_are_refused(self) -> None:
        # Two names that the hash does not tell apart, found by trying.
        seen: dict[int, str] = {}
        number = 0
        while (name := f"m{number}") and rpc.number(name) not in seen:
            seen[rpc.number(name)] = name
            number += 1
        first, second = seen[rpc.number(name)], name
        functions = []
        for one in (first, second):
            def function() -> str:
                return "first"
            functions.append(self.named(one, function))
        with self.assertRaises(vmmc.Invalid) as refused:
            rpc.serve(self.session, "both", *functions)
        self.assertIn("same number", str(refused.exception))
        # A client of another version that calls the one finds no method, and not the other one.
        with rpc.serve(self.session, "one", functions[0]), rpc.connect(self.session, "one") as client:
            self.assertEqual(client.method(first)(), "first")
            with self.assertRaises(vmmc.NoMethod):
                client.method(second)()

    def test_what_is_no_service_is_refused(self) -> None:
        for what in [[], [object()], [len], [Various.hidden]]:
            with self.assertRaises(vmmc.Invalid):
                rpc.serve(self.session, "none", *what)
        for options in [{"threads": 5000}, {"queue": 0}, {"access": "nobody"}, {"frames": 100}]:
            with self.assertRaises(vmmc.Invalid):
                rpc.serve(self.session, "none", self.various, **options)
        with self.assertRaises(vmmc.TimedOut):
            rpc.connect(self.session, "none", timeout=0.01)
        with self.assertRaises(vmmc.Invalid):
            rpc.current()
        with self.assertRaises(AttributeError):
            self.client._private

    def test_values_go_as_the_encoding_has_them(self) -> None:
        with rpc.serve(self.session, "pickled", self.various, encoding=pickle) as server:
            with rpc.connect(self.session, "pickled", encoding=pickle) as client:
                self.assertEqual(client.echo({1: (2, {3})}), {1: (2, {3})})
                self.assertEqual(client.echo(b"bytes"), b"bytes")
            with rpc.connect(self.session, "pickled") as client, self.assertRaises(vmmc.BadArguments):
                client.echo(1)
            self.assertTrue(server.serving)


class Raw(Case):
    def test_services_of_others_have_numbers_and_bytes(self) -> None:
        kept: list[rpc.RawCall] = []

        def handle(call: rpc.RawCall) -> None:
            if call.method == 1:
                call.answer(call.arguments + call.bulk())
            elif call.method == 2:
                call.answer(b"result", b"bulk")
            elif call.method == 3:
                call.bad_arguments()
            elif call.method == 4:
                kept.append(call)
            elif call.method == 5:
                raise RuntimeError("planted")
            elif call.method == 6:
                with self.assertRaises(vmmc.OutOfBounds):
                    call.answer(b"", pages.range(4000, 97))
                call.answer(b"result", [b"head ", pages.range(4, 4)])
            else:
                call.no_method()

        pages = self.session.buffer(4096)
        pages.write(0, b"one two three")
        with rpc.serve_raw(self.session, "raw", handle) as server:
            client = rpc.RawClient(self.session, "raw")
            self.assertEqual(client.call(1, b"arguments", bulk=b" and bulk"), (b"arguments and bulk", None))
            self.assertEqual(client.call(2, b"", wants_bulk=True), (b"result", b"bulk"))
            self.assertEqual(client.call(2, b"", wants_bulk=False), (b"result", None))
            self.assertEqual(client.call(6, b"", wants_bulk=True), (b"result", b"head two "))
            region = client.region(2, 8192)
            self.assertEqual(client.call(2, b"", into=(region, 4096, 4)), (b"result", b"bulk"))
            self.assertEqual(client.call(1, b"plain", into=(region, 4096, 4)), (b"plain", None))
            with self.assertRaisesRegex(vmmc.Invalid, "leave one of them out"):
                client.call(2, b"", wants_bulk=False, into=(region, 4096, 4))
            for number, kind in [(3, vmmc.BadArguments), (9, vmmc.NoMethod)]:
                with self.assertRaises(kind):
                    client.call(number, b"")
            pending = client.start(4, b"")
            until(lambda: bool(kept))
            self.assertIsNone(pending.poll())
            kept.pop().fail("later")
            with self.assertRaises(vmmc.Failed):
                pending.wait()
            with self.assertRaises(vmmc.Stale):
                pending.wait()
            pending = client.start(4, b"", timeout=PATIENCE_S)
            until(lambda: bool(kept))
            kept.clear()
            gc.collect()
            with self.assertRaises(vmmc.NoAnswer):
                pending.wait()
            unraisable: list[object] = []
            former, sys.unraisablehook = sys.unraisablehook, unraisable.append
            try:
                with self.assertRaises(vmmc.Failed) as failed:
                    client.call(5, b"")
                self.assertIn("RuntimeError: planted", str(failed.exception))
            finally:
                sys.unraisablehook = former
            self.assertEqual(len(unraisable), 1)
            unraisable.clear()
            # A Python client finds that this is no service of Python.
            with self.assertRaises(vmmc.NoMethod):
                rpc.connect(self.session, "raw").greet()
            # Nor is a Python service one of others.
            with rpc.serve(self.session, "python", Various()) as python:
                other = rpc.RawClient(self.session, "python")
                wild = [b"", b"\x01\x02", b'["echo",[]]', b"\xff", b"\xff{}", b"\xff[1,[]]", b'\xff["echo",{}]']
                wild += [b'\xff["echo",[],[]]', b'\xff["echo",[1],{},true]', b'\xff["echo",[1],{},1]', b'\xff["echo",[1],{},-1]']
                wild += [b'\xff["echo",[1],{},"x"]', b'\xff["echo",[],{},null,1]', b"\xff" + b"[" * 10_000, b"\xff\xff\xfe"]
                for arguments in wild:
                    with self.subTest(arguments[:20]), self.assertRaises(vmmc.BadArguments):
                        other.call(rpc.number("echo"), arguments)
                self.assertEqual(other.call(rpc.number("echo"), b'\xff["echo",[1]]', wants_bulk=False), (b"v1", None))
                self.assertTrue(python.serving)
            client.close()
            with self.assertRaises(vmmc.Stale):
                client.call(1, b"")
            self.assertEqual(server.counts()["misbehaved"], 0)

    def test_numbers_are_those_of_the_attribute_of_rust(self) -> None:
        # The same stand in a test of crates/rpc-macros.
        self.assertEqual(rpc.number("fn f(&self, a: u8) -> u8"), 4034)
        self.assertNotEqual(rpc.number("f"), rpc.number("fn f(&self)"))


class Ends(Case):
    def test_a_server_does_not_end_inside_of_itself(self) -> None:
        ended: list[str] = []

        @rpc.method
        def close() -> None:
            try:
                server.close()
            except vmmc.Busy as error:
                ended.append(str(error))

        server = rpc.serve(self.session, "closing", close, threads=1)
        client = rpc.connect(self.session, "closing")
        client.method("close")()
        self.assertIn("in another thread", ended[0])
        server.close()
        self.assertFalse(server.serving)
        server.close()
        with self.assertRaises((vmmc.Lost, vmmc.Revoked)):
            client.method("close")()

    def test_what_nobody_holds_ends(self) -> None:
        various = Various()
        gone = weakref.ref(various)
        server = rpc.serve(self.session, "gone", various)
        client = rpc.connect(self.session, "gone")
        self.assertEqual(client.sleeps(1), 1)
        del server, various
        gc.collect()
        until(lambda: gone() is None)
        with self.assertRaises(vmmc.Error):
            client.within(1.0).sleeps(1)

    def test_async_methods_run_in_the_loop_that_runs(self) -> None:
        loops: list[asyncio.AbstractEventLoop] = []

        @rpc.method
        async def where() -> str:
            loops.append(asyncio.get_running_loop())
            return "here"

        async def main() -> None:
            with rpc.serve(self.session, "looping", where), rpc.connect(self.session, "looping") as client:
                self.assertEqual(await client.where.start(), "here")
            self.assertIs(loops[0], asyncio.get_running_loop())

        asyncio.run(main())

    def test_a_child_of_a_fork_is_told_so(self) -> None:
        various = Various()
        with rpc.serve(self.session, "forking", various, threads=1) as server:
            client = rpc.connect(self.session, "forking")
            self.assertEqual(client.echo(1), 1)
            child = os.fork()
            if child == 0:
                wrong = 1
                try:
                    client.within(1.0).echo(2)
                except vmmc.Forked:
                    wrong = 0
                try:
                    server.close()
                    wrong += 2
                except vmmc.Forked:
                    pass
                del client, server
                os._exit(wrong)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(client.echo(3), 3)

    def test_a_program_ends_while_it_serves(self) -> None:
        program = textwrap.dedent(
            """
            import asyncio, vmmc, vmmc.rpc as rpc
            node = vmmc.Node("rpc-ends", plain=True)
            session = node.attach(timeout=30)

            @rpc.method
            async def echo(value):
                return value

            server = rpc.serve(session, "ending", echo, threads=2)
            client = rpc.connect(session, "ending")

            async def main():
                return await client.echo.start("done")

            print(asyncio.run(main()))
            pending = client.echo.start("never awaited")
            """
        )
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "done\n", ""))


if __name__ == "__main__":
    unittest.main()
