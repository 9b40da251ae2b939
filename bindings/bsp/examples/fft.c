/* A Fourier transform of complex numbers over a power of two of processes, spread by turns: first
 * each transforms what it has, then one superstep spreads the parts by blocks, and each process
 * combines them. Two waves and their sum are checked. */

#include <bsp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 4096 };

typedef struct {
    double re, im;
} number;

static const double TURN = 6.283185307179586476925;

static number times(number a, number b)
{
    number c = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    return c;
}

static number root(long part, long whole)
{
    double angle = -TURN * (double)(part % whole) / (double)whole;
    number w = {cos(angle), sin(angle)};
    return w;
}

/* In place, of a power of two. */
static void transform(number *x, long length)
{
    for (long at = 1, turned = 0; at < length; at++) {
        long bit = length >> 1;
        for (; turned & bit; bit >>= 1)
            turned ^= bit;
        turned ^= bit;
        if (at < turned) {
            number other = x[at];
            x[at] = x[turned];
            x[turned] = other;
        }
    }
    for (long half = 1; half < length; half *= 2) {
        for (long start = 0; start < length; start += 2 * half) {
            for (long at = 0; at < half; at++) {
                number a = x[start + at], b = times(x[start + at + half], root(at, 2 * half));
                x[start + at].re = a.re + b.re;
                x[start + at].im = a.im + b.im;
                x[start + at + half].re = a.re - b.re;
                x[start + at + half].im = a.im - b.im;
            }
        }
    }
}

int main(void)
{
    int most = 1;
    while (2 * most <= bsp_nprocs())
        most *= 2;
    bsp_begin(most);
    int pid = bsp_pid(), n = bsp_nprocs();
    long part = LENGTH / n, block = part / n;
    number *x = calloc(part, sizeof *x), *spread = calloc(part, sizeof *spread);
    number *result = calloc(part, sizeof *result);

    if (block == 0)
        bsp_abort("%d processes for %d numbers\n", n, LENGTH);
    bsp_push_reg(spread, (int)(part * (long)sizeof *spread));
    bsp_sync();
    /* Number `at * n + pid` of the whole. */
    for (long at = 0; at < part; at++) {
        double angle = TURN * (double)(at * n + pid) / LENGTH;
        x[at].re = 3 * cos(5 * angle) + cos(1000 * angle);
        x[at].im = 3 * sin(5 * angle) - sin(1000 * angle);
    }
    transform(x, part);
    /* Process `to` combines frequencies `to * block` and on, modulo `part`. */
    for (int to = 0; to < n; to++)
        bsp_hpput(to, x + to * block, spread, (int)(pid * block * (long)sizeof *x), (int)(block * (long)sizeof *x));
    bsp_sync();
    double worst = 0;
    for (int high = 0; high < n; high++) {
        for (long at = 0; at < block; at++) {
            long frequency = high * part + pid * block + at;
            number sum = {0, 0};
            for (int from = 0; from < n; from++) {
                number one = times(spread[from * block + at], root(from * frequency, LENGTH));
                sum.re += one.re;
                sum.im += one.im;
            }
            result[high * block + at] = sum;
            double expected = frequency == 5 ? 3.0 * LENGTH : frequency == LENGTH - 1000 ? LENGTH : 0;
            double off = fabs(sum.re - expected) + fabs(sum.im);
            worst = off > worst ? off : worst;
        }
    }
    if (!(worst < 1e-6 * LENGTH))
        bsp_abort("a frequency is off by %g\n", worst);
    if (pid == 0)
        printf("transform of %d numbers by %d processes\n", LENGTH, n);
    bsp_end();
    free(x);
    free(spread);
    free(result);
    return 0;
}
