/* LU decomposition with partial pivoting: columns go to processes by turns. In each stage the owner
 * of the column finds the pivot, and puts it with the column of L to all, who exchange rows and
 * subtract. The product is checked against the matrix. */

#include <bsp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 96 };

static double element(int row, int column)
{
    unsigned seed = (unsigned)(row * 7919 + column * 104729 + 17);
    seed = seed * 1664525u + 1013904223u;
    return (double)(seed >> 8 & 0xffff) / 65536.0 - 0.5;
}

int main(void)
{
    bsp_begin(bsp_nprocs());
    int pid = bsp_pid(), n = bsp_nprocs(), order[ROWS];
    /* The pivot's row, then the column of L. */
    double stage[ROWS + 1], *own = calloc((size_t)ROWS * ROWS, sizeof *own);
    double *whole = calloc((size_t)ROWS * ROWS, sizeof *whole);

    bsp_push_reg(stage, sizeof stage);
    /* A place to put to is named by the address here, so all have one. */
    bsp_push_reg(whole, pid == 0 ? ROWS * ROWS * (int)sizeof *whole : 0);
    bsp_sync();
    for (int column = pid; column < ROWS; column += n)
        for (int row = 0; row < ROWS; row++)
            own[column * ROWS + row] = element(row, column);
    for (int row = 0; row < ROWS; row++)
        order[row] = row;
    for (int k = 0; k < ROWS; k++) {
        if (k % n == pid) {
            double *column = own + k * ROWS, out[ROWS + 1];
            int best = k;
            for (int row = k; row < ROWS; row++)
                best = fabs(column[row]) > fabs(column[best]) ? row : best;
            if (column[best] == 0)
                bsp_abort("the matrix is singular at column %d\n", k);
            out[0] = best;
            for (int row = 0; row < ROWS; row++)
                out[1 + row] = column[row == best ? k : row == k ? best : row];
            for (int row = k + 1; row < ROWS; row++)
                out[1 + row] /= out[1 + k];
            for (int to = 0; to < n; to++)
                bsp_put(to, out, stage, 0, sizeof out);
        }
        bsp_sync();
        int best = (int)stage[0], other = order[k];
        order[k] = order[best];
        order[best] = other;
        for (int at = pid; at < ROWS; at += n) {
            double *column = own + at * ROWS, value = column[k];
            column[k] = column[best];
            column[best] = value;
            for (int row = k + 1; row < ROWS; row++) {
                if (at == k)
                    column[row] = stage[1 + row];
                else if (at > k)
                    column[row] -= stage[1 + row] * column[k];
            }
        }
    }
    for (int at = pid; at < ROWS; at += n)
        bsp_put(0, own + at * ROWS, whole, at * ROWS * (int)sizeof *own, ROWS * (int)sizeof *own);
    bsp_sync();
    double worst = 0;
    for (int row = 0; pid == 0 && row < ROWS; row++) {
        for (int column = 0; column < ROWS; column++) {
            double sum = 0;
            for (int k = 0; k <= row && k <= column; k++)
                sum += (k == row ? 1.0 : whole[k * ROWS + row]) * whole[column * ROWS + k];
            double off = fabs(sum - element(order[row], column));
            worst = off > worst ? off : worst;
        }
    }
    if (!(worst < 1e-10))
        bsp_abort("the product is off by %g\n", worst);
    if (pid == 0)
        printf("LU of %d rows by %d processes\n", ROWS, n);
    bsp_end();
    free(own);
    free(whole);
    return 0;
}
