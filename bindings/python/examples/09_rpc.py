"""Remote calls: functions of a service, which its client calls by their names."""

import asyncio
import threading
import time

from tutorial import check, run

import vmmc
import vmmc.rpc

CALLS = 2_000

# The client is done.
over = threading.Event()


@vmmc.rpc.method
def greet(name: str) -> str:
    if not name:
        # Its caller gets vmmc.Failed with this text.
        raise vmmc.rpc.Failure("nobody is there")
    return f"hello, {name}"


@vmmc.rpc.method
async def think(seconds: float) -> None:
    # An async method holds up no thread.
    await asyncio.sleep(seconds)


@vmmc.rpc.method
def goodbye() -> None:
    over.set()


def server(session: vmmc.Session) -> None:
    with vmmc.rpc.serve(session, "greeter", greet, think, goodbye, threads=2) as server:
        print('server: I serve "greeter" on two threads')
        check(over.wait(60), "nobody says goodbye")
        # The answer to the last call goes out before the server ends.
        time.sleep(0.1)
        print(f"server: {server.counts()['done']} calls were answered")


def client(session: vmmc.Session) -> None:
    # The service need not exist yet.
    with vmmc.rpc.connect(session, "greeter", timeout=10) as greeter:
        print(f"client: {greeter.greet('world')!r}")
        try:
            greeter.greet("")
        except vmmc.Failed as error:
            print(f"client: {error}")

        start = time.perf_counter()
        for _ in range(CALLS):
            check(greeter.greet("again") == "hello, again", "another answer")
        print(f"client: {CALLS} calls, {(time.perf_counter() - start) / CALLS * 1e6:.0f} us each")

        # A call that is not waited for.
        slow = greeter.think.start(0.05)
        print(f"client: a slow call is under way, and meanwhile {greeter.greet('somebody else')!r}")
        slow.wait()

        # Many at once, in an event loop.
        async def all_at_once() -> list[str]:
            return await asyncio.gather(*[greeter.greet.start(f"number {number}") for number in range(10)])

        print(f"client: {len(asyncio.run(all_at_once()))} greetings came together")
        greeter.goodbye()


if __name__ == "__main__":
    run(server, client)
