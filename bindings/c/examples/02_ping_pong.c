/* Ping-pong: two processes write a number into each other's memory in turn, and measure how long
 * that takes. */
#include "tutorial.h"

enum { ROUNDS = 20000 };

static int by_value(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static void pinger(vmmc_session *session) {
    vmmc_export *mine = export_named(session, 64, "ping", 0);
    vmmc_import *theirs = import(session, "pong", 0);
    static uint64_t rounds_ns[ROUNDS];
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        uint64_t start = now_ns();
        must(vmmc_import_send(theirs, 0, &round, sizeof round));
        uint64_t answer = wait_at_least(mine, 0, round);
        rounds_ns[round - 1] = now_ns() - start;
        check(answer == round, "the answer is not to this round");
    }
    qsort(rounds_ns, ROUNDS, sizeof *rounds_ns, by_value);
    unsigned long long median = rounds_ns[ROUNDS / 2], late = rounds_ns[ROUNDS / 100 * 99];
    printf("pinger: %d round trips of 8 bytes\n", ROUNDS);
    printf("pinger: round trip %llu ns (median), %llu ns (99 of 100 are faster); one way about %llu ns\n", median, late,
           median / 2);
    must(vmmc_import_free(theirs));
    must(vmmc_export_free(mine));
}

static void ponger(vmmc_session *session) {
    vmmc_export *mine = export_named(session, 64, "pong", 0);
    vmmc_import *theirs = import(session, "ping", 0);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        wait_at_least(mine, 0, round);
        must(vmmc_import_send(theirs, 0, &round, sizeof round));
    }
    must(vmmc_import_free(theirs));
    must(vmmc_export_free(mine));
}

RUN({"pinger", pinger}, {"ponger", ponger})
