"""Messages by rank and tag: members that are threads, and jobs of real processes, one of them killed."""

from __future__ import annotations

import array
import concurrent.futures
import gc
import os
import signal
import struct
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from collections.abc import Callable

import vmmc
import vmmc.mp

try:
    import numpy
except ImportError:
    numpy = None

# Longer than anything takes on a loaded machine.
PATIENCE_S = 30.0


class Case(unittest.TestCase):
    """Each test has a node of its own, and members that are threads, each with its session."""

    def setUp(self) -> None:
        self.node = vmmc.Node(f"py-{os.getpid()}-{self._testMethodName[:30]}", plain=True)

    def tearDown(self) -> None:
        del self.node
        gc.collect()

    def members(self, size: int, run: Callable[[vmmc.mp.Group], object]) -> list[object]:
        """What the function gives for the world of each rank."""
        together = threading.Barrier(size)

        def member(rank: int) -> object:
            session = self.node.attach(timeout=PATIENCE_S)
            with vmmc.mp.among(session, "set", rank, size, timeout=PATIENCE_S) as messages:
                result = run(messages.world)
                # Nobody leaves while others still need its answers.
                messages.world.barrier()
                together.wait(PATIENCE_S)
                return result

        with concurrent.futures.ThreadPoolExecutor(size) as pool:
            return [future.result(2 * PATIENCE_S) for future in [pool.submit(member, rank) for rank in range(size)]]


class Pairs(Case):
    def test_messages_of_any_kind_go_to_whom_they_are_for(self) -> None:
        def run(world: vmmc.mp.Group) -> None:
            if world.rank == 0:
                world.send(1, b"first", tag=7)
                world.send(1, bytearray(b"other tag"), 8)
                world.send(1, memoryview(b"x" * 300_000), tag=7)
                world.send(1, array.array("d", [1.5, 2.5]), tag=1 << 63)
                world.send(1, b"")
                return
            data, status = world.receive(tag=8)
            self.assertEqual((data, status.source, status.tag, status.length), (b"other tag", 0, 8, 9))
            self.assertEqual(world.probe(0, 7).length, 5)
            place = bytearray(b"....." * 2)
            self.assertEqual(world.receive_into(place, 0, 7).length, 5)
            self.assertEqual(place, b"first.....")
            self.assertEqual(world.receive(0, 7)[0], b"x" * 300_000)
            numbers = array.array("d", [0.0, 0.0])
            # Of the tag only these bits matter.
            world.receive_into(numbers, tag=1 << 63, mask=3 << 62)
            self.assertEqual(list(numbers), [1.5, 2.5])
            data, status = world.receive()
            self.assertEqual((data, repr(status)), (b"", "Status(source=0, tag=0, length=0)"))
            self.assertIsNone(world.try_probe())

        self.members(2, run)

    def test_requests_wait_in_any_order(self) -> None:
        def run(world: vmmc.mp.Group) -> None:
            other = 1 - world.rank
            places = [bytearray(200_001) for _ in range(3)]
            receives = [world.start_receive(place, other, tag) for tag, place in enumerate(places)]
            self.assertIsNone(vmmc.mp.wait_any([]))
            with self.assertRaises(vmmc.TimedOut):
                world.start_receive(bytearray(1), other, 99).wait(0.01)
            world.barrier()
            sends = [world.start_send(other, bytes([tag]) * (100_000 * tag + 1), tag) for tag in (2, 1, 0)]
            first = vmmc.mp.wait_any(receives, PATIENCE_S)
            self.assertIsNotNone(receives[first or 0].test())
            statuses = vmmc.mp.wait_all(receives, PATIENCE_S)
            self.assertEqual([(s.tag, s.length) for s in statuses], [(0, 1), (1, 100_001), (2, 200_001)])

        self.members(2, run)

    def test_a_request_survives_a_wait_that_times_out(self) -> None:
        def run(world: vmmc.mp.Group) -> None:
            if world.rank == 0:
                world.receive(1, 1)
                world.send(1, b"late", 2)
                return
            place = bytearray(4)
            request = world.start_receive(place, 0, 2)
            self.assertEqual(repr(request), "<vmmc.mp.Request, a receive>")
            for _ in range(2):
                with self.assertRaises(vmmc.TimedOut):
                    request.wait(0.005)
            with self.assertRaises(vmmc.TimedOut):
                vmmc.mp.wait_any([request], 0.005)
            with self.assertRaises(vmmc.Busy):
                vmmc.mp.wait_any([request, request], 0.005)
            # Nobody resizes what a message is to come into.
            with self.assertRaises(BufferError):
                place.extend(b"more")
            world.send(0, b"", 1)
            self.assertEqual((request.wait(PATIENCE_S).length, request.wait().length), (4, 4))
            self.assertEqual((place, repr(request)), (b"late", "<vmmc.mp.Request, over>"))
            place.extend(b"more")
            withdrawn = world.start_receive(bytearray(4), 0)
            withdrawn.cancel()
            with self.assertRaises(vmmc.Cancelled):
                withdrawn.wait()

        self.members(2, run)

    def test_both_send_long_messages_at_once(self) -> None:
        def run(world: vmmc.mp.Group) -> None:
            data, place = bytes([world.rank]) * 1_000_000, bytearray(1_000_000)
            status = world.exchange(1 - world.rank, data, place, 1 - world.rank, send_tag=5, tag=5)
            self.assertEqual((status.length, place), (1_000_000, bytes([1 - world.rank]) * 1_000_000))

        self.members(2, run)

    def test_long_messages_land_in_memory_of_the_library(self) -> None:
        def run(rank: int) -> None:
            session = self.node.attach(timeout=PATIENCE_S)
            with vmmc.mp.among(session, "memory", rank, [None, None], timeout=PATIENCE_S) as messages:
                memory = messages.memory(1 << 20)
                self.assertEqual((len(memory), len(memory.range(10, 5)), len(memory.range(10))), (1 << 20, 5, (1 << 20) - 10))
                view = memoryview(memory.memory)
                if rank == 0:
                    view[:] = bytes(range(256)) * 4096
                    messages.world.send(1, memory.range(256, 512 << 10))
                else:
                    status = messages.world.receive_into(memory.range(0, 512 << 10), timeout=PATIENCE_S)
                    self.assertEqual(status.length, 512 << 10)
                    self.assertEqual(bytes(view[: 512 << 10]), bytes(range(256)) * 2048)
                    self.assertEqual(messages.counts()["misbehaved"], 0)
                with self.assertRaises(vmmc.OutOfBounds):
                    memory.range(1 << 20, 1)
                messages.world.barrier()
            with self.assertRaises(vmmc.Stale):
                messages.poll()

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(run, rank) for rank in (0, 1)]:
                future.result(2 * PATIENCE_S)

    def test_many_threads_receive_and_none_gets_half_of_another(self) -> None:
        count, threads = 200, 4

        def run(world: vmmc.mp.Group) -> int:
            if world.rank == 0:
                for number in range(count):
                    world.send(1, struct.pack("<I", number) * (1 + number % 50), tag=number % 3)
                for _ in range(threads):
                    world.send(1, b"", tag=9)
                return count

            def take() -> int:
                taken = 0
                while True:
                    data, status = world.receive(timeout=PATIENCE_S)
                    self.assertEqual(len(data), status.length)
                    if status.tag == 9:
                        return taken
                    [number] = set(struct.unpack(f"<{len(data) // 4}I", data))
                    self.assertEqual((number % 3, len(data)), (status.tag, 4 * (1 + number % 50)))
                    taken += 1

            with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                return sum(future.result() for future in [pool.submit(take) for _ in range(threads)])

        # An end may be taken before the last messages: of any tag the oldest is first.
        self.assertEqual(self.members(2, run), [count, count])

    def test_mistakes_say_what_to_do(self) -> None:
        shared = bytearray(8)

        def run(world: vmmc.mp.Group) -> None:
            for call, kind, text in [
                (lambda: world.send(2, b""), vmmc.OutOfBounds, "rank 2 does not exist"),
                (lambda: world.send(-1, b""), vmmc.OutOfBounds, "count from 0"),
                (lambda: world.send(0, b"", tag=-1), vmmc.Invalid, "no word"),
                (lambda: world.receive(mask=1), vmmc.Invalid, "give `tag` too"),
                (lambda: world.receive_into(b"read-only"), vmmc.Invalid, "read-only"),
                (lambda: world.send(0, memoryview(b"abcd")[::2]), vmmc.Invalid, "contiguous"),
                (lambda: world.allreduce(bytearray(8), "mean"), vmmc.Invalid, "is one of sum, product"),
                (lambda: world.allreduce(memoryview(bytearray(8)).cast("c")), vmmc.Invalid, "format 'c'|format \"c\""),
                (lambda: world.allreduce(array.array("d", [1]), "xor"), vmmc.Invalid, "floats"),
                (lambda: world.gather(b"ab", world.rank, into=bytearray(3)), vmmc.Invalid, "`into` has 3 bytes, and 4"),
                (lambda: world.exchange(0, shared, shared), vmmc.Invalid, "overlap"),
                (lambda: world.exchange(0, memoryview(shared)[:5], memoryview(shared)[4:]), vmmc.Invalid, "overlap"),
                (lambda: world.receive(timeout=-1.0), vmmc.Invalid, "timeout"),
                (lambda: world.receive(1 - world.rank, 77, timeout=0.001), vmmc.TimedOut, "nothing came"),
            ]:
                with self.assertRaisesRegex(kind, text):
                    call()
            if world.rank == 0:
                world.send(1, b"longer")
            else:
                with self.assertRaisesRegex(vmmc.OutOfBounds, "6 bytes from rank 0"):
                    world.receive_into(bytearray(5))

        self.members(2, run)

    def test_a_key_press_ends_a_wait(self) -> None:
        session = self.node.attach(timeout=PATIENCE_S)
        messages = vmmc.mp.among(session, "keys", 0, 2, timeout=PATIENCE_S)
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        start = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            messages.world.receive(1)
        self.assertLess(time.monotonic() - start, PATIENCE_S / 2)
        timer.join()
        messages.leave()


class Together(Case):
    def test_collective_calls_agree_with_plain_python(self) -> None:
        for size in (1, 2, 3, 5):
            self.members(size, lambda world: self.together(world))

    def together(self, world: vmmc.mp.Group) -> None:
        rank, size = world.rank, world.size
        ranks = range(size)
        for root in {0, size - 1}:
            for length in (0, 5, 70_000):
                buffer = bytearray([rank + 1]) * length
                world.broadcast(buffer if rank != root else bytes(buffer), root)
                self.assertEqual(buffer, bytearray([root + 1]) * length)
            all_of = b"".join(bytes([r]) * 3 for r in ranks)
            self.assertEqual(world.gather(bytes([rank]) * 3, root), all_of if rank == root else None)
            varied = b"".join(bytes([r]) * r for r in ranks)
            given = world.gather_varied(bytes([rank]) * rank, list(ranks) if rank == root else None, root)
            self.assertEqual(given, varied if rank == root else None)
            part = bytearray(3)
            world.scatter(all_of if rank == root else None, part, root)
            self.assertEqual(part, bytes([rank]) * 3)
            numbers = array.array("q", [rank, -rank, 1])
            world.reduce(numbers, "sum", root)
            total = sum(ranks)
            self.assertEqual(list(numbers), [total, -total, size] if rank == root else [rank, -rank, 1])
        self.assertEqual(world.allgather(bytes([rank])), bytes(ranks))
        self.assertEqual(world.allgather_varied(bytes([rank]) * rank, list(ranks)), varied)
        # In place: what is sent is a part of what is filled.
        place = bytearray(4 * size)
        view = memoryview(place)[4 * rank : 4 * rank + 4]
        view[:] = bytes([rank]) * 4
        self.assertIsNone(world.allgather(view, into=place))
        self.assertEqual(place, b"".join(bytes([r]) * 4 for r in ranks))
        data = b"".join(bytes([rank, to]) for to in ranks)
        self.assertEqual(world.all_to_all(data), b"".join(bytes([of, rank]) for of in ranks))
        lengths, theirs = [rank + to for to in ranks], [of + rank for of in ranks]
        data = b"".join(bytes([rank]) * length for length in lengths)
        got = world.all_to_all_varied(data, lengths, theirs)
        self.assertEqual(got, b"".join(bytes([of]) * length for of, length in zip(ranks, theirs)))
        for code in "bBhHiIqQfd":
            numbers = array.array(code, [rank + 1, 2])
            world.allreduce(numbers, "max")
            self.assertEqual(list(numbers), [size, 2], code)
            numbers = array.array(code, [rank + 1])
            world.scan(numbers)
            self.assertEqual(list(numbers), [sum(range(1, rank + 2))], code)
        bits = bytearray([1 << rank])
        world.allreduce(bits, "or")
        self.assertEqual(bits[0], (1 << size) - 1)

    def test_groups_are_apart(self) -> None:
        def run(world: vmmc.mp.Group) -> None:
            half = world.split(world.rank % 2, key=-world.rank)
            assert half is not None
            self.assertEqual((half.size, half.member(half.rank)), (2, world.rank))
            self.assertEqual(half.allgather(bytes([world.rank])), bytes(sorted((world.rank, (world.rank + 2) % 4))[::-1]))
            self.assertIsNone(world.split(None))
            twin = world.duplicate()
            after = (world.rank + 1) % 4
            world.send(after, b"world", 1)
            twin.send(after, b"twin", 1)
            self.assertEqual((twin.receive()[0], world.receive()[0]), (b"twin", b"world"))

        self.members(4, run)

    @unittest.skipIf(numpy is None, "NumPy is not installed")
    def test_arrays_are_sent_and_combined_as_they_are(self) -> None:
        def run(world: vmmc.mp.Group) -> None:
            field = numpy.full((100, 100), float(world.rank), dtype="f4")
            world.allreduce(field)
            self.assertTrue((field == sum(range(world.size))).all())
            if world.rank == 0:
                world.send(1, numpy.arange(50_000.0))
            elif world.rank == 1:
                place = numpy.zeros(60_000)
                self.assertEqual(world.receive_into(place, 0).length, 400_000)
                self.assertTrue((place[:50_000] == numpy.arange(50_000.0)).all() and not place[50_000:].any())
            all_rows = numpy.zeros((world.size, 3), dtype="i2")
            world.allgather(numpy.full(3, world.rank, dtype="i2"), into=all_rows)
            self.assertEqual(all_rows[:, 0].tolist(), list(range(world.size)))
            with self.assertRaisesRegex(vmmc.Invalid, "byte order"):
                world.allreduce(numpy.zeros(3, dtype=">f8"))
            with self.assertRaisesRegex(vmmc.Invalid, "not computed with"):
                world.allreduce(numpy.zeros(3, dtype="c16"))

        self.members(3, run)


class Jobs(unittest.TestCase):
    """Real processes."""

    def run_job(self, source: str, ranks: int) -> list[vmmc.Event]:
        if "VMMC_BIN" not in os.environ:
            self.skipTest("VMMC_BIN does not name the program `vmmc`, which starts jobs")
        name = f"py-mp-{os.getpid()}-{ranks}-{len(source)}"
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "member.py")
            with open(program, "w", encoding="utf-8") as file:
                file.write(textwrap.dedent(source))
            try:
                return list(vmmc.launch(sys.executable, program, ranks=ranks, node=name, keep_going=True))
            finally:
                vmmc.attach(name, start=False).stop_node()

    def said(self, events: list[vmmc.Event]) -> list[str]:
        return sorted(b"".join(event.data for event in events if event.kind == "output").decode().splitlines())

    def test_ranks_of_a_job_send_to_each_other(self) -> None:
        events = self.run_job(
            """
            import array, vmmc, vmmc.mp
            with vmmc.mp.over(vmmc.Job.attach(), timeout=30) as messages:
                world = messages.world
                after = (world.rank + 1) % world.size
                request = world.start_send(after, bytes([world.rank]) * 100_000, 3)
                data, status = world.receive(tag=3)
                request.wait()
                total = array.array("i", [world.rank])
                world.allreduce(total)
                print(world.rank, status.source, len(data), total[0], flush=True)
                world.barrier()
            """,
            4,
        )
        errors = b"".join(event.data for event in events if event.kind == "error output").decode()
        self.assertEqual({event.number for event in events if event.kind == "exited"}, {0}, errors)
        self.assertEqual(self.said(events), [f"{rank} {(rank + 3) % 4} 100000 6" for rank in range(4)])

    def test_a_killed_rank_is_an_error_of_those_who_wait_for_it_and_the_others_go_on(self) -> None:
        events = self.run_job(
            """
            import os, signal, time, vmmc, vmmc.mp
            messages = vmmc.mp.attach(timeout=60)
            world = messages.world
            world.barrier()
            if world.rank == 1:
                # The others are past the barrier, so they need nothing of this one any more.
                world.receive(0, 4), world.receive(2, 4)
                os.kill(os.getpid(), signal.SIGKILL)
            world.send(1, b"", 4)
            start = time.monotonic()
            calls = [
                lambda: world.receive(1),
                lambda: world.receive_into(bytearray(4), 1),
                lambda: world.start_receive(bytearray(4), 1).wait(),
                lambda: world.probe(1),
                lambda: world.send(1, b"x" * 1_000_000),
                lambda: world.barrier(),
            ]
            for call in calls[world.rank % 2 :]:
                try:
                    call()
                    print(world.rank, "no error", flush=True)
                except vmmc.MembersChanged as error:
                    assert "rank 1 is no longer there" in str(error), error
            assert time.monotonic() - start < 30
            if world.rank in (0, 2):
                world.send(2 - world.rank, b"still here", 5)
                print(world.rank, world.receive(2 - world.rank, 5)[0].decode(), flush=True)
            messages.leave()
            """,
            3,
        )
        errors = b"".join(event.data for event in events if event.kind == "error output").decode()
        ended = sorted((event.ranks[0], event.number) for event in events if event.kind == "exited")
        self.assertEqual(ended, [(0, 0), (1, -signal.SIGKILL), (2, 0)], errors)
        self.assertEqual(self.said(events), ["0 still here", "2 still here"])

    def test_who_aborts_ends_all_with_its_text(self) -> None:
        events = self.run_job(
            """
            import vmmc, vmmc.mp
            messages = vmmc.mp.attach(timeout=60)
            messages.world.barrier()
            if messages.rank == 0:
                messages.abort(3, "the input is wrong")
            try:
                messages.world.receive(0)
            except vmmc.Failed as error:
                print(error, flush=True)
            """,
            2,
        )
        self.assertEqual(self.said(events), ["rank 0 has ended all with code 3: the input is wrong"])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main(verbosity=2)
