"""Ping-pong: two processes write a number into each other's memory in turn, and measure how long that takes."""

import time

from tutorial import check, run, word

import vmmc

ROUNDS = 5000


def pinger(session: vmmc.Session) -> None:
    mine = session.export(64, name="ping")
    theirs = session.import_("pong", wait=10)
    rounds_ns = []
    for number in range(1, ROUNDS + 1):
        start = time.perf_counter_ns()
        theirs.send(0, word(number))
        answer = mine.wait_word(0, at_least=number, timeout=10)
        rounds_ns.append(time.perf_counter_ns() - start)
        check(answer == number, "the answer is not to this round")
    rounds_ns.sort()
    median, late = rounds_ns[ROUNDS // 2], rounds_ns[ROUNDS * 99 // 100]
    print(f"pinger: {ROUNDS} round trips of 8 bytes by the {theirs.path} path")
    print(f"pinger: round trip {median} ns (median), {late} ns (99 of 100 are faster); one way about {median // 2} ns")


def ponger(session: vmmc.Session) -> None:
    mine = session.export(64, name="pong")
    theirs = session.import_("ping", wait=10)
    for number in range(1, ROUNDS + 1):
        mine.wait_word(0, at_least=number, timeout=10)
        theirs.send(0, word(number))


if __name__ == "__main__":
    run(pinger, ponger)
