/* A matrix times a vector, again and again: each process has some rows, and its part of the vector;
 * before each product it gets the parts of all others. */

#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 240, ROUNDS = 4 };

/* A matrix whose powers stay whole: a turn of the rows by one. */
static double element(int row, int column)
{
    return (row + 1) % ROWS == column ? 2.0 : 0.0;
}

int main(void)
{
    bsp_begin(bsp_nprocs());
    int pid = bsp_pid(), n = bsp_nprocs(), most = (ROWS + n - 1) / n;
    int first = pid * most < ROWS ? pid * most : ROWS, rows = ROWS - first < most ? ROWS - first : most;
    double *part = calloc(most, sizeof *part), *whole = calloc(ROWS, sizeof *whole);

    bsp_push_reg(part, most * (int)sizeof *part);
    bsp_sync();
    for (int row = 0; row < rows; row++)
        part[row] = first + row;
    for (int round = 0; round < ROUNDS; round++) {
        /* All parts have been written before any get of this superstep reads. */
        for (int from = 0; from < n; from++) {
            int start = from * most < ROWS ? from * most : ROWS;
            int count = ROWS - start < most ? ROWS - start : most;
            if (count > 0)
                bsp_get(from, part, 0, whole + start, count * (int)sizeof *whole);
        }
        bsp_sync();
        for (int row = 0; row < rows; row++) {
            part[row] = 0;
            for (int column = 0; column < ROWS; column++)
                part[row] += element(first + row, column) * whole[column];
        }
    }
    for (int row = 0; row < rows; row++) {
        double expected = 16.0 * ((first + row + ROUNDS) % ROWS);
        if (part[row] != expected)
            bsp_abort("row %d is %g, not %g\n", first + row, part[row], expected);
    }
    if (pid == 0)
        printf("%d products of a matrix of %d rows by %d processes\n", ROUNDS, ROWS, n);
    bsp_end();
    free(part);
    free(whole);
    return 0;
}
