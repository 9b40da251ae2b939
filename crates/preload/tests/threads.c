/* Threads and signal handlers that get in each other's way on connections. Argument: what to try.
 * Each prints "fine". */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int listener;
static struct sockaddr_in at;

static void die(const char *what) { printf("FAILED %s: %s\n", what, strerror(errno)); fflush(stdout); _exit(1); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void nap(long us) { struct timespec t = { us / 1000000, us % 1000000 * 1000 }; while (nanosleep(&t, &t)) {} }
static pthread_t begin(void *(*run)(void *), void *with)
{
    pthread_t thread;
    if (pthread_create(&thread, 0, run, with)) die("thread");
    return thread;
}
static int connected(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (void *)&at, sizeof at)) die("connect");
    return fd;
}
static void all(int fd, const char *bytes, size_t n)
{
    while (n > 0) { ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL); if (sent <= 0) die("send"); bytes += sent; n -= sent; }
}
/* Brings both ends into the ring. */
static void warm(int one, int two)
{
    char bytes[8];
    for (int i = 0; i < 80; i++) {
        if (i == 40) nap(20000);
        all(one, "12345678", 8); if (recv(two, bytes, 8, MSG_WAITALL) != 8) die("warm up");
        all(two, "12345678", 8); if (recv(one, bytes, 8, MSG_WAITALL) != 8) die("warm up");
    }
}
static void pair(int *one, int *two)
{
    *one = connected();
    if ((*two = accept4(listener, 0, 0, SOCK_CLOEXEC)) < 0) die("accept");
    warm(*one, *two);
}

/* A server in another process, one thread for each connection, which answers with what it gets. */
static void *echo(void *with)
{
    int fd = (int)(long)with;
    static __thread char bytes[1 << 16];
    for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, 0)) > 0;) for (ssize_t done = 0; done < n;) {
        ssize_t sent = send(fd, bytes + done, n - done, MSG_NOSIGNAL);
        if (sent <= 0) { close(fd); return 0; }
        done += sent;
    }
    close(fd);
    return 0;
}
static void serve(void)
{
    if (fork()) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        int fd = accept4(listener, 0, 0, SOCK_CLOEXEC);
        if (fd >= 0) pthread_detach(begin(echo, (void *)(long)fd));
    }
}
static void ask(int fd, int times)
{
    char answer[4];
    for (int i = 0; i < times; i++) {
        all(fd, "ping", 4);
        if (recv(fd, answer, 4, MSG_WAITALL) != 4) die("no answer");
        if (memcmp(answer, "ping", 4)) { printf("FAILED: %.4s came\n", answer); fflush(stdout); _exit(1); }
    }
}

/* close() while another thread sends or receives on the connection; the next one begins at once. */
static void *sends(void *with) { static char many[1 << 20]; memset(many, 'm', sizeof many); while (send((int)(long)with, many, sizeof many, MSG_NOSIGNAL) > 0) {} return 0; }
static void *receives(void *with) { char bytes[100]; while (recv((int)(long)with, bytes, sizeof bytes, 0) > 0) {} return 0; }
static void closes(int rounds)
{
    serve();
    for (int round = 0; round < rounds; round++) {
        int fd = connected();
        ask(fd, 40);
        pthread_t thread = begin(round % 2 ? receives : sends, (void *)(long)fd);
        nap(500 + random() % 3000);
        close(fd);
        /* The number is not the next connection's. */
        int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
        int next = connected();
        ask(next, 60);
        /* In the kernel its call goes on until a signal ends it. */
        for (; pthread_tryjoin_np(thread, 0); nap(1000)) pthread_kill(thread, SIGUSR2);
        ask(next, 20);
        close(next); close(other);
    }
}

/* Both ends write more than fits before they read, and wait for room in a poll of two descriptors.
 */
static void *writes(void *with)
{
    int fd = (int)(long)with, pipes[2];
    static const size_t much = 1500000;
    static __thread char bytes[1 << 16];
    if (pipe(pipes)) die("pipe");
    fcntl(fd, F_SETFL, O_NONBLOCK);
    for (size_t done = 0; done < much;) {
        struct pollfd two[] = { { fd, POLLOUT, 0 }, { pipes[0], POLLIN, 0 } };
        if (poll(two, 2, 20000) != 1) die("no room");
        ssize_t n = send(fd, bytes, sizeof bytes < much - done ? sizeof bytes : much - done, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) die("send");
        if (n > 0) done += n;
    }
    for (size_t done = 0; done < much;) {
        struct pollfd two[] = { { fd, POLLIN, 0 }, { pipes[0], POLLIN, 0 } };
        if (poll(two, 2, 20000) != 1) die("no bytes");
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n == 0 || n < 0 && errno != EAGAIN) die("recv");
        if (n > 0) done += n;
    }
    close(pipes[0]); close(pipes[1]);
    return 0;
}
static void polls(int rounds)
{
    for (int round = 0; round < rounds; round++) {
        int one, two;
        pair(&one, &two);
        double began = now();
        pthread_t first = begin(writes, (void *)(long)one), second = begin(writes, (void *)(long)two);
        pthread_join(first, 0); pthread_join(second, 0);
        if (now() - began > 5) die("slow");
        close(one); close(two);
    }
}

/* Two threads that each send on a connection, and whose handlers send on the other's. */
static int crossed[2];
static __thread int mine = -1;
static volatile int stop;
static void cross(int sig)
{
    int kept = errno;
    (void)sig;
    if (mine >= 0) { send(crossed[1 - mine], "h", 1, MSG_DONTWAIT | MSG_NOSIGNAL); send(crossed[1 - mine], "h", 1, MSG_NOSIGNAL); }
    errno = kept;
}
static void *crosses(void *with)
{
    mine = (int)(long)with;
    static char bytes[1 << 16];
    while (!stop) if (send(crossed[mine], bytes, sizeof bytes, MSG_NOSIGNAL) < 0 && errno != EINTR) die("send");
    return 0;
}
static void crossing(int seconds)
{
    int ends[2];
    pthread_t readers[2], threads[2];
    struct sigaction action = { .sa_handler = cross, .sa_flags = SA_RESTART };
    sigaction(SIGUSR1, &action, 0);
    for (int i = 0; i < 2; i++) pair(&crossed[i], &ends[i]);
    for (int i = 0; i < 2; i++) readers[i] = begin(receives, (void *)(long)ends[i]);
    for (int i = 0; i < 2; i++) threads[i] = begin(crosses, (void *)(long)i);
    for (double end = now() + seconds; now() < end; nap(300)) for (int i = 0; i < 2; i++) pthread_kill(threads[i], SIGUSR1);
    stop = 1;
    for (int i = 0; i < 2; i++) { pthread_join(threads[i], 0); close(crossed[i]); pthread_join(readers[i], 0); }
}

/* Two threads that each change a set, and whose handlers change the other's; no change gets lost.
 */
static int sets_crossed[2];
static void cross_sets(int sig)
{
    int kept = errno, other = 1 - mine;
    (void)sig;
    if (mine >= 0) {
        struct epoll_event change = { EPOLLIN, { .u64 = 7 } };
        if (epoll_ctl(sets_crossed[other], EPOLL_CTL_MOD, crossed[other], &change)) die("handler's epoll_ctl");
    }
    errno = kept;
}
static void *crosses_sets(void *with)
{
    mine = (int)(long)with;
    for (unsigned long i = 0; !stop; i++) {
        struct epoll_event change = { i & 1 ? EPOLLIN : EPOLLIN | EPOLLRDHUP, { .u64 = 7 } };
        if (epoll_ctl(sets_crossed[mine], EPOLL_CTL_MOD, crossed[mine], &change)) die("epoll_ctl");
    }
    return 0;
}
static void crossing_sets(int seconds)
{
    int ends[2];
    pthread_t threads[2];
    struct sigaction action = { .sa_handler = cross_sets, .sa_flags = SA_RESTART };
    sigaction(SIGUSR1, &action, 0);
    for (int i = 0; i < 2; i++) {
        struct epoll_event added = { EPOLLIN, { .u64 = 7 } };
        pair(&crossed[i], &ends[i]);
        sets_crossed[i] = epoll_create1(0);
        if (epoll_ctl(sets_crossed[i], EPOLL_CTL_ADD, crossed[i], &added)) die("add");
    }
    for (int i = 0; i < 2; i++) threads[i] = begin(crosses_sets, (void *)(long)i);
    for (double end = now() + seconds; now() < end; nap(300)) for (int i = 0; i < 2; i++) pthread_kill(threads[i], SIGUSR1);
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < 2; i++) {
        struct epoll_event event, again = { EPOLLIN, { .u64 = 7 } };
        if (!epoll_ctl(sets_crossed[i], EPOLL_CTL_ADD, crossed[i], &again) || errno != EEXIST) die("it is gone");
        if (send(ends[i], "x", 1, 0) != 1 || epoll_wait(sets_crossed[i], &event, 1, 5000) != 1 || event.data.u64 != 7) die("no event");
        if (epoll_ctl(sets_crossed[i], EPOLL_CTL_DEL, crossed[i], 0) || epoll_wait(sets_crossed[i], &event, 1, 50)) die("still there");
    }
}

/* Both ends write very much before either reads. */
static size_t much_written;
static void *writes_then_reads(void *with)
{
    int fd = (int)(long)with;
    static __thread char bytes[1 << 14];
    for (size_t done = 0; done < much_written;) {
        size_t most = much_written - done < sizeof bytes ? much_written - done : sizeof bytes;
        for (size_t i = 0; i < most; i++) bytes[i] = (done + i) * 2654435761u >> 13;
        ssize_t n = send(fd, bytes, most, MSG_NOSIGNAL);
        if (n <= 0) die("send");
        done += n;
    }
    for (size_t done = 0; done < much_written;) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n <= 0) die("recv");
        for (ssize_t i = 0; i < n; i++) if (bytes[i] != (char)((done + i) * 2654435761u >> 13)) die("a wrong byte");
        done += n;
    }
    return 0;
}
static void exchanges(int kilobytes)
{
    much_written = (size_t)kilobytes << 10;
    for (int round = 0; round < 20; round++) {
        int one = connected(), two = accept4(listener, 0, 0, SOCK_CLOEXEC);
        char byte;
        for (int i = 0; i < round; i++) if (send(one, "a", 1, 0) != 1 || recv(two, &byte, 1, 0) != 1 || send(two, "b", 1, 0) != 1 || recv(one, &byte, 1, 0) != 1) die("few bytes");
        pthread_t first = begin(writes_then_reads, (void *)(long)one), second = begin(writes_then_reads, (void *)(long)two);
        pthread_join(first, 0); pthread_join(second, 0);
        close(one); close(two);
    }
}

/* A handler that interrupted a send, a receive or epoll_wait and does not come back. */
static sigjmp_buf back;
static volatile sig_atomic_t may_jump;
static void jump(int sig) { (void)sig; if (may_jump) siglongjmp(back, 1); }
static void *eats(void *with) { static char bytes[1 << 16]; while (recv((int)(long)with, bytes, sizeof bytes, 0) > 0) {} return 0; }
static void jumps(int rounds)
{
    int one, two;
    volatile int round = 0, good = 0;
    static char bytes[5000];
    pair(&one, &two);
    sigset_t alarm;
    sigemptyset(&alarm); sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, 0);
    pthread_t eater = begin(eats, (void *)(long)two);
    pthread_sigmask(SIG_UNBLOCK, &alarm, 0);
    struct sigaction action = { .sa_handler = jump };
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = { { 0, 300 }, { 0, 300 } }, never = { { 0, 0 }, { 0, 0 } };
    int last = 0;
    setitimer(ITIMER_REAL, &often, 0);
    for (; round < rounds; round++) {
        if (sigsetjmp(back, 1) == 0) {
            may_jump = 1;
            for (;;) if (send(one, bytes, sizeof bytes, MSG_NOSIGNAL) == sizeof bytes) good++;
        }
        may_jump = 0;
        if (round % 100 == 99) { if (good - last < 5) die("nothing goes any more"); last = good; }
    }
    setitimer(ITIMER_REAL, &never, 0);
    for (int i = 0; i < 100; i++) if (send(one, bytes, sizeof bytes, MSG_NOSIGNAL) <= 0) die("send after the jumps");
    /* Its calls are the library's again: a connection that ends does so for the reader. */
    close(one);
    pthread_join(eater, 0);
}

/* One connection in more sets than are followed. */
static int events_of(int set)
{
    struct epoll_event event;
    return epoll_wait(set, &event, 1, 100);
}
static void sets(int rounds)
{
    enum { SETS = 7 };
    for (int round = 0; round < rounds; round++) {
        int one, two, three, four, set[SETS];
        struct epoll_event event = { .events = EPOLLIN };
        pair(&one, &two);
        for (int i = 0; i < SETS; i++) {
            set[i] = epoll_create1(EPOLL_CLOEXEC);
            if (epoll_ctl(set[i], EPOLL_CTL_ADD, one, &event)) die("add");
        }
        if (epoll_ctl(set[SETS - 1], EPOLL_CTL_DEL, one, 0)) die("del");
        all(two, "x", 1);
        for (int i = 0; i < SETS; i++) if (events_of(set[i]) != (i < SETS - 1)) { printf("set %d: ", i); die("wrong events"); }
        close(one);
        for (int i = 0; i < SETS; i++) if (events_of(set[i])) die("events of a closed connection");
        pair(&three, &four);
        all(three, "y", 1);
        for (int i = 0; i < SETS; i++) if (events_of(set[i])) die("events of another connection");
        for (int i = 0; i < SETS; i++) close(set[i]);
        close(two); close(three); close(four);
    }
}

/* A chain of forks: each process accepts one connection, forks the one that accepts the next, and
 * serves its own with epoll. */
static void serve_in_chain(int rounds)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int round = 0; round < rounds; round++) {
        int fd = accept4(listener, 0, 0, SOCK_CLOEXEC);
        if (fd < 0) die("accept");
        if (fork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); close(fd); continue; }
        int set = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event event = { .events = EPOLLIN };
        if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("add");
        for (;;) {
            char bytes[100];
            if (epoll_wait(set, &event, 1, -1) != 1) continue;
            ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (n > 0) all(fd, bytes, n); else if (n == 0) break;
        }
        close(fd);
        pause();
    }
    pause();
}
static void forks(int rounds)
{
    int fds[rounds];
    struct timeval soon = { 5, 0 };
    pid_t server = fork();
    if (server == 0) serve_in_chain(rounds);
    for (int i = 0; i < rounds; i++) {
        fds[i] = connected();
        setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        ask(fds[i], 60);
    }
    for (int i = 0; i < rounds; i++) ask(fds[i], 20);
    for (int i = 0; i < rounds; i++) close(fds[i]);
    kill(server, SIGKILL);
}

static void nothing(int sig) { (void)sig; }
int main(int argc, char **argv)
{
    socklen_t len = sizeof at;
    const char *what = argc > 1 ? argv[1] : "";
    int much = argc > 2 ? atoi(argv[2]) : 10;
    struct sigaction action = { .sa_handler = nothing };
    sigaction(SIGUSR2, &action, 0);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    at.sin_family = AF_INET; at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 100) || getsockname(listener, (void *)&at, &len)) die("listen");
    if (!strcmp(what, "closes")) closes(much);
    else if (!strcmp(what, "polls")) polls(much);
    else if (!strcmp(what, "crossing")) crossing(much);
    else if (!strcmp(what, "crossing-sets")) crossing_sets(much);
    else if (!strcmp(what, "exchanges")) exchanges(much);
    else if (!strcmp(what, "jumps")) jumps(much);
    else if (!strcmp(what, "sets")) sets(much);
    else if (!strcmp(what, "forks")) forks(much);
    else die("what?");
    printf("fine\n");
    return 0;
}
