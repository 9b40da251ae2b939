// A peer for VMMC. Of two ranks `lat SIZE N` prints p50 and p99 of half a round trip in ns, and `bw
// SIZE N` bytes per second of N messages in windows. `exchange SIZE N` prints the same of messages
// to each other at once; `computing SIZE N` and `polled SIZE N` of what they take longer than to
// compute meanwhile for as long, without calls or with some. Of any number `barrier SIZE N` and
// `allreduce SIZE N`, the latter of one number whatever the size, print p50 and p99 of a call, ns.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 16 };
static const double BETWEEN_POLLS_S = 20e-6;

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 4) MPI_Abort(MPI_COMM_WORLD, 2);
    int latency = !strcmp(argv[1], "lat"), size = atoi(argv[2]), n = atoi(argv[3]), warm = n / 5 + 1;
    int barrier = !strcmp(argv[1], "barrier"), allreduce = !strcmp(argv[1], "allreduce");
    int polled = !strcmp(argv[1], "polled"), computing = polled || !strcmp(argv[1], "computing");
    char *buffer = malloc(size), *other = malloc(size);
    double *times = malloc(n * sizeof *times);
    memset(buffer, 1, size);
    if (latency) {
        for (int i = -warm; i < n; i++) {
            double start = MPI_Wtime();
            if (rank == 0) MPI_Send(buffer, size, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(buffer, size, MPI_CHAR, !rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1) MPI_Send(buffer, size, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
            if (i >= 0) times[i] = (MPI_Wtime() - start) * 1e9 / 2;
        }
        qsort(times, n, sizeof *times, ascending);
        if (rank == 0) printf("%.1f %.1f\n", times[n / 2], times[n - 1 - n / 100]);
    } else if (barrier || allreduce) {
        for (int i = -warm; i < n; i++) {
            double start = MPI_Wtime(), one = 1, sum = 0;
            if (barrier) MPI_Barrier(MPI_COMM_WORLD);
            else MPI_Allreduce(&one, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            if (i >= 0) times[i] = (MPI_Wtime() - start) * 1e9;
        }
        qsort(times, n, sizeof *times, ascending);
        if (rank == 0) printf("%.1f %.1f\n", times[n / 2], times[n - 1 - n / 100]);
    } else if (computing || !strcmp(argv[1], "exchange")) {
        double work = 0, alone = 0;
        for (int i = -2 * warm; i < n; i++) {
            if (i == 0 && computing) {
                work = alone / warm;
                MPI_Bcast(&work, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
            }
            MPI_Request both[2];
            int done;
            double start = MPI_Wtime(), now, last;
            MPI_Irecv(other, size, MPI_CHAR, !rank, 0, MPI_COMM_WORLD, &both[0]);
            MPI_Isend(buffer, size, MPI_CHAR, !rank, 0, MPI_COMM_WORLD, &both[1]);
            double until = (last = now = MPI_Wtime()) + work;
            for (; now < until; now = MPI_Wtime()) {
                if (polled && now - last >= BETWEEN_POLLS_S) {
                    MPI_Testall(2, both, &done, MPI_STATUSES_IGNORE);
                    last = now;
                }
            }
            MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
            double took = MPI_Wtime() - start - work;
            if (i >= 0) times[i] = took > 0 ? took * 1e9 : 0;
            else if (i >= -warm) alone += took;
        }
        qsort(times, n, sizeof *times, ascending);
        if (rank == 0) printf("%.1f %.1f\n", times[n / 2], times[n - 1 - n / 100]);
    } else {
        MPI_Request requests[WINDOW];
        int windows = n / WINDOW + 1;
        double start = 0;
        for (int i = -2; i < windows; i++) {
            if (i == 0) start = MPI_Wtime();
            for (int j = 0; j < WINDOW; j++) {
                if (rank == 0) MPI_Isend(buffer, size, MPI_CHAR, 1, 0, MPI_COMM_WORLD, &requests[j]);
                else MPI_Irecv(buffer, size, MPI_CHAR, 0, 0, MPI_COMM_WORLD, &requests[j]);
            }
            MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        }
        char done = 0;
        if (rank == 0) MPI_Recv(&done, 1, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else MPI_Send(&done, 1, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
        if (rank == 0) printf("%.0f\n", (double)windows * WINDOW * size / (MPI_Wtime() - start));
    }
    MPI_Finalize();
    return 0;
}
