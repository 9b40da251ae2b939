"""Messages by rank and tag: rank 0 gives out pieces of work, and whoever is done gets the next.

`vmmc run -n 4 -- python 12_messages.py` starts it. Without `vmmc run` it starts four ranks of itself.
"""

import array
import math
import struct
import sys

from tutorial import check

import vmmc
import vmmc.mp

# A piece to work on, or the result of one; and that there is none left.
WORK, END = 1, 2
# Pieces of the interval from 0 to 1, and steps in each.
PIECES, STEPS = 64, 2_000


def rank(job: vmmc.Job) -> None:
    with vmmc.mp.over(job, timeout=60) as messages:
        world = messages.world
        done = give_out(world) if world.rank == 0 else work(world)
        print(f"rank {world.rank}: {done} pieces", flush=True)

        # All know how many there were: a collective call, with the numbers of an array.
        total = array.array("q", [0 if world.rank == 0 else done])
        world.allreduce(total, "sum")
        check(total[0] == PIECES, f"{total[0]} pieces were done, of {PIECES}")


def give_out(world: vmmc.mp.Group) -> int:
    """Each result comes from whoever is ready: the receive names no rank."""
    given, area, at_work = 0, 0.0, world.size - 1
    result = array.array("d", [0.0])
    while at_work > 0:
        status = world.receive_into(result, tag=WORK)
        area += result[0]
        if given < PIECES:
            world.send(status.source, struct.pack("<I", given), WORK)
            given += 1
        else:
            world.send(status.source, b"", END)
            at_work -= 1
    print(f"rank 0: pi is {area:.6f}", flush=True)
    check(abs(area - math.pi) < 1e-6, f"pi is not {area}")
    return given


def work(world: vmmc.mp.Group) -> int:
    """The area below 4 / (1 + x * x), piece by piece. The first message asks for work: a result of
    0.
    """
    done, area = 0, 0.0
    while True:
        world.send(0, struct.pack("<d", area), WORK)
        # Whatever its tag is: a piece, or the end.
        data, status = world.receive(source=0)
        if status.tag == END:
            return done
        [piece] = struct.unpack("<I", data)
        width = 1.0 / (PIECES * STEPS)
        steps = range(piece * STEPS, (piece + 1) * STEPS)
        area = sum(4.0 / (1.0 + ((step + 0.5) * width) ** 2) for step in steps) * width
        done += 1


if __name__ == "__main__":
    try:
        member = vmmc.Job.attach()
    except vmmc.NoJob:
        codes = []
        for event in vmmc.launch(sys.executable, __file__, ranks=4):
            if event.kind in ("output", "error output"):
                print(event.data.decode(), end="", flush=True)
            codes += [event.number] if event.kind == "exited" else []
        sys.exit(0 if codes == [0] * 4 else f"failed: the ranks ended with {codes}")
    rank(member)
