/* A signal handler that closes, accepts, sends, receives and shuts down, on connections that its
 * thread is busy with: in epoll_wait, epoll_ctl, poll, recv, send, close, connect, accept, fork,
 * and malloc. All of these may be called in a handler (signal-safety(7)), so nothing may hang,
 * whatever it interrupts. It prints how often the handler ran. Argument: rounds. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { VICTIMS = 64, PIECE = 3000 };
static volatile int victims[VICTIMS], listener, ours, peer, set;
static volatile sig_atomic_t runs, handled[5];
static struct sockaddr_in at;

static void die(const char *what) { printf("FAILED %s: %s\n", what, strerror(errno)); fflush(stdout); _exit(1); }
static int victim(int from)
{
    for (int i = 0; i < VICTIMS; i++) {
        int place = (from + i) % VICTIMS, fd = victims[place];
        if (fd > 0) { victims[place] = 0; return fd; }
    }
    return -1;
}
static void handler(int sig)
{
    int kept = errno, fd, what = runs % 5;
    char bytes[PIECE];
    (void)sig;
    switch (what) {
    case 0: if ((fd = victim(runs)) > 0) close(fd); break;
    case 1: if ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) close(fd); break;
    case 2: memset(bytes, 'h', 100); send(runs & 8 ? ours : peer, bytes, 100, MSG_DONTWAIT | MSG_NOSIGNAL); break;
    case 3: recv(runs & 8 ? ours : peer, bytes, sizeof bytes, MSG_DONTWAIT); break;
    case 4: if ((fd = victim(runs + 7)) > 0) { shutdown(fd, SHUT_RDWR); close(fd); } break;
    }
    handled[what]++;
    runs++;
    errno = kept;
}
/* The other end is the next one that is accepted, here or in the handler. */
static int connected(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || (connect(fd, (void *)&at, sizeof at) && errno != EINTR && errno != EISCONN)) die("connect");
    return fd;
}
static void pair(int *one, int *two)
{
    sigset_t alarm, before;
    sigemptyset(&alarm); sigaddset(&alarm, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm, &before);
    for (int stale; (stale = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0;) close(stale);
    *one = connected();
    while ((*two = accept4(listener, 0, 0, 0)) < 0) if (errno != EAGAIN && errno != EINTR) die("accept");
    char bytes[8];
    for (int i = 0; i < 24; i++) {
        if (send(*one, "12345678", 8, MSG_NOSIGNAL) != 8 || recv(*two, bytes, 8, MSG_WAITALL) != 8) die("warm up");
        if (send(*two, "12345678", 8, MSG_NOSIGNAL) != 8 || recv(*one, bytes, 8, MSG_WAITALL) != 8) die("warm up");
    }
    fcntl(*one, F_SETFL, O_NONBLOCK); fcntl(*two, F_SETFL, O_NONBLOCK);
    sigprocmask(SIG_SETMASK, &before, 0);
}
static void control(int op, int fd, unsigned events)
{
    struct epoll_event event = { .events = events, .data.fd = fd };
    epoll_ctl(set, op, fd, &event);
}
int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 300, one, two;
    socklen_t len = sizeof at;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    at.sin_family = AF_INET; at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 100) || getsockname(listener, (void *)&at, &len)) die("listen");
    set = epoll_create1(EPOLL_CLOEXEC);
    pair(&one, &two); ours = one; peer = two;
    control(EPOLL_CTL_ADD, ours, EPOLLIN);
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = { { 0, 300 }, { 0, 300 } };
    setitimer(ITIMER_REAL, &often, 0);
    char bytes[PIECE], more[PIECE];
    memset(more, 'm', sizeof more);
    for (int round = 0; round < rounds; round++) {
        struct epoll_event events[16];
        for (int i = 0; i < 4; i++) {
            pair(&one, &two);
            control(EPOLL_CTL_ADD, one, EPOLLIN); control(EPOLL_CTL_ADD, two, EPOLLIN | EPOLLET);
            victims[(round * 8 + 2 * i) % VICTIMS] = one; victims[(round * 8 + 2 * i + 1) % VICTIMS] = two;
        }
        for (int i = 0; i < 60; i++) {
            send(ours, more, sizeof more, MSG_DONTWAIT | MSG_NOSIGNAL);
            send(peer, more, 64, MSG_DONTWAIT | MSG_NOSIGNAL);
            control(EPOLL_CTL_MOD, ours, i & 1 ? EPOLLIN : EPOLLIN | EPOLLOUT);
            epoll_wait(set, events, 16, 0);
            recv(peer, bytes, sizeof bytes, MSG_DONTWAIT);
            recv(ours, bytes, sizeof bytes, MSG_DONTWAIT);
            struct pollfd both[] = { { ours, POLLIN, 0 }, { peer, POLLIN | POLLOUT, 0 } };
            poll(both, 2, 0);
            free(malloc(100 + i * 50));
            control(EPOLL_CTL_DEL, ours, 0); control(EPOLL_CTL_ADD, ours, EPOLLIN);
        }
        int left = connected(), taken = accept4(listener, 0, 0, SOCK_NONBLOCK);
        close(left); if (taken >= 0) close(taken);
        for (int i = 0; i < VICTIMS; i++) { int fd = victims[i]; if (fd > 0 && i % 16 == round % 16) { victims[i] = 0; close(fd); } }
        epoll_wait(set, events, 16, 1);
        if (round % 10 == 0) {
            pid_t child = fork();
            if (child == 0) { send(ours, more, 10, MSG_DONTWAIT | MSG_NOSIGNAL); _exit(0); }
            while (child > 0 && waitpid(child, 0, 0) < 0 && errno == EINTR) {}
        }
    }
    struct itimerval never = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &never, 0);
    for (int i = 0; i < 5; i++) if (handled[i] == 0) die("a part of the handler never ran");
    printf("fine\n");
    fprintf(stderr, "the handler ran %d times\n", (int)runs);
    return 0;
}
