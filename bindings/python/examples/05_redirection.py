"""Transfer redirection: the receiver decides late where incoming data goes, even in the middle of a transfer, and learns exactly which part went where."""

from tutorial import check, run, word

import vmmc

MESSAGE_BYTES, FIRST_BYTES = 100_000, 40_000
MESSAGE = bytes(i % 251 for i in range(MESSAGE_BYTES))


def receiver(session: vmmc.Session) -> None:
    inbox = session.export(MESSAGE_BYTES, name="inbox", redirectable=True, notify=True)
    go_on = session.import_("second-half", wait=10)
    first = inbox.wait_notification(10)
    print(f"receiver: {first.len} bytes are in the inbox; now I know where I want the message")

    place = session.buffer(MESSAGE_BYTES)
    redirection = inbox.redirect(0, MESSAGE_BYTES, place)
    print(f"receiver: so far {redirection.report()}")
    go_on.send(0, word(1))

    report = redirection.wait(10)
    print(f"receiver: complete: {report}")
    check(report.copied == [(0, FIRST_BYTES)], "the first half should have been copied")
    check(report.redirected == [(FIRST_BYTES, MESSAGE_BYTES - FIRST_BYTES)], "the second half should have gone straight")
    check(bytes(place) == MESSAGE, "the message is damaged")
    print("receiver: the whole message is in its place; the second half was never in the inbox")
    go_on.send(0, word(2))


def sender(session: vmmc.Session) -> None:
    second_half = session.export(64, name="second-half")
    inbox = session.import_("inbox", wait=10)
    inbox.send(0, MESSAGE[:FIRST_BYTES], notify=True)
    second_half.wait_word(0, at_least=1, timeout=10)
    # The sender sends as before: it does not know of the redirection.
    inbox.send(FIRST_BYTES, MESSAGE[FIRST_BYTES:])
    second_half.wait_word(0, at_least=2, timeout=10)
    print(f"sender:   sent {FIRST_BYTES} + {MESSAGE_BYTES - FIRST_BYTES} bytes to the same import")


if __name__ == "__main__":
    run(receiver, sender)
