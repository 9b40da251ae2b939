/* The inner product of two vectors, each spread over the processes by turns: each sums its part,
 * and puts the sum to all. */

#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 100000 };

int main(void)
{
    bsp_begin(bsp_nprocs());
    int pid = bsp_pid(), n = bsp_nprocs();
    double sum = 0, all = 0, *sums = calloc(n, sizeof *sums);

    bsp_push_reg(sums, n * (int)sizeof *sums);
    bsp_sync();
    for (long at = pid; at < LENGTH; at += n) {
        double x = (double)at + 1, y = (double)at + 1;
        sum += x * y;
    }
    for (int to = 0; to < n; to++)
        bsp_put(to, &sum, sums, pid * (int)sizeof sum, sizeof sum);
    bsp_sync();
    for (int from = 0; from < n; from++)
        all += sums[from];

    /* The sum of the first squares, which doubles hold exactly. */
    double expected = (double)LENGTH * (LENGTH + 1.0) * (2.0 * LENGTH + 1.0) / 6.0;
    if (all != expected)
        bsp_abort("the product is %.0f, not %.0f\n", all, expected);
    if (pid == 0)
        printf("inner product of %d numbers by %d processes: %.0f\n", LENGTH, n, all);
    bsp_pop_reg(sums);
    bsp_end();
    free(sums);
    return 0;
}
