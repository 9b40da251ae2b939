/* Radix sort of keys that are spread in blocks: for each digit of 8 bits all tell all how many keys
 * they have of each, and put their keys to where they go. */

#include <bsp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 20000, DIGITS = 256 };

int main(void)
{
    bsp_begin(bsp_nprocs());
    int pid = bsp_pid(), n = bsp_nprocs();
    uint32_t *keys = calloc(KEYS, sizeof *keys), *sorted = calloc(KEYS, sizeof *sorted);
    int *counts = calloc((size_t)n * DIGITS, sizeof *counts), own[DIGITS], place[DIGITS];
    uint32_t ends[2], *edges = calloc(2 * (size_t)n, sizeof *edges), seed = 12345u + (uint32_t)pid;
    uint64_t sums[2] = {0, 0}, *all = calloc(2 * (size_t)n, sizeof *all);

    bsp_push_reg(sorted, KEYS * (int)sizeof *sorted);
    bsp_push_reg(counts, n * DIGITS * (int)sizeof *counts);
    bsp_push_reg(edges, 2 * n * (int)sizeof *edges);
    bsp_push_reg(all, 2 * n * (int)sizeof *all);
    bsp_sync();
    for (int at = 0; at < KEYS; at++) {
        seed = seed * 1664525u + 1013904223u;
        keys[at] = seed;
        sums[0] += seed;
    }
    for (int shift = 0; shift < 32; shift += 8) {
        memset(own, 0, sizeof own);
        for (int at = 0; at < KEYS; at++)
            own[keys[at] >> shift & (DIGITS - 1)]++;
        for (int to = 0; to < n; to++)
            bsp_put(to, own, counts, pid * (int)sizeof own, sizeof own);
        bsp_sync();
        /* Before ours: smaller digits of all, and this digit of processes with lower numbers. */
        for (int digit = 0, before = 0; digit < DIGITS; digit++) {
            for (int from = 0; from < n; from++) {
                if (from == pid)
                    place[digit] = before;
                before += counts[from * DIGITS + digit];
            }
        }
        for (int at = 0; at < KEYS; at++) {
            int to = place[keys[at] >> shift & (DIGITS - 1)]++;
            bsp_put(to / KEYS, keys + at, sorted, to % KEYS * (int)sizeof *keys, sizeof *keys);
        }
        bsp_sync();
        memcpy(keys, sorted, KEYS * sizeof *keys);
    }
    ends[0] = keys[0];
    ends[1] = keys[KEYS - 1];
    for (int at = 0; at < KEYS; at++)
        sums[1] += keys[at];
    for (int to = 0; to < n; to++) {
        bsp_put(to, ends, edges, pid * (int)sizeof ends, sizeof ends);
        bsp_put(to, sums, all, pid * (int)sizeof sums, sizeof sums);
    }
    bsp_sync();
    uint64_t before = 0, after = 0;
    for (int at = 1; at < KEYS; at++)
        if (keys[at - 1] > keys[at])
            bsp_abort("keys %d and %d of process %d are not in order\n", at - 1, at, pid);
    for (int from = 0; from < n; from++) {
        if (from > 0 && edges[2 * from - 1] > edges[2 * from])
            bsp_abort("processes %d and %d are not in order\n", from - 1, from);
        before += all[2 * from];
        after += all[2 * from + 1];
    }
    if (before != after)
        bsp_abort("the keys are not those of before\n");
    if (pid == 0)
        printf("%d keys sorted by %d processes\n", n * KEYS, n);
    bsp_end();
    free(keys);
    free(sorted);
    free(counts);
    free(edges);
    free(all);
    return 0;
}
