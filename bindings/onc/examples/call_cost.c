/* What a call without arguments and result costs over VMMC, beside TCP and UDP, in one run: client
 * and server are two processes of this machine.
 *
 *   cc -O2 call_cost.c $(pkg-config --cflags --libs vmmc_onc) -o call_cost && ./call_cost */

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vmmc_onc.h>

#define PROG 0x200000c0
#define BLOCKS 20
#define CALLS 500

static void dispatch(struct svc_req *request, SVCXPRT *xprt) {
    if (request->rq_proc != 0 || !svc_sendreply(xprt, (xdrproc_t)xdr_void, NULL)) {
        svcerr_noproc(xprt);
    }
}

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, vmmc_onc_message());
    exit(1);
}

/* The ports of TCP and UDP go to the client; over VMMC it is found by its number. */
static void serve(int to) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    SVCXPRT *tcp = svctcp_create(RPC_ANYSOCK, 0, 0), *udp = svcudp_create(RPC_ANYSOCK);
    if (tcp == NULL || udp == NULL || !svc_register(tcp, PROG, 1, dispatch, 0) ||
        !svc_register(udp, PROG, 1, dispatch, 0) || svc_vmmc_create(dispatch, PROG, 1) == NULL) {
        fail("server");
    }
    u_short ports[2] = {tcp->xp_port, udp->xp_port};
    if (write(to, ports, sizeof ports) != sizeof ports) {
        fail("pipe");
    }
    svc_run();
}

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return a < b ? -1 : a > b;
}

static double median(double *times) {
    qsort(times, BLOCKS, sizeof *times, by_size);
    return times[BLOCKS / 2];
}

/* Microseconds of a call, over one block. */
static double block(CLIENT *clnt) {
    struct timeval wait = {25, 0};
    double begun = now_us();
    for (int call = 0; call < CALLS; call++) {
        if (clnt_call(clnt, 0, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, wait) != RPC_SUCCESS) {
            clnt_perror(clnt, "call");
            exit(1);
        }
    }
    return (now_us() - begun) / CALLS;
}

int main(void) {
    int pipes[2];
    if (pipe(pipes) != 0) {
        fail("pipe");
    }
    pid_t server = fork();
    if (server == 0) {
        serve(pipes[1]);
        _exit(1);
    }
    close(pipes[1]);
    u_short ports[2];
    if (read(pipes[0], ports, sizeof ports) != sizeof ports) {
        fail("the server has not started");
    }
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_port = htons(ports[0])}, udp = tcp;
    tcp.sin_addr.s_addr = udp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    udp.sin_port = htons(ports[1]);
    int tcp_fd = RPC_ANYSOCK, udp_fd = RPC_ANYSOCK;
    struct timeval retry = {5, 0};
    CLIENT *of[3] = {clnt_vmmc_create(NULL, PROG, 1), clnttcp_create(&tcp, PROG, 1, &tcp_fd, 0, 0),
                     clntudp_create(&udp, PROG, 1, retry, &udp_fd)};
    const char *names[3] = {"clnt_vmmc_create", "clnttcp_create", "clntudp_create"};
    double times[3][BLOCKS];
    for (int at = 0; at < 3; at++) {
        if (of[at] == NULL) {
            clnt_pcreateerror(names[at]);
            fail(names[at]);
        }
        block(of[at]);
    }
    /* In turn, so that what else the machine does meets all of them. */
    for (int round = 0; round < BLOCKS; round++) {
        for (int at = 0; at < 3; at++) {
            times[at][round] = block(of[at]);
        }
    }
    double ours = median(times[0]);
    printf("a call without arguments and result, median of %d blocks of %d calls\n", BLOCKS, CALLS);
    for (int at = 0; at < 3; at++) {
        double time = median(times[at]);
        printf("%-18s %6.1f us  %4.1f times that of VMMC\n", names[at], time, time / ours);
    }
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return 0;
}
