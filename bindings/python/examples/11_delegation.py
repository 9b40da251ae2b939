"""Delegation: a server leaves a call to another one, which answers the caller itself. The caller
does not see it, and the answer takes no detour.
"""

import threading
import time

from tutorial import check, run

import vmmc
import vmmc.rpc

# Nobody reads any more.
over = threading.Event()


@vmmc.rpc.method
def leave() -> None:
    over.set()


def text_of(number: int) -> bytes:
    return f"book {number}, page by page. ".encode() * 100


def serve(session: vmmc.Session, name: str, *methods: object, threads: int = 0) -> dict[str, int]:
    """Serves until nobody reads any more."""
    with vmmc.rpc.serve(session, name, *methods, threads=threads) as server:
        check(over.wait(60), "nobody leaves")
        # The answer to the last call goes out before the server ends.
        time.sleep(0.1)
        return server.counts()


def shelf(session: vmmc.Session, parity: int) -> None:
    @vmmc.rpc.method
    def book(number: int) -> bytes:
        # Every second book.
        if number % 2 != parity or number > 99:
            raise vmmc.rpc.Failure(f"book {number} is not here")
        return text_of(number)

    counts = serve(session, f"shelf-{parity}", book, leave)
    print(f"shelf {parity}: {counts['done']} calls were answered")


def shelf_0(session: vmmc.Session) -> None:
    shelf(session, 0)


def shelf_1(session: vmmc.Session) -> None:
    shelf(session, 1)


def desk(session: vmmc.Session) -> None:
    shelves = [vmmc.rpc.connect(session, f"shelf-{parity}", timeout=10) for parity in (0, 1)]

    # `deferred`: the method gets the answer to give, and so can leave it to another server.
    @vmmc.rpc.deferred
    def book(reply: vmmc.rpc.Reply, number: int) -> None:
        reply.pass_on(shelves[number % 2])

    @vmmc.rpc.method
    def leave_all() -> None:
        for shelf in shelves:
            shelf.leave()
        over.set()

    # The last method waits for the shelves, so it has a thread of its own.
    counts = serve(session, "library", book, leave_all, threads=1)
    print(f"desk:    {counts['passed_on']} calls were passed on")


def reader(session: vmmc.Session) -> None:
    with vmmc.rpc.connect(session, "library", timeout=10) as library:
        for number in range(20):
            check(library.book(number) == text_of(number), "another book")
        print("reader:  20 books came straight from their shelves")
        try:
            library.book(101)
        except vmmc.Failed as error:
            print(f"reader:  {error}")
        library.leave_all()


if __name__ == "__main__":
    run(shelf_0, shelf_1, desk, reader)
