/* The matrix of probes: each state of a connection times each call, a fresh connection for each
 * pair. The same program prints the same over TCP and over rings; tests/differential.rs compares
 * line by line.
 *
 *     matrix peer SOCKET                       obeys an actor
 *     matrix actor SOCKET END NODE [STATE...]  puts connections into states, makes the calls, and
 *                                              prints
 *
 * SOCKET is a path for the orders from actor to peer. END says which end the actor has: `connects`
 * or `accepts`. NODE is what happens to the node before the states: `alive`, `stopped:PID` or
 * `killed:PID`; with a third word, `stopped:PID:SEED`, it happens at a moment that the seed
 * chooses, from the first connection of a state to its last call, and a node that was stopped may
 * go on at another one. All connections of a state are prepared together, so the naps are few.
 *
 * To add a call, add a line to CALLS; to add a set that has the connection from its beginning on,
 * one to WATCHES; to add a state, one to STATES. */
#define _GNU_SOURCE
#include "vmmc_sockets.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <linux/sockios.h>

enum { CONNECTIONS_MAX = 256, MANY = 10000, WAIT_MS = 25, NAP_US = 40000 };
/* Numbers above this depend on the sizes of buffers. */
enum { MUCH = 16000 };

static int fds[CONNECTIONS_MAX];
static char buf[200000], line[4000];
static volatile int pipes;

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(1);
}

static void say(const char *format, ...)
{
    va_list list;
    size_t used = strlen(line);
    va_start(list, format);
    vsnprintf(line + used, sizeof line - used, format, list);
    va_end(list);
}

static void says(long result)
{
    if (result < 0)
        say(" %s", strerrorname_np(errno));
    else if (result > MUCH)
        say(" much");
    else
        say(" %ld", result);
}

static void on_pipe(int signal)
{
    (void)signal;
    pipes++;
}

static void nap(void) { usleep(NAP_US); }

/* ── Orders to the peer ── */

enum order { CONNECT, LISTEN, ACCEPT, ECHO, SEND, SHUT, CLOSE, RESET, DISSOLVE, KILL, LOOK, NARROW };
struct order_message { int order, index, number; };
struct answer { long result; char text[200]; };

static int orders = -1;

static struct answer peer(enum order order, int index, int number)
{
    struct order_message message = { order, index, number };
    struct answer answer;
    if (send(orders, &message, sizeof message, 0) != sizeof message) die("order");
    if (recv(orders, &answer, sizeof answer, 0) != sizeof answer) die("answer");
    if (answer.result < 0) { fprintf(stderr, "peer, order %d: %s\n", order, answer.text); _exit(1); }
    return answer;
}

static struct sockaddr_in loopback(int port)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

static int tcp_listener(int *port)
{
    struct sockaddr_in at = loopback(0);
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 5)) die("listen");
    if (getsockname(fd, (void *)&at, &len)) die("getsockname");
    *port = ntohs(at.sin_port);
    return fd;
}

static int tcp_connected(int port)
{
    struct sockaddr_in at = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (void *)&at, sizeof at)) die("connect");
    return fd;
}

/* Receives four bytes and says whether they came by a ring; without the library, they did not. */
static int took_by_ring(int fd)
{
    const void *bytes;
    struct pollfd entry = { fd, POLLIN, 0 };
    int ring;
    if (poll(&entry, 1, 20000) != 1) die("nothing came");
    ring = vmmc_sockets_peek(fd, &bytes) > 0 && vmmc_sockets_consume(fd, 0) == 0;
    if (recv(fd, buf, 4, MSG_WAITALL) != 4) die("warm-up");
    return ring;
}

static void reset(int fd)
{
    struct linger linger = { 1, 0 };
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    close(fd);
}

static int dissolve(int fd)
{
    struct sockaddr none = { .sa_family = AF_UNSPEC };
    return connect(fd, &none, sizeof none);
}

/* All that can be read, and what comes after it. */
static void look(int fd)
{
    long sum = 0, n;
    unsigned hash = 0;
    for (int turn = 0; turn < 1000 && (n = recv(fd, buf, sizeof buf, MSG_DONTWAIT)) != 0; turn++) {
        if (n < 0) break;
        for (long i = 0; i < n; i++) hash = hash * 31 + buf[i];
        sum += n;
    }
    int error = errno;
    if (sum > MUCH) return say(" much");
    say(" %ld bytes (%x), then", sum, hash);
    errno = error;
    says(n);
}

/* The holder of a connection dies: a child that has it alone. */
static void killed(int *fd)
{
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) for (;;) pause();
    close(*fd);
    *fd = -1;
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
}

/* Until nothing more is taken: a ring that nobody reads is left for the kernel after 10 ms. */
static void fill(int fd)
{
    memset(buf, 'f', sizeof buf);
    for (int vain = 0; vain < 15; vain++) {
        while (send(fd, buf, sizeof buf, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) vain = 0;
        usleep(1000);
    }
}

static int narrow(int fd)
{
    int size = 8192;
    int failed = setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    return failed ? failed : setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
}

static long obey(struct order_message m)
{
    static int listener;
    int port, *fd = &fds[m.index];
    switch (m.order) {
    case CONNECT: return *fd = tcp_connected(m.number);
    case LISTEN: listener = tcp_listener(&port); return port;
    case ACCEPT: return *fd = accept4(listener, 0, 0, SOCK_CLOEXEC);
    case ECHO: return took_by_ring(*fd);
    case SEND: memset(buf, 'p', m.number); return send(*fd, buf, m.number, 0);
    case SHUT: return shutdown(*fd, m.number);
    case CLOSE: return close(*fd);
    case RESET: reset(*fd); return 0;
    case DISSOLVE: return dissolve(*fd);
    case KILL: killed(fd); return 0;
    case NARROW: return narrow(*fd);
    case LOOK: look(*fd); if (*fd >= 0) close(*fd); return 0;
    }
    return -1;
}

static int be_peer(const char *path)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    struct order_message message;
    strncpy(at.sun_path, path, sizeof at.sun_path - 1);
    orders = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    for (int turn = 0; connect(orders, (void *)&at, sizeof at); turn++) {
        if (turn > 2000) die("no actor");
        usleep(10000);
    }
    struct answer hello = { dlsym(RTLD_DEFAULT, "vmmc_sockets_peek_v1") != NULL, "" };
    send(orders, &hello, sizeof hello, 0);
    while (recv(orders, &message, sizeof message, 0) == sizeof message) {
        struct answer answer;
        line[0] = 0;
        answer.result = obey(message);
        snprintf(answer.text, sizeof answer.text, "%s", answer.result < 0 ? strerror(errno) : line);
        send(orders, &answer, sizeof answer, 0);
        if (message.order != ECHO) continue;
        /* After so many microseconds: whoever waits for it sleeps, or nearly does. */
        if (message.number) usleep(message.number);
        if (send(fds[message.index], "pong", 4, 0) != 4) die("echo");
    }
    return 0;
}

/* ── States ── */

/* To be filled once more, when what was under way has arrived. */
static int filled[CONNECTIONS_MAX];

/* Bytes for a peer that has closed, whose kernel answers by a reset. The kernel's own call waits
 * for that: on a busy machine it may be late, or lost and sent again. */
static void send_late(int fd)
{
    struct pollfd entry = { fd, 0, 0 };
    struct timespec limit = { 2, 0 };
    send(fd, "late", 4, MSG_NOSIGNAL);
    syscall(SYS_ppoll, &entry, 1, &limit, NULL, 0);
}

/* What is done at once, and what is done after a nap. */
#define STATES \
    X(idle, , ) \
    X(bytes, peer(SEND, i, 5), ) \
    X(many_bytes, peer(SEND, i, MANY), ) \
    X(peer_half_closed, peer(SHUT, i, SHUT_WR), ) \
    X(peer_half_closed_after_bytes, peer(SEND, i, 5), peer(SHUT, i, SHUT_WR)) \
    X(peer_reads_no_more, peer(SHUT, i, SHUT_RD), ) \
    X(peer_shut_both, peer(SHUT, i, SHUT_RDWR), ) \
    X(peer_closed, peer(CLOSE, i, 0), ) \
    X(peer_closed_after_bytes, peer(SEND, i, 5), peer(CLOSE, i, 0)) \
    X(peer_closed_with_unread, send(fds[i], "unread", 6, 0), peer(CLOSE, i, 0)) \
    X(peer_closed_with_unread_after_bytes, \
      send(fds[i], "unread", 6, 0); peer(SEND, i, 5), peer(CLOSE, i, 0)) \
    X(peer_reset, peer(RESET, i, 0), ) \
    X(peer_reset_after_half_close, peer(SHUT, i, SHUT_WR), peer(RESET, i, 0)) \
    X(peer_dissolved, peer(DISSOLVE, i, 0), ) \
    X(peer_killed, peer(KILL, i, 0), ) \
    X(peer_killed_after_bytes, peer(SEND, i, 5), peer(KILL, i, 0)) \
    X(peer_killed_with_unread, send(fds[i], "unread", 6, 0), peer(KILL, i, 0)) \
    X(sent_late, peer(CLOSE, i, 0), send_late(fds[i])) \
    X(sent_late_bytes, peer(SEND, i, 5); peer(CLOSE, i, 0), send_late(fds[i])) \
    X(half_closed, shutdown(fds[i], SHUT_WR), ) \
    X(half_closed_bytes, peer(SEND, i, 5), shutdown(fds[i], SHUT_WR)) \
    X(reads_no_more, shutdown(fds[i], SHUT_RD), ) \
    X(reads_no_more_bytes, peer(SEND, i, 5), shutdown(fds[i], SHUT_RD)) \
    X(shut_both, shutdown(fds[i], SHUT_RDWR), ) \
    X(both_half_closed, shutdown(fds[i], SHUT_WR), peer(SHUT, i, SHUT_WR)) \
    X(half_closed_then_peer_closed, shutdown(fds[i], SHUT_WR), peer(CLOSE, i, 0)) \
    X(half_closed_then_peer_reset, shutdown(fds[i], SHUT_WR), peer(RESET, i, 0)) \
    X(full, filled[i] = 1; narrow(fds[i]); peer(NARROW, i, 0); fill(fds[i]), fill(fds[i])) \
    X(full_then_peer_closed, narrow(fds[i]); peer(NARROW, i, 0); fill(fds[i]), fill(fds[i]); peer(CLOSE, i, 0)) \
    X(dissolved, dissolve(fds[i]), )

#define X(name, first, later) \
    static void name##_first(int i) { (void)i; first; } \
    static void name##_later(int i) { (void)i; later; }
STATES
#undef X
#define X(name, first, later) { #name, name##_first, name##_later },
static const struct state { const char *name; void (*first)(int i), (*later)(int i); } states[] = { STATES };
#undef X

/* ── Calls ── */

static int option(int fd, int level, int name)
{
    int value = -77;
    socklen_t len = sizeof value;
    return getsockopt(fd, level, name, &value, &len) ? -1 : value;
}

static long received(int fd, int flags, size_t size, int control)
{
    char name[50], area[200];
    struct iovec pieces[2] = { { buf, size / 2 }, { buf + 100, size - size / 2 } };
    struct msghdr m = { name, sizeof name, pieces, 2, control ? area : 0, control ? sizeof area : 0, 0x55 };
    long n = recvmsg(fd, &m, flags);
    int error = errno;
    if (n >= 0) say(" name %d control %d flags %x", (int)m.msg_namelen, (int)m.msg_controllen, m.msg_flags);
    errno = error;
    return n;
}

static long received_several(int fd, int flags, struct timespec *limit)
{
    struct iovec pieces[3] = { { buf, 2 }, { buf + 2, 2 }, { buf + 4, 2 } };
    struct mmsghdr m[3] = { 0 };
    for (int i = 0; i < 3; i++) m[i].msg_hdr = (struct msghdr){ .msg_iov = &pieces[i], .msg_iovlen = 1 };
    int n = recvmmsg(fd, m, 3, flags, limit), error = errno;
    for (int i = 0; i < n; i++) say(" %u", m[i].msg_len);
    errno = error;
    return n;
}

static long from(int fd, int flags)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    long n = recvfrom(fd, buf, 9, flags, (void *)&at, &len);
    int error = errno;
    say(" length %d", (int)len);
    errno = error;
    return n;
}

static long sent(int fd, int flags, int named)
{
    struct sockaddr_in at = loopback(9);
    struct iovec pieces[2] = { { "one", 3 }, { "two", 3 } };
    struct msghdr m = { named ? &at : 0, named ? sizeof at : 0, pieces, 2, 0, 0, 0 };
    return sendmsg(fd, &m, flags);
}

static long sent_several(int fd)
{
    struct iovec pieces[2] = { { "one", 3 }, { "two", 3 } };
    struct mmsghdr m[2] = { 0 };
    for (int i = 0; i < 2; i++) m[i].msg_hdr = (struct msghdr){ .msg_iov = &pieces[i], .msg_iovlen = 1 };
    int n = sendmmsg(fd, m, 2, 0), error = errno;
    for (int i = 0; i < n; i++) say(" %u", m[i].msg_len);
    errno = error;
    return n;
}

static long to(int fd)
{
    struct sockaddr_in at = loopback(9);
    return sendto(fd, "x", 1, 0, (void *)&at, sizeof at);
}

static int a_file(void)
{
    FILE *file = tmpfile();
    fputs("of a file", file);
    fflush(file);
    rewind(file);
    return fileno(file);
}

static long file_sent(int fd, int with_offset)
{
    off_t offset = 3;
    int file = a_file();
    long n = sendfile(fd, file, with_offset ? &offset : 0, 100);
    int error = errno;
    say(" offset %ld, file at %ld", (long)offset, (long)lseek(file, 0, SEEK_CUR));
    errno = error;
    return n;
}

static long spliced(int fd, int into)
{
    int ends[2];
    if (pipe(ends)) return -1;
    if (into && write(ends[1], "piped", 5) != 5) return -1;
    return into ? splice(ends[0], 0, fd, 0, 5, SPLICE_F_NONBLOCK) : splice(fd, 0, ends[1], 0, 9, SPLICE_F_NONBLOCK);
}

static long polled(int fd, int events, int ms)
{
    struct pollfd entry = { fd, events, 0 };
    int n = poll(&entry, 1, ms);
    return n < 0 ? -1 : entry.revents;
}

static long ppolled(int fd)
{
    struct timespec none = { 0, 0 };
    struct pollfd entry = { fd, POLLIN | POLLOUT, 0 };
    sigset_t mask;
    sigemptyset(&mask);
    return ppoll(&entry, 1, &none, &mask) < 0 ? -1 : entry.revents;
}

static long selected(int fd, int which, int ms)
{
    fd_set sets[3];
    struct timeval limit = { 0, ms * 1000 };
    for (int i = 0; i < 3; i++) { FD_ZERO(&sets[i]); if (which & (1 << i)) FD_SET(fd, &sets[i]); }
    int n = select(fd + 1, &sets[0], &sets[1], &sets[2], &limit), error = errno;
    for (int i = 0; n > 0 && i < 3; i++) say("%s", FD_ISSET(fd, &sets[i]) ? (char *[]){ " r", " w", " e" }[i] : "");
    errno = error;
    return n;
}

static long pselected(int fd)
{
    fd_set set;
    struct timespec none = { 0, 0 };
    FD_ZERO(&set);
    FD_SET(fd, &set);
    return pselect(fd + 1, &set, 0, 0, &none, 0);
}

static int watched(int fd, unsigned events)
{
    struct epoll_event event = { events, { .u64 = 5 } };
    int set = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0) return set;
    int error = errno;
    close(set);
    errno = error;
    return -1;
}

/* What a set says, this often. */
static long event(int set, int times)
{
    int n = 0, error = errno;
    if (set < 0) return -1;
    for (int turn = 0; turn < times; turn++) {
        struct epoll_event found[4];
        n = epoll_wait(set, found, 4, 10);
        error = errno;
        for (int i = 0; i < n; i++) say(" %x", found[i].events);
        say(";");
    }
    close(set);
    errno = error;
    return n;
}

static long modified(int fd, unsigned first, unsigned second)
{
    int set = watched(fd, first);
    struct epoll_event change = { second, { .u64 = 6 } };
    if (set >= 0 && epoll_ctl(set, EPOLL_CTL_MOD, fd, &change)) { close(set); return -1; }
    return event(set, 2);
}

static long nested(int fd)
{
    int inner = watched(fd, EPOLLIN | EPOLLRDHUP);
    if (inner < 0) return -1;
    long n = event(watched(inner, EPOLLIN), 1);
    close(inner);
    return n;
}

static long removed(int fd)
{
    int set = watched(fd, EPOLLIN | EPOLLOUT);
    if (set >= 0 && epoll_ctl(set, EPOLL_CTL_DEL, fd, 0)) { close(set); return -1; }
    return event(set, 1);
}

static long closed_in_a_set(int fd)
{
    int set = watched(fd, EPOLLIN | EPOLLOUT);
    close(fd);
    return event(set, 1);
}

static long request(int fd, unsigned long what)
{
    int value = 0;
    return ioctl(fd, what, &value) ? -1 : value;
}

static long without_waiting(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (fcntl(fd, F_SETFL, flags | O_NONBLOCK)) return -1;
    say(" %x", fcntl(fd, F_GETFL));
    return recv(fd, buf, 9, 0);
}

static long copied(int fd, int how)
{
    int copy = how == 0 ? dup(fd) : how == 1 ? dup2(fd, 900) : how == 2 ? dup3(fd, 901, O_CLOEXEC)
                                                                        : fcntl(fd, F_DUPFD_CLOEXEC, 700);
    if (copy < 0) return -1;
    close(fd);
    long n = send(copy, "copy", 4, MSG_NOSIGNAL | MSG_DONTWAIT);
    int error = errno;
    say(" received"), says(recv(copy, buf, 9, MSG_DONTWAIT)), say(" sent");
    close(copy);
    errno = error;
    return n;
}

static long is_named(int fd, int peer)
{
    struct sockaddr_in at = { 0 };
    socklen_t len = sizeof at;
    int n = peer ? getpeername(fd, (void *)&at, &len) : getsockname(fd, (void *)&at, &len), error = errno;
    say(" %d %d %x", (int)len, at.sin_family, ntohl(at.sin_addr.s_addr));
    errno = error;
    return n;
}

static long bound(int fd)
{
    struct sockaddr_in at = loopback(0);
    return bind(fd, (void *)&at, sizeof at);
}

static long connected_again(int fd)
{
    struct sockaddr_in at = loopback(9);
    return connect(fd, (void *)&at, sizeof at);
}

static long kind(int fd)
{
    struct stat stat;
    return fstat(fd, &stat) ? -1 : S_ISSOCK(stat.st_mode);
}

static long closed_after(int fd, int on, int seconds)
{
    struct linger linger = { on, seconds };
    if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger)) return -1;
    return close(fd);
}

static long low_water(int fd, int flags)
{
    int three = 3;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &three, sizeof three)) return -1;
    return recv(fd, buf, 9, flags);
}

static long state_of(int fd)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) ? -1 : info.tcpi_state;
}

static long lists(int fd, int receives, int count)
{
    static struct iovec pieces[IOV_MAX + 1];
    for (int i = 0; i <= IOV_MAX; i++) pieces[i] = (struct iovec){ buf + i, i < 3 };
    return receives ? readv(fd, pieces, count) : writev(fd, pieces, count);
}

#define CALLS \
    X(recv, recv(fd, buf, 9, 0)) \
    X(recv_at_once, recv(fd, buf, 9, MSG_DONTWAIT)) \
    X(recv_nothing, recv(fd, buf, 0, 0)) \
    X(recv_nothing_at_once, recv(fd, buf, 0, MSG_DONTWAIT)) \
    X(recv_peek, recv(fd, buf, 9, MSG_PEEK | MSG_DONTWAIT)) \
    X(recv_peek_waits, recv(fd, buf, 9, MSG_PEEK)) \
    X(recv_all, recv(fd, buf, 4, MSG_WAITALL)) \
    X(recv_all_of_more, recv(fd, buf, 9, MSG_WAITALL)) \
    X(recv_all_peek, recv(fd, buf, 4, MSG_WAITALL | MSG_PEEK)) \
    X(recv_all_at_once, recv(fd, buf, 9, MSG_WAITALL | MSG_DONTWAIT)) \
    X(recv_drop, recv(fd, 0, 3, MSG_TRUNC | MSG_DONTWAIT)) \
    X(recv_urgent, recv(fd, buf, 1, MSG_OOB | MSG_DONTWAIT)) \
    X(recv_errors, recv(fd, buf, 9, MSG_ERRQUEUE | MSG_DONTWAIT)) \
    X(recv_low_water, low_water(fd, 0)) \
    X(recv_low_water_at_once, low_water(fd, MSG_DONTWAIT)) \
    X(read, read(fd, buf, 9)) \
    X(read_nothing, read(fd, buf, 0)) \
    X(readv, lists(fd, 1, 3)) \
    X(readv_none, lists(fd, 1, 0)) \
    X(readv_negative, lists(fd, 1, -1)) \
    X(readv_too_many, lists(fd, 1, IOV_MAX + 1)) \
    X(recvfrom, from(fd, 0)) \
    X(recvfrom_at_once, from(fd, MSG_DONTWAIT)) \
    X(recvmsg, received(fd, 0, 4, 0)) \
    X(recvmsg_control, received(fd, MSG_DONTWAIT, 9, 1)) \
    X(recvmsg_peek, received(fd, MSG_PEEK | MSG_DONTWAIT, 9, 0)) \
    X(recvmsg_errors, received(fd, MSG_ERRQUEUE, 9, 1)) \
    X(recvmmsg, received_several(fd, MSG_WAITFORONE, 0)) \
    X(recvmmsg_at_once, received_several(fd, MSG_DONTWAIT, 0)) \
    X(recvmmsg_limit, received_several(fd, MSG_DONTWAIT, &(struct timespec){ 10, 0 })) \
    X(recvmmsg_bad_limit, received_several(fd, MSG_DONTWAIT, &(struct timespec){ 0, -1 })) \
    X(pread, pread(fd, buf, 9, 0)) \
    X(recv_nonblocking, without_waiting(fd)) \
    X(send, send(fd, "hello", 5, 0)) \
    X(send_at_once, send(fd, "hello", 5, MSG_DONTWAIT)) \
    X(send_quiet, send(fd, "hello", 5, MSG_NOSIGNAL)) \
    X(send_more, send(fd, "hello", 5, MSG_MORE | MSG_DONTWAIT)) \
    X(send_end_of_record, send(fd, "hello", 5, MSG_EOR | MSG_DONTWAIT)) \
    X(send_no_route, send(fd, "hello", 5, MSG_DONTROUTE | MSG_DONTWAIT)) \
    X(send_confirm, send(fd, "hello", 5, MSG_CONFIRM | MSG_DONTWAIT)) \
    X(send_urgent, send(fd, "!", 1, MSG_OOB | MSG_DONTWAIT)) \
    X(send_nothing, send(fd, "", 0, 0)) \
    X(send_nothing_quiet, send(fd, "", 0, MSG_NOSIGNAL | MSG_DONTWAIT)) \
    X(send_with_receive_flags, send(fd, "hello", 5, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT)) \
    X(sendto_named, to(fd)) \
    X(write, write(fd, "hello", 5)) \
    X(write_nothing, write(fd, "", 0)) \
    X(writev, lists(fd, 0, 3)) \
    X(writev_none, lists(fd, 0, 0)) \
    X(writev_negative, lists(fd, 0, -1)) \
    X(writev_too_many, lists(fd, 0, IOV_MAX + 1)) \
    X(sendmsg, sent(fd, 0, 0)) \
    X(sendmsg_named, sent(fd, 0, 1)) \
    X(sendmmsg, sent_several(fd)) \
    X(sendfile, file_sent(fd, 0)) \
    X(sendfile_from, file_sent(fd, 1)) \
    X(sendfile_itself, sendfile(fd, fd, 0, 9)) \
    X(splice_in, spliced(fd, 1)) \
    X(splice_out, spliced(fd, 0)) \
    X(pwrite, pwrite(fd, "x", 1, 0)) \
    X(print, dprintf(fd, "%d", 42)) \
    X(poll_in, polled(fd, POLLIN, 0)) \
    X(poll_in_waits, polled(fd, POLLIN, 10)) \
    X(poll_out, polled(fd, POLLOUT, 0)) \
    X(poll_urgent, polled(fd, POLLPRI, 0)) \
    X(poll_end, polled(fd, POLLRDHUP, 0)) \
    X(poll_all, polled(fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP | POLLRDNORM | POLLWRNORM, 10)) \
    X(poll_none, polled(fd, 0, 0)) \
    X(ppoll, ppolled(fd)) \
    X(select_read, selected(fd, 1, 0)) \
    X(select_write, selected(fd, 2, 0)) \
    X(select_all, selected(fd, 7, 10)) \
    X(pselect, pselected(fd)) \
    X(epoll_in, event(watched(fd, EPOLLIN), 2)) \
    X(epoll_out, event(watched(fd, EPOLLOUT), 2)) \
    X(epoll_all, event(watched(fd, EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP), 2)) \
    X(epoll_none, event(watched(fd, 0), 1)) \
    X(epoll_edge, event(watched(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET), 2)) \
    X(epoll_once, event(watched(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLONESHOT), 2)) \
    X(epoll_exclusive, event(watched(fd, EPOLLIN | EPOLLEXCLUSIVE), 2)) \
    X(epoll_nested, nested(fd)) \
    X(epoll_changed, modified(fd, EPOLLIN, EPOLLOUT | EPOLLRDHUP)) \
    X(epoll_armed_again, modified(fd, EPOLLIN | EPOLLET, EPOLLIN | EPOLLET)) \
    X(epoll_removed, removed(fd)) \
    X(epoll_closed, closed_in_a_set(fd)) \
    X(ioctl_unread, request(fd, FIONREAD)) \
    X(ioctl_unsent, request(fd, SIOCOUTQ)) \
    X(ioctl_not_sent, request(fd, SIOCOUTQNSD)) \
    X(ioctl_at_mark, request(fd, SIOCATMARK)) \
    X(ioctl_terminal, request(fd, TCGETS)) \
    X(ioctl_unknown, request(fd, 0x1234)) \
    X(sockatmark, sockatmark(fd)) \
    X(fcntl_flags, fcntl(fd, F_GETFL)) \
    X(fcntl_descriptor, fcntl(fd, F_GETFD)) \
    X(fcntl_owner, fcntl(fd, F_GETOWN)) \
    X(fcntl_pipe, fcntl(fd, F_SETPIPE_SZ, 4096)) \
    X(fcntl_unknown, fcntl(fd, 7777, 0)) \
    X(dup, copied(fd, 0)) \
    X(dup2, copied(fd, 1)) \
    X(dup3, copied(fd, 2)) \
    X(dup_by_fcntl, copied(fd, 3)) \
    X(getsockname, is_named(fd, 0)) \
    X(getpeername, is_named(fd, 1)) \
    X(listen, listen(fd, 3)) \
    X(bind, bound(fd)) \
    X(accept, accept(fd, 0, 0)) \
    X(accept4_wrong, accept4(fd, 0, 0, 0x7)) \
    X(connect, connected_again(fd)) \
    X(connect_to_none, dissolve(fd)) \
    X(connect_short, connect(fd, (struct sockaddr *)buf, 1)) \
    X(shutdown_read, shutdown(fd, SHUT_RD)) \
    X(shutdown_write, shutdown(fd, SHUT_WR)) \
    X(shutdown_both, shutdown(fd, SHUT_RDWR)) \
    X(shutdown_wrong, shutdown(fd, 3)) \
    X(close, close(fd)) \
    X(close_reset, closed_after(fd, 1, 0)) \
    X(close_lingering, closed_after(fd, 1, 1)) \
    X(close_not_lingering, closed_after(fd, 0, 5)) \
    X(error, option(fd, SOL_SOCKET, SO_ERROR)) \
    X(tcp_state, state_of(fd)) \
    X(kind, kind(fd)) \
    X(seek, lseek(fd, 0, SEEK_SET)) \
    X(sync, fsync(fd)) \
    X(truncate, ftruncate(fd, 0))

#define X(name, call) static long name##_call(int fd) { return call; }
CALLS
#undef X
#define X(name, call) { #name, name##_call },
static const struct { const char *name; long (*make)(int fd); } calls[] = { CALLS };
#undef X
enum { CALLS_COUNT = sizeof calls / sizeof *calls };

/* Options: asked, set to 1, and asked again, on an idle connection. */
#define OPTIONS \
    O(SOL_SOCKET, SO_DEBUG) O(SOL_SOCKET, SO_REUSEADDR) O(SOL_SOCKET, SO_TYPE) O(SOL_SOCKET, SO_ERROR) \
    O(SOL_SOCKET, SO_DONTROUTE) O(SOL_SOCKET, SO_BROADCAST) O(SOL_SOCKET, SO_SNDBUF) O(SOL_SOCKET, SO_RCVBUF) \
    O(SOL_SOCKET, SO_KEEPALIVE) O(SOL_SOCKET, SO_OOBINLINE) O(SOL_SOCKET, SO_NO_CHECK) O(SOL_SOCKET, SO_PRIORITY) \
    O(SOL_SOCKET, SO_LINGER) O(SOL_SOCKET, SO_REUSEPORT) O(SOL_SOCKET, SO_PASSCRED) O(SOL_SOCKET, SO_PEERCRED) \
    O(SOL_SOCKET, SO_RCVLOWAT) O(SOL_SOCKET, SO_SNDLOWAT) O(SOL_SOCKET, SO_RCVTIMEO) O(SOL_SOCKET, SO_SNDTIMEO) \
    O(SOL_SOCKET, SO_ACCEPTCONN) O(SOL_SOCKET, SO_TIMESTAMP) O(SOL_SOCKET, SO_TIMESTAMPNS) \
    O(SOL_SOCKET, SO_PEERSEC) O(SOL_SOCKET, SO_MARK) O(SOL_SOCKET, SO_PROTOCOL) O(SOL_SOCKET, SO_DOMAIN) \
    O(SOL_SOCKET, SO_RXQ_OVFL) O(SOL_SOCKET, SO_PEEK_OFF) O(SOL_SOCKET, SO_BUSY_POLL) \
    O(SOL_SOCKET, SO_MAX_PACING_RATE) O(SOL_SOCKET, SO_COOKIE) \
    O(SOL_SOCKET, SO_ZEROCOPY) O(SOL_SOCKET, SO_BINDTODEVICE) O(SOL_SOCKET, 9999) \
    O(IPPROTO_TCP, TCP_NODELAY) O(IPPROTO_TCP, TCP_MAXSEG) O(IPPROTO_TCP, TCP_CORK) O(IPPROTO_TCP, TCP_KEEPIDLE) \
    O(IPPROTO_TCP, TCP_KEEPINTVL) O(IPPROTO_TCP, TCP_KEEPCNT) O(IPPROTO_TCP, TCP_SYNCNT) \
    O(IPPROTO_TCP, TCP_LINGER2) O(IPPROTO_TCP, TCP_DEFER_ACCEPT) O(IPPROTO_TCP, TCP_WINDOW_CLAMP) \
    O(IPPROTO_TCP, TCP_CONGESTION) O(IPPROTO_TCP, TCP_USER_TIMEOUT) O(IPPROTO_TCP, TCP_NOTSENT_LOWAT) \
    O(IPPROTO_TCP, TCP_FASTOPEN) O(IPPROTO_TCP, TCP_INQ) O(IPPROTO_TCP, TCP_ULP) \
    O(IPPROTO_TCP, TCP_SAVE_SYN) O(IPPROTO_TCP, TCP_CM_INQ) O(IPPROTO_TCP, 9999) \
    O(IPPROTO_IP, IP_TOS) O(IPPROTO_IP, IP_TTL) O(IPPROTO_IP, IP_MTU) O(IPPROTO_IP, IP_RECVERR) \
    O(IPPROTO_IP, IP_PKTINFO) O(IPPROTO_IP, IP_MTU_DISCOVER) O(IPPROTO_IP, 9999) O(7777, 1)

#define O(level, name) { level, name, #name },
static const struct { int level, name; const char *text; } options[] = { OPTIONS };
#undef O
enum { OPTIONS_COUNT = sizeof options / sizeof *options };

static long option_probe(int fd, int i)
{
    int one = 1, level = options[i].level, name = options[i].name;
    says(option(fd, level, name));
    say(" set"), says(setsockopt(fd, level, name, &one, sizeof one));
    say(" short"), says(setsockopt(fd, level, name, &one, 1));
    return option(fd, level, name);
}

/* What happens to the node, and in how many steps; never, if that is negative. */
static struct { pid_t pid; int signal, seeded, steps, goes_on; unsigned long seed, dice; } node = { .steps = -1, .goes_on = -1 };

/* ── Sets that have the connection before it moves, or while it does ── */

enum { SETS_MAX = 6, LATE_US = 300 };

/* Each exchange is waited for in all the sets, and so is what comes after the state. Sets of some
 * kinds send a connection back to the kernel. */
static const struct watch { const char *name; unsigned events; int sets, nested, closes, to_kernel; } watches[] = {
    { "watched_level", EPOLLIN, 1 },
    { "watched_all", EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1 },
    { "watched_edge", EPOLLIN | EPOLLRDHUP | EPOLLET, 1 },
    { "watched_once", EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, 1 },
    { "watched_exclusive", EPOLLIN | EPOLLEXCLUSIVE, 1, .to_kernel = 1 },
    { "watched_nested", EPOLLIN | EPOLLRDHUP, 1, .nested = 1, .to_kernel = 1 },
    { "watched_by_two", EPOLLIN | EPOLLRDHUP, 2 },
    { "watched_by_many", EPOLLIN | EPOLLRDHUP, SETS_MAX, .to_kernel = 1 },
    { "watched_closed", EPOLLIN | EPOLLRDHUP, 1, .closes = 1 },
    { "watched_closed_by_many", EPOLLIN | EPOLLOUT, SETS_MAX, .closes = 1, .to_kernel = 1 },
};
enum { WATCHES_COUNT = sizeof watches / sizeof *watches };

/* The sets of each connection; how often one of them did not tell of bytes, or told of none. */
static struct watched { const struct watch *as; int sets[SETS_MAX], outer, missed, stale; } watched_by[CONNECTIONS_MAX];

static void watch(int i, const struct watch *as)
{
    struct watched *w = &watched_by[i];
    if (w->as == as) return;
    *w = (struct watched){ .as = as };
    for (int n = 0; as && n < as->sets; n++)
        if ((w->sets[n] = watched(fds[i], as->events)) < 0) die("watch");
    if (as && as->nested && (w->outer = watched(w->sets[0], EPOLLIN)) < 0) die("watch a set");
}

/* Whether a set tells of bytes within some seconds, be it told of room before. */
static int tells(int set)
{
    struct epoll_event found;
    for (int turn = 0; turn < 5000; turn++) {
        if (epoll_wait(set, &found, 1, 1000) != 1) return 0;
        if (found.events & EPOLLIN) return 1;
        usleep(100);
    }
    return 0;
}

/* Bytes come, or lie there. */
static void hear(int i)
{
    struct watched *w = &watched_by[i];
    struct epoll_event again = { w->as ? w->as->events : 0, { .u64 = 5 } };
    for (int n = 0; w->as && n < w->as->sets; n++) {
        if (w->as->nested) w->missed += !tells(w->outer);
        w->missed += !tells(w->sets[n]);
        if (again.events & EPOLLONESHOT && epoll_ctl(w->sets[n], EPOLL_CTL_MOD, fds[i], &again)) die("arm");
    }
}

/* They have been taken. */
static void hear_nothing(int i)
{
    struct watched *w = &watched_by[i];
    struct epoll_event found;
    for (int n = 0; w->as && n < w->as->sets && !(w->as->events & (EPOLLOUT | EPOLLET)); n++)
        w->stale += epoll_wait(w->sets[n], &found, 1, 0) != 0;
}

/* A node that was stopped and goes on rings late: then the set may look ready and have nothing. */
static long outer_event(struct watched *w)
{
    struct epoll_event found;
    struct pollfd inner = { w->sets[0], POLLIN, 0 };
    for (int turn = 0; node.seeded && turn < 3 && epoll_wait(w->outer, &found, 1, 10) == 1; turn++)
        if (epoll_wait(w->sets[0], &found, 1, 0) == 1 || poll(&inner, 1, 0) == 0) break;
    return event(w->outer, 1);
}

static long watch_probe(int fd, int i)
{
    struct watched *w = &watched_by[i];
    long n = 0;
    if (w->missed || w->stale) say(" missed %d, stale %d", w->missed, w->stale);
    if (w->as->closes) close(fd);
    if (w->as->nested) n = outer_event(w);
    for (int at = 0; at < w->as->sets; at++) n = event(w->sets[at], w->as->sets > 1 ? 1 : 2);
    return n;
}

/* ── The actor ── */

static int moved, made, rings_wanted, connects, listener, port;
/* Exchanges of a connection, and those in a row that went by rings. */
static int turns[CONNECTIONS_MAX], good[CONNECTIONS_MAX];
/* Sets that are to have it, after so many exchanges. */
static const struct watch *to_watch[CONNECTIONS_MAX];
static int watch_at[CONNECTIONS_MAX];

static unsigned drawn(unsigned below)
{
    unsigned long z = node.dice += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (z ^ z >> 31) % below;
}

/* Something is about to be done. */
static void step(void)
{
    if (node.steps >= 0 && node.steps-- == 0) kill(node.pid, node.signal);
    if (node.goes_on >= 0 && node.goes_on-- == 0) kill(node.pid, SIGCONT);
}

/* When, among these many steps of exchanges and then of others: before all of them, or anywhere. */
static void choose_moment(int exchanges, int others)
{
    unsigned where = drawn(4);
    node.steps = where == 0 ? 0 : where < 3 ? drawn(exchanges) : exchanges + drawn(others);
    node.goes_on = node.signal == SIGSTOP ? node.steps + 1 + drawn(2 * (exchanges + others)) : -1;
}

static void make(int i)
{
    if (connects) {
        fds[i] = tcp_connected(port);
        peer(ACCEPT, i, 0);
    } else {
        peer(CONNECT, i, port);
        if ((fds[i] = accept4(listener, 0, 0, SOCK_CLOEXEC)) < 0) die("accept");
    }
    filled[i] = good[i] = 0;
    made++;
}

static void exchange(int i)
{
    if (send(fds[i], "ping", 4, 0) != 4) die("warm-up");
    int there = peer(ECHO, i, watched_by[i].as ? LATE_US : 0).result;
    hear(i);
    good[i] = took_by_ring(fds[i]) && there ? good[i] + 1 : 0;
    hear_nothing(i);
}

/* New connections: in rings if both programs have the library and the connections are offered at
 * once; if they are offered at random, after so many exchanges that most are, or are on their way.
 */
static void make_all(int count, int watched_from)
{
    const struct timeval limit = { 0, WAIT_MS * 1000 };
    int most = 0, sum = 0;
    for (int i = 0; i < count; i++) {
        to_watch[i] = i >= watched_from ? &watches[i - watched_from] : NULL;
        turns[i] = rings_wanted ? 200000 : node.seeded ? drawn(30) : i % 4;
        watch_at[i] = rings_wanted && to_watch[i] && to_watch[i]->to_kernel ? turns[i] : 0;
        if (node.seeded) watch_at[i] = drawn(turns[i] + 1);
        if (turns[i] > most) most = turns[i];
        sum += turns[i];
    }
    if (node.seeded) choose_moment(count + sum, 3 * count);
    for (int i = 0; i < count; i++) {
        step();
        make(i);
        watch(i, NULL);
    }
    for (int turn = 0, busy = 1; turn < most && busy; turn++) {
        busy = 0;
        for (int i = 0; i < count; i++) {
            if (turn >= turns[i] || (rings_wanted && good[i] >= 2)) continue;
            if (turn >= watch_at[i]) watch(i, to_watch[i]);
            step();
            exchange(i);
            busy = 1;
        }
    }
    for (int i = 0; i < count; i++) {
        watch(i, to_watch[i]);
        moved += good[i] >= (rings_wanted ? 2 : 1);
        setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fds[i], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    }
}

/* The probes, each on a connection of its own that is in the state. */
static void run(const struct state *state, const char *title, int count, int watched_from,
                const char *(*name)(int), long (*probe)(int fd, int i))
{
    static char results[CONNECTIONS_MAX][1000];
    node.dice = node.seed + (state - states) * 1000003;
    make_all(count, watched_from);
    if (node.pid && !node.seeded) {
        kill(node.pid, node.signal);
        nap();
    }
    for (int i = 0; i < count; i++) step(), state->first(i);
    nap();
    for (int i = 0; i < count; i++) step(), state->later(i);
    nap();
    for (int i = 0; i < count; i++) if (filled[i]) fill(fds[i]);
    nap();
    for (int i = 0; i < count; i++) {
        pipes = 0;
        line[0] = 0;
        errno = 0;
        step();
        says(probe(fds[i], i));
        if (pipes) say(" SIGPIPE");
        snprintf(results[i], sizeof results[i], "%s", line);
    }
    nap();
    for (int i = 0; i < count; i++) {
        printf("%s/%s:%s\n", title, name(i), results[i]);
        line[0] = 0;
        say(" polled %lx,", polled(fds[i], POLLIN | POLLOUT | POLLRDHUP, 0));
        look(fds[i]);
        printf("%s/%s, then itself:%s\n", title, name(i), line);
        printf("%s/%s, then its peer:%s\n", title, name(i), peer(LOOK, i, 0).text);
        close(fds[i]);
    }
    if (node.signal == SIGSTOP) kill(node.pid, SIGCONT);
    node.steps = node.goes_on = -1;
}

static const char *call_name(int i) { return i < CALLS_COUNT ? calls[i].name : watches[i - CALLS_COUNT].name; }
static const char *option_name(int i) { return options[i].text; }
static long call_probe(int fd, int i) { return i < CALLS_COUNT ? calls[i].make(fd) : watch_probe(fd, i); }

static int be_actor(char **words, int count)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    struct answer hello;
    int door = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    strncpy(at.sun_path, words[0], sizeof at.sun_path - 1);
    if (bind(door, (void *)&at, sizeof at) || listen(door, 1)) die(words[0]);
    if ((orders = accept4(door, 0, 0, SOCK_CLOEXEC)) < 0) die("no peer");
    if (recv(orders, &hello, sizeof hello, 0) != sizeof hello) die("no hello");
    const char *offer = getenv("VMMC_OFFER");
    int loaded = hello.result && dlsym(RTLD_DEFAULT, "vmmc_sockets_peek_v1");
    rings_wanted = loaded && offer && strcmp(offer, "at-once") == 0;
    connects = strcmp(words[1], "connects") == 0;
    node.seeded = sscanf(words[2], "stopped:%d:%lu", &node.pid, &node.seed) == 2
                  || sscanf(words[2], "killed:%d:%lu", &node.pid, &node.seed) == 2;
    node.signal = node.pid == 0 ? 0 : words[2][0] == 's' ? SIGSTOP : SIGKILL;
    if (connects) port = peer(LISTEN, 0, 0).result; else listener = tcp_listener(&port);
    for (size_t s = 0; s < sizeof states / sizeof *states; s++) {
        int chosen = count == 3;
        for (int i = 3; i < count; i++) chosen |= strcmp(words[i], states[s].name) == 0;
        if (chosen) run(&states[s], states[s].name, CALLS_COUNT + WATCHES_COUNT, CALLS_COUNT, call_name, call_probe);
    }
    if (count == 3) run(&states[0], "option", OPTIONS_COUNT, OPTIONS_COUNT, option_name, option_probe);
    fprintf(stderr, "%d of %d connections moved\n", moved, made);
    return 0;
}

int main(int count, char **words)
{
    struct sigaction action = { .sa_handler = on_pipe };
    sigaction(SIGPIPE, &action, 0);
    setvbuf(stdout, 0, _IOLBF, 0);
    if (count == 2 && strcmp(words[1], "states") == 0) {
        for (size_t s = 0; s < sizeof states / sizeof *states; s++) puts(states[s].name);
        return 0;
    }
    if (count == 3 && strcmp(words[1], "peer") == 0) return be_peer(words[2]);
    if (count >= 5 && strcmp(words[1], "actor") == 0) return be_actor(words + 2, count - 2);
    fprintf(stderr, "matrix peer SOCKET | matrix actor SOCKET END NODE [STATE...] | matrix states\n");
    return 2;
}
