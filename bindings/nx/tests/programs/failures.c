/* What goes wrong in NX, and applications that start themselves. The first argument says what. */

#include <errno.h>
#include <nx.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); \
            exit(2);                                                           \
        }                                                                      \
    } while (0)

static void too_long(long type, long count, long node, long ptype) {
    printf("not to be printed: %ld %ld %ld %ld\n", type, count, node, ptype);
}

static char block[200000];

/* What a program sends before it ends in a handler is received. */
static void ends(long type, long count, long node, long ptype) {
    memset(block, 7, sizeof block);
    csend(type + 1, block, sizeof block, node, ptype);
    exit(count == 10 ? 0 : 3);
}

/* Starts this program on nodes 0 and 2 of 3, or on all. */
static void forks(int argc, char *argv[], int some) {
    long list[2] = {2, 0}, pids[3] = {0, 0, 0};
    long count = nx_initve("", 3, "nobody", &argc, argv);
    CHECK(count == 3 && numnodes() == 3);
    long started = some ? nx_nfork(list, 2, 7, pids) : nx_nfork(NULL, -1, 7, pids);
    if (started == 0) {
        long sum[1] = {mynode()}, work[1];
        CHECK(myptype() == 7 && numnodes() == 3);
        gisum(sum, 1, work);
        CHECK(sum[0] == (some ? 2 : 3));
        if (some) {
            CHECK(mynode() == 0 || mynode() == 2);
            CHECK(_csend(1, sum, sizeof sum, 1, 7) == -1 && errno == ESRCH);
            long other = -1;
            csend(1, &started, sizeof started, 2 - mynode(), 7);
            crecvx(1, &other, sizeof other, 2 - mynode(), 7, msginfo);
            CHECK(other == 0 && infonode() == 2 - mynode() && infoptype() == 7);
        }
        printf("fine\n");
        return;
    }
    CHECK(started == (some ? 2 : 3) && pids[0] > 0 && pids[started - 1] > 0);
    CHECK(_mynode() == -1 && errno == ENOTCONN);
    CHECK(_nx_nfork(NULL, -1, 0, NULL) == -1 && errno == EBUSY);
    CHECK(nx_waitall() == 0);
    CHECK(_nx_waitall() == -1 && errno == ECHILD);
    printf("all have ended\n");
}

int main(int argc, char *argv[]) {
    const char *what = argc > 1 ? argv[1] : "";
    char bytes[16] = "";
    if (strcmp(what, "forks") == 0 || strcmp(what, "forks-some") == 0) {
        forks(argc, argv, what[5] != 0);
        return 0;
    }
    if (strcmp(what, "loads") == 0) {
        CHECK(nx_initve(NULL, 1, NULL, &argc, argv) == 5); /* -sz 5 comes first, and is taken out */
        CHECK(argc == 3 && strcmp(argv[1], "loads") == 0);
        CHECK(_nx_load(NULL, -1, 70000, NULL, argv[2]) == -1 && errno == EINVAL);
        CHECK(_nx_load(NULL, -1, 0, NULL, "/no/such/program") == -1);
        nx_perror("said");
        CHECK(nx_load(NULL, -1, 0, NULL, argv[2]) == 5);
        printf("%ld have failed\n", nx_waitall());
        return 0;
    }
    if (strcmp(what, "alone") == 0) {
        CHECK(_mynode() == -1 && errno == ENOTCONN);
        mynode();
        return 0;
    }
    long me = mynode();
    gsync();
    if (strcmp(what, "long") == 0) {
        if (me == 1) {
            csend(4, bytes, 10, 0, 0);
        }
        crecv(4, bytes, 5); /* node 1 waits for what never comes */
    } else if (strcmp(what, "node") == 0) {
        if (me == 1) {
            csend(4, bytes, 10, 99, 0);
        }
        crecv(4, bytes, 5);
    } else if (strcmp(what, "handler") == 0) {
        hrecv(4, bytes, 5, too_long);
        gsync();
        if (me == 1) {
            csend(4, bytes, 10, 0, 0);
        }
        cprobe(5);
    } else if (strcmp(what, "killed") == 0) {
        if (me == 1) {
            /* Who is in gsync still when a node is lost gets an error. */
            crecvx(3, bytes, 5, 0, -1, NULL);
            crecvx(3, bytes, 5, 2, -1, NULL);
            raise(SIGKILL);
        }
        csend(3, bytes, 5, 1, 0);
        CHECK(_crecvx(4, bytes, 5, 1, -1, NULL) == -1 && errno == ECONNRESET);
        CHECK(_gsync() == -1 && errno == ECONNRESET);
        /* The others go on. */
        csend(5, bytes, 5, me == 0 ? 2 : 0, 0);
        crecv(5, bytes, 5);
        printf("fine\n");
    } else if (strcmp(what, "exits") == 0) {
        if (me == 1) {
            hrecv(4, bytes, sizeof bytes, ends);
            gsync();
            crecv(9, bytes, 5); /* another thread is in a call meanwhile */
        }
        gsync();
        csend(4, bytes, 10, 1, 0);
        sleep(1);
        crecv(5, block, sizeof block);
        CHECK(block[0] == 7 && block[199999] == 7 && infonode() == 1);
        printf("fine\n");
    } else if (strcmp(what, "leaves") == 0) {
        /* What was sent comes, also what waits for its receive. */
        if (me == 1) {
            memset(block, 7, sizeof block);
            csend(4, block, sizeof block, 0, 0);
            csend(5, block, 3, 0, 0);
        } else if (me == 0) {
            sleep(1);
            crecv(5, block, 3);
            crecv(4, block, sizeof block);
            CHECK(block[199999] == 7);
        }
        printf("fine\n");
    }
    return 0;
}
