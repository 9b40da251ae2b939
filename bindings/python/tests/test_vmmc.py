"""The package as programs use it: over an embedded node, and over a daemon with several processes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import weakref

import vmmc
import vmmc.aio
import vmmc.rpc

try:
    import numpy
except ImportError:
    numpy = None

# Longer than anything takes on a loaded machine.
PATIENCE_S = 30.0


def word(value: int) -> bytes:
    return value.to_bytes(8, "little")


class Case(unittest.TestCase):
    """Each test has a node of its own."""

    def setUp(self) -> None:
        self.node = vmmc.Node(f"py-{os.getpid()}-{self._testMethodName[:30]}", plain=True)
        self.session = self.node.attach(timeout=PATIENCE_S)

    def tearDown(self) -> None:
        self.session.leave()
        del self.session, self.node
        gc.collect()


class Moving(Case):
    def test_data_moves_in_all_ways(self) -> None:
        export = self.session.export(8192, name="m")
        there = self.session.import_("m", rights=vmmc.Rights.ALL)
        there.send(8, b"abcdefgh")
        self.assertEqual(there.fetch(8, 8), b"abcdefgh")
        place = bytearray(4)
        there.fetch_into(9, place)
        self.assertEqual(place, b"bcde")
        self.assertEqual(there.fetch_add(0, 5), 0)
        self.assertEqual(there.compare_swap(0, 5, 9), 5)
        self.assertEqual(there.swap(0, 1), 9)
        self.assertEqual(export.load(0), 1)
        there.send(100, [b"one", memoryview(b"three")])
        self.assertEqual(there.fetch_gather([(100, 3), (103, 5)]), b"onethree")
        there.gather_send([(100, b"x"), (103, b"y")])
        self.assertEqual(there.post_gather_send([(103, b"y"), (200, b"z")]).wait(), 2)
        self.assertEqual(export.read(100, 8), b"xneyhree")
        parts = [bytearray(2), bytearray(6)]
        there.fetch_into(100, parts)
        self.assertEqual(parts, [b"xn", b"eyhree"])
        parts = (bytearray(1), bytearray(2))
        self.assertEqual(there.post_fetch(100, parts).wait(), 3)
        self.assertEqual(parts, (b"x", b"ne"))
        with self.assertRaisesRegex(vmmc.Invalid, "overlap"):
            there.fetch_into(100, [memoryview(parts[1])[1:], parts[1]])
        there.flush()

    def test_registered_memory_moves_without_copies(self) -> None:
        export = self.session.export(1 << 20, name="n", mappable=False)
        there = self.session.import_("n")
        self.assertEqual(there.path, "engine")
        buffer = self.session.buffer(1 << 20)
        memoryview(buffer)[:5] = b"hello"
        there.send(1000, buffer.range(0, 5))
        self.assertEqual(export.read(1000, 5), b"hello")
        transfer = there.post_fetch(1000, buffer.range(10, 5))
        self.assertEqual(transfer.wait(), 5)
        self.assertEqual(transfer.poll(), 5)
        self.assertEqual(bytes(memoryview(buffer)[10:15]), b"hello")
        self.assertEqual(there.post_send(0, b"x" * 100_000).wait(), 100_000)
        there.send(5, [buffer.range(10, 2), buffer.range(0, 1)])
        self.assertEqual(export.read(5, 3), b"heh")
        shared = self.session.export(buffer, name="of-buffer")
        self.session.import_("of-buffer").send(0, b"J")
        self.assertEqual(memoryview(buffer)[0], ord("J"))
        del shared

    def test_records_of_many_go_to_one_ring(self) -> None:
        with self.session.ring(8192, name="inbox") as ring:
            there = self.session.import_("inbox", rights=vmmc.Rights.WRITE)
            self.assertEqual((ring.id, ring.name, ring.size), (there.export_id, "inbox", 8192))
            self.assertIsNone(ring.take())
            with self.assertRaises(vmmc.TimedOut):
                ring.wait(0.001)
            there.append(b"please", word=7)
            there.post_append().wait()
            record = ring.wait()
            self.assertEqual((record.data, record.word), (b"please", 7))
            self.assertEqual(record.sender, (0, self.session.process_id, there.id))
            self.assertEqual([(record.data, record.word) for record in ring], [(b"", 0)])
            with self.assertRaises(vmmc.Error):
                there.append(b"x" * 513)
            with self.assertRaises(vmmc.NotAllowed):
                there.send(0, b"x")
            with self.assertRaises(vmmc.Full):
                for _ in range(100):
                    there.append(b"x" * 500, at_once=True)
            with self.assertRaises(vmmc.Full):
                there.append(b"x" * 500, timeout=0.02)
        with self.assertRaises(vmmc.Stale):
            ring.take()

    def connect(self, endpoint: vmmc.Endpoint) -> vmmc.Connection:
        """The owner polls while a sender connects."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            opening = pool.submit(self.session.connect, endpoint.name, wait=PATIENCE_S)
            while not opening.done():
                self.assertIsNone(endpoint.poll())
            return opening.result()

    def test_messages_with_payloads_go_to_one_endpoint(self) -> None:
        with self.session.endpoint("orders", frames=2) as endpoint:
            with self.assertRaises(vmmc.TimedOut):
                endpoint.wait(0.001)
            with self.assertRaises(vmmc.NotAllowed):
                endpoint.fileno()
            orders = self.connect(endpoint)
            self.assertEqual((orders.endpoint, orders.payload_max, endpoint.senders), ("orders", 8192, 1))
            orders.send(b"two, please", b"a long letter")
            orders.flush()
            self.assertEqual(orders.outstanding(), 1)
            self.assertEqual(self.session.wait_any([self.session, endpoint], PATIENCE_S), 1)
            message = endpoint.wait()
            self.assertEqual((message.control, bytes(message.payload)), (b"two, please", b"a long letter"))
            self.assertEqual(message.sender[:2], (0, self.session.process_id))
            self.assertEqual((len(message.payload), message.payload.read(2, 4)), (13, b"long"))
            for wrong in ((0, 14), (14, 0), (2**63, 1)):
                with self.assertRaises(vmmc.OutOfBounds):
                    message.payload.read(*wrong)
            # Frames are ours until they end; messages without payload go on.
            orders.send(b"more", bytearray(4096))
            held = endpoint.wait().payload
            with self.assertRaises(vmmc.Full):
                orders.send(b"more", b"x", at_once=True)
            with self.assertRaises(vmmc.Full):
                orders.send(b"more", b"x", timeout=0.02)
            orders.send(memoryview(b"no payload"))
            self.assertEqual([(each.control, each.payload) for each in endpoint], [(b"no payload", None)])
            held.close()
            with self.assertRaises(vmmc.Stale):
                held.read()
            orders.send(b"more", b"x", at_once=True)
            with endpoint.wait().payload as last:
                self.assertEqual(bytes(last), b"x")
            for control, payload in ((b"x" * 129, None), (b"", b"x" * 8193)):
                with self.assertRaises(vmmc.Invalid):
                    orders.send(control, payload)
            # One that is longer than a frame takes both, in one piece.
            with self.assertRaises(vmmc.Full):
                orders.send(b"long", bytes(range(256)) * 20, at_once=True)
            message.payload.close()
            orders.send(b"long", bytes(range(256)) * 20, timeout=PATIENCE_S)
            with endpoint.wait().payload as long:
                self.assertEqual(bytes(long), bytes(range(256)) * 20)
                with self.assertRaises(vmmc.Full):
                    orders.send(b"more", b"x", at_once=True)
            orders.send(b"more", b"x", at_once=True)
            endpoint.wait()
            expected = {"messages": 6, "accepted": 1, "refused": 0, "misbehaved": 0}
            self.assertEqual(endpoint.counts(), expected)
            with self.assertRaises(vmmc.NameTaken):
                self.session.endpoint("orders")
        with self.assertRaises(vmmc.Stale):
            endpoint.poll()
        with self.assertRaises(vmmc.Revoked):
            orders.send(b"late")
        orders.close()
        with self.assertRaises(vmmc.Stale):
            orders.send(b"later")
        with self.assertRaises(vmmc.UnknownName):
            self.session.connect("orders")
        with self.session.endpoint("orders", frames=2, mappable=False) as endpoint:
            memory = self.session.buffer(4096)
            memory.write(100, b"letter")
            self.connect(endpoint).send(b"through the node", [b"a long ", memory.range(100, 6)])
            self.assertEqual(bytes(endpoint.wait(PATIENCE_S).payload), b"a long letter")

    def test_payloads_by_token_land_in_their_buffers_or_say_why_not(self) -> None:
        with self.session.endpoint("answers", tokens=2, token_bytes=4096) as endpoint:
            answers = self.connect(endpoint)
            answers.check()

            def sent(token: bytes, payload: object) -> tuple[object, ...]:
                answers.send_by_token(b"here", token, payload, timeout=PATIENCE_S)
                message = endpoint.wait()
                self.assertEqual((message.control, message.payload, message.by_token.token), (b"here", None, token))
                return message.by_token.length, message.by_token.dropped

            first = endpoint.token_buffer()
            self.assertEqual((len(first.token), first.capacity, first.poll()), (20, 4096, None))
            with self.assertRaises(vmmc.TimedOut):
                first.wait(0.001)
            self.assertEqual(sent(first.token, bytes(4097)), (None, "too long"))
            memory = self.session.buffer(4096)
            memory.write(8, b"registered")
            self.assertEqual(sent(first.token, b"a long answer"), (13, None))
            self.assertEqual((first.poll(), first.wait(), bytes(first), first.read(2, 4)), (13, 13, b"a long answer", b"long"))
            for wrong in ((4090, 7), (4097, 0), (2**63, 1)):
                with self.assertRaises(vmmc.OutOfBounds):
                    first.read(*wrong)
            self.assertEqual(sent(first.token, b"another one"), (None, "used"))
            self.assertFalse(first.cancel(), "something has come")
            with endpoint.token_buffer() as second:
                with self.assertRaises(vmmc.Full):
                    endpoint.token_buffer()
                self.assertTrue(second.cancel())
                self.assertEqual(sent(second.token, b"late"), (None, "cancelled"))
            with endpoint.token_buffer() as second:
                self.assertEqual(sent(second.token, [b"bytes, ", memory.range(8, 10)]), (17, None))
                self.assertEqual(bytes(second), b"bytes, registered")
            with self.assertRaises(vmmc.Stale):
                second.poll()
            self.assertEqual(sent(bytes(20), b"x"), (None, "wrong"))
            with self.assertRaisesRegex(vmmc.Invalid, "it has 20"):
                answers.send_by_token(b"", b"short", b"")
            # A buffer can be had also while another thread waits for messages.
            with concurrent.futures.ThreadPoolExecutor() as pool:
                waiting = pool.submit(endpoint.wait, PATIENCE_S)
                third = endpoint.token_buffer()
                answers.send_by_token(b"now", third.token, b"meanwhile")
                self.assertEqual(waiting.result().by_token.length, 9)
                self.assertEqual(bytes(third), b"meanwhile")
            self.assertIsNone(self.took_plain(endpoint, answers).by_token)
        with self.assertRaises(vmmc.Revoked):
            answers.check()
        with self.session.endpoint("bare") as bare, self.assertRaises(vmmc.Error):
            bare.token_buffer()
        with self.assertRaises(vmmc.Invalid):
            self.session.endpoint("none", tokens=0)

    @staticmethod
    def took_plain(endpoint: vmmc.Endpoint, connection: vmmc.Connection) -> vmmc.Message:
        connection.send(b"plain")
        return endpoint.wait()

    def test_messages_come_to_an_event_loop(self) -> None:
        async def main() -> None:
            with self.session.endpoint("loop", notify=True) as endpoint:
                orders = self.connect(endpoint)
                sending = asyncio.get_running_loop().run_in_executor(
                    None, lambda: [orders.send(bytes([number])) for number in range(100)]
                )
                came: list[int] = []
                async for message in vmmc.aio.messages(self.session, endpoint):
                    came.extend(message.control)
                    if len(came) == 100:
                        break
                await sending
                self.assertEqual(came, list(range(100)))

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))

    def test_any_memory_is_sent_and_fetched_pinned(self) -> None:
        export = self.session.export(4 << 20, name="p", mappable=False)
        there = self.session.import_("p", own_order=True)
        data, back = bytearray(os.urandom(4 << 20)), bytearray(4 << 20)
        for _ in range(3):
            data[0] ^= 1
            there.send(0, vmmc.Pinned(data))
            there.fetch_into(0, vmmc.Pinned(back))
            self.assertTrue(back == data)
        self.session.forget(back)
        back[0] ^= 1
        self.assertEqual(export.load(0), int.from_bytes(data[:8], "little"))

    def test_memory_is_lent_and_sent_by_index(self) -> None:
        export = self.session.export(64 << 10, name="lent", mappable=False)
        there = self.session.import_("lent")
        data = mmap.mmap(-1, 16 << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        data[:] = os.urandom(16 << 12)
        lent = self.session.lend(data)
        self.assertEqual(len(lent), 16 << 12)
        with self.assertRaises(BufferError):
            data.close()
        for _ in range(2):
            there.send(3, lent.range(4096, 20_000))
        there.flush()
        self.assertEqual(export.read(3, 20_000), data[4096:24_096])
        with self.assertRaises(vmmc.Error):
            there.send(0, lent.range(0, (16 << 12) + 1))
        self.assertEqual(there.post_send(0, vmmc.Pinned(data)).wait(), 16 << 12)
        self.assertEqual(there.post_send(0, [lent.range(0, 10), b"x"]).wait(), 11)
        there.send(0, lent)
        self.assertEqual(export.read(0, 16 << 12), data[:])
        table = self.session.pinned_table(20)
        try:
            table.place(4, lent)
        except vmmc.Error as why:
            self.skipTest(f"memory cannot be pinned here: {why}")
        del lent
        transfer = there.post_send(0, table.range(5, 100, 5000))
        with self.assertRaises(vmmc.Busy):
            table.remove(5)
        self.assertEqual(transfer.wait(), 5000)
        there.flush()
        self.assertEqual(export.read(0, 5000), data[4196:9196])
        table.remove(5)
        with self.assertRaises(vmmc.Error):
            there.send(0, table.range(5, 0, 1))
        with self.assertRaises(vmmc.Error):
            table.place(19, self.session.lend(data))
        self.assertEqual(len(table), 20)

    def test_a_word_is_awaited(self) -> None:
        export = self.session.export(64, name="w")
        there = self.session.import_("w")
        thread = threading.Thread(target=lambda: there.send(0, word(7)))
        thread.start()
        self.assertEqual(export.wait_word(0, at_least=5), 7)
        thread.join()
        with self.assertRaises(TimeoutError):
            export.wait_word(0, equal=8, timeout=0.01)

    def test_the_conditions_of_a_word_are_known_by_name(self) -> None:
        export = self.session.export(64)
        export.store(0, 6)
        self.assertEqual(export.wait_word(0, timeout=0), 6, "no condition")
        self.assertEqual(export.wait_word(0, equal=None, at_least=6, at_most=6, any_bit=2, timeout=0), 6)
        for condition in {"equal": 7}, {"not_equal": 6}, {"at_least": 7}, {"at_most": 5}, {"any_bit": 9}:
            with self.subTest(condition), self.assertRaises(TimeoutError):
                export.wait_word(0, **condition, timeout=0)
            with self.subTest(condition), self.assertRaises(TimeoutError):
                self.session.wait_any([vmmc.Word(export, 0, **condition)], 0)
        self.assertEqual(self.session.wait_any([vmmc.Word(export, 0)], 0), 0, "no condition")
        known = "there are equal, not_equal, at_least, at_most, any_bit"
        for wait in lambda: export.wait_word(0, greater=5), lambda: vmmc.Word(export, 0, greater=5):
            with self.assertRaisesRegex(TypeError, f'"greater" is no condition of a word; {known}'):
                wait()
        with self.assertRaises(TypeError):
            vmmc.Word(export, 0, equal="6")


class WaitingForSeveral(Case):
    def test_the_first_that_is_there_ends_the_wait(self) -> None:
        export = self.session.export(4096, name="a", notify=True, redirectable=True)
        there = self.session.import_("a")
        ring = self.session.ring(8192, name="inbox")
        inbox = self.session.import_("inbox", rights=vmmc.WRITE)
        redirection = export.redirect(1024, 64, self.session.buffer(64))
        line, other_end = socket.socketpair()
        self.addCleanup(line.close)
        self.addCleanup(other_end.close)
        what = [line, redirection, ring, vmmc.Word(export, 8, at_least=5, not_equal=7), export, self.session]
        with self.assertRaisesRegex(TimeoutError, "wait for any of 6 things"):
            self.session.wait_any(what, 0.01)
        with self.assertRaises(vmmc.TimedOut):
            self.session.wait_any([], timeout=0)
        there.send(0, b"x", notify=True)
        self.assertEqual(self.session.wait_any(what), 4)
        self.assertEqual(self.session.wait_any(what[5:]), 0)
        self.assertIsNotNone(self.session.take_notification())
        export.store(8, 7)
        with self.assertRaises(vmmc.TimedOut):
            self.session.wait_any(what, 0)
        export.store(8, 6)
        self.assertEqual(self.session.wait_any(tuple(what)), 3)
        inbox.append(b"please")
        self.assertEqual(self.session.wait_any(what), 2)
        there.send(1024, bytes(64))
        self.assertEqual(self.session.wait_any(what), 1)
        other_end.send(b"hello")
        self.assertEqual(self.session.wait_any(what), 0)
        self.assertEqual(self.session.wait_any([vmmc.Word(export, 0, equal=0), line.fileno()]), 1)
        self.assertEqual(self.session.wait_any([vmmc.Writable(line)]), 0)
        self.assertEqual(self.session.wait_any([vmmc.Writable(line.fileno())]), 0)
        for transfer in there.post_send(16, b"yes"), there.post_fetch(16, bytearray(3)):
            self.assertEqual(self.session.wait_any([transfer], PATIENCE_S), 0)
            self.assertEqual(transfer.poll(), 3)
        self.assertEqual(bytes(ring.take().data), b"please")

    def test_threads_run_while_one_waits(self) -> None:
        export = self.session.export(64, name="t")
        ring = self.session.ring(8192)
        line, other_end = socket.socketpair()
        begins = threading.Event()
        places: list[int] = []

        def wait() -> None:
            begins.set()
            places.append(self.session.wait_any([ring, vmmc.Word(export, 0, equal=1), line], PATIENCE_S))

        thread = threading.Thread(target=wait)
        thread.start()
        begins.wait(PATIENCE_S)
        time.sleep(0.05)
        with self.assertRaises(vmmc.Busy):
            self.session.wait_any([ring], 0)
        with self.assertRaises(vmmc.Busy):
            export.unexport()
        other_end.send(b"x")
        thread.join(PATIENCE_S)
        self.assertEqual(places, [2])
        line.close()
        other_end.close()

    def test_what_cannot_be_waited_for_is_an_error(self) -> None:
        export = self.session.export(64, name="e", notify=True)
        there = self.session.import_("e")
        transfer = there.post_send(0, b"x")
        quiet = self.session.export(64)
        ring = self.session.ring(8192)
        ended = self.session.export(64)
        ended.unexport()
        other = vmmc.Node(f"py-other-{os.getpid()}", plain=True)
        stranger = other.attach()
        closed = socket.socket()
        closed.close()
        for what, kind, said in [
            ([ring, transfer, transfer], ValueError, "place 2 stands in the list twice"),
            ([ring, ring], ValueError, "name it once"),
            ([-1], ValueError, "-1 is no descriptor"),
            ([1 << 40], ValueError, "is no descriptor"),
            ([vmmc.Writable(closed)], ValueError, "give one that is open"),
            ([object()], ValueError, "type object cannot be waited for"),
            ([export, stranger], vmmc.Foreign, "place 1"),
            ([stranger.export(64, notify=True)], vmmc.Foreign, "place 0"),
            ([quiet], vmmc.NotAllowed, "notifications"),
            ([ended], vmmc.Stale, "ended"),
            ([vmmc.Word(quiet, 4, equal=0)], vmmc.Misaligned, ""),
            ([vmmc.Word(quiet, 64, equal=0)], vmmc.OutOfBounds, ""),
        ]:
            with self.subTest(said), self.assertRaisesRegex(kind, said):
                self.session.wait_any(what, 0)
        with self.assertRaises(vmmc.Invalid):
            vmmc.Word(quiet, 0, equal=-1)
        with self.assertRaises(TypeError):
            self.session.wait_any(3)
        stranger.leave()


class Continuing(Case):
    def setUp(self) -> None:
        super().setUp()
        # Not mapped: a transfer is under way until the node has been stepped.
        self.export = self.session.export(1 << 20, name="c", mappable=False)
        self.there = self.session.import_("c")

    def tearDown(self) -> None:
        del self.export, self.there
        super().tearDown()

    def test_each_function_is_called_once_and_may_add_others(self) -> None:
        every = self.session.continuations()
        self.assertEqual((every.run(), every.wait(), len(every), bool(every)), (0, 0, 0, False))
        ends: list[tuple[str, int]] = []
        places = [bytearray(100_000) for _ in range(4)]

        def fetched(transfer: vmmc.Transfer) -> None:
            ends.append(("fetch", transfer.wait()))

        def sent(transfer: vmmc.Transfer) -> None:
            ends.append(("send", transfer.wait()))
            self.assertEqual(transfer.poll(), 100_000, "and again")
            fetch = self.there.post_fetch(0, places[len(ends) % 4])
            every.add(fetch, fetched)
            with self.assertRaisesRegex(vmmc.Busy, "ask for its end in the function"):
                fetch.poll()

        for number in range(4):
            every.add(self.there.post_send(0, bytes([number + 1]) * 100_000), sent)
        self.assertEqual(len(every), 4)
        count = 0
        while every:
            count += every.wait(PATIENCE_S)
        self.assertEqual((count, every.run()), (8, 0))
        self.assertEqual(sorted(ends), [("fetch", 100_000)] * 4 + [("send", 100_000)] * 4)
        self.assertTrue(any(place.count(place[0]) == 100_000 and place[0] > 0 for place in places))
        self.assertIn("0 transfers", repr(every))

    def test_what_a_function_raises_loses_no_other_end(self) -> None:
        every = self.session.continuations()
        called: list[int] = []

        def follow(number: int) -> None:
            def function(_: vmmc.Transfer) -> None:
                called.append(number)
                if number in (1, 2):
                    raise KeyError(number)

            every.add(self.there.post_send(0, b"x"), function)

        for number in range(4):
            follow(number)
        self.there.flush()
        with self.assertRaisesRegex(KeyError, "1"):
            every.run()
        self.assertEqual((called, len(every)), ([0, 1], 2))
        # What is left is there for a wait for several things, behind what stands before it.
        start = time.monotonic()
        self.assertEqual(self.session.wait_any([self.session, every]), 1)
        word = vmmc.Word(self.export, 8, equal=0)
        self.assertEqual(self.session.wait_any([word, every]), 0)
        self.assertEqual(self.session.wait_any([every, word]), 0)
        self.assertLess(time.monotonic() - start, PATIENCE_S / 2)
        with self.assertRaisesRegex(KeyError, "2"):
            every.wait()
        self.assertEqual((every.wait(), called, len(every)), (1, [0, 1, 2, 3], 0))
        self.assertEqual(every.wait(), 0)

    def test_the_error_of_a_transfer_is_raised_where_it_is_asked_for(self) -> None:
        every = self.session.continuations()
        errors: list[type] = []

        def function(transfer: vmmc.Transfer) -> None:
            try:
                transfer.wait()
            except vmmc.Error as error:
                errors.append(type(error))

        for _ in range(40):
            every.add(self.there.post_fetch(0, bytearray(1 << 20)), function)
        self.session.leave()
        while every:
            self.assertGreater(every.wait(PATIENCE_S), 0)
        self.assertIn(vmmc.NodeGone, errors)

    def test_they_are_waited_for_beside_other_things(self) -> None:
        line, other_end = socket.socketpair()
        self.addCleanup(line.close)
        self.addCleanup(other_end.close)
        every = self.session.continuations()
        what = [self.session, line, every]
        with self.assertRaises(vmmc.TimedOut):
            self.session.wait_any(what, 0.01)
        ended: list[vmmc.Transfer] = []
        for _ in range(3):
            every.add(self.there.post_fetch(0, bytearray(1 << 20)), ended.append)
        while every:
            self.assertEqual(self.session.wait_any(what, PATIENCE_S), 2)
            self.assertGreater(every.run(), 0)
        self.assertEqual([transfer.wait() for transfer in ended], [1 << 20] * 3)
        # A transfer that has followed is over for every wait.
        self.assertEqual(self.session.wait_any([self.session, ended[0]], PATIENCE_S), 1)
        every.add(ended[0], ended.append)
        self.assertEqual((every.run(), len(ended)), (1, 4))
        other_end.send(b"x")
        self.assertEqual(self.session.wait_any(what, PATIENCE_S), 1)
        with self.assertRaisesRegex(vmmc.Invalid, "place 1 stands in the list twice"):
            self.session.wait_any([every, every], 0)

    def test_what_cannot_be_added_stays_with_the_caller(self) -> None:
        every = self.session.continuations()
        other = vmmc.Node(f"py-far-{os.getpid()}", plain=True)
        stranger = other.attach()
        strange = stranger.continuations()
        transfer = self.there.post_send(0, b"xy")
        with self.assertRaisesRegex(vmmc.Foreign, "add it to some of its own"):
            strange.add(transfer, print)
        with self.assertRaisesRegex(ValueError, "pass a function that takes a transfer"):
            every.add(transfer, 7)
        with self.assertRaises(TypeError):
            every.add(7, print)
        with self.assertRaisesRegex(vmmc.Foreign, "place 0"):
            self.session.wait_any([strange], 0)
        self.assertEqual((transfer.wait(), len(every), len(strange)), (2, 0, 0))
        every.add(transfer, lambda _: None)
        with self.assertRaises(vmmc.Busy):
            every.add(transfer, print)
        with self.assertRaises(vmmc.Busy):
            self.session.wait_any([transfer], 0)
        self.assertEqual(every.run(), 1)
        stranger.leave()

    def test_one_thread_at_a_time_waits_and_a_function_runs_what_is_left(self) -> None:
        every = self.session.continuations()
        line, other_end = socket.socketpair()
        self.addCleanup(line.close)
        self.addCleanup(other_end.close)
        begins = threading.Event()

        def wait() -> None:
            begins.set()
            self.session.wait_any([every, line], PATIENCE_S)

        thread = threading.Thread(target=wait)
        thread.start()
        begins.wait(PATIENCE_S)
        time.sleep(0.05)
        transfer = self.there.post_send(0, b"x")
        for call in every.run, every.wait, lambda: every.add(transfer, print):
            with self.assertRaisesRegex(vmmc.Busy, "let it come back first"):
                call()
        other_end.send(b"x")
        thread.join(PATIENCE_S)
        ran: list[int] = []
        every.add(transfer, lambda _: ran.append(every.run()))
        for _ in range(2):
            every.add(self.there.post_send(0, b"y"), lambda _: ran.append(7))
        self.there.flush()
        self.assertEqual((every.run(), ran, len(every)), (1, [7, 7, 2], 0))

    def test_what_was_not_called_goes_with_its_list(self) -> None:
        class Follower:
            """The list holds it, and it holds the list."""

            def __init__(self, every: vmmc.Continuations) -> None:
                self.every = every

            def follow(self, _: vmmc.Transfer) -> None:
                raise AssertionError("it was not over")

        every = self.session.continuations()
        follower = Follower(every)
        gone = weakref.ref(follower)
        every.add(self.there.post_fetch(0, bytearray(1 << 20)), follower.follow)
        del every, follower
        gc.collect()
        self.assertIsNone(gone())
        self.assertEqual(self.there.fetch(0, 2), bytes(2))

    def test_what_was_found_before_is_not_waited_for(self) -> None:
        # Of a process that is stopped, so that a fetch from it stays under way.
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys, vmmc; node = vmmc.Node(sys.argv[1], listen=['127.0.0.1:0'], plain=True);"
                "session = node.attach(); export = session.export(64, name='far', access='anyone');"
                "print(*node.addresses, flush=True); export.wait_word(0, not_equal=0, timeout=60)",
                f"py-far-{os.getpid()}",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        assert child.stdout is not None
        addresses = child.stdout.readline().split()
        near = vmmc.Node(f"py-near-{os.getpid()}", listen=["127.0.0.1:0"], peers=addresses, plain=True)
        session = near.attach(timeout=PATIENCE_S)
        local = session.export(64, name="near")
        here, there = session.import_("near"), session.import_("far", node=f"py-far-{os.getpid()}")
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        every = session.continuations()

        def fail(_: vmmc.Transfer) -> None:
            raise KeyError

        called: list[vmmc.Transfer] = []
        for function in fail, called.append:
            every.add(here.post_send(0, b"x"), function)
        every.add(there.post_fetch(0, bytearray(8)), called.append)
        with self.assertRaises(KeyError):
            every.run()
        self.assertEqual((every.wait(0), len(called), len(every)), (1, 1, 1))
        with self.assertRaises(vmmc.TimedOut):
            every.wait(0)
        session.leave()
        self.assertEqual(local.read(0, 1), b"x")


class Views(Case):
    def test_views_are_the_memory(self) -> None:
        export = self.session.export(4096, name="v")
        there = self.session.import_("v")
        view = memoryview(export)
        self.assertEqual((len(view), view.readonly), (4096, False))
        there.send(3, b"!")
        self.assertEqual(view[3], ord("!"))
        seen = memoryview(there)
        self.assertTrue(seen.readonly)
        view[4] = 9
        self.assertEqual(seen[4], 9)

    def test_a_view_outlives_import_export_and_session(self) -> None:
        export = self.session.export(1 << 20, name="v")
        seen = memoryview(self.session.import_("v"))
        binding = self.session.import_("v").bind()
        stored, own = memoryview(binding), memoryview(export)
        stored[0] = 1
        self.assertEqual((seen[0], own[0]), (1, 1))
        del binding
        self.assertEqual(export.unexport(), "moved")
        stored[0] = 2
        self.assertEqual(own[0], 1, "the exporter's bytes are on other pages")
        self.session.leave()
        del export
        gc.collect()
        self.assertEqual((own[0], stored[0], seen[0], own[-1], seen[-1]), (1, 2, 2, 0, 0))

    def test_unmapped_imports_say_why_they_cannot_be_viewed(self) -> None:
        self.exported = self.session.export(64, name="u", mappable=False)
        there = self.session.import_("u")
        with self.assertRaisesRegex(vmmc.NotMapped, "does not allow mapping"):
            memoryview(there)
        with self.assertRaises(BufferError):
            there.bind()

    def test_library_memory_is_a_numpy_array(self) -> None:
        if numpy is None:
            self.skipTest("no numpy")
        export = self.session.export(8 * 100 * 10, name="a")
        table = export.array("f8", (100, 10))
        table[3, 4] = 2.5
        there = self.session.import_("a")
        self.assertEqual(there.path, "mapped")
        seen = there.array("f8", (100, 10))
        self.assertEqual(seen[3, 4], 2.5)
        self.assertFalse(seen.flags.writeable)
        self.assertTrue(numpy.shares_memory(table, export.array("f8")))
        bound = there.bind().array("f8", (100, 10))
        bound[3, 4] = 3.5
        self.assertEqual(table[3, 4], 3.5)
        there.send(0, numpy.full(10, 7.0))
        self.assertEqual(table[0].tolist(), [7.0] * 10)
        export.unexport()
        self.assertEqual((table[3, 4], bound[3, 4]), (3.5, 3.5))


class OwnMemory(Case):
    def test_whole_pages_are_exported_in_place_and_mapped(self) -> None:
        memory = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:2] = b"ab"
        export = self.session.export(memory, name="p")
        there = self.session.import_("p")
        self.assertEqual((export.in_place, there.path), (True, "mapped"))
        there.send(1, b"XY")
        self.assertEqual(memory[:3], b"aXY")
        export.unexport()
        del export
        gc.collect()
        memory[0] = 1
        self.assertEqual(memory[:3], b"\x01XY")
        memory.close()

    def test_a_large_array_is_exported_in_place(self) -> None:
        if numpy is None:
            self.skipTest("no numpy")
        # Above the largest threshold of malloc, so it is a mapping of its own.
        array = numpy.zeros(40 << 20, dtype="u1")
        with self.session.export(array, name="l") as export:
            self.assertTrue(export.in_place)
            there = self.session.import_("l")
            there.send(5_000, b"in place")
            there.flush()
            self.assertEqual(array[5_000:5_008].tobytes(), b"in place")
            with self.assertRaises((ValueError, BufferError)):
                array.resize(10)
        del export
        gc.collect()
        array[:] = 1
        self.assertEqual(int(array.sum()), 40 << 20)

    def test_memory_that_shares_pages_says_what_it_costs(self) -> None:
        small = bytearray(100)
        with self.assertRaisesRegex(vmmc.Unsuitable, "share_edges=True"):
            self.session.export(small)
        copy = self.session.export(small, name="c", copy=True)
        self.session.import_("c").send(0, b"x")
        self.assertEqual((small[0], memoryview(copy)[0], copy.in_place), (0, ord("x"), False))
        shared = self.session.export(small, name="s", share_edges=True)
        there = self.session.import_("s")
        there.send(0, b"y")
        there.flush()
        self.assertEqual((small[0], there.path), (ord("y"), "engine"))
        with self.assertRaises(BufferError):
            small.extend(b"more")
        del shared, there
        gc.collect()
        small.extend(b"more")

    def test_read_only_and_scattered_objects_are_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "read-only"):
            self.session.export(b"constant")
        with self.assertRaisesRegex(ValueError, "not contiguous"):
            self.session.export(memoryview(bytearray(100))[::2])
        with self.assertRaises(TypeError):
            self.session.export(3.5)

    def test_a_buffer_of_own_memory_receives(self) -> None:
        memory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        source = self.session.export(4096, name="src")
        source.write(0, b"there")
        buffer = self.session.buffer(memory)
        self.session.import_("src").fetch_into(0, buffer)
        self.assertEqual(memory[:5], b"there")
        del buffer
        gc.collect()
        memory.close()


class Telling(Case):
    def test_notifications_are_awaited_taken_and_handled(self) -> None:
        export = self.session.export(64, name="n", notify=True)
        there = self.session.import_("n")
        there.send(8, word(5), notify=True)
        got = export.wait_notification()
        self.assertEqual((got.export_id, got.offset, got.len, got.last_word), (export.id, 8, 8, 5))
        self.assertEqual((got.word, got.sender), (0, (0, self.session.process_id, there.id)))
        self.assertEqual(self.session.node_of(got.sender), self.session.node)
        self.assertIsNone(self.session.node_of((12345, 0, 0)))
        self.assertIsNone(export.take_notification())
        there.send(8, word(5), word=7)
        self.assertEqual(export.wait_notification().word, 7)
        export.block_notifications()
        there.send(0, word(6), notify=True)
        self.assertIsNone(export.take_notification())
        export.unblock_notifications()
        self.assertEqual(self.session.wait_notification().last_word, 6)
        seen: list[int] = []
        done = threading.Event()

        def handle(notification: vmmc.Notification) -> None:
            seen.append(notification.last_word)
            if len(seen) == 3:
                done.set()

        with export.on_notification(handle):
            for number in range(3):
                there.send(0, word(number), notify=True, counter=16)
            self.assertTrue(done.wait(PATIENCE_S))
        self.assertEqual((seen, export.load(16)), ([0, 1, 2], 3))
        with self.assertRaises(vmmc.NotAllowed):
            self.session.export(64).wait_notification()

    def test_asyncio_gets_notifications(self) -> None:
        first = self.session.export(64, name="a", notify=True)
        second = self.session.export(64, name="b", notify=True)

        async def main() -> list[int]:
            with vmmc.aio.Notifications(self.session) as inbox:
                with self.assertRaises(vmmc.TimedOut):
                    await inbox.next(first, timeout=0.01)
                there = [self.session.import_(name) for name in "ab"]
                waiting = asyncio.ensure_future(inbox.next(second, timeout=PATIENCE_S))
                await asyncio.sleep(0)
                there[0].send(0, word(1), notify=True)
                there[1].send(0, word(2), notify=True)
                found = [(await waiting).last_word, (await inbox.next(first, timeout=PATIENCE_S)).last_word]
                transfer = there[0].post_send(0, b"x" * 8)
                self.assertEqual(await vmmc.aio.wait(transfer), 8)
                there[0].send(0, word(3), notify=True)
                async for notification in inbox.of(first):
                    found.append(notification.last_word)
                    break
                return found

        self.assertEqual(asyncio.run(main()), [2, 1, 3])

    def test_closing_ends_those_who_wait(self) -> None:
        export = self.session.export(64, notify=True)

        async def main() -> int:
            inbox = vmmc.aio.Notifications(self.session)
            asyncio.get_running_loop().call_later(0.05, inbox.close)
            count = 0
            async for _ in inbox.of(export):
                count += 1
            with self.assertRaises(RuntimeError):
                await inbox.next(export)
            return count

        self.assertEqual(asyncio.run(asyncio.wait_for(main(), PATIENCE_S)), 0)

    def test_redirection_tells_the_parts(self) -> None:
        inbox = self.session.export(1000, name="r", redirectable=True)
        there = self.session.import_("r")
        there.send(0, b"a" * 400)
        there.flush()
        place = self.session.buffer(1000)
        redirection = inbox.redirect(0, 1000, place)
        self.assertEqual(redirection.report().pending, [(400, 600)])
        with self.assertRaises(vmmc.TimedOut):
            redirection.wait(0.01)
        there.send(400, b"b" * 600)
        report = redirection.wait()
        self.assertEqual((report.copied, report.redirected, report.pending), ([(0, 400)], [(400, 600)], []))
        self.assertEqual(bytes(place), b"a" * 400 + b"b" * 600)
        inbox.consume(0, 1000)
        again = inbox.redirect(0, 10, place)
        self.assertEqual(again.cancel().pending, [(0, 10)])
        with self.assertRaises(vmmc.Stale):
            again.wait()

    def test_thousands_of_buffers_are_posted_ahead(self) -> None:
        inbox = self.session.export(64 << 10, name="row", redirectable=True)
        there = self.session.import_("row")
        place = self.session.buffer(64 << 10)
        posted = [inbox.post_redirect(at, 32, place, at) for at in range(0, 64 << 10, 32)]
        with self.assertRaises(vmmc.Busy):
            inbox.post_redirect(10, 10, place).wait()
        there.send(0, bytes(range(256)) * 256)
        for number, redirection in enumerate(posted):
            self.assertEqual(redirection.wait().redirected, [(32 * number, 32)])
        self.assertEqual(bytes(place), bytes(range(256)) * 256)

    def test_paths_are_explained_and_counted(self) -> None:
        export = self.session.export(64, name="e")
        there = self.session.import_("e")
        there.send(0, b"x")
        self.assertIn("path: mapped", there.explain())
        self.assertEqual(there.explanation()["path"], "mapped")
        self.assertEqual(self.session.stats()["sends_mapped"], 1)
        self.assertEqual(self.session.node_info(True)["exports"][0]["name"], "e")
        self.assertGreater(self.session.limits()["exports"], 100)
        self.assertEqual(self.session.import_(export.id).export_id, there.export_id)


class Readme(unittest.TestCase):
    def test_the_program_in_the_readme_runs(self) -> None:
        readme = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "README.md")
        with open(readme, encoding="utf-8") as file:
            program = file.read().split("```python\n")[1].split("```")[0]
        # By a node that is started for it: the program attaches as users' programs do.
        if "VMMC_BIN" not in os.environ:
            self.skipTest("VMMC_BIN does not name the program `vmmc`, which starts a node")
        subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


class Reference(unittest.TestCase):
    def test_every_public_member_has_a_docstring(self) -> None:
        own = [vmmc, vmmc.aio, vmmc.rpc]
        named = {f"{module.__name__}.{name}": getattr(module, name) for module in own for name in public(module)}
        classes = {name: value for name, value in named.items() if isinstance(value, type)}
        for name, value in classes.items():
            named |= {f"{name}.{member}": getattr(value, member) for member in vars(value) if not member.startswith("_")}
        documented = {
            name: value
            for name, value in named.items()
            # Numbers and words explain themselves by their class.
            if not isinstance(value, (int, str))
        }
        self.assertGreater(len(documented), 100)
        bare = [name for name, value in documented.items() if not (getattr(value, "__doc__", "") or "").strip()]
        self.assertEqual(bare, [])


def public(module: object) -> list[str]:
    """Names that a module gives: those it lists, else those that are its own."""
    listed = getattr(module, "__all__", None)
    own = [n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", "") == module.__name__]
    return list(listed if listed is not None else own)


class Ends(Case):
    def test_wrong_numbers_and_rights_are_errors_of_ours(self) -> None:
        export = self.session.export(4096, name="w")
        there = self.session.import_("w", rights=vmmc.Rights.ALL)
        buffer = self.session.buffer(4096)
        outside = [
            lambda: there.send(-1, b"x"),
            lambda: there.fetch(0, -1),
            lambda: there.fetch(1 << 64, 1),
            lambda: there.fetch_gather([(-8, 8)]),
            lambda: there.send(0, b"x", counter=-8),
            lambda: buffer.range(-1),
            lambda: there.array("u1", 4, -4),
            lambda: export.read(-1),
            lambda: export.load(-8),
            lambda: export.write(-1, b"x"),
            lambda: buffer.write(-1, b"x"),
            lambda: self.session.export(-1),
            lambda: self.session.buffer(-1),
        ]
        for number, call in enumerate(outside):
            with self.subTest(call=number), self.assertRaisesRegex(vmmc.OutOfBounds, "count from 0") as caught:
                call()
            self.assertIsInstance(caught.exception, IndexError)
        for call in [lambda: there.fetch_add(0, -1), lambda: export.store(0, 1 << 64), lambda: export.wait_word(0, equal=-1)]:
            with self.assertRaisesRegex(vmmc.Invalid, r"% 2\*\*64"):
                call()
        for rights in ["rw", 3.5, -1, 256]:
            with self.assertRaisesRegex(ValueError, r"vmmc\.READ \| vmmc\.WRITE"):
                self.session.import_("w", rights=rights)
            with self.assertRaisesRegex(ValueError, r"vmmc\.READ \| vmmc\.WRITE"):
                self.session.export(64, rights=rights)
        with self.assertRaises(TypeError):
            there.send("0", b"x")

    def test_errors_are_exceptions_with_the_right_bases(self) -> None:
        export = self.session.export(64, name="x", rights=vmmc.READ)
        there = self.session.import_("x", rights=vmmc.READ)
        for call, kind, base in [
            (lambda: self.session.export(64, name="x"), vmmc.NameTaken, ValueError),
            (lambda: self.session.import_("nobody"), vmmc.UnknownName, LookupError),
            (lambda: self.session.import_("x", rights=vmmc.Rights.ALL), vmmc.NoRight, PermissionError),
            (lambda: there.send(0, b"x"), vmmc.NoRight, PermissionError),
            (lambda: there.fetch(60, 8), vmmc.OutOfBounds, IndexError),
            (lambda: export.load(4), vmmc.Misaligned, ValueError),
            (lambda: export.wait_word(0, equal=1, timeout=-1), vmmc.Invalid, ValueError),
            (lambda: self.session.export(64, rights=64), vmmc.Invalid, ValueError),
            (lambda: self.session.export(64, access="everyone"), vmmc.Invalid, ValueError),
            (lambda: vmmc.Node("../x", plain=True), vmmc.NoNode, ConnectionError),
            (lambda: vmmc.Job.attach(), vmmc.NoJob, RuntimeError),
        ]:
            with self.assertRaises(kind) as caught:
                call()
            self.assertIsInstance(caught.exception, vmmc.Error)
            self.assertIsInstance(caught.exception, base)
            self.assertTrue(str(caught.exception))

    def test_after_the_end_calls_are_errors(self) -> None:
        with self.session.export(64, name="x") as export:
            there = self.session.import_("x")
        self.assertTrue(export.ended)
        with self.assertRaises(vmmc.Stale):
            export.load(0)
        with self.assertRaises(vmmc.Stale):
            export.unexport()
        with self.assertRaises(vmmc.Revoked):
            there.send(0, b"x")
        with self.assertRaises(ConnectionError):
            there.check()
        self.session.leave()
        with self.assertRaises(vmmc.NodeGone):
            self.session.export(64)

    def test_a_child_of_a_fork_gets_an_error(self) -> None:
        self.session.export(64, name="x")
        pid = os.fork()
        if pid == 0:
            try:
                self.session.export(64)
            except vmmc.Forked:
                os._exit(7)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 7)

    def test_threads_wait_without_the_interpreters_lock(self) -> None:
        export = self.session.export(64, name="t")
        there = self.session.import_("t")
        results: list[int] = []
        threads = [threading.Thread(target=lambda: results.append(export.wait_word(0, not_equal=0))) for _ in range(4)]
        for thread in threads:
            thread.start()
        there.send(0, word(3))
        for thread in threads:
            thread.join(PATIENCE_S)
        self.assertEqual(results, [3] * 4)


class Interrupts(Case):
    """A key press ends every kind of wait long before its deadline."""

    def test_a_key_press_ends_every_wait(self) -> None:
        export = self.session.export(4096, name="i", notify=True, redirectable=True)
        place = self.session.buffer(64)
        redirection = export.redirect(0, 64, place)
        line, other_end = socket.socketpair()
        self.addCleanup(line.close)
        self.addCleanup(other_end.close)
        waits = {
            "word": lambda: export.wait_word(128, not_equal=0, timeout=PATIENCE_S),
            "notification": lambda: export.wait_notification(PATIENCE_S),
            "any notification": lambda: self.session.wait_notification(PATIENCE_S),
            "several things": lambda: self.session.wait_any([self.session, vmmc.Word(export, 128, equal=1), line], PATIENCE_S),
            "redirection": lambda: redirection.wait(PATIENCE_S),
            "continuations": lambda: self.session.wait_any([self.session.continuations()], PATIENCE_S),
            "import": lambda: self.session.import_("later", wait=PATIENCE_S),
        }
        for name, wait in waits.items():
            with self.subTest(name):
                self.interrupt(wait)

    def interrupt(self, wait) -> None:
        begins = threading.Event()

        def press() -> None:
            begins.wait()
            # The wait begins now; a signal that comes before it raises just the same.
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=press)
        thread.start()
        start = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            begins.set()
            wait()
            time.sleep(PATIENCE_S)
        self.assertLess(time.monotonic() - start, PATIENCE_S / 2)
        thread.join()


class Processes(unittest.TestCase):
    """A daemon, brought up by the package itself, and several processes."""

    def setUp(self) -> None:
        self.name = f"py-daemon-{os.getpid()}-{self._testMethodName[-20:]}"
        self.environment = {k: v for k, v in os.environ.items() if k not in ("VMMC_BIN", "VMMC_NODE")}
        # Without the program `vmmc` on the path: the package is the node.
        self.environment.update(VMMC_NODE=self.name, PATH="/nowhere")

    def tearDown(self) -> None:
        try:
            vmmc.attach(self.name, start=False).stop_node()
        except (vmmc.NoNode, vmmc.NodeGone):
            pass

    def start(self, code: str) -> subprocess.Popen[str]:
        program = "import os, signal, sys, time, vmmc\n" + textwrap.dedent(code)
        return subprocess.Popen(
            [sys.executable, "-c", program], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def finish(self, child: subprocess.Popen[str], code: int = 0) -> str:
        said = child.communicate(timeout=60)[0]
        self.assertEqual(child.returncode, code, said)
        return said

    def test_calls_between_processes_and_the_death_of_the_server(self) -> None:
        server = self.start(
            """
            import vmmc.rpc

            @vmmc.rpc.method
            def echo(value, data=b""):
                return [value, len(data)]

            @vmmc.rpc.method
            def die():
                os.kill(os.getpid(), signal.SIGKILL)

            server = vmmc.rpc.serve(vmmc.attach(), "mortal", echo, die)
            time.sleep(60)
            """
        )
        client = self.start(
            """
            import vmmc.rpc
            mortal = vmmc.rpc.connect(vmmc.attach(), "mortal", timeout=30)
            assert mortal.echo("living", b"12") == ["living", 2]
            before = mortal.die.start()
            start = time.monotonic()
            try:
                before.wait()
            except vmmc.Lost as error:
                assert error.may_have_happened and isinstance(error, ConnectionError)
                print("lost after", time.monotonic() - start)
            try:
                mortal.echo("dead")
            except ConnectionError as error:
                assert not error.may_have_happened, error
                print("gone")
            """
        )
        said = self.finish(client)
        self.assertIn("lost after", said)
        self.assertIn("gone", said)
        self.finish(server, -signal.SIGKILL)

    def test_two_processes_and_the_death_of_one(self) -> None:
        owner = self.start(
            """
            session = vmmc.attach()
            export = session.export(4096, name="two", notify=True)
            print(export.wait_word(0, not_equal=0, timeout=30), flush=True)
            export.wait_notification(30)
            os.kill(os.getpid(), signal.SIGKILL)
            """
        )
        user = self.start(
            """
            session = vmmc.attach()
            there = session.import_("two", wait=30)
            assert there.path == "mapped", there.explain()
            seen = memoryview(there)
            there.send(0, (42).to_bytes(8, "little"))
            there.send(8, b"x", notify=True)
            end = time.monotonic() + 30
            while time.monotonic() < end:
                try:
                    there.send(16, b"y")
                except vmmc.OwnerDied as error:
                    print(error)
                    assert seen[0] == 42
                    sys.exit(0)
            sys.exit("never told")
            """
        )
        self.assertIn("the exporting process is gone", self.finish(user))
        self.assertEqual(self.finish(owner, -signal.SIGKILL), "42\n")

    def test_an_event_loop_is_told_of_the_death_of_its_node_and_sleeps_after_it(self) -> None:
        child = self.start(
            """
            import asyncio, vmmc.aio
            session, user = vmmc.attach(), vmmc.attach()
            export = session.export(64, name="inbox", notify=True)
            # Whoever may notify keeps the wake-up of the session open.
            there = user.import_("inbox")

            async def used(seconds):
                before = time.process_time()
                await asyncio.sleep(seconds)
                return time.process_time() - before

            async def main():
                inbox = vmmc.aio.Notifications(session)
                waiting = asyncio.ensure_future(inbox.next(export, timeout=30))
                there.send(0, b"x", notify=True)
                await waiting
                waiting = [asyncio.ensure_future(inbox.next(export, timeout=30)) for _ in range(2)]
                print("while it lives", await used(1))
                os.kill(session.node_info()["pid"], signal.SIGKILL)
                for told in await asyncio.gather(*waiting, return_exceptions=True):
                    print(type(told).__name__, told)
                print("while it is dead", await used(1))
                # Whoever waits from here on is told at once.
                start = time.monotonic()
                for wait in (inbox.next(), anext(inbox.of(export))):
                    try:
                        await wait
                    except vmmc.NodeGone as error:
                        print("NodeGone", error)
                assert time.monotonic() - start < 10
                inbox.close()
                print("after it", await used(1))

            asyncio.run(main())
            """
        )
        lines = self.finish(child).splitlines()
        gone = "NodeGone wait for a notification: the node is gone; start it again and attach anew"
        self.assertEqual([line for line in lines if line.startswith("NodeGone")], [gone] * 4, lines)
        times = [line for line in lines if not line.startswith("NodeGone")]
        self.assertEqual(len(times), 3, lines)
        for line in times:
            self.assertLess(float(line.split()[-1]), 0.2, line)

    def test_an_event_loop_is_told_that_its_session_has_left(self) -> None:
        child = self.start(
            """
            import asyncio, vmmc.aio
            session = vmmc.attach()

            async def main():
                with vmmc.aio.Notifications(session) as inbox:
                    waiting = asyncio.ensure_future(inbox.next(timeout=30))
                    await asyncio.sleep(0.1)
                    session.leave()
                    try:
                        await waiting
                    except vmmc.NodeGone:
                        print("told")

            asyncio.run(main())
            """
        )
        self.assertEqual(self.finish(child), "told\n")

    def test_a_key_press_ends_a_wait_of_a_daemons_process(self) -> None:
        child = self.start(
            """
            session = vmmc.attach()
            export = session.export(64, notify=True)
            try:
                print("waiting", flush=True)
                export.wait_notification(60)
            except KeyboardInterrupt:
                sys.exit(3)
            """
        )
        assert child.stdout is not None
        self.assertEqual(child.stdout.readline(), "waiting\n")
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(30), 3)
        child.stdout.close()

    def test_without_permission_to_start_a_missing_node_is_an_error(self) -> None:
        with self.assertRaisesRegex(vmmc.NoNode, "vmmc node start"):
            vmmc.attach(self.name + "-none", start=False)


class Jobs(unittest.TestCase):
    def run_job(self, source: str, ranks: int) -> list[vmmc.Event]:
        """The events of a job whose ranks run this."""
        if "VMMC_BIN" not in os.environ:
            self.skipTest("VMMC_BIN does not name the program `vmmc`, which starts jobs")
        name = f"py-job-{os.getpid()}-{ranks}-{len(source)}"
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "member.py")
            with open(program, "w", encoding="utf-8") as file:
                file.write(textwrap.dedent(source))
            try:
                return list(vmmc.launch(sys.executable, program, ranks=ranks, node=name))
            finally:
                vmmc.attach(name, start=False).stop_node()

    def said(self, events: list[vmmc.Event]) -> list[str]:
        """Lines that ranks printed, sorted; they ended well, or this fails with what they said."""
        errors = b"".join(event.data for event in events if event.kind == "error output").decode()
        self.assertEqual({event.number for event in events if event.kind == "exited"}, {0}, errors)
        self.assertEqual(events[-1].kind, "ended")
        return sorted(b"".join(event.data for event in events if event.kind == "output").decode().splitlines())

    def test_a_job_in_python(self) -> None:
        events = self.run_job(
            """
            import vmmc
            job = vmmc.Job.attach()
            mine = job.export("word", 64)
            after = job.import_((job.rank + 1) % job.size, "word")
            after.send(0, (job.rank + 1).to_bytes(8, "little"))
            got = mine.wait_word(0, not_equal=0, timeout=30)
            values = job.allgather(str(job.rank).encode(), 30)
            job.barrier(30)
            print(job.rank, got, b"".join(values).decode(), job.state_of(0), flush=True)
            """,
            3,
        )
        self.assertEqual(self.said(events), ["0 3 012 running", "1 1 012 running", "2 2 012 running"])

    def test_members_are_told_of_changes(self) -> None:
        events = self.run_job(
            """
            import asyncio, vmmc, vmmc.aio
            job = vmmc.Job.attach()
            async def hear():
                async for what, rank in vmmc.aio.changes(job):
                    return what, rank
            job.barrier(30)
            if job.rank == 0:
                job.leave()
            elif job.rank == 1:
                print(job.rank, *asyncio.run(asyncio.wait_for(hear(), 30)))
            else:
                print(job.rank, *job.wait_changes(30)[0])
            """,
            3,
        )
        self.assertEqual(self.said(events), ["1 left 0", "2 left 0"])


if __name__ == "__main__":
    # Whoever is started in the background of a script has key presses ignored, and so would our
    # children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main(verbosity=2)
