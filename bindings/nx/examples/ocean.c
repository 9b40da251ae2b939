/* Ocean: the wind moves the water of a square basin [SHRIMP, Ocean-NX]. Each step moves vorticity
 * and solves an elliptic equation for the stream function by relaxation, of red points and black
 * points in turn. Each node has a block of whole rows, and sends the rows at its edges to the nodes
 * that have the next ones.
 *
 *   vmmc run -n 4 -- ./ocean [points of a side] [steps]
 *
 * A point of one colour has neighbours of the other one alone, so the nodes compute just what one
 * node does: node 0 does so too in the end, and all bits must be the same. */

#include <math.h>
#include <nx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UP = 1, DOWN = 2, SWEEPS_A_LOOK = 16, SWEEPS_MAX = 20000 };

static const double PI = 3.14159265358979323846;
/* Wind, change of the earth's turning from south to north, friction, and a step of time. */
static const double WIND = 1.0, BETA = 20.0, FRICTION = 0.02, STEP = 0.02;
/* The relaxation ends when no point changes by more. */
static const double CLOSE = 1e-9;

/* Rows first to last of a grid whose outermost rows and columns are the coast. */
struct basin {
    long side, first, last;
    double *psi, *zeta, *next;
    double sweeps;
    int alone;
};

static double *grid(long side)
{
    double *all = calloc((size_t)(side * side), sizeof *all);
    if (all == NULL) {
        fprintf(stderr, "ocean: no memory for a grid of %ld x %ld\n", side, side);
        exit(1);
    }
    return all;
}

static struct basin basin(long side, long first, long last, int alone)
{
    struct basin b = {side, first, last, grid(side), grid(side), grid(side), 0.0, alone};
    return b;
}

/* The rows next to a block come from the nodes that have them. */
static void edges(const struct basin *b, double *of)
{
    long me = mynode(), n = numnodes(), bytes = b->side * (long)sizeof *of, from_below = -1, from_above = -1;
    if (b->alone)
        return;
    if (me > 0)
        from_above = irecv(DOWN, of + (b->first - 1) * b->side, bytes);
    if (me < n - 1)
        from_below = irecv(UP, of + (b->last + 1) * b->side, bytes);
    if (me > 0)
        csend(UP, of + b->first * b->side, bytes, me - 1, 0);
    if (me < n - 1)
        csend(DOWN, of + b->last * b->side, bytes, me + 1, 0);
    if (me > 0)
        msgwait(from_above);
    if (me < n - 1)
        msgwait(from_below);
}

/* The stream function whose curvature is the vorticity, by over-relaxation. */
static void relax(struct basin *b)
{
    long side = b->side;
    double h = 1.0 / (double)(side - 1), omega = 2.0 / (1.0 + sin(PI * h)), scratch;
    for (long sweep = 1; sweep <= SWEEPS_MAX; sweep++) {
        double most = 0.0;
        for (long colour = 0; colour < 2; colour++) {
            edges(b, b->psi);
            for (long y = b->first; y <= b->last; y++) {
                double *row = b->psi + y * side;
                for (long x = 1 + (y + colour) % 2; x < side - 1; x += 2) {
                    double sum = row[x - 1] + row[x + 1] + row[x - side] + row[x + side];
                    double change = omega * ((sum - h * h * b->zeta[y * side + x]) / 4.0 - row[x]);
                    row[x] += change;
                    if (fabs(change) > most)
                        most = fabs(change);
                }
            }
        }
        b->sweeps++;
        if (sweep % SWEEPS_A_LOOK == 0) {
            if (!b->alone)
                gdhigh(&most, 1, &scratch);
            if (most < CLOSE)
                return;
        }
    }
    fprintf(stderr, "ocean: no end after %d sweeps\n", SWEEPS_MAX);
    exit(1);
}

/* The current carries vorticity along, the wind makes it, friction ends it. The form of the first
 * is Arakawa's simplest one. */
static void move(struct basin *b)
{
    long side = b->side;
    double h = 1.0 / (double)(side - 1);
    edges(b, b->psi);
    edges(b, b->zeta);
    for (long y = b->first; y <= b->last; y++) {
        for (long x = 1; x < side - 1; x++) {
            const double *p = b->psi + y * side + x, *z = b->zeta + y * side + x;
            double px = (p[1] - p[-1]) / (2 * h), py = (p[side] - p[-side]) / (2 * h);
            double zx = (z[1] - z[-1]) / (2 * h), zy = (z[side] - z[-side]) / (2 * h);
            double curve = (z[1] + z[-1] + z[side] + z[-side] - 4 * z[0]) / (h * h);
            double wind = -WIND * PI * sin(PI * (double)y * h);
            b->next[y * side + x] = z[0] + STEP * (py * zx - px * zy - BETA * px + wind + FRICTION * (curve / 100 - z[0]));
        }
    }
    double *old = b->zeta;
    b->zeta = b->next;
    b->next = old;
}

static double run(struct basin *b, long steps)
{
    double start = dclock();
    for (long step = 0; step < steps; step++) {
        move(b);
        relax(b);
    }
    return dclock() - start;
}

/* A relaxation whose end is known: sin(pi x) sin(pi y). */
static double known(struct basin *b)
{
    long side = b->side;
    double h = 1.0 / (double)(side - 1), most = 0.0, scratch;
    for (long y = b->first; y <= b->last; y++)
        for (long x = 1; x < side - 1; x++)
            b->zeta[y * side + x] = -2 * PI * PI * sin(PI * (double)x * h) * sin(PI * (double)y * h);
    relax(b);
    for (long y = b->first; y <= b->last; y++)
        for (long x = 1; x < side - 1; x++)
            most = fmax(most, fabs(b->psi[y * side + x] - sin(PI * (double)x * h) * sin(PI * (double)y * h)));
    gdhigh(&most, 1, &scratch);
    for (long at = 0; at < side * side; at++)
        b->psi[at] = b->zeta[at] = 0.0;
    b->sweeps = 0;
    return most / (h * h);
}

int main(int argc, char **argv)
{
    long me = mynode(), n = numnodes();
    long side = argc > 1 ? atol(argv[1]) : 130, steps = argc > 2 ? atol(argv[2]) : 5;
    if (side < n + 2 || side < 8 || side > 4096 || steps < 1) {
        if (me == 0)
            fprintf(stderr, "usage: ocean [points of a side, 8 to 4096, %ld at least] [steps]\n", n + 2);
        return 2;
    }
    long rows = side - 2, *lengths = calloc((size_t)n, sizeof *lengths);
    for (long of = 0; of < n; of++)
        lengths[of] = (rows * (of + 1) / n - rows * of / n) * side * (long)sizeof(double);
    struct basin b = basin(side, 1 + rows * me / n, rows * (me + 1) / n, 0);
    double error = known(&b);
    gsync();
    double together = run(&b, steps);
    gsync();
    double *all = grid(side);
    gcolx(b.psi + b.first * side, lengths, all + side);
    if (me > 0)
        return 0;

    struct basin one = basin(side, 1, rows, 1);
    double alone = run(&one, steps), strongest = 0.0;
    for (long at = 0; at < side * side; at++)
        strongest = fmax(strongest, fabs(all[at]));
    int same = memcmp(all, one.psi, (size_t)(side * side) * sizeof *all) == 0;
    printf("ocean: %ld x %ld points, %ld steps, %.0f sweeps on %ld nodes: %.3f s, alone %.3f s, speed-up %.2f\n", side,
           side, steps, b.sweeps, n, together, alone, alone / together);
    printf("ocean: the current is %.6f at its strongest; a known one is right to %.2f squares of a mesh\n", strongest, error);
    /* The second order of the equation: an error of pi^2 / 12 squares of a mesh. */
    if (!same || !(strongest > 0) || !(error < 1.0)) {
        printf("ocean: wrong: %s\n", same ? "this is no current" : "one node alone comes to something else");
        return 1;
    }
    printf("ocean: right, to the last bit\n");
    return 0;
}
