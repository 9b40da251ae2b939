"""Hello: one process exports memory, another one imports it and writes into it."""

from tutorial import check, run, word

import vmmc

# Where the text goes, and the word that says how long it is.
TEXT_AT, LENGTH_AT = 64, 0
TEXT = b"hello from another process"


def receiver(session: vmmc.Session) -> None:
    export = session.export(4096, name="hello")
    print(f'receiver: exported {len(export)} bytes as "hello" on node {session.node!r}')
    # The receiver takes no part in the transfer. It looks at its own memory until the length is
    # there.
    length = export.wait_word(LENGTH_AT, not_equal=0, timeout=10)
    text = bytes(memoryview(export)[TEXT_AT : TEXT_AT + length])
    print(f"receiver: found in my memory: {text.decode()!r}")
    check(text == TEXT, "the text is wrong")


def sender(session: vmmc.Session) -> None:
    # The export may not exist yet: wait for it.
    there = session.import_("hello", wait=10)
    print(f"sender:   {there.explain()}")
    there.send(TEXT_AT, TEXT)
    # Sends from one process to one export appear in order, so who sees the length sees the text.
    there.send(LENGTH_AT, word(len(TEXT)))
    print(f"sender:   wrote {len(TEXT)} bytes into the receiver's memory")


if __name__ == "__main__":
    run(receiver, sender)
