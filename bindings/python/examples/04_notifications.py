"""Notifications: the receiver sleeps until a sender says that something has come. By waiting, by a handler on a thread of its own, and with asyncio."""

import asyncio
import queue
import time

from tutorial import check, run, word

import vmmc
import vmmc.aio

LETTERS = [b"first letter", b"second letter", b"third letter", b"fourth letter"]
SLOT_BYTES = 64


def receiver(session: vmmc.Session) -> None:
    # Both sides must want a notification: the export allows them, the send asks for one.
    mailbox = session.export(4096, name="mailbox", notify=True)
    print("receiver: waiting for a notification, without using the processor")
    first = mailbox.wait_notification(10)
    letter = mailbox.read(first.offset, first.len)
    print(f"receiver: {first.len} bytes came to offset {first.offset}: {letter.decode()!r}")
    check(letter == LETTERS[0], "the wrong letter")

    # While they are blocked, notifications queue.
    mailbox.block_notifications()
    told: queue.Queue[int] = queue.Queue()
    go_on = session.import_("go-on", wait=10)
    with mailbox.on_notification(lambda notification: told.put(notification.offset)):
        go_on.send(0, word(1))
        try:
            told.get(timeout=0.1)
            check(False, "a blocked notification was delivered")
        except queue.Empty:
            print("receiver: blocked for a while; now they may come")
        mailbox.unblock_notifications()
        for expected in [SLOT_BYTES, 2 * SLOT_BYTES]:
            offset = told.get(timeout=10)
            print(f"receiver: the handler's thread was told of offset {offset}")
            check(offset == expected, "notifications of one sender must come in order")

    async def wait() -> vmmc.Notification:
        with vmmc.aio.Notifications(session) as inbox:
            go_on.send(0, word(2))
            return await inbox.next(mailbox, timeout=10)

    last = asyncio.run(wait())
    print(f"receiver: the event loop was told of offset {last.offset}")
    stats = session.stats()
    taken, lost = stats["notifications_taken"], stats["notifications_lost_in_rings"]
    print(f"receiver: {taken} notifications taken, {lost} lost")
    go_on.send(0, word(3))


def sender(session: vmmc.Session) -> None:
    go_on = session.export(64, name="go-on")
    mailbox = session.import_("mailbox", wait=10)
    # Long enough for the receiver to be asleep.
    time.sleep(0.05)
    mailbox.send(0, LETTERS[0], notify=True)
    go_on.wait_word(0, at_least=1, timeout=10)
    for number in (1, 2, 3):
        if number == 3:
            go_on.wait_word(0, at_least=2, timeout=10)
        mailbox.send(number * SLOT_BYTES, LETTERS[number], notify=True)
        print(f"sender:   sent letter {number}")
    go_on.wait_word(0, at_least=3, timeout=10)


if __name__ == "__main__":
    run(receiver, sender)
