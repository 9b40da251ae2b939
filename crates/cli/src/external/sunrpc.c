// A server and a client of ONC RPC by libtirpc, as a peer for VMMC: `sunrpc tcp|udp SIZE N` prints
// p50 and p99 of a call there and back in ns. Its result has SIZE bytes.
#include <rpc/rpc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 1, NOTHING = 0, READ = 1 };

typedef struct {
    char *data;
    u_int len;
} bytes;

static u_int size;

static bool_t xdr_result(XDR *xdr, bytes *result) {
    return xdr_bytes(xdr, &result->data, &result->len, 1 << 20);
}

static void serve(struct svc_req *request, SVCXPRT *transport) {
    static char page[1 << 20];
    bytes result = {page, size};
    if (request->rq_proc == NOTHING) svc_sendreply(transport, (xdrproc_t)xdr_void, NULL);
    else if (request->rq_proc == READ) svc_sendreply(transport, (xdrproc_t)xdr_result, (char *)&result);
    else svcerr_noproc(transport);
}

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void fail(const char *what) {
    fprintf(stderr, "%s failed\n", what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc < 4) fail("reading the arguments");
    int tcp = !strcmp(argv[1], "tcp"), n = atoi(argv[3]), warm = n / 5 + 1, port[2];
    size = atoi(argv[2]);
    // No other program has it, for it goes without a portmapper.
    unsigned long program = 0x20000000 + getpid();
    if (pipe(port)) fail("pipe");
    pid_t server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        SVCXPRT *transport = tcp ? svctcp_create(RPC_ANYSOCK, 0, 0) : svcudp_create(RPC_ANYSOCK);
        if (!transport || !svc_register(transport, program, VERSION, serve, 0)) fail("the server");
        u_short own = transport->xp_port;
        if (write(port[1], &own, sizeof own) != sizeof own) fail("write");
        svc_run();
        exit(1);
    }
    close(port[1]);
    u_short theirs;
    if (read(port[0], &theirs, sizeof theirs) != sizeof theirs) fail("the server");
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(theirs), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval second = {1, 0}, ten = {10, 0};
    int socket = RPC_ANYSOCK;
    CLIENT *client = tcp ? clnttcp_create(&to, program, VERSION, &socket, 0, 0)
                         : clntudp_create(&to, program, VERSION, second, &socket);
    if (!client) fail("the client");
    double *times = malloc(n * sizeof *times);
    char *page = malloc(1 << 20);
    for (int i = -warm; i < n; i++) {
        bytes result = {page, 0};
        double start = now_ns();
        enum clnt_stat status =
            size ? clnt_call(client, READ, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_result, (char *)&result, ten)
                 : clnt_call(client, NOTHING, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, ten);
        if (i >= 0) times[i] = now_ns() - start;
        if (status != RPC_SUCCESS) fail(clnt_sperrno(status));
    }
    kill(server, SIGKILL);
    qsort(times, n, sizeof *times, ascending);
    printf("%.1f %.1f\n", times[n / 2], times[n - 1 - n / 100]);
    return 0;
}
