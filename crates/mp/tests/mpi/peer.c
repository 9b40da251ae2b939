/* The programs of tests/mpi/program.rs, on MPI. What is received goes to a file of each rank. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 300000, REQUESTS = 4096 };

static FILE *in, *out;
static int me, world_size;

static long number(void) {
    long n;
    if (fscanf(in, "%ld", &n) != 1) abort();
    return n;
}

static unsigned char *bytes(long len, unsigned long seed) {
    unsigned char *b = malloc(len ? len : 1);
    for (uint64_t i = 0; i < (uint64_t)len; i++) b[i] = (unsigned char)((i * 31) ^ (i >> 8) ^ (seed * 97));
    return b;
}

static void put(const void *from, size_t len) {
    if (fwrite(from, 1, len, out) != len) abort();
}

static void put_status(MPI_Status *status) {
    int len;
    MPI_Get_count(status, MPI_BYTE, &len);
    uint64_t words[3] = {(uint64_t)status->MPI_SOURCE, (uint64_t)status->MPI_TAG, (uint64_t)len};
    put(words, sizeof words);
}

struct message { long from, to, tag, len, seed; };
struct receive { long by, source, tag, probe; };

static void phase(void) {
    long messages = number(), receives = number(), lates = number();
    struct message *m = calloc(messages + 1, sizeof *m);
    struct receive *r = calloc(receives + 1, sizeof *r);
    int late = 0, none_late = lates == 0;
    for (long i = 0; i < messages; i++)
        m[i] = (struct message){number(), number(), number(), number(), number()};
    for (long i = 0; i < receives; i++) r[i] = (struct receive){number(), number(), number(), number()};
    for (long i = 0; i < lates; i++) late |= number() == me;
    MPI_Request in_requests[REQUESTS], out_requests[REQUESTS];
    unsigned char *in_bytes[REQUESTS], *out_bytes[REQUESTS];
    int ins = 0, outs = 0;
    for (long i = 0; i < receives; i++) {
        if (r[i].by != me || late) continue;
        int source = r[i].source < 0 ? MPI_ANY_SOURCE : (int)r[i].source, tag = r[i].tag < 0 ? MPI_ANY_TAG : (int)r[i].tag;
        in_bytes[ins] = malloc(ROOM);
        MPI_Irecv(in_bytes[ins], ROOM, MPI_BYTE, source, tag, MPI_COMM_WORLD, &in_requests[ins]);
        ins++;
    }
    for (long i = 0; i < messages; i++) {
        if (m[i].from != me) continue;
        out_bytes[outs] = bytes(m[i].len, m[i].seed);
        if (none_late) {
            MPI_Send(out_bytes[outs], (int)m[i].len, MPI_BYTE, (int)m[i].to, (int)m[i].tag, MPI_COMM_WORLD);
            out_requests[outs] = MPI_REQUEST_NULL;
        } else {
            MPI_Isend(out_bytes[outs], (int)m[i].len, MPI_BYTE, (int)m[i].to, (int)m[i].tag, MPI_COMM_WORLD,
                      &out_requests[outs]);
        }
        outs++;
    }
    MPI_Status status;
    for (long i = 0; i < receives && late; i++) {
        if (r[i].by != me) continue;
        int source = r[i].source < 0 ? MPI_ANY_SOURCE : (int)r[i].source, tag = r[i].tag < 0 ? MPI_ANY_TAG : (int)r[i].tag;
        unsigned char *room = malloc(ROOM);
        if (r[i].probe) {
            MPI_Probe(source, tag, MPI_COMM_WORLD, &status);
            put_status(&status);
        }
        MPI_Recv(room, ROOM, MPI_BYTE, source, tag, MPI_COMM_WORLD, &status);
        int len;
        MPI_Get_count(&status, MPI_BYTE, &len);
        put_status(&status);
        put(room, len);
        free(room);
    }
    for (int i = 0; i < ins; i++) {
        MPI_Wait(&in_requests[i], &status);
        int len;
        MPI_Get_count(&status, MPI_BYTE, &len);
        put_status(&status);
        put(in_bytes[i], len);
        free(in_bytes[i]);
    }
    MPI_Waitall(outs, out_requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < outs; i++) free(out_bytes[i]);
    free(m);
    free(r);
}

static void ring(MPI_Comm group) {
    long len = number(), seed = number();
    int own, size;
    MPI_Comm_rank(group, &own);
    MPI_Comm_size(group, &size);
    unsigned char *to = bytes(len, seed + me), *from = malloc(ROOM);
    MPI_Status status;
    MPI_Sendrecv(to, (int)len, MPI_BYTE, (own + 1) % size, 5, from, ROOM, MPI_BYTE, (own + size - 1) % size, 5, group,
                 &status);
    put_status(&status);
    put(from, len);
    free(to);
    free(from);
}

/* Numbers of one of three types. */
static void *numbers(long count, unsigned long seed, int type) {
    uint64_t *words = calloc(count + 1, 8);
    for (uint64_t i = 0; i < (uint64_t)count; i++) {
        uint64_t value = i * 3 + seed + (uint64_t)me * me + 1;
        if (type == 0) words[i] = value * 0x9e3779b97f4a7c15u;
        else if (type == 1) ((uint32_t *)words)[i] = (uint32_t)(value * 0x9e3779b9u);
        else ((double *)words)[i] = (double)(value % 50);
    }
    return words;
}

static void call(MPI_Comm group) {
    long kind = number(), root = number(), count = number(), seed = number(), op = number();
    int own, size, type = seed % 3;
    MPI_Comm_rank(group, &own);
    MPI_Comm_size(group, &size);
    root %= size;
    long len = 8 * count, width = type == 1 ? 4 : 8;
    MPI_Datatype types[] = {MPI_UINT64_T, MPI_UINT32_T, MPI_DOUBLE};
    MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR};
    if (type == 2) op %= 4;
    unsigned char *own_bytes = bytes(len, seed + me), *all = bytes(len * size, seed + 100 + me);
    unsigned char *to = calloc(1, len * size + 1);
    void *values = numbers(count, seed, type), *result = calloc(count + 1, 8);
    switch (kind) {
    case 0: MPI_Barrier(group); break;
    case 1:
        MPI_Bcast(own_bytes, (int)len, MPI_BYTE, (int)root, group);
        put(own_bytes, len);
        break;
    case 2:
        MPI_Gather(own_bytes, (int)len, MPI_BYTE, to, (int)len, MPI_BYTE, (int)root, group);
        if (own == root) put(to, len * size);
        break;
    case 3:
        MPI_Scatter(all, (int)len, MPI_BYTE, to, (int)len, MPI_BYTE, (int)root, group);
        put(to, len);
        break;
    case 4:
        MPI_Allgather(own_bytes, (int)len, MPI_BYTE, to, (int)len, MPI_BYTE, group);
        put(to, len * size);
        break;
    case 5:
        MPI_Alltoall(all, (int)len, MPI_BYTE, to, (int)len, MPI_BYTE, group);
        put(to, len * size);
        break;
    case 6:
        MPI_Reduce(values, result, (int)count, types[type], ops[op], (int)root, group);
        if (own == root) put(result, count * width);
        break;
    case 7:
        MPI_Allreduce(values, result, (int)count, types[type], ops[op], group);
        put(result, count * width);
        break;
    case 8:
        MPI_Scan(values, result, (int)count, types[type], ops[op], group);
        put(result, count * width);
        break;
    default: abort();
    }
    free(own_bytes);
    free(all);
    free(to);
    free(values);
    free(result);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    char name[4096];
    snprintf(name, sizeof name, "%s.%d", argv[2], me);
    in = fopen(argv[1], "r");
    out = fopen(name, "w");
    if (!in || !out) abort();
    MPI_Comm group = MPI_COMM_WORLD;
    long step;
    while (fscanf(in, "%ld", &step) == 1) {
        switch (step) {
        case 1: phase(); break;
        case 2: ring(group); break;
        case 3: call(group); break;
        case 4:
            MPI_Comm_split(MPI_COMM_WORLD, me % (int)number(), -me, &group);
            break;
        case 5: group = MPI_COMM_WORLD; break;
        default: abort();
        }
    }
    if (fclose(out)) abort();
    MPI_Finalize();
    return 0;
}
