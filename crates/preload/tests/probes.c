/* Probes of one call each, every one on a fresh connection whose bytes go by shared memory, if they
 * can: with and without `vmmc exec` they print the same, but for the differences that docs/exec.md
 * names. To add a probe add a line to PROBES. `p.a` and `p.b` are the ends, both in this process;
 * nothing is unread when a probe begins. */
#define _GNU_SOURCE
#include "vmmc_sockets.h"
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

struct pair { int a, b; };
static char buf[100000], *nowhere;
static volatile int pipes;
static struct pair p;

static void die(const char *what) { printf("FAILED %s: %s\n", what, strerror(errno)); fflush(stdout); _exit(1); }
static void says(const char *call, long result)
{
    int error = errno;
    if (result < 0) printf("  %s: %s\n", call, strerrorname_np(error)); else printf("  %s: %ld\n", call, result);
}
#define S(call) says(#call, (errno = 0, (long)(call)))
static void on_pipe(int sig) { (void)sig; pipes++; }
static void nap(void) { usleep(30000); }
static int by_ring(int fd)
{
    const void *bytes;
    struct pollfd entry = { fd, POLLIN, 0 };
    if (poll(&entry, 1, 20000) != 1) die("nothing came");
    ssize_t n = vmmc_sockets_peek(fd, &bytes);
    return n > 0 && vmmc_sockets_consume(fd, 0) == 0;
}
static int moved, all;
/* A new pair, over the kernel until it is used. */
static void fresh(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 5) || getsockname(listener, (void *)&at, &len)) die("listen");
    p.a = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(p.a, (void *)&at, len) || (p.b = accept(listener, 0, 0)) < 0) die("connect");
    close(listener);
}
static void warmed(void);
static void made(void) { fresh(); warmed(); }
static void warmed(void)
{
    int loaded = dlsym(RTLD_DEFAULT, "vmmc_sockets_peek_v1") != NULL, good = 0;
    for (int i = 0; i < (loaded ? 20000 : 4) && good < 3; i++) {
        int rings = 0;
        if (send(p.a, "ping", 4, 0) != 4) die("send"); rings += by_ring(p.b); if (recv(p.b, buf, 4, MSG_WAITALL) != 4) die("recv");
        if (send(p.b, "pong", 4, 0) != 4) die("send"); rings += by_ring(p.a); if (recv(p.a, buf, 4, MSG_WAITALL) != 4) die("recv");
        good = rings == 2 ? good + 1 : 0;
    }
    all++; moved += good >= 3;
}
static int number(int fd, int level, int name) { int value = -77; socklen_t len = sizeof value; return getsockopt(fd, level, name, &value, &len) ? -1 : value; }
static int set(int fd, int level, int name, int value) { return setsockopt(fd, level, name, &value, sizeof value); }
static int request(int fd, unsigned long what) { int value = -77; return ioctl(fd, what, &value) ? -1 : value; }
static int polled(int fd, int events) { struct pollfd entry = { fd, events, 0 }; int n = poll(&entry, 1, 50); return n < 0 ? -1 : entry.revents; }
static int linger(int fd) { struct linger l = { 1, 0 }; return setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l); }
static int unspec(int fd) { struct sockaddr none = { .sa_family = AF_UNSPEC }; return connect(fd, &none, sizeof none); }
static int from(int fd, int flags) { struct sockaddr_in at; socklen_t len = 99; memset(&at, 7, sizeof at); long n = recvfrom(fd, buf, 9, flags, (void *)&at, &len); int kept = errno; printf("  length %d\n", (int)len); errno = kept; return n; }
static long message(int fd, int flags, size_t size) { struct iovec v = { buf, size }; struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_name = buf + 500, .msg_namelen = 50, .msg_flags = 0x55 }; long n = recvmsg(fd, &m, flags); int kept = errno; if (n >= 0) printf("  name %d flags %x\n", (int)m.msg_namelen, m.msg_flags); errno = kept; return n; }
/* So many messages of two bytes each. */
static long messages(int fd, int flags, int count, struct timespec *limit)
{
    static struct mmsghdr m[2000];
    static struct iovec v[2000];
    for (int i = 0; i < count; i++) { v[i] = (struct iovec){ buf + 2 * i, 2 }; m[i] = (struct mmsghdr){ { .msg_iov = &v[i], .msg_iovlen = 1 }, 77 }; }
    long n = recvmmsg(fd, m, count, flags, limit);
    int kept = errno;
    for (int i = 0; i < n && i < 9; i++) printf("  length %u\n", m[i].msg_len);
    errno = kept;
    return n;
}
static int watch(int fd, unsigned events, long data) { struct epoll_event e = { .events = events, .data.u64 = data }; int s = epoll_create1(0); return epoll_ctl(s, EPOLL_CTL_ADD, fd, &e) ? -1 : s; }
static long event(int s) { struct epoll_event e[4]; int n = epoll_wait(s, e, 4, 50); for (int i = 0; i < n; i++) printf("  event %x data %ld\n", e[i].events, (long)e[i].data.u64); return n; }
static void quiet(int s) { struct epoll_event e[4]; epoll_wait(s, e, 4, 50); }
static int within(int fd, int ms) { struct timeval t = { 0, ms * 1000 }; return setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t); }
static void later(int fd, const char *text) { if (fork() == 0) { usleep(60000); send(fd, text, strlen(text), MSG_NOSIGNAL); _exit(0); } }
static long spliced(int fd) { int ends[2]; if (pipe(ends) || write(ends[1], "piped", 5) != 5) return -2; long n = splice(ends[0], 0, fd, 0, 5, 0); int kept = errno; close(ends[0]); close(ends[1]); errno = kept; return n; }
static void *reads_late(void *fd) { usleep(30000); return (void *)recv(*(int *)fd, buf, 9, MSG_DONTWAIT); }
/* Urgent data, so many turns after the beginning, while the peer has not yet read what came last.
 */
static void urgent_after(int turns)
{
    struct pair before = p;
    pthread_t reader;
    void *read;
    fresh();
    for (int i = 0; i < turns; i++) {
        send(p.a, "ping", 4, 0); recv(p.b, buf, 4, MSG_WAITALL);
        send(p.b, "pong", 4, 0); recv(p.a, buf, 4, MSG_WAITALL);
        usleep(2000);
    }
    S(send(p.a, "last", 4, 0));
    pthread_create(&reader, 0, reads_late, &p.b);
    S(send(p.a, "!", 1, MSG_OOB));
    pthread_join(reader, &read);
    S((long)read);
    nap();
    S(recv(p.b, buf, 1, MSG_OOB));
    close(p.a); close(p.b);
    p = before;
}
static long now_ms(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000 + t.tv_nsec / 1000000; }
/* What a call says, and whether it took longer than so many ms. */
#define lasts(call, ms) ({ long start = now_ms(), n = (call); int kept = errno; printf("  %s\n", now_ms() - start >= ms ? "waits" : "at once"); errno = kept; n; })
static int armed(int s, int fd, unsigned events) { struct epoll_event e = { .events = events, .data.u64 = 6 }; return epoll_ctl(s, EPOLL_CTL_MOD, fd, &e); }
static void drained(int fd) { for (int i = 0; i < 20; i++) { while (recv(fd, buf, sizeof buf, MSG_DONTWAIT) > 0) {} usleep(2000); } }

#define PROBES \
    X(nothing_there, S(recv(p.a, buf, 9, MSG_DONTWAIT)); S(polled(p.a, POLLIN | POLLOUT)); S(request(p.a, FIONREAD)); S(request(p.a, TIOCOUTQ))) \
    X(zero_bytes, S(send(p.a, buf, 0, 0)); S(recv(p.b, buf, 0, MSG_DONTWAIT)); S(write(p.a, buf, 0)); S(read(p.b, buf, 0))) \
    X(nothing_asked_of_nothing, struct iovec none[2] = { { buf, 0 }, { buf, 0 } }; S(within(p.a, 400)); S(lasts(recv(p.a, buf, 0, 0), 300)); S(lasts(recv(p.a, buf, 0, MSG_PEEK), 300)); S(lasts(message(p.a, 0, 0), 300)); S(lasts(read(p.a, buf, 0), 300)); S(lasts(readv(p.a, none, 2), 300)); S(recv(p.a, buf, 0, MSG_DONTWAIT)); later(p.b, "x"); S(within(p.a, 900)); S(lasts(recv(p.a, buf, 0, 0), 4000)); S(recv(p.a, buf, 9, 0)); fcntl(p.a, F_SETFL, O_NONBLOCK); S(recv(p.a, buf, 0, 0)); S(message(p.a, 0, 0)); S(read(p.a, buf, 0)); S(splice(p.a, 0, 1, 0, 0, 0))) \
    X(nothing_asked_after_an_end, send(p.b, "x", 1, 0); S(polled(p.a, POLLIN)); S(recv(p.a, buf, 0, 0)); shutdown(p.b, SHUT_WR); nap(); S(recv(p.a, buf, 0, 0)); S(recv(p.a, buf, 9, 0)); S(recv(p.a, buf, 0, 0)); S(read(p.a, buf, 0))) \
    X(nothing_asked_after_a_reset, linger(p.b); close(p.b); nap(); S(read(p.a, buf, 0)); S(recv(p.a, buf, 0, 0)); S(recv(p.a, buf, 0, 0))) \
    X(some_bytes, S(send(p.a, "hello", 5, 0)); S(request(p.b, FIONREAD)); S(recv(p.b, buf, 2, MSG_PEEK)); S(recv(p.b, buf, 3, 0)); S(recv(p.b, buf, 9, 0)); S(recv(p.b, buf, 9, MSG_DONTWAIT))) \
    X(truncated, send(p.a, "hello", 5, 0); S(recv(p.b, 0, 3, MSG_TRUNC)); S(recv(p.b, buf, 9, MSG_DONTWAIT))) \
    X(from_keeps_length_when_it_fails, S(from(p.b, MSG_DONTWAIT))) \
    X(from_says_no_address, send(p.a, "hello", 5, 0); S(from(p.b, 0))) \
    X(message, send(p.a, "hello", 5, 0); S(message(p.b, 0, 3)); S(message(p.b, MSG_PEEK, 9)); S(message(p.b, 0, 9)); S(message(p.b, MSG_DONTWAIT, 9))) \
    X(messages, send(p.a, "hello", 5, 0); S(messages(p.b, MSG_DONTWAIT, 3, 0)); S(messages(p.b, MSG_DONTWAIT, 3, 0)); send(p.a, "hello", 5, 0); S(messages(p.b, MSG_WAITFORONE, 4, 0)); S(messages(p.b, 0, 0, 0)); S(messages(-1, 0, 0, 0))) \
    X(messages_behind_the_end, send(p.a, "hello", 5, 0); shutdown(p.a, SHUT_WR); nap(); S(messages(p.b, 0, 5, 0)); S(messages(p.b, MSG_WAITFORONE, 2, 0)); S(messages(p.b, 0, 1500, 0) == 1500)) \
    X(messages_and_a_reset, send(p.b, "hello", 5, 0); S(polled(p.a, POLLIN)); linger(p.b); close(p.b); nap(); S(messages(p.a, 0, 3, 0)); S(messages(p.a, 0, 2, 0)); S(messages(p.a, 0, 3, 0))) \
    X(messages_and_a_time, struct timespec bad = { 0, -1 }, t = { 0, 30000000 }, none = { 0, 0 }; send(p.a, "hello", 5, 0); S(messages(p.b, 0, 3, &bad)); S(messages(p.b, MSG_DONTWAIT, 3, (void *)nowhere)); later(p.a, "more"); S(messages(p.b, 0, 9, &t)); S(t.tv_sec + t.tv_nsec); send(p.a, "hello", 5, 0); S(messages(p.b, MSG_DONTWAIT, 9, &none)); S(messages(p.b, 0, 1, &none))) \
    X(messages_that_are_not_there, send(p.a, "hello", 5, 0); S(recvmmsg(p.b, (void *)nowhere, 2, 0, 0)); S(sendmmsg(p.a, (void *)nowhere, 2, 0))) \
    X(a_message_that_does_not_fit, static char much[8 << 20]; struct iovec v[2] = { { much, sizeof much }, { "end", 3 } }; struct mmsghdr m[2] = { { { .msg_iov = v, .msg_iovlen = 1 } }, { { .msg_iov = v + 1, .msg_iovlen = 1 } } }; S(sendmmsg(p.a, m, 2, MSG_DONTWAIT)); S(m[0].msg_len < sizeof much)) \
    X(wait_all, send(p.a, "one", 3, 0); later(p.a, "two"); S(recv(p.b, buf, 6, MSG_WAITALL))) \
    X(wait_all_peek, send(p.a, "one", 3, 0); later(p.a, "two"); S(recv(p.b, buf, 6, MSG_WAITALL | MSG_PEEK)); S(recv(p.b, buf, 9, 0))) \
    X(low_water, S(set(p.b, SOL_SOCKET, SO_RCVLOWAT, 5)); S(number(p.b, SOL_SOCKET, SO_RCVLOWAT)); within(p.b, 60); send(p.a, "abc", 3, 0); S(recv(p.b, buf, 9, 0)); send(p.a, "abcdef", 6, 0); S(recv(p.b, buf, 9, 0))) \
    X(receive_timeout, S(within(p.b, 40)); S(recv(p.b, buf, 9, 0))) \
    X(send_after_close, close(p.b); nap(); S(send(p.a, "x", 1, 0)); nap(); S(pipes); S(send(p.a, "x", 1, 0)); S(pipes); S(recv(p.a, buf, 9, 0))) \
    X(send_nothing_after_close, close(p.b); nap(); S(send(p.a, "", 0, 0)); S(pipes)) \
    X(quiet_send_after_close, close(p.b); nap(); S(send(p.a, "x", 1, MSG_NOSIGNAL)); nap(); S(send(p.a, "x", 1, MSG_NOSIGNAL)); S(pipes)) \
    X(error_after_late_send, close(p.b); nap(); S(send(p.a, "x", 1, 0)); nap(); S(number(p.a, SOL_SOCKET, SO_ERROR)); S(number(p.a, SOL_SOCKET, SO_ERROR))) \
    X(end, close(p.b); nap(); S(polled(p.a, POLLIN | POLLRDHUP)); S(recv(p.a, buf, 9, 0)); S(recv(p.a, buf, 9, 0)); S(number(p.a, SOL_SOCKET, SO_ERROR))) \
    X(bytes_then_end, send(p.b, "last", 4, 0); close(p.b); nap(); S(recv(p.a, buf, 2, 0)); S(recv(p.a, buf, 9, 0)); S(recv(p.a, buf, 9, 0))) \
    X(reset_by_unread, send(p.a, "unread", 6, 0); nap(); close(p.b); nap(); S(recv(p.a, buf, 9, 0)); S(recv(p.a, buf, 9, 0))) \
    X(reset_by_linger, linger(p.b); close(p.b); nap(); S(recv(p.a, buf, 9, 0)); S(recv(p.a, buf, 9, 0)); S(send(p.a, "x", 1, MSG_NOSIGNAL))) \
    X(reset_then_error, linger(p.b); close(p.b); nap(); S(number(p.a, SOL_SOCKET, SO_ERROR)); S(number(p.a, SOL_SOCKET, SO_ERROR)); S(recv(p.a, buf, 9, 0))) \
    X(reset_then_send, linger(p.b); close(p.b); nap(); S(send(p.a, "x", 1, MSG_NOSIGNAL)); S(send(p.a, "x", 1, MSG_NOSIGNAL))) \
    X(dissolved, S(unspec(p.b)); nap(); S(recv(p.a, buf, 9, 0)); S(recv(p.a, buf, 9, 0))) \
    X(own_half_close, S(shutdown(p.a, SHUT_WR)); S(send(p.a, "x", 1, MSG_NOSIGNAL)); nap(); S(recv(p.b, buf, 9, 0)); S(send(p.b, "still", 5, 0)); S(recv(p.a, buf, 9, 0))) \
    X(half_close_signal, shutdown(p.a, SHUT_WR); S(send(p.a, "x", 1, 0)); S(pipes)) \
    X(urgent_after_half_close, shutdown(p.a, SHUT_WR); S(send(p.a, "!", 1, MSG_OOB)); S(pipes); S(spliced(p.a)); S(pipes)) \
    X(urgent_after_reset, linger(p.b); close(p.b); nap(); S(send(p.a, "!", 1, MSG_OOB)); S(send(p.a, "!", 1, MSG_OOB | MSG_NOSIGNAL)); S(pipes)) \
    X(splice_after_reset, linger(p.b); close(p.b); nap(); S(spliced(p.a)); S(spliced(p.a)); S(pipes)) \
    X(urgent_before_the_peer_follows, for (int i = 0; i < 12; i++) urgent_after(i)) \
    X(peer_half_close, send(p.a, "last", 4, 0); shutdown(p.a, SHUT_WR); nap(); S(polled(p.b, POLLIN | POLLOUT | POLLRDHUP)); S(recv(p.b, buf, 9, 0)); S(recv(p.b, buf, 9, 0))) \
    X(both_half_closes, shutdown(p.a, SHUT_WR); shutdown(p.b, SHUT_WR); nap(); S(polled(p.a, POLLIN)); S(recv(p.a, buf, 9, 0))) \
    X(read_shut, S(shutdown(p.a, SHUT_RD)); S(recv(p.a, buf, 9, 0)); S(send(p.a, "x", 1, 0)); S(recv(p.b, buf, 9, 0))) \
    X(shut_wrong, S(shutdown(p.a, 7)); S(shutdown(p.a, -1))) \
    X(not_sent_mark, S(number(p.a, IPPROTO_TCP, TCP_NOTSENT_LOWAT)); S(set(p.a, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 12345)); S(number(p.a, IPPROTO_TCP, TCP_NOTSENT_LOWAT))) \
    X(options_from_before, int old[2] = { p.a, p.b }, on = 1, limit = 777; fresh(); setsockopt(p.a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); setsockopt(p.b, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, sizeof limit); warmed(); S(number(p.a, IPPROTO_TCP, TCP_NODELAY)); S(number(p.a, IPPROTO_TCP, TCP_NOTSENT_LOWAT)); S(number(p.b, IPPROTO_TCP, TCP_NODELAY)); S(number(p.b, IPPROTO_TCP, TCP_NOTSENT_LOWAT)); fflush(stdout); if (fork() == 0) { S(number(p.b, IPPROTO_TCP, TCP_NOTSENT_LOWAT)); S(set(p.b, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 888)); S(set(p.b, IPPROTO_TCP, TCP_NODELAY, 1)); S(set(p.a, IPPROTO_TCP, TCP_NODELAY, 0)); char fds[2][9]; sprintf(fds[0], "%d", p.a); sprintf(fds[1], "%d", p.b); execl("/proc/self/exe", "probes", fds[0], fds[1], NULL); } wait(0); S(number(p.a, IPPROTO_TCP, TCP_NODELAY)); S(number(p.b, IPPROTO_TCP, TCP_NODELAY)); S(number(p.b, IPPROTO_TCP, TCP_NOTSENT_LOWAT)); close(old[0]); close(old[1])) \
    X(options_of_a_listener, int old[2] = { p.a, p.b }, limit = 999; struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) }; socklen_t len = sizeof at; int l = socket(AF_INET, SOCK_STREAM, 0); bind(l, (void *)&at, sizeof at); setsockopt(l, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, sizeof limit); setsockopt(l, IPPROTO_TCP, TCP_NODELAY, &limit, sizeof limit); listen(l, 5); getsockname(l, (void *)&at, &len); p.a = socket(AF_INET, SOCK_STREAM, 0); connect(p.a, (void *)&at, len); p.b = accept(l, 0, 0); close(l); warmed(); S(number(p.b, IPPROTO_TCP, TCP_NOTSENT_LOWAT)); S(number(p.b, IPPROTO_TCP, TCP_NODELAY)); S(number(p.a, IPPROTO_TCP, TCP_NOTSENT_LOWAT)); close(old[0]); close(old[1])) \
    X(no_delay, S(number(p.a, IPPROTO_TCP, TCP_NODELAY)); S(set(p.a, IPPROTO_TCP, TCP_NODELAY, 1)); S(number(p.a, IPPROTO_TCP, TCP_NODELAY)); S(set(p.a, IPPROTO_TCP, TCP_NODELAY, 0)); S(number(p.a, IPPROTO_TCP, TCP_NODELAY))) \
    X(options, S(number(p.a, SOL_SOCKET, SO_TYPE)); S(number(p.a, SOL_SOCKET, SO_ACCEPTCONN)); S(number(p.a, SOL_SOCKET, SO_KEEPALIVE)); S(number(p.a, SOL_SOCKET, SO_PROTOCOL)); S(number(p.a, SOL_SOCKET, SO_DOMAIN)); S(number(p.a, SOL_SOCKET, SO_OOBINLINE))) \
    X(unread_is_not_unsent, send(p.a, "hello", 5, 0); nap(); nap(); nap(); S(request(p.a, TIOCOUTQ)); S(request(p.b, FIONREAD))) \
    X(nonblocking, S(fcntl(p.a, F_SETFL, O_NONBLOCK)); S(recv(p.a, buf, 9, 0)); S(read(p.a, buf, 9)); S(recv(p.a, buf, 9, MSG_WAITALL))) \
    X(bad_pointers, S(send(p.a, (void *)8, 5, 0)); S(send(p.a, (void *)-9, 5, 0)); S(sendmsg(p.a, (void *)nowhere, 0)); S(recvmsg(p.a, (void *)nowhere, MSG_DONTWAIT)); S(setsockopt(p.a, IPPROTO_TCP, TCP_NODELAY, nowhere, 4)); S(ioctl(p.a, FIONREAD, nowhere))) \
    X(bad_lists, S(poll((void *)nowhere, 2, 0)); S(ppoll((void *)nowhere, 2, 0, 0)); S(select(8, (void *)nowhere, 0, 0, 0)); S(connect(p.a, (void *)nowhere, 16)); S(epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, p.a, (void *)nowhere))) \
    X(bad_pieces, S(readv(p.a, (void *)nowhere, 2)); S(writev(p.a, (void *)nowhere, 2)); S(preadv2(p.a, (void *)nowhere, 2, -1, 0)); S(pwritev2(p.a, (void *)nowhere, 2, -1, 0)); S(writev(p.a, (void *)(nowhere - 8), 2))) \
    X(bad_times, struct pollfd e = { p.a, POLLIN, 0 }; fd_set r; FD_ZERO(&r); FD_SET(p.a, &r); S(syscall(SYS_ppoll, &e, 1, nowhere, 0, 8)); S(syscall(SYS_pselect6, p.a + 1, &r, 0, 0, nowhere, 0)); S(epoll_pwait2(watch(p.a, EPOLLIN, 5), (void *)buf, 1, (void *)nowhere, 0))) \
    X(bad_masks, struct pollfd e = { p.a, POLLIN, 0 }; fd_set r; struct timespec t = { 0, 0 }; void *m[2] = { nowhere, (void *)8 }; FD_ZERO(&r); FD_SET(p.a, &r); int s = watch(p.a, EPOLLIN, 5); S(syscall(SYS_ppoll, &e, 1, &t, nowhere, 8)); S(ppoll(&e, 1, &t, (void *)nowhere)); S(syscall(SYS_pselect6, p.a + 1, &r, 0, 0, &t, nowhere)); S(syscall(SYS_pselect6, p.a + 1, &r, 0, 0, &t, m)); S(pselect(p.a + 1, &r, 0, 0, &t, (void *)nowhere)); S(syscall(SYS_epoll_pwait, s, buf, 1, 0, nowhere, 8)); S(epoll_pwait(s, (void *)buf, 1, 0, (void *)nowhere)); close(s)) \
    X(bad_places, int s = watch(p.a, EPOLLIN, 5); S(epoll_wait(s, (void *)nowhere, 1, 0)); send(p.b, "x", 1, 0); S(polled(p.a, POLLIN)); S(epoll_wait(s, (void *)nowhere, 1, 0)); S(event(s)); close(s); S(sendfile(p.a, 0, (void *)nowhere, 9)); S(recvfrom(p.a, buf, 9, 0, (void *)buf, (void *)nowhere)); S(recv(p.a, buf, 9, MSG_DONTWAIT)); S(ioctl(p.a, FIOASYNC, nowhere)); S(ioctl(p.a, FIONBIO, nowhere))) \
    X(bad_length, socklen_t minus = -5; send(p.b, "x", 1, 0); S(recvfrom(p.a, buf, 9, 0, (void *)buf, &minus)); S(recv(p.a, buf, 9, MSG_DONTWAIT))) \
    X(long_microseconds, struct timeval t = { 0, 1000001 }; fd_set r; FD_ZERO(&r); FD_SET(p.a, &r); send(p.b, "x", 1, 0); S(select(p.a + 1, &r, 0, 0, &t))) \
    X(bad_controls_of_others, for (int family = AF_UNIX; family <= AF_INET; family++) { int u[2] = { socket(family, SOCK_DGRAM, 0) }; struct iovec v = { buf, 1 }; struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(9) }; struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = nowhere, .msg_controllen = 64 }; if (family == AF_INET) connect(u[0], (void *)&at, sizeof at); S(sendmsg(u[0], &m, 0)); close(u[0]); }) \
    X(a_control_that_is_too_long, int u[2]; socketpair(AF_UNIX, SOCK_DGRAM, 0, u); struct iovec v = { buf, 1 }; union { struct cmsghdr h; char room[4096]; } *c = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); munmap((char *)c + 4096, 4096); struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = c, .msg_controllen = 4096 }; c->h = (struct cmsghdr){ 1000000, SOL_SOCKET, SCM_RIGHTS }; S(sendmsg(u[0], &m, 0)); munmap(c, 4096); close(u[0]); close(u[1])) \
    X(bad_times_of_others, int s = epoll_create1(0); S(epoll_pwait2(s, (void *)buf, 1, (void *)nowhere, 0)); S(syscall(SYS_epoll_pwait, s, buf, 1, 0, nowhere, 8)); S(syscall(SYS_ppoll, 0, 0, 0, nowhere, 8)); S(syscall(SYS_pselect6, 0, 0, 0, 0, 0, nowhere)); close(s)) \
    X(bad_pointers_of_others, int u = socket(AF_INET, SOCK_DGRAM, 0); S(sendmsg(u, (void *)nowhere, 0)); S(recvmsg(u, (void *)nowhere, MSG_DONTWAIT)); S(sendmmsg(u, (void *)nowhere, 2, 0)); S(recvmmsg(u, (void *)nowhere, 2, MSG_DONTWAIT, 0)); close(u)) \
    X(bad_words_of_programs, char *none[] = { "true", 0 }, *bad[] = { nowhere, 0 }, *least[] = { (char *)8, 0 }, program[] = "/bin/true"; void *there = nowhere; pid_t pid; S(execve(there, none, none)); S(execve(program, there, none)); S(execve(program, bad, none)); S(execve(program, none, there)); S(execve(program, none, bad)); S(execve(program, none, least)); S(execve((void *)-9, none, none)); S(execve(0, none, none)); S(execv(there, none)); S(execv(program, bad)); S(execvpe(program, none, bad)); S(execvpe("true", none, there)); S(execle(there, "true", NULL, none)); S(execle(program, "true", NULL, bad)); S(execveat(AT_FDCWD, there, none, none, 0)); S(execveat(p.a, there, none, none, AT_EMPTY_PATH)); S(execveat(AT_FDCWD, program, none, bad, 0)); S(execveat(AT_FDCWD, program, there, none, 0)); int file = open(program, O_RDONLY); S(fexecve(file, none, bad)); S(fexecve(file, bad, none)); close(file); S(syscall(SYS_execve, there, none, none)); S(syscall(SYS_execve, program, none, there)); S(syscall(SYS_execveat, AT_FDCWD, there, none, none, 0)); S(syscall(SYS_execveat, AT_FDCWD, program, none, bad, 0)); S(posix_spawn(&pid, there, 0, 0, none, none)); S(posix_spawn(&pid, program, 0, 0, bad, none)); S(posix_spawn(&pid, program, 0, 0, none, bad)); S(posix_spawn(&pid, program, 0, 0, none, there)); S(posix_spawnp(&pid, "true", 0, 0, none, bad)); S(send(p.a, "hello", 5, 0)); S(recv(p.b, buf, 9, 0))) \
    X(bad_environment, extern char **environ; char **kept = environ, *bad[] = { nowhere, 0 }, *words[] = { "true", 0 }; environ = bad; S(execv("/bin/true", words)); environ = (void *)nowhere; S(execv("/bin/true", words)); environ = kept; S(send(p.a, "hello", 5, 0)); S(recv(p.b, buf, 9, 0))) \
    X(bad_descriptor, S(send(-1, "x", 1, 0)); S(recv(999999, buf, 1, 0)); S(shutdown(-1, 0)); S(close(-1))) \
    X(closed_descriptor, close(p.a); S(send(p.a, "x", 1, 0)); S(recv(p.a, buf, 1, 0)); S(close(p.a))) \
    X(connected_again, struct sockaddr_in at = { .sin_family = AF_INET }; S(connect(p.a, (void *)&at, sizeof at)); S(listen(p.b, 3)); S(accept(p.a, 0, 0))) \
    X(level, int s = watch(p.a, EPOLLIN, 5); S(event(s)); send(p.b, "x", 1, 0); S(event(s)); S(event(s)); recv(p.a, buf, 1, 0); S(event(s)); close(s)) \
    X(edge, int s = watch(p.a, EPOLLIN | EPOLLET, 5); send(p.b, "x", 1, 0); S(event(s)); S(event(s)); send(p.b, "y", 1, 0); S(event(s)); close(s)) \
    X(edge_of_an_end, int s = watch(p.a, EPOLLIN | EPOLLRDHUP | EPOLLET, 5); shutdown(p.b, SHUT_WR); nap(); S(event(s)); S(event(s)); close(s)) \
    X(edge_of_an_old_end, shutdown(p.b, SHUT_WR); nap(); int s = watch(p.a, EPOLLIN | EPOLLRDHUP | EPOLLET, 5); S(event(s)); S(event(s)); S(armed(s, p.a, EPOLLIN | EPOLLET)); S(event(s)); S(event(s)); close(s)) \
    X(edge_of_a_reset, int s = watch(p.a, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 5); S(event(s)); linger(p.b); close(p.b); nap(); S(event(s)); S(event(s)); close(s)) \
    X(edges_before_an_end, int s = watch(p.a, EPOLLIN | EPOLLET, 5); for (int i = 0; i < 5; i++) { send(p.b, "x", 1, 0); S(event(s)); S(event(s)); if (i % 2) S(recv(p.a, buf, 9, 0)); } close(p.b); nap(); S(event(s)); S(event(s)); S(recv(p.a, buf, 9, 0)); S(recv(p.a, buf, 9, 0)); close(s)) \
    X(edges_of_room, int s = watch(p.a, EPOLLOUT | EPOLLET, 5); shutdown(p.b, SHUT_WR); nap(); S(event(s) > 0); for (int i = 0; i < 3; i++) { while (send(p.a, buf, sizeof buf, MSG_DONTWAIT) > 0) {} drained(p.b); S(event(s) > 0); } close(s)) \
    X(one_shot, int s = watch(p.a, EPOLLIN | EPOLLONESHOT, 5); send(p.b, "x", 1, 0); S(event(s)); S(event(s)); struct epoll_event e = { EPOLLIN | EPOLLONESHOT, { .u64 = 6 } }; S(epoll_ctl(s, EPOLL_CTL_MOD, p.a, &e)); S(event(s)); close(s)) \
    X(neither_starves, int ends[2], s = watch(p.a, EPOLLIN, 0), seen[2] = { 0, 0 }; struct epoll_event e = { EPOLLIN, { .u64 = 1 } }; pipe(ends); epoll_ctl(s, EPOLL_CTL_ADD, ends[0], &e); send(p.b, "x", 1, 0); S(polled(p.a, POLLIN)); write(ends[1], "x", 1); for (int i = 0; i < 100000 && (!seen[0] || !seen[1]); i++) if (epoll_wait(s, &e, 1, 50) == 1) seen[e.data.u64]++; S(seen[0] > 0); S(seen[1] > 0); close(ends[0]); close(ends[1]); close(s)) \
    X(limits_that_are_over_at_once, int ends[2], found = 0, s = watch(p.a, EPOLLIN, 5); struct epoll_event e = { EPOLLIN, { .u64 = 6 } }; struct timespec t = { 0, 1 }; pipe(ends); epoll_ctl(s, EPOLL_CTL_ADD, ends[0], &e); write(ends[1], "x", 1); for (int i = 0; i < 1000; i++) found += epoll_pwait2(s, &e, 1, &t, 0) == 1; S(found); close(ends[0]); close(ends[1]); close(s)) \
    X(level_output, int s = watch(p.a, EPOLLOUT, 5); S(event(s)); S(event(s)); close(s)) \
    X(end_in_a_set, int s = watch(p.a, EPOLLIN | EPOLLRDHUP, 5); close(p.b); nap(); S(event(s)); S(event(s)); close(s)) \
    X(close_without_del, int s = watch(p.a, EPOLLIN, 5); close(p.a); send(p.b, "x", 1, MSG_NOSIGNAL); nap(); S(event(s)); close(s)) \
    X(close_of_a_copied_one, int s = watch(p.a, EPOLLIN, 5), copy = dup(p.a); close(p.a); send(p.b, "x", 1, 0); nap(); S(event(s) > 0); S(recv(copy, buf, 9, 0)); close(copy); S(event(s)); close(s)) \
    X(reuse_after_close, int s = watch(p.a, EPOLLIN, 5); close(p.a); int old = p.b; made(); struct epoll_event e = { EPOLLIN, { .u64 = 6 } }; S(epoll_ctl(s, EPOLL_CTL_ADD, p.a, &e)); close(old); nap(); S(event(s)); send(p.b, "x", 1, 0); S(event(s)); close(s)) \
    X(two_sets, int s = watch(p.a, EPOLLIN, 5), t = watch(p.a, EPOLLIN, 6); send(p.b, "x", 1, 0); S(event(s)); S(event(t)); close(s); S(event(t)); close(t)) \
    X(nested, int s = watch(p.a, EPOLLIN, 5), t = watch(s, EPOLLIN, 6); send(p.b, "x", 1, 0); S(event(t)); S(event(s)); close(s); close(t)) \
    X(nested_with_nothing, int s = watch(p.a, EPOLLIN | EPOLLRDHUP, 5), t = watch(s, EPOLLIN, 6); S(event(t)); S(polled(s, POLLIN)); S(event(s)); S(event(t)); send(p.b, "x", 1, 0); S(event(t)); S(event(t)); S(event(s)); S(recv(p.a, buf, 9, 0)); S(event(t)); S(event(s)); send(p.b, "y", 1, 0); S(event(t)); S(event(s)); close(p.b); S(event(s)); S(recv(p.a, buf, 9, 0)); S(event(t)); S(event(s)); close(s); close(t)) \
    X(nested_output, int s = watch(p.a, EPOLLOUT, 5), t = watch(s, EPOLLIN, 6); S(event(t)); S(event(s)); S(armed(s, p.a, EPOLLIN)); S(event(t)); S(event(s)); close(s); close(t)) \
    X(nested_with_edges, int s = watch(p.a, EPOLLIN | EPOLLET, 5), t = watch(s, EPOLLIN | EPOLLET, 6); S(event(t)); send(p.b, "x", 1, 0); for (int i = 0; i < 3; i++) quiet(t), quiet(s); for (int i = 0; i < 4; i++) { send(p.b, "x", 1, 0); S(event(t)); S(event(t)); S(event(s)); S(event(s)); } close(s); close(t)) \
    X(nested_once, int s = watch(p.a, EPOLLIN | EPOLLONESHOT, 5), t = watch(s, EPOLLIN, 6); for (int i = 0; i < 3; i++) { send(p.b, "x", 1, 0); S(event(t)); S(event(s)); S(event(t)); S(event(s)); S(armed(s, p.a, EPOLLIN | EPOLLONESHOT)); } S(event(t)); S(event(s)); close(s); close(t)) \
    X(nested_before, int s = epoll_create1(0), t = watch(s, EPOLLIN, 6); struct epoll_event e = { EPOLLIN, { .u64 = 5 } }; S(epoll_ctl(s, EPOLL_CTL_ADD, p.a, &e)); S(event(t)); send(p.b, "x", 1, 0); S(event(t)); S(event(s)); S(recv(p.a, buf, 9, 0)); S(event(t)); close(s); close(t)) \
    X(nested_with_bytes, send(p.b, "x", 1, 0); S(polled(p.a, POLLIN)); int s = watch(p.a, EPOLLIN, 5), t = watch(s, EPOLLIN, 6); S(event(t)); S(event(s)); S(event(t)); S(recv(p.a, buf, 9, 0)); send(p.b, "y", 1, 0); S(event(t)); S(event(s)); close(s); close(t)) \
    X(nested_without_a_bell, enum { SETS = 18 }; int old[SETS][3]; for (int i = 0; i < SETS; i++) { old[i][0] = p.a; old[i][1] = p.b; old[i][2] = watch(p.a, EPOLLIN, 7); made(); } send(p.b, "x", 1, 0); int s = watch(p.a, EPOLLIN, 5), t = watch(s, EPOLLIN, 6); S(event(t)); S(event(s)); S(recv(p.a, buf, 9, 0)); S(event(t)); send(p.b, "y", 1, 0); S(event(t)); S(event(s)); S(recv(p.a, buf, 9, 0)); for (int i = 0; i < SETS; i++) for (int k = 0; k < 3; k++) close(old[i][k]); close(s); close(t)) \
    X(nested_half_close, int s = watch(p.a, EPOLLIN, 5), t = watch(s, EPOLLIN, 6); S(event(t)); S(shutdown(p.a, SHUT_WR)); S(event(t)); S(event(s)); send(p.b, "x", 1, 0); S(event(t)); S(event(s)); close(s); close(t)) \
    X(exclusive_then_dissolved, int s = watch(p.a, EPOLLIN | EPOLLEXCLUSIVE, 5); S(event(s)); S(unspec(p.a)); S(event(s)); close(s)) \
    X(exclusive, int s = watch(p.a, EPOLLIN | EPOLLEXCLUSIVE, 5); send(p.b, "x", 1, 0); S(event(s)); close(s)) \
    X(set_errors, int s = watch(p.a, EPOLLIN, 5); struct epoll_event e = { EPOLLIN, { .u64 = 6 } }; S(epoll_ctl(s, EPOLL_CTL_ADD, p.a, &e)); S(epoll_ctl(s, EPOLL_CTL_MOD, p.b, &e)); S(epoll_ctl(s, EPOLL_CTL_DEL, p.b, &e)); S(epoll_ctl(s, EPOLL_CTL_DEL, p.a, 0)); S(epoll_ctl(s, EPOLL_CTL_DEL, p.a, 0)); S(epoll_ctl(s, 9, p.a, &e)); close(s)) \
    X(killed_peer, pid_t c = fork(); if (c == 0) { close(p.a); pause(); } close(p.b); kill(c, SIGKILL); waitpid(c, 0, 0); nap(); S(recv(p.a, buf, 9, 0)); S(recv(p.a, buf, 9, 0))) \
    X(killed_peer_with_unread, pid_t c = fork(); if (c == 0) { close(p.a); pause(); } close(p.b); send(p.a, "unread", 6, 0); nap(); kill(c, SIGKILL); waitpid(c, 0, 0); nap(); S(recv(p.a, buf, 9, 0)); S(recv(p.a, buf, 9, 0)))

#define X(name, ...) static void name##_probe(void) { __VA_ARGS__; }
PROBES
#undef X
#define X(name, ...) { #name, name##_probe },
static const struct { const char *name; void (*run)(void); } probes[] = { PROBES };

int main(int count, char **words)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    if (count == 3) {
        p = (struct pair){ atoi(words[1]), atoi(words[2]) };
        S(number(p.a, IPPROTO_TCP, TCP_NODELAY)); S(number(p.b, IPPROTO_TCP, TCP_NODELAY)); S(number(p.b, IPPROTO_TCP, TCP_NOTSENT_LOWAT));
        return 0;
    }
    nowhere = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = { .sa_handler = on_pipe };
    sigaction(SIGPIPE, &action, 0);
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        made();
        pipes = 0;
        printf("%s\n", probes[i].name);
        probes[i].run();
        close(p.a); close(p.b);
        while (waitpid(-1, 0, WNOHANG) > 0) {}
    }
    fprintf(stderr, "%d of %d connections moved\n", moved, all);
    return 0;
}
