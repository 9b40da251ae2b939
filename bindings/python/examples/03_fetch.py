"""Remote fetch: a process publishes a table, and another one reads rows of it without the first doing anything."""

from tutorial import check, run, word

import vmmc

ROW_BYTES, ROWS = 256, 1000


def row(number: int) -> bytes:
    return bytes((number * 7 + i) % 256 for i in range(ROW_BYTES))


def owner(session: vmmc.Session) -> None:
    # The table can be read and nothing else.
    table = session.export(ROWS * ROW_BYTES, name="table", rights=vmmc.READ)
    for number in range(ROWS):
        table.write(number * ROW_BYTES, row(number))
    done = session.export(64, name="table-read", notify=True)
    print(f"owner:  {ROWS} rows of {ROW_BYTES} bytes are published; I go to sleep")
    read = done.wait_notification(10).last_word
    print(f"owner:  woken: {read} rows were read and I noticed none of it")
    check(session.stats()["fetches_mapped"] == 0, "the owner fetched something itself")


def reader(session: vmmc.Session) -> None:
    done = session.import_("table-read", wait=10)
    table = session.import_("table", rights=vmmc.READ)
    some = [0, 1, 17, 500, ROWS - 1]
    for number in some:
        check(table.fetch(number * ROW_BYTES, ROW_BYTES) == row(number), "a row is not what the owner wrote")
    print(f"reader: fetched {len(some)} single rows")

    # A list of ranges in one call.
    ranges = [(number * ROW_BYTES, 8) for number in range(0, ROWS, 100)]
    heads = table.fetch_gather(ranges)
    check(heads == b"".join(row(number)[:8] for number in range(0, ROWS, 100)), "a head is wrong")
    print(f"reader: gathered the first 8 bytes of {len(ranges)} rows")

    # On this node the table is mapped: a view of it needs no call at all.
    if table.path == "mapped":
        view = memoryview(table)
        check(view[17 * ROW_BYTES] == row(17)[0], "the view is wrong")

    try:
        table.send(0, b"graffiti")
        check(False, "the table is read-only")
    except vmmc.NoRight as refused:
        print(f"reader: writing is refused: {refused}")
    done.send(0, word(len(some) + len(ranges)), notify=True)


if __name__ == "__main__":
    run(owner, reader)
