/* Barnes: bodies that attract each other, by the method of Barnes and Hut [SHRIMP, Barnes-NX]. They
 * are put into a tree of cubes; a cube that is far away attracts as one body. Each node moves the
 * bodies of a part of the tree's order, as many as cost it as much as the others' cost them, and
 * tells all where they are after each step.
 *
 *   vmmc run -n 4 -- ./barnes [bodies] [steps]
 *
 * All nodes have the same tree, so each body feels the same wherever it is computed: node 0 does
 * all alone in the end, and all bits must be the same. Forces of the tree are held against those of
 * all pairs, and the energy must stay. */

#include <math.h>
#include <nx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 60, PAIRS = 200 };

/* A cube is far if it is seen under a smaller angle, as a tangent. */
static const double ANGLE = 0.6;
/* Softens what is close, and a step of time. */
static const double SOFT = 0.02, STEP = 0.005;

/* What a node tells of a body. `cost` is the number of attractions of the last step. */
struct body {
    double at[3], speed[3], mass, cost;
};

/* A cube: eight parts, each -1, a cube, or -2 - body. */
struct cube {
    double middle[3], half, at[3], mass;
    long part[8];
};

struct tree {
    struct cube *cubes;
    long used, room;
};

static void *memory(size_t count, size_t size)
{
    void *all = calloc(count, size);
    if (all == NULL) {
        fprintf(stderr, "barnes: no memory\n");
        exit(1);
    }
    return all;
}

static long cube(struct tree *t, const double middle[3], double half)
{
    if (t->used == t->room) {
        t->room = 2 * t->room + 64;
        t->cubes = realloc(t->cubes, (size_t)t->room * sizeof *t->cubes);
        if (t->cubes == NULL) {
            fprintf(stderr, "barnes: no memory\n");
            exit(1);
        }
    }
    struct cube *c = t->cubes + t->used;
    memset(c, 0, sizeof *c);
    memcpy(c->middle, middle, sizeof c->middle);
    c->half = half;
    for (int part = 0; part < 8; part++)
        c->part[part] = -1;
    return t->used++;
}

static int part_of(const struct cube *c, const double at[3])
{
    return (at[0] >= c->middle[0]) + 2 * (at[1] >= c->middle[1]) + 4 * (at[2] >= c->middle[2]);
}

static void insert(struct tree *t, const struct body *bodies, long body)
{
    long in = 0;
    for (int depth = 0; depth < DEPTH_MAX; depth++) {
        int part = part_of(t->cubes + in, bodies[body].at);
        long there = t->cubes[in].part[part];
        if (there == -1) {
            t->cubes[in].part[part] = -2 - body;
            return;
        }
        if (there < -1) {
            /* Another body has this part: it becomes a cube with that one in it. */
            double middle[3], half = t->cubes[in].half / 2;
            for (int d = 0; d < 3; d++)
                middle[d] = t->cubes[in].middle[d] + (part >> d & 1 ? half : -half);
            long made = cube(t, middle, half);
            t->cubes[made].part[part_of(t->cubes + made, bodies[-2 - there].at)] = there;
            t->cubes[in].part[part] = made;
            there = made;
        }
        in = there;
    }
    fprintf(stderr, "barnes: two bodies are at one place\n");
    exit(1);
}

/* Masses and their centres, from the smallest cubes up; and the bodies in the order of the tree. */
static void weigh(struct tree *t, const struct body *bodies, long in, long *order, long *count)
{
    struct cube *c = t->cubes + in;
    for (int part = 0; part < 8; part++) {
        long there = c->part[part];
        if (there == -1)
            continue;
        if (there >= 0)
            weigh(t, bodies, there, order, count);
        else
            order[(*count)++] = -2 - there;
        double mass = there >= 0 ? t->cubes[there].mass : bodies[-2 - there].mass;
        const double *at = there >= 0 ? t->cubes[there].at : bodies[-2 - there].at;
        c->mass += mass;
        for (int d = 0; d < 3; d++)
            c->at[d] += mass * at[d];
    }
    for (int d = 0; d < 3; d++)
        c->at[d] /= c->mass;
}

static void plant(struct tree *t, const struct body *bodies, long n, long *order)
{
    double low[3] = {HUGE_VAL, HUGE_VAL, HUGE_VAL}, high[3] = {-HUGE_VAL, -HUGE_VAL, -HUGE_VAL}, middle[3], half = 0;
    for (long b = 0; b < n; b++)
        for (int d = 0; d < 3; d++) {
            low[d] = fmin(low[d], bodies[b].at[d]);
            high[d] = fmax(high[d], bodies[b].at[d]);
        }
    for (int d = 0; d < 3; d++) {
        middle[d] = (low[d] + high[d]) / 2;
        half = fmax(half, (high[d] - low[d]) / 2 * 1.0001 + 1e-9);
    }
    t->used = 0;
    cube(t, middle, half);
    for (long b = 0; b < n; b++)
        insert(t, bodies, b);
    long count = 0;
    weigh(t, bodies, 0, order, &count);
}

static void attract(const double at[3], const double by[3], double mass, double pull[3])
{
    double way[3], square = SOFT * SOFT;
    for (int d = 0; d < 3; d++) {
        way[d] = by[d] - at[d];
        square += way[d] * way[d];
    }
    double strength = mass / (square * sqrt(square));
    for (int d = 0; d < 3; d++)
        pull[d] += strength * way[d];
}

/* What a body feels; gives the number of attractions. */
static double feel(const struct tree *t, const struct body *bodies, long body, long in, double pull[3])
{
    const struct cube *c = t->cubes + in;
    double count = 0;
    for (int part = 0; part < 8; part++) {
        long there = c->part[part];
        if (there == -1 || there == -2 - body)
            continue;
        if (there < -1) {
            attract(bodies[body].at, bodies[-2 - there].at, bodies[-2 - there].mass, pull);
            count++;
            continue;
        }
        const struct cube *far = t->cubes + there;
        double square = 0;
        for (int d = 0; d < 3; d++)
            square += (far->at[d] - bodies[body].at[d]) * (far->at[d] - bodies[body].at[d]);
        if (4 * far->half * far->half < ANGLE * ANGLE * square) {
            attract(bodies[body].at, far->at, far->mass, pull);
            count++;
        } else {
            count += feel(t, bodies, body, there, pull);
        }
    }
    return count;
}

/* A ball of bodies at rest but for a slow turn; the same on all nodes. */
static void begin(struct body *bodies, long n)
{
    unsigned long seed = 20261;
    for (long b = 0; b < n; b++) {
        double square;
        do {
            square = 0;
            for (int d = 0; d < 3; d++) {
                seed = (seed * 6364136223846793005ul + 1442695040888963407ul) & 0xffffffffffffffffull;
                bodies[b].at[d] = (double)(seed >> 11) / 4503599627370496.0 - 1.0;
                square += bodies[b].at[d] * bodies[b].at[d];
            }
        } while (square > 1);
        /* Denser in the middle, so that parts of space cost more than others. */
        for (int d = 0; d < 3; d++)
            bodies[b].at[d] *= square;
        bodies[b].speed[0] = -0.3 * bodies[b].at[1];
        bodies[b].speed[1] = 0.3 * bodies[b].at[0];
        bodies[b].mass = 1.0 / (double)n;
        bodies[b].cost = 1;
    }
}

/* One of `of` parts of the order, all of about one cost. Where a part ends the next begins. */
static long edge(const struct body *bodies, const long *order, long n, long part, long of)
{
    double all = 0, sum = 0;
    for (long at = 0; at < n; at++)
        all += bodies[at].cost;
    for (long at = 0; at < n; at++) {
        if (sum >= all * (double)part / (double)of)
            return at;
        sum += bodies[order[at]].cost;
    }
    return n;
}

/* Steps of one node of `of`; with `of` 1 it is alone. */
static double run(struct body *bodies, long n, long steps, long me, long of)
{
    struct tree tree = {NULL, 0, 0};
    struct body *moved = memory((size_t)n, sizeof *moved), *all = memory((size_t)n, sizeof *all);
    long *order = memory((size_t)n, sizeof *order), *lengths = memory((size_t)of, sizeof *lengths);
    double start = dclock();
    for (long step = 0; step < steps; step++) {
        plant(&tree, bodies, n, order);
        long first = 0, end = 0, from = 0;
        for (long node = 0; node < of; node++) {
            long to = node + 1 == of ? n : edge(bodies, order, n, node + 1, of);
            lengths[node] = (to - from) * (long)sizeof *moved;
            if (node == me) {
                first = from;
                end = to;
            }
            from = to;
        }
        for (long at = first; at < end; at++) {
            struct body b = bodies[order[at]];
            double pull[3] = {0, 0, 0};
            b.cost = feel(&tree, bodies, order[at], 0, pull);
            for (int d = 0; d < 3; d++) {
                b.speed[d] += STEP * pull[d];
                b.at[d] += STEP * b.speed[d];
            }
            moved[at] = b;
        }
        if (of > 1)
            gcolx(moved + first, lengths, all);
        else
            memcpy(all, moved, (size_t)n * sizeof *all);
        /* From the order of the tree to their own. */
        for (long at = 0; at < n; at++)
            bodies[order[at]] = all[at];
    }
    double took = dclock() - start;
    free(tree.cubes);
    free(moved);
    free(all);
    free(order);
    free(lengths);
    return took;
}

static double energy(const struct body *bodies, long n)
{
    double sum = 0;
    for (long a = 0; a < n; a++) {
        for (int d = 0; d < 3; d++)
            sum += bodies[a].mass * bodies[a].speed[d] * bodies[a].speed[d] / 2;
        for (long b = a + 1; b < n; b++) {
            double square = SOFT * SOFT;
            for (int d = 0; d < 3; d++)
                square += (bodies[a].at[d] - bodies[b].at[d]) * (bodies[a].at[d] - bodies[b].at[d]);
            sum -= bodies[a].mass * bodies[b].mass / sqrt(square);
        }
    }
    return sum;
}

/* How far the tree's forces are from those of all pairs, of some bodies: the mean square. */
static double error_of_tree(const struct body *bodies, long n)
{
    struct tree tree = {NULL, 0, 0};
    long *order = memory((size_t)n, sizeof *order), some = n < PAIRS ? n : PAIRS;
    double wrong = 0, right = 0;
    plant(&tree, bodies, n, order);
    for (long at = 0; at < some; at++) {
        long b = n * at / some;
        double by_tree[3] = {0, 0, 0}, by_all[3] = {0, 0, 0};
        feel(&tree, bodies, b, 0, by_tree);
        for (long other = 0; other < n; other++)
            if (other != b)
                attract(bodies[b].at, bodies[other].at, bodies[other].mass, by_all);
        for (int d = 0; d < 3; d++) {
            wrong += (by_tree[d] - by_all[d]) * (by_tree[d] - by_all[d]);
            right += by_all[d] * by_all[d];
        }
    }
    free(tree.cubes);
    free(order);
    return sqrt(wrong / right);
}

int main(int argc, char **argv)
{
    long me = mynode(), nodes = numnodes();
    long n = argc > 1 ? atol(argv[1]) : 4096, steps = argc > 2 ? atol(argv[2]) : 10;
    if (n < 2 || n > 10000000 || steps < 1) {
        if (me == 0)
            fprintf(stderr, "usage: barnes [bodies, 2 to 10000000] [steps]\n");
        return 2;
    }
    struct body *bodies = memory((size_t)n, sizeof *bodies), *alone = memory((size_t)n, sizeof *alone);
    begin(bodies, n);
    gsync();
    double together = run(bodies, n, steps, me, nodes);
    gsync();
    if (me > 0)
        return 0;

    begin(alone, n);
    double before = energy(alone, n), single = run(alone, n, steps, 0, 1);
    double drift = fabs((energy(alone, n) - before) / before), error = error_of_tree(alone, n);
    int same = memcmp(bodies, alone, (size_t)n * sizeof *bodies) == 0;
    printf("barnes: %ld bodies, %ld steps on %ld nodes: %.3f s, alone %.3f s, speed-up %.2f\n", n, steps, nodes, together,
           single, single / together);
    printf("barnes: forces are right to %.5f, the energy to %.5f\n", error, drift);
    if (!same || !(error < 0.02) || !(drift < 0.02)) {
        printf("barnes: wrong: %s\n", same ? "that is not how bodies move" : "one node alone comes to something else");
        return 1;
    }
    printf("barnes: right, to the last bit\n");
    return 0;
}
