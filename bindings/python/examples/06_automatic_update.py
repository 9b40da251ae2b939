"""Automatic update: after a binding, plain stores appear in the other process's memory. And revocation: when the exporter ends the export, they no longer do.

With NumPy, stores to an array are the updates: `meter[0] = value`. Here a memoryview of 64-bit words does, which needs nothing installed.
"""

import time

from tutorial import check, run, word

import vmmc

STORES = 1000


def watcher(session: vmmc.Session) -> None:
    meter = session.export(4096, name="meter")
    back = session.import_("meter-read", wait=10)
    print(f"watcher: the meter moves: {meter.wait_word(0, at_least=1, timeout=10)}")
    last = meter.wait_word(0, at_least=STORES, timeout=10)
    print(f"watcher: the meter stands at {last}")

    # The writer could go on storing through its mapping; so the content moves onto pages that the
    # writer does not map. Our own views see the new pages.
    words = memoryview(meter).cast("Q")
    revocation = meter.unexport()
    print(f"watcher: unexported; the pages were: {revocation}")
    check(revocation == "moved", "a bound export must be moved")
    back.send(0, word(1))
    time.sleep(0.05)
    print(f"watcher: the writer stores on, my meter stays at {words[0]}")
    check(words[0] == last, "a store arrived after the end of the export")


def writer(session: vmmc.Session) -> None:
    read = session.export(64, name="meter-read")
    binding = session.import_("meter", wait=10).bind()
    meter = memoryview(binding).cast("Q")
    for value in range(1, STORES + 1):
        # Not a call into the library: a store to memory.
        meter[0] = value
        if value % 100 == 0:
            time.sleep(0.001)
    print(f"writer:  stored {STORES} values")
    read.wait_word(0, at_least=1, timeout=10)
    meter[0] = 99_999
    try:
        binding.flush()
        check(False, "the export has ended")
    except (vmmc.Revoked, vmmc.OwnerDied) as told:
        print(f"writer:  {told}")


if __name__ == "__main__":
    run(watcher, writer)
