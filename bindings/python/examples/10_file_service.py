"""A file service: what is read goes from the server's memory straight into a buffer of the client,
by a token that travels with the call.
"""

import threading
import time

from tutorial import check, run

import vmmc
import vmmc.rpc

FILE_BYTES = 8 << 20
PIECE_BYTES = 64 << 10


class OneFile:
    """The methods of the service are those that are marked."""

    def __init__(self) -> None:
        self.content = bytes(range(251)) * (FILE_BYTES // 251 + 1)
        self.closed = threading.Event()

    def find(self, name: str) -> memoryview:
        if name != "numbers":
            raise vmmc.rpc.Failure(f"there is no {name!r}")
        return memoryview(self.content)[:FILE_BYTES]

    @vmmc.rpc.method
    def size(self, name: str) -> int:
        return len(self.find(name))

    @vmmc.rpc.method
    def read(self, name: str, offset: int, length: int) -> memoryview:
        # Anything with bytes goes as it is.
        return self.find(name)[offset : offset + length]

    @vmmc.rpc.method
    def close_file(self) -> None:
        self.closed.set()


def server(session: vmmc.Session) -> None:
    file = OneFile()
    with vmmc.rpc.serve(session, "files", file) as server:
        print(f"server: I have a file of {FILE_BYTES >> 20} MiB")
        check(file.closed.wait(60), "nobody closes the file")
        # The answer to the last call goes out before the server ends.
        time.sleep(0.1)
        print(f"server: {server.counts()['done']} calls were answered")


def reader(session: vmmc.Session) -> None:
    with vmmc.rpc.connect(session, "files", timeout=10, bulk_buffers=4, bulk_bytes=PIECE_BYTES) as files:
        size = files.size("numbers")
        try:
            files.size("letters")
        except vmmc.Failed as error:
            print(f"reader: the file has {size} bytes; of another one: {error}")

        start = time.perf_counter()
        content = bytearray()
        while len(content) < size:
            content += files.read("numbers", len(content), PIECE_BYTES)
        rate = size / (time.perf_counter() - start) / 1e9
        print(f"reader: read in pieces of {PIECE_BYTES >> 10} KiB, {rate:.1f} GB/s")
        check(content == (bytes(range(251)) * (size // 251 + 1))[:size], "the file is another one")

        end = files.read("numbers", size - 40, 100)
        check(end == content[-40:], "the end is another one")
        print(f"reader: the last {len(end)} bytes are right, and nothing is behind them")
        files.close_file()


if __name__ == "__main__":
    run(server, reader)
