/* Every call of NX, in both forms, among the processes of an application: what it says is held
 * against what was done. Prints "fine" from each node; the first that is not so ends all. */

#include <errno.h>
#include <nx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long me, count, next, before;

static void check(int holds, const char *what, int line) {
    if (!holds) {
        fprintf(stderr, "line %d, node %ld: %s\n", line, me, what);
        exit(2);
    }
}
#define CHECK(what) check((what) != 0, #what, __LINE__)
#define FAILS(call, value) (errno = 0, CHECK((call) == -1), CHECK(errno == (value)))

static long arrived(long type, long bytes, long node, long ptype) {
    return infotype() == type && infocount() == bytes && infonode() == node && infoptype() == ptype &&
           msginfo[0] == type && msginfo[1] == bytes && msginfo[2] == node && msginfo[3] == ptype && msginfo[4] == 0;
}

static void messages(void) {
    long number = me, other = -1, info[8];
    csend(1, &number, sizeof number, next, 0);
    crecv(1, &other, sizeof other);
    CHECK(other == before && arrived(1, sizeof other, before, 0));
    CHECK(_csend(2, &number, sizeof number, next, 0) == 0);
    memset(info, -1, sizeof info);
    crecvx(-1, &other, sizeof other, before, -1, info);
    CHECK(info[0] == 2 && info[1] == sizeof other && info[2] == before && info[3] == 0 && info[7] == 0);
    CHECK(infotype() == 1); /* not touched by an info of one's own */
    csend(2, NULL, 0, next, 0);
    CHECK(_crecv(2, NULL, 0) == 0 && arrived(2, 0, before, 0));
    csend(3, &number, sizeof number, next, 0);
    CHECK(_crecvx(3, &other, sizeof other, -1, 0, msginfo) == 0 && arrived(3, sizeof other, before, 0));

    /* Both send something long before anybody receives. */
    enum { LONG = 300000 };
    char *out = malloc(LONG), *in = malloc(LONG);
    memset(out, (int)me, LONG);
    csend(4, out, LONG, next, 0);
    crecv(4, in, LONG);
    CHECK(in[0] == (char)before && in[LONG - 1] == (char)before);
    CHECK(csendrecv(5, out, LONG, next, 0, 5, in, LONG) == LONG && arrived(5, LONG, before, 0));
    CHECK(_csendrecv(5, out, 7, next, 0, 5, in, LONG) == 7 && arrived(5, 7, before, 0));

    long ids[2] = {irecv(6, in, LONG), irecvx(7, &other, sizeof other, before, 0, info)};
    CHECK(msgdone(ids[0]) == 0 && _msgdone(ids[1]) == 0);
    gsync();
    CHECK(msgmerge(-1, ids[0]) == ids[0]);
    long sent = isend(6, out, LONG, next, 0);
    msgwait(_isend(7, &number, sizeof number, next, 0));
    msgwait(ids[1]);
    CHECK(other == before && info[0] == 7 && info[1] == sizeof other && info[2] == before);
    long both = _msgmerge(sent, ids[0]);
    while (!msgdone(both)) {
    }
    CHECK(in[LONG / 2] == (char)before && arrived(6, LONG, before, 0));
    msgwait(isendrecv(8, out, 10, next, 0, 8, in, LONG));
    CHECK(arrived(8, 10, before, 0));
    CHECK(_msgwait(_isendrecv(8, out, 11, next, 0, 8, in, LONG)) == 0 && arrived(8, 11, before, 0));
    msgcancel(_irecv(9, in, LONG));
    CHECK(_msgcancel(_irecvx(9, in, LONG, -1, -1, NULL)) == 0);
    msgignore(isend(9, &number, sizeof number, next, 0));
    CHECK(_msgignore(irecv(9, &other, sizeof other)) == 0);
    gsync();
    free(out);
    free(in);
}

static void looking(void) {
    long info[8], number = me;
    CHECK(iprobe(-1) == 0 && _iprobe(10) == 0 && iprobex(-1, before, 0, info) == 0);
    gsync();
    csend(10, &number, sizeof number, next, 0);
    csend(11, &number, 3, next, 0);
    cprobe(11);
    CHECK(arrived(11, 3, before, 0));
    CHECK(_cprobe(10) == 0 && arrived(10, sizeof number, before, 0));
    cprobex(11, before, 0, info);
    CHECK(info[0] == 11 && info[1] == 3);
    CHECK(_cprobex(-1, -1, -1, msginfo) == 0 && arrived(10, sizeof number, before, 0));
    CHECK(iprobe(11) == 1 && infotype() == 11 && _iprobex(10, before, 0, info) == 1 && info[0] == 10);
    CHECK(_infocount() == 3 && _infonode() == before && _infotype() == 11 && _infoptype() == 0);
    flushmsg(10, -1, -1);
    CHECK(iprobe(10) == 0 && iprobe(11) == 1);
    CHECK(_flushmsg(-1, before, 0) == 0 && iprobe(-1) == 0);
    gsync();
}

static void identity(void) {
    CHECK(_mynode() == me && _numnodes() == count && myptype() == 0 && _myptype() == 0);
    setptype(5);
    CHECK(myptype() == 5);
    gsync();
    long number = me, other;
    csend(12, &number, sizeof number, next, 5);
    crecv(12, &other, sizeof other);
    CHECK(arrived(12, sizeof other, before, 5));
    gsync();
    CHECK(_setptype(0) == 0 && myptype() == 0);
    gsync();
    double seconds = dclock();
    unsigned long milliseconds = mclock();
    CHECK(seconds >= 0 && _dclock() >= seconds && _mclock() >= milliseconds && milliseconds + 1 >= seconds * 1000);
    long *nodes = NULL;
    unsigned long size = 0;
    CHECK(nx_app_nodes(0, &nodes, &size) == 0 && (long)size == count && nodes[count - 1] == count - 1);
    free(nodes);
    CHECK(_nx_app_nodes(0, &nodes, &size) == 0);
    free(nodes);
    if (count > 1) {
        csend(13, &number, sizeof number, -1, 0);
        for (long heard = 1; heard < count; heard++) {
            crecv(13, &other, sizeof other);
            CHECK(other == infonode() && other != me);
        }
        gsendx(14, &number, sizeof number, &next, 1);
        CHECK(_gsendx(14, &number, sizeof number, &next, 1) == 0);
        crecv(14, &other, sizeof other);
        crecv(14, &other, sizeof other);
        CHECK(other == before);
    }
}

static volatile long handled, sum;

static void handler(long type, long bytes, long node, long ptype) {
    CHECK(type == 15 && bytes == sizeof(long) && node == before && ptype == 0);
    handled++;
}
static void answering(long type, long bytes, long node, long ptype) {
    CHECK(type == 16 && bytes == 2);
    long old = masktrap(1);
    csend(17, "an", 2, node, ptype); /* handlers call NX */
    masktrap(old);
    handled++;
}
static void xhandler(long type, long bytes, long node, long ptype, long hparam) {
    CHECK(type == 18 && bytes == 1 && node == before && ptype == 0);
    sum += hparam;
    handled++;
}
static void gone(long type, long bytes, long node, long ptype) {
    CHECK(bytes >= 1 && node == next && ptype == 0 && type >= 15);
    handled++;
}
static void parameter(long hparam) {
    sum += hparam;
    handled++;
}
static void wait_for(long wanted) {
    double until = dclock() + 50;
    while (handled < wanted) {
        CHECK(dclock() < until);
    }
    CHECK(handled == wanted);
    handled = 0;
}

static void handlers(void) {
    long number = me, others[2];
    char byte, two[2];
    hrecv(15, &others[0], sizeof number, handler);
    CHECK(_hrecv(15, &others[1], sizeof number, handler) == 0);
    gsync();
    hsend(15, &number, sizeof number, next, 0, gone);
    CHECK(_hsend(15, &number, sizeof number, next, 0, gone) == 0);
    wait_for(4);
    CHECK(others[0] == before && others[1] == before);
    /* Nothing runs behind masktrap. */
    hrecv(16, two, 2, answering);
    CHECK(masktrap(1) == 0 && _masktrap(1) == 1);
    gsync();
    csend(16, "qu", 2, next, 0);
    gsync();
    csend(21, "z", 1, next, 0);
    crecv(21, &byte, 1); /* what was sent before it is here too */
    CHECK(handled == 0 && iprobe(17) == 0);
    gsync();
    masktrap(0);
    crecv(17, two, 2);
    wait_for(1);
    CHECK(memcmp(two, "an", 2) == 0);
    hrecvx(18, &byte, 1, before, 0, xhandler, 100);
    CHECK(_hrecvx(18, &byte, 1, -1, -1, xhandler, 20) == 0);
    gsync();
    hsendx(18, "x", 1, next, 0, parameter, 3);
    CHECK(_hsendx(18, "y", 1, next, 0, parameter, 4) == 0);
    wait_for(4);
    CHECK(sum == 127);
    hsendrecv(15, &number, sizeof number, next, 0, 15, &others[0], sizeof number, handler);
    CHECK(_hsendrecv(15, &number, sizeof number, next, 0, 15, &others[1], sizeof number, handler) == 0);
    wait_for(2);
    gsync();
}

static long first_and_last(void *x, void *work) {
    ((long *)x)[1] = ((long *)work)[1];
    return 0;
}

#define EACH(kind, name, expression)                                                                   \
    do {                                                                                               \
        for (int quiet = 0; quiet < 2; quiet++) {                                                      \
            kind x[3] = {(kind)(me + 1), (kind)(me % 2), (kind)2}, work[3];                            \
            if (quiet) {                                                                               \
                CHECK(_##name(x, 3, work) == 0);                                                       \
            } else {                                                                                   \
                name(x, 3, work);                                                                      \
            }                                                                                          \
            for (int at = 0; at < 3; at++) {                                                           \
                kind r = (kind)(at == 0 ? 1 : at == 1 ? 0 : 2);                                        \
                for (long node = 1; node < count; node++) {                                            \
                    kind v = (kind)(at == 0 ? node + 1 : at == 1 ? node % 2 : 2);                      \
                    r = (kind)(expression);                                                            \
                }                                                                                      \
                CHECK(x[at] == r);                                                                     \
            }                                                                                          \
        }                                                                                              \
    } while (0)
#define LOGICAL(name, expression)                                                                      \
    do {                                                                                               \
        for (int quiet = 0; quiet < 2; quiet++) {                                                      \
            long x[2] = {me * 4, me == 0 ? 7 : 0}, work[2], r = 0, t = 1;                              \
            if (quiet) {                                                                               \
                CHECK(_##name(x, 2, work) == 0);                                                       \
            } else {                                                                                   \
                name(x, 2, work);                                                                      \
            }                                                                                          \
            for (long node = 1; node < count; node++) {                                                \
                long v = 1;                                                                            \
                r = (expression);                                                                      \
                v = 0;                                                                                 \
                long kept = r;                                                                         \
                r = t;                                                                                 \
                t = (expression);                                                                      \
                r = kept;                                                                              \
            }                                                                                          \
            CHECK(x[0] == r && x[1] == t);                                                             \
        }                                                                                              \
    } while (0)

static void global(void) {
    gsync();
    CHECK(_gsync() == 0);
    EACH(double, gdsum, r + v);
    EACH(double, gdprod, r * v);
    EACH(double, gdhigh, r > v ? r : v);
    EACH(double, gdlow, r < v ? r : v);
    EACH(float, gssum, r + v);
    EACH(float, gsprod, r * v);
    EACH(float, gshigh, r > v ? r : v);
    EACH(float, gslow, r < v ? r : v);
    EACH(long, gisum, r + v);
    EACH(long, giprod, r * v);
    EACH(long, gihigh, r > v ? r : v);
    EACH(long, gilow, r < v ? r : v);
    EACH(long, giand, r & v);
    EACH(long, gior, r | v);
    EACH(long, gixor, r ^ v);
    LOGICAL(gland, r && v);
    LOGICAL(glor, r || v);
    LOGICAL(glxor, r != v);

    long *own = malloc((size_t)(me + 1) * sizeof *own), *lens = malloc((size_t)count * sizeof *lens);
    long total = 0, got = -1;
    for (long node = 0; node < count; node++) {
        lens[node] = (node + 1) * (long)sizeof *own;
        total += node + 1;
    }
    long *all = malloc((size_t)total * sizeof *all);
    for (int way = 0; way < 4; way++) {
        for (long at = 0; at <= me; at++) {
            own[at] = me * 100 + at + way;
        }
        memset(all, 0, (size_t)total * sizeof *all);
        switch (way) {
        case 0: gcol(own, lens[me], all, total * (long)sizeof *all, &got); break;
        case 1: CHECK(_gcol(own, lens[me], all, total * (long)sizeof *all, &got) == 0); break;
        case 2: gcolx(own, lens, all); break;
        case 3: CHECK(_gcolx(own, lens, all) == 0); break;
        }
        CHECK(got == total * (long)sizeof *all);
        long *place = all;
        for (long node = 0; node < count; node++) {
            for (long at = 0; at <= node; at++) {
                CHECK(*place++ == node * 100 + at + way);
            }
        }
    }
    /* Too little room is an error of all. */
    FAILS(_gcol(own, lens[me], all, total * (long)sizeof *all - 1, &got), EINVAL);
    free(own);
    free(lens);
    free(all);
    long range[2] = {me, me}, work[2];
    gopf(range, sizeof range, work, first_and_last);
    CHECK(range[0] == 0 && range[1] == count - 1);
    range[0] = range[1] = me;
    CHECK(_gopf(range, sizeof range, work, first_and_last) == 0 && range[1] == count - 1);
}

static void wrong(void) {
    char bytes[8] = "";
    long id;
    FAILS(_csend(1, bytes, 1, count, 0), EINVAL);
    FAILS(_csend(2000000000, bytes, 1, next, 0), EINVAL);
    FAILS(_csend(-1, bytes, 1, next, 0), EINVAL);
    FAILS(_csend(1, bytes, 1, next, 65536), EINVAL);
    FAILS(_csend(1, bytes, -1, next, 0), EINVAL);
    FAILS(_csend(1, NULL, 1, next, 0), EFAULT);
    FAILS(_crecv(-2, bytes, 1), EINVAL);
    FAILS(_crecv(1, NULL, 1), EFAULT);
    FAILS(_crecvx(1, bytes, 1, -2, -1, NULL), EINVAL);
    FAILS(_irecv(1, bytes, -1), EINVAL);
    FAILS(_isend(1, NULL, 1, next, 0), EFAULT);
    FAILS(_hrecv(1, bytes, 1, NULL), EFAULT);
    FAILS(_gopf(bytes, 1, bytes, NULL), EFAULT);
    FAILS(_gdsum(NULL, 1, NULL), EFAULT);
    FAILS(_gisum(NULL, -1, NULL), EINVAL);
    FAILS(_gsendx(1, bytes, 1, &count, 1), EINVAL);
    FAILS(_setptype(-1), EINVAL);
    FAILS(_msgwait(0), EBADF);
    FAILS(_msgdone(-7), EBADF);
    FAILS(_msgignore(12345678), EBADF);
    id = irecv(1, bytes, 1);
    FAILS(_msgmerge(id, id), EBADF);
    msgcancel(id);
    FAILS(_msgcancel(id), EBADF);
    FAILS(_nx_waitall(), ECHILD);
    FAILS(_nx_load(NULL, -1, 0, NULL, "/bin/true"), EBUSY);
    FAILS(_nx_app_nodes(0, NULL, NULL), EFAULT);
    csend(30, bytes, 8, next, 0); /* a type of its own: receives of type 1 are begun here and there */
    FAILS(_crecv(30, bytes, 7), EMSGSIZE);
    if (me == 0) {
        nx_perror("said");
    }
    long ids[5000], used = 0;
    while ((ids[used] = _irecv(1, bytes, 1)) != -1) {
        CHECK(++used < 5000);
    }
    CHECK(errno == EAGAIN && used > 1000);
    while (used > 0) {
        msgcancel(ids[--used]);
    }
    gsync();
}

int main(int argc, char *argv[]) {
    long nodes = nx_initve(NULL, 0, NULL, &argc, argv);
    CHECK(nx_nfork(NULL, -1, 0, NULL) == 0);
    me = mynode();
    count = numnodes();
    CHECK(nodes == count && _nx_initve(NULL, 0, NULL, NULL, NULL) == count && _nx_nfork(NULL, -1, 0, NULL) == 0);
    next = (me + 1) % count;
    before = (me + count - 1) % count;
    messages();
    looking();
    identity();
    handlers();
    global();
    wrong();
    printf("fine\n");
    return 0;
}
