"""A key-value table that its clients work on alone: the owner of the memory runs no code at all while they insert, update and look up.

Each entry has a version word. An odd version means that a client is writing: writers take it with compare-and-swap. A reader fetches the entry and then the version
once more; if it moved or is odd, the reader tries again. So nobody waits for the owner, and nobody sees half an entry.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

from tutorial import check, run, word

import vmmc

ENTRIES, ENTRY_BYTES, VALUE_BYTES = 1024, 64, 48
CLIENTS, KEYS, UPDATES = 3, 50, 5


def owner(session: vmmc.Session) -> None:
    table = session.export(ENTRIES * ENTRY_BYTES, name="table-of-pairs")
    done = session.export(64, name="clients-done", notify=True)
    print(f"owner:    {ENTRIES} entries exported; I sleep until the clients are done")
    for left in reversed(range(CLIENTS)):
        client = done.wait_notification(30).last_word
        print(f"owner:    client {client} is done, {left} left")
    stats = session.stats()
    check(stats["sends_mapped"] + stats["fetches_mapped"] + stats["atomics_mapped"] == 0, "the owner took part")
    table.unexport()


class Table:
    """The table as a client sees it."""

    def __init__(self, there: vmmc.Import) -> None:
        self.there = there

    def put(self, key: int, value: bytes) -> None:
        tag = key + 1  # 0 means free
        for at in places(key):
            # The key of an entry is set once, by whoever comes first.
            if self.there.compare_swap(at + 8, 0, tag) in (0, tag):
                version = self.lock(at)
                self.there.send(at + 16, value)
                # The version comes after the value: sends of one process appear in order.
                self.there.send(at, word(version + 2))
                return
        check(False, "the table is full")

    def lock(self, at: int) -> int:
        """Makes an even version odd; gives the even one."""
        version = self.word(at)
        while True:
            even = version & ~1
            version = self.there.compare_swap(at, even, even + 1)
            if version == even:
                return even
            time.sleep(0)

    def look_up(self, key: int) -> bytes | None:
        for at in places(key):
            while True:
                before = self.word(at)
                entry = self.there.fetch(at, ENTRY_BYTES)
                tag = struct.unpack_from("<Q", entry, 8)[0]
                if tag == 0:
                    return None
                if tag != key + 1:
                    break
                if before % 2 == 0 and before > 0 and self.word(at) == before:
                    return entry[16:]
                time.sleep(0)
        return None

    def word(self, at: int) -> int:
        """A word as it is now; an atomic operation, so it is ordered against the fetches around it."""
        return self.there.fetch_add(at, 0)


def places(key: int) -> Iterator[int]:
    """Entries to look at for a key, in order, by their offset."""
    first = (key * 0x9E3779B97F4A7C15 % 2**64) >> 32
    return ((first + i) % ENTRIES * ENTRY_BYTES for i in range(ENTRIES))


def make_value(key: int, client: int, update: int) -> bytes:
    """40 equal bytes, so that a torn value shows, then who wrote it."""
    return bytes([(key ^ client ^ update) & 0xFF]) * 40 + word(client)


def client(session: vmmc.Session, me: int) -> None:
    done = session.import_("clients-done", wait=10)
    table = Table(session.import_("table-of-pairs", rights=vmmc.Rights.ALL, wait=10))
    start, operations = time.perf_counter_ns(), 0
    for update in range(1, UPDATES + 1):
        for i in range(KEYS):
            # All clients write some keys, and each has keys of its own.
            own = i % 2 == 1
            key = me * 1_000 + i if own else 1_000_000 + i
            value = make_value(key, me, update)
            table.put(key, value)
            got = table.look_up(key)
            check(got is not None and len(set(got[:40])) == 1, "half an entry was seen, or a key vanished")
            check(not own or got == value, "an own key has another client's value")
            operations += 2
    each = (time.perf_counter_ns() - start) // operations
    print(f"client {me}: {operations} operations, {each} ns each")
    check(table.look_up(77) is None, "a key was found that nobody put")
    done.send(8 * me, word(me), notify=True)


def client_1(session: vmmc.Session) -> None:
    client(session, 1)


def client_2(session: vmmc.Session) -> None:
    client(session, 2)


def client_3(session: vmmc.Session) -> None:
    client(session, 3)


if __name__ == "__main__":
    run(owner, client_1, client_2, client_3)
