/* Every call of the C library that touches a stream socket, each on a connection of its own that
 * has moved into shared memory, if it can. Each prints what the call said and what came of it, and
 * then tries whether the connection goes on: with and without `vmmc exec` the output is the same.
 * Both ends are in this process unless the case says otherwise. One argument: the name of a case,
 * or "all". */
#define _GNU_SOURCE
#include "vmmc_sockets.h"
#include <aio.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <linux/aio_abi.h>
#include <linux/sockios.h>
#include <unistd.h>

extern char **environ;
static const char *program;

static void die(const char *what) { printf("FAILED %s: %s\n", what, strerror(errno)); fflush(stdout); _exit(1); }
/* A result, with the error if there is one. */
static void says(const char *call, long result)
{
    int error = errno;
    if (result < 0) printf("  %s: %s\n", call, strerrorname_np(error)); else printf("  %s: %ld\n", call, result);
}
#define SAYS(call) says(#call, (errno = 0, (long)(call)))

static void put(int fd, const void *from, size_t n)
{
    for (ssize_t some; n > 0; from = (const char *)from + some, n -= some)
        if ((some = send(fd, from, n, MSG_NOSIGNAL)) <= 0) die("put");
}
static void get(int fd, void *into, size_t n)
{
    for (ssize_t some; n > 0; into = (char *)into + some, n -= some)
        if ((some = recv(fd, into, n, 0)) <= 0) die("get");
}
static void expect(int fd, const char *text)
{
    char buffer[100000];
    get(fd, buffer, strlen(text));
    if (memcmp(buffer, text, strlen(text))) { printf("  wrong bytes: %.*s\n", (int)strlen(text), buffer); exit(1); }
}
static void ready(int fd)
{
    struct pollfd entry = { fd, POLLIN, 0 };
    if (poll(&entry, 1, 20000) != 1) die("nothing came");
}

/* Whether what this descriptor receives comes by shared memory; there must be something to receive.
 */
static int by_ring(int fd)
{
    const void *bytes;
    ready(fd);
    ssize_t n = vmmc_sockets_peek(fd, &bytes);
    return n > 0 && vmmc_sockets_consume(fd, 0) == 0;
}
static int listener(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 5)) die("listen");
    return fd;
}
struct pair { int a, b; };
static int connections, in_rings;
/* Turns until both directions are in shared memory, or long enough to be sure that they will not
 * be. */
static void turns(struct pair p)
{
    int loaded = dlsym(RTLD_DEFAULT, "vmmc_sockets_peek_v1") != NULL, moved = 0;
    connections++;
    for (int i = 0; i < (loaded ? 20000 : 40) && moved < 20; i++) {
        int rings = 0, unread;
        put(p.a, "hello", 5);
        ready(p.b);
        if (ioctl(p.b, FIONREAD, &unread) || unread != 5) { printf("  FIONREAD in turn %d: %d\n", i, unread); exit(1); }
        rings += by_ring(p.b); expect(p.b, "hello");
        put(p.b, "world", 5); rings += by_ring(p.a); expect(p.a, "world");
        moved += rings == 2;
    }
    in_rings += moved >= 20;
}
static struct pair connected(int at_listener, int fd)
{
    struct sockaddr_in at; socklen_t len = sizeof at;
    getsockname(at_listener, (void *)&at, &len);
    struct pair p = { fd, -1 };
    if (connect(fd, (void *)&at, len) || (p.b = accept(at_listener, 0, 0)) < 0) die("connect");
    fcntl(p.b, F_SETFD, FD_CLOEXEC);
    close(at_listener);
    return p;
}
static struct pair made(void)
{
    struct pair p = connected(listener(), socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    turns(p);
    return p;
}
/* The connection goes on in both directions. */
static void goes_on(struct pair p)
{
    for (int i = 0; i < 30; i++) {
        put(p.a, "there", 5); expect(p.b, "there");
        put(p.b, "back!", 5); expect(p.a, "back!");
    }
}
static void ended(struct pair p)
{
    goes_on(p);
    shutdown(p.a, SHUT_WR);
    char c;
    printf("  end: %zd\n", recv(p.b, &c, 1, 0));
    close(p.a); close(p.b);
}

/* ---- moving bytes ---- */

static volatile size_t five = 5;
#define RAW(number, ...) syscall(number, __VA_ARGS__)
static int file_with(const char *text)
{
    FILE *file = tmpfile();
    fputs(text, file); fflush(file); rewind(file); lseek(fileno(file), 0, SEEK_SET);
    return fileno(file);
}
static int print_to(int fd, const char *format, ...)
{
    va_list words;
    va_start(words, format);
    int n = vdprintf(fd, format, words);
    va_end(words);
    return n;
}
static int put_later = -1;
static long asynchronous(int fd, void *buffer, int (*call)(struct aiocb *))
{
    static struct aiocb block;
    block = (struct aiocb){ .aio_fildes = fd, .aio_buf = buffer, .aio_nbytes = five };
    if (call(&block)) return -1;
    const struct aiocb *const all[] = { &block };
    if (put_later >= 0) { put(put_later, "later", 5); put_later = -1; }
    aio_suspend(all, 1, NULL);
    errno = aio_error(&block);
    return aio_return(&block);
}
static void case_send(void)
{
    static const char *const names[] = { "write", "writev", "send", "sendto", "sendmsg", "sendmmsg", "pwritev2", "sendfile", "sendfile64 at",
        "splice", "dprintf", "vdprintf", "aio_write", "stream", "__write", "__send", "raw write", "raw writev", "raw sendto", "raw sendmsg", "raw sendmmsg",
        "raw pwritev2", "raw sendfile", "pwrite", "_IO_fdopen" };
    for (int form = 0; form < (int)(sizeof names / sizeof *names); form++) {
        struct pair p = made();
        char text[] = "bytes"; int pipes[2]; long n = -2; off64_t at = 2; FILE *stream;
        struct iovec pieces[2] = { { text, 2 }, { text + 2, 3 } };
        struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = pieces, .msg_iovlen = 1 } }, { .msg_hdr = { .msg_iov = pieces + 1, .msg_iovlen = 1 } } };
        struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 2 };
        extern FILE *_IO_fdopen(int, const char *);
        extern ssize_t __write(int, const void *, size_t), __send(int, const void *, size_t, int);
        errno = 0;
        switch (form) {
        case 0: n = write(p.a, text, five); break;
        case 1: n = writev(p.a, pieces, 2); break;
        case 2: n = send(p.a, text, five, MSG_MORE); n += send(p.a, text, 0, 0); break;
        case 3: n = sendto(p.a, text, five, 0, NULL, 0); break;
        case 4: n = sendmsg(p.a, &message, 0); break;
        case 5: n = sendmmsg(p.a, messages, 2, 0); break;
        case 6: n = pwritev2(p.a, pieces, 2, -1, 0); break;
        case 7: n = sendfile(p.a, file_with("bytes"), NULL, 100); break;
        case 8: n = sendfile64(p.a, file_with("..bytes"), &at, five); n += at; break;
        case 9: pipe(pipes); write(pipes[1], text, five); n = splice(pipes[0], NULL, p.a, NULL, five, 0); close(pipes[0]); close(pipes[1]); break;
        case 10: n = dprintf(p.a, "%c%s%g", 'b', "y", five / 2.0); break;
        case 11: n = print_to(p.a, "%s%d%d%d%d", "b", 1, 2, 3, 4); break;
        case 12: n = asynchronous(p.a, text, aio_write); break;
        case 13: stream = fdopen(dup(p.a), "w"); n = fprintf(stream, "%s", text); fclose(stream); break;
        case 14: n = __write(p.a, text, five); break;
        case 15: n = __send(p.a, text, five, 0); break;
        case 16: n = RAW(SYS_write, p.a, text, five); break;
        case 17: n = RAW(SYS_writev, p.a, pieces, 2); break;
        case 18: n = RAW(SYS_sendto, p.a, text, five, 0, NULL, 0); break;
        case 19: n = RAW(SYS_sendmsg, p.a, &message, 0); break;
        case 20: n = RAW(SYS_sendmmsg, p.a, messages, 2, 0); break;
        case 21: n = RAW(SYS_pwritev2, p.a, pieces, 2, -1L, -1L, 0); break;
        case 22: n = RAW(SYS_sendfile, p.a, file_with("bytes"), NULL, five); break;
        case 23: n = pwrite(p.a, text, five, 0); break;
        case 24: stream = _IO_fdopen(dup(p.a), "w"); n = fprintf(stream, "%s", text); fclose(stream); break;
        }
        says(names[form], n);
        if (n > 0) {
            char got[6] = "";
            get(p.b, got, 5);
            printf("  got %s\n", got);
        }
        ended(p);
    }
}
static void case_receive(void)
{
    static const char *const names[] = { "read", "readv", "recv", "recvfrom", "recvmsg", "recvmmsg", "preadv2", "splice", "stream", "aio_read", "__read",
        "truncated", "truncated message", "peek", "peek all", "all", "raw read", "raw readv", "raw recvfrom", "raw recvmsg", "raw recvmmsg", "raw preadv2", "recvfrom with address",
        "pread", "urgent, there is none", "one more message than there is" };
    for (int form = 0; form < (int)(sizeof names / sizeof *names); form++) {
        struct pair p = made();
        /* Sizes that the compiler knows, and counts that it does not: the fortified forms. */
        char text[8] = "", more[8] = ""; int pipes[2]; long n = -2; FILE *stream; struct sockaddr_in from; socklen_t len = sizeof from;
        struct iovec pieces[2] = { { text, 2 }, { text + 2, 3 } };
        struct mmsghdr messages[3] = { { .msg_hdr = { .msg_iov = pieces, .msg_iovlen = 1 } }, { .msg_hdr = { .msg_iov = pieces + 1, .msg_iovlen = 1 } } };
        struct iovec third = { more, 5 };
        messages[2].msg_hdr = (struct msghdr){ .msg_iov = &third, .msg_iovlen = 1 };
        struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 2 };
        extern ssize_t __read(int, void *, size_t);
        int left = 0;
        put(p.a, "bytes", 5);
        ready(p.b);
        errno = 0;
        switch (form) {
        case 0: n = read(p.b, text, five); break;
        case 1: n = readv(p.b, pieces, 2); break;
        case 2: n = recv(p.b, text, five, 0); break;
        case 3: n = recvfrom(p.b, text, five, 0, NULL, NULL); break;
        case 4: n = recvmsg(p.b, &message, 0); break;
        case 5: n = recvmmsg(p.b, messages, 2, 0, NULL); left = messages[1].msg_len; break;
        case 6: n = preadv2(p.b, pieces, 2, -1, 0); break;
        case 7: pipe(pipes); n = splice(p.b, NULL, pipes[1], NULL, five, 0); read(pipes[0], text, five); close(pipes[0]); close(pipes[1]); break;
        /* What is in the ring goes back at the peer's next call, which cannot be made by this
         * thread while it waits. */
        case 8: expect(p.b, "bytes"); stream = fdopen(p.b, "r+"); put(p.a, "first\nnext\n", 11);
            fgets(text, sizeof text, stream); fgets(more, sizeof more, stream); n = strlen(more);
            printf("  %s", more); p.b = dup(p.b); fclose(stream); break;
        case 9: expect(p.b, "bytes"); put_later = p.a; n = asynchronous(p.b, text, aio_read); break;
        case 10: n = __read(p.b, text, five); break;
        case 11: n = recv(p.b, text, five, MSG_TRUNC); break;
        case 12: n = recvmsg(p.b, &message, MSG_TRUNC); break;
        case 13: n = recv(p.b, text, five, MSG_PEEK); n += recv(p.b, text, sizeof text, 0); break;
        case 14: n = recv(p.b, text, five, MSG_PEEK | MSG_WAITALL); n += recv(p.b, text, five, MSG_WAITALL); break;
        case 15: n = recv(p.b, text, five, MSG_WAITALL | MSG_DONTWAIT); break;
        case 16: n = RAW(SYS_read, p.b, text, five); break;
        case 17: n = RAW(SYS_readv, p.b, pieces, 2); break;
        case 18: n = RAW(SYS_recvfrom, p.b, text, five, 0, NULL, NULL); break;
        case 19: n = RAW(SYS_recvmsg, p.b, &message, 0); break;
        case 20: n = RAW(SYS_recvmmsg, p.b, messages, 2, 0, NULL); break;
        case 21: n = RAW(SYS_preadv2, p.b, pieces, 2, -1L, -1L, 0); break;
        case 22: n = recvfrom(p.b, text, five, 0, (void *)&from, &len); left = len; break;
        case 23: n = pread(p.b, text, five, 0); says("pread", n); n = read(p.b, text, five); break;
        case 24: says("urgent", recv(p.b, text, 1, MSG_OOB)); n = recv(p.b, text, five, 0); break;
        case 25: n = recvmmsg(p.b, messages, 3, MSG_DONTWAIT, NULL); left = messages[1].msg_len; break;
        }
        says(names[form], n);
        printf("  %s %d\n", text, left);
        ended(p);
    }
}

/* ---- requests, options, flags ---- */

static void case_requests(void)
{
    struct pair p = made();
    int n = -1, yes = 1, no = 0; char c;
    ioctl(p.b, FIONREAD, &n); printf("  unread %d\n", n);
    put(p.a, "abc", 3); ready(p.b);
    ioctl(p.b, FIONREAD, &n); printf("  unread %d\n", n);
    SAYS(ioctl(p.b, SIOCATMARK, &n)); SAYS(sockatmark(p.b));
    expect(p.b, "abc");
    SAYS(ioctl(p.b, FIONBIO, &yes)); SAYS(recv(p.b, &c, 1, 0)); SAYS(fcntl(p.b, F_GETFL) & O_NONBLOCK);
    SAYS(ioctl(p.b, FIONBIO, &no)); SAYS(fcntl(p.b, F_GETFL) & O_NONBLOCK);
    SAYS(fcntl(p.b, F_SETFL, O_NONBLOCK)); SAYS(recv(p.b, &c, 1, 0)); SAYS(recv(p.b, &c, 1, MSG_WAITALL));
    SAYS(fcntl(p.b, F_SETFL, 0));
    SAYS(recv(p.b, &c, 1, MSG_DONTWAIT));
    static char much[1 << 20];
    fcntl(p.a, F_SETFL, O_NONBLOCK);
    long sent = 0, some, got = 0;
    struct pollfd out = { p.a, POLLOUT, 0 };
    /* What was full a moment ago may have been given room to grow before the look. A ring grows
     * once. */
    long room = 1; int error = 0;
    for (int times = 0; room && times < 5; times++) {
        while ((some = write(p.a, much, sizeof much)) > 0) sent += some;
        error = errno;
        room = poll(&out, 1, 0);
    }
    errno = error; says("full", some);
    SAYS(ioctl(p.a, SIOCOUTQ, &n)); printf("  unsent %d\n", n > 0);
    says("room when full", room);
    while (got < sent) { if ((some = read(p.b, much, sizeof much)) <= 0) die("drain"); got += some; }
    SAYS(poll(&out, 1, 10000)); printf("  revents %d\n", out.revents);
    fcntl(p.a, F_SETFL, 0);
    SAYS(ioctl(p.a, 0x12345678, &n));
    SAYS(ioctl(-1, FIONREAD, &n));
    ended(p);
}
static void case_no_delay(void)
{
    for (int before = 0; before < 3; before++) {
        int at = listener(), fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1, no = 0, n; socklen_t len = sizeof n;
        if (before == 1) { setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); setsockopt(at, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); }
        struct pair p = connected(at, fd);
        if (before == 2) { setsockopt(p.a, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); }
        turns(p);
        for (int end = 0; end < 2; end++) {
            int of = end ? p.b : p.a;
            getsockopt(of, IPPROTO_TCP, TCP_NODELAY, &n, &len); printf("  before %d end %d: %d", before, end, n);
            setsockopt(of, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); getsockopt(of, IPPROTO_TCP, TCP_NODELAY, &n, &len); printf(" %d", n);
            setsockopt(of, IPPROTO_TCP, TCP_NODELAY, &no, sizeof no); getsockopt(of, IPPROTO_TCP, TCP_NODELAY, &n, &len); printf(" %d\n", n);
        }
        ended(p);
    }
}
static void case_low_water(void)
{
    for (int when = 0; when < 3; when++) {
        int at = listener(), fd = socket(AF_INET, SOCK_STREAM, 0), ten = 10, n;
        socklen_t len = sizeof n;
        struct pair p;
        if (when == 1) setsockopt(at, SOL_SOCKET, SO_RCVLOWAT, &ten, sizeof ten);
        if (when == 2) setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &ten, sizeof ten);
        p = connected(at, fd);
        if (when == 0) { turns(p); setsockopt(p.b, SOL_SOCKET, SO_RCVLOWAT, &ten, sizeof ten); }
        else for (int i = 0; i < 300; i++) { put(p.a, "helloworld", 10); expect(p.b, "helloworld"); put(p.b, "helloworld", 10); expect(p.a, "helloworld"); }
        int of = when == 2 ? p.a : p.b, to = when == 2 ? p.b : p.a;
        getsockopt(of, SOL_SOCKET, SO_RCVLOWAT, &n, &len); printf("  when %d: %d\n", when, n);
        struct pollfd entry = { of, POLLIN, 0 };
        put(to, "12345", 5); printf("  five: %d", poll(&entry, 1, 50));
        put(to, "12345", 5); printf(" ten: %d\n", poll(&entry, 1, 5000));
        expect(of, "1234512345");
        close(p.a); close(p.b);
    }
}
static volatile sig_atomic_t signals;
static void count(int number) { (void)number; signals++; }
static void settled(void) { for (int i = 0; i < 2000 && !signals; i++) usleep(1000); }
static void case_signals(void)
{
    signal(SIGIO, count);
    for (int when = 0; when < 4; when++) {
        int at = listener(), fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
        if (when == 1) { fcntl(fd, F_SETOWN, getpid()); fcntl(fd, F_SETFL, O_ASYNC); }
        struct pair p = connected(at, fd);
        turns(p);
        if (when == 0) { fcntl(p.a, F_SETOWN, getpid()); SAYS(fcntl(p.a, F_SETFL, O_ASYNC)); }
        if (when == 2) { fcntl(p.a, F_SETOWN, getpid()); SAYS(ioctl(p.a, FIOASYNC, &yes)); }
        goes_on(p);
        usleep(20000);
        signals = 0;
        put(p.b, "news!", 5);
        if (when < 3) settled();
        printf("  when %d: %s\n", when, signals ? "heard" : "nothing");
        expect(p.a, "news!");
        if (when < 3) { fcntl(p.a, F_SETFL, 0); }
        ended(p);
    }
    signal(SIGIO, SIG_DFL);
}
static void case_names_and_ends(void)
{
    struct pair p = made();
    struct sockaddr_in one, two; socklen_t len = sizeof one, n = sizeof two; char c;
    SAYS(getpeername(p.a, (void *)&one, &len)); SAYS(getsockname(p.b, (void *)&two, &n));
    printf("  same %d\n", !memcmp(&one, &two, sizeof one));
    SAYS(shutdown(p.a, 7)); goes_on(p);
    put(p.a, "last", 4);
    SAYS(shutdown(p.a, SHUT_WR)); SAYS(shutdown(p.a, SHUT_WR));
    signal(SIGPIPE, count); signals = 0;
    SAYS(send(p.a, "x", 1, 0)); SAYS(send(p.a, "x", 1, MSG_NOSIGNAL)); printf("  signals %d\n", (int)signals);
    expect(p.b, "last"); SAYS(recv(p.b, &c, 1, 0)); SAYS(recv(p.b, &c, 1, 0));
    put(p.b, "still", 5); expect(p.a, "still");
    SAYS(shutdown(p.b, SHUT_RDWR)); SAYS(recv(p.a, &c, 1, 0)); SAYS(getpeername(p.a, (void *)&one, &len));
    int error = -1; n = sizeof error; getsockopt(p.a, SOL_SOCKET, SO_ERROR, &error, &n); printf("  error %d\n", error);
    close(p.a); close(p.b);
    p = made();
    SAYS(shutdown(p.b, SHUT_RD)); SAYS(recv(p.b, &c, 1, 0));
    put(p.b, "goes", 4); expect(p.a, "goes");
    close(p.a); close(p.b);
    p = made();
    /* What nobody has read when the connection is closed makes it a reset. */
    put(p.a, "unread", 6); ready(p.b); put(p.b, "answer", 6); close(p.b); usleep(50000);
    expect(p.a, "answer"); SAYS(recv(p.a, &c, 1, 0)); SAYS(recv(p.a, &c, 1, 0)); signals = 0; SAYS(send(p.a, "x", 1, 0)); printf("  signals %d\n", (int)signals);
    close(p.a);
    p = made();
    struct linger none = { 1, 0 };
    setsockopt(p.b, SOL_SOCKET, SO_LINGER, &none, sizeof none); close(p.b); usleep(50000);
    SAYS(recv(p.a, &c, 1, 0)); SAYS(recv(p.a, &c, 1, 0));
    close(p.a);
    p = made();
    SAYS(connect(p.a, (void *)&one, sizeof one));
    signal(SIGPIPE, SIG_DFL);
    ended(p);
}
static void case_timeouts(void)
{
    struct pair p = made();
    struct timeval tenth = { 0, 100000 }; char c; struct timespec before, after;
    setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &tenth, sizeof tenth);
    clock_gettime(CLOCK_MONOTONIC, &before);
    SAYS(recv(p.b, &c, 1, 0));
    clock_gettime(CLOCK_MONOTONIC, &after);
    printf("  waited %d\n", (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 95);
    setsockopt(p.a, SOL_SOCKET, SO_SNDTIMEO, &tenth, sizeof tenth);
    static char much[64 << 20];
    long n = send(p.a, much, sizeof much, 0);
    printf("  part %d\n", n > 0 && n < (long)sizeof much);
    /* The kernel finds a little more room when it moves bytes from the one to the other. */
    for (long some; usleep(10000), (some = send(p.a, much, sizeof much, MSG_DONTWAIT)) > 0;) n += some;
    SAYS(send(p.a, much, sizeof much, 0));
    for (long some; n > 0; n -= some) if ((some = recv(p.b, much, n, 0)) <= 0) die("drain");
    ended(p);
}

/* ---- waiting ---- */

static void case_waiting(void)
{
    struct pair p = made();
    sigset_t none; sigemptyset(&none);
    struct timespec short_time = { 0, 20000000 }, long_time = { 20, 0 };
    struct pollfd entries[2] = { { p.b, POLLIN, 0 }, { p.a, POLLOUT, 0 } };
    volatile nfds_t two = 2;
    long n;
    int set = epoll_create1(0); struct epoll_event event = { EPOLLIN, { .u32 = 77 } }, out[4];
    fd_set read_set;
    epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event);
#define EACH(call) entries[0].revents = entries[1].revents = 0; FD_ZERO(&read_set); FD_SET(p.b, &read_set); SAYS(call); \
    printf("  %d %d %d\n", entries[0].revents, entries[1].revents, !!FD_ISSET(p.b, &read_set))
#define SET(call) out[0].data.u32 = 0; n = (call); says(#call, n); if (n > 0) printf("  %u %u\n", out[0].data.u32, out[0].events)
    for (int full = 0; full < 2; full++) {
        struct timeval time = { 0, 20000 };
        if (full) put(p.a, "bytes", 5);
        EACH(poll(entries, two, full ? 20000 : 20));
        EACH(poll(entries, 1, full ? 20000 : 20));
        EACH(ppoll(entries, two, full ? &long_time : &short_time, &none));
        EACH(select(p.b + 1, &read_set, NULL, NULL, full ? NULL : &time));
        EACH(pselect(p.b + 1, &read_set, NULL, NULL, full ? NULL : &short_time, &none));
        SET(epoll_wait(set, out, 4, full ? 20000 : 20));
        SET(epoll_pwait(set, out, 4, full ? 20000 : 20, &none));
        SET(epoll_pwait2(set, out, 4, full ? &long_time : &short_time, NULL));
        EACH(RAW(SYS_ppoll, entries, two, full ? &(struct timespec){ 20, 0 } : &(struct timespec){ 0, 20000000 }, &none, 8));
        SET(RAW(SYS_epoll_pwait, set, out, 4, full ? 20000 : 20, &none, 8));
        EACH(RAW(SYS_pselect6, p.b + 1, &read_set, NULL, NULL, full ? NULL : &(struct timespec){ 0, 20000000 }, NULL));
    }
    expect(p.b, "bytes");
    close(set);
    ended(p);
}
/* A set goes while connections are in it, and the next one has its number. */
static void case_sets(void)
{
    struct pair p = made();
    struct epoll_event out;
    for (int round = 0; round < 3; round++) {
        for (int way = 0; way < 3; way++) {
            struct epoll_event event = { EPOLLIN, { .u32 = 10 * round + way } };
            int set = epoll_create1(0);
            SAYS(epoll_ctl(set, EPOLL_CTL_ADD, round == 1 ? p.a : p.b, &event)); SAYS(epoll_ctl(set, EPOLL_CTL_ADD, round == 1 ? p.a : p.b, &event));
            put(round == 1 ? p.b : p.a, "x", 1);
            SAYS(epoll_wait(set, &out, 1, 10000)); printf("  %u\n", out.data.u32);
            expect(round == 1 ? p.a : p.b, "x");
            SAYS(epoll_wait(set, &out, 1, 10));
            if (way == 1) { SAYS(epoll_ctl(set, EPOLL_CTL_DEL, round == 1 ? p.a : p.b, NULL)); }
            if (way == 2) { int kept = dup(set); close(set); set = kept; }
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) { close(set); set = epoll_create1(0); _exit(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event) < 0); }
            int status; waitpid(child, &status, 0); printf("  child %d\n", status);
            close(set);
        }
    }
    ended(p);
}
static void case_high_numbers(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max < 5000 ? limit.rlim_max : 5000;
    setrlimit(RLIMIT_NOFILE, &limit);
    struct pair p = made();
    int high = fcntl(p.b, F_DUPFD, 3000), wide = 4096;
    printf("  %d %d\n", high, dup3(p.b, 3500, O_CLOEXEC));
    unsigned long *words = calloc(wide / 64, 8);
    for (int full = 0; full < 2; full++) {
        struct timeval time = { 0, 20000 };
        words[3000 / 64] |= 1ul << 3000 % 64; words[3500 / 64] |= 1ul << 3500 % 64;
        if (full) put(p.a, "x", 1);
        SAYS(select(3501, (void *)words, NULL, NULL, full ? NULL : &time));
        printf("  %d %d\n", !!(words[3000 / 64] & 1ul << 3000 % 64), !!(words[3500 / 64] & 1ul << 3500 % 64));
    }
    expect(3500, "x");
    close(p.b); p.b = high; goes_on(p);
    close(high); p.b = 3500;
    SAYS(select(-1, (void *)words, NULL, NULL, NULL));
    ended(p);
    free(words);
}

/* ---- copies and ends of descriptors ---- */

static void case_descriptors(void)
{
    struct pair p = made();
    SAYS(dup3(p.a, p.b, 0x40)); goes_on(p);
    SAYS(dup3(p.a, p.a, 0)); SAYS(dup2(p.a, p.a) == p.a); goes_on(p);
    SAYS(dup2(-1, p.b)); SAYS(dup2(p.a, -1)); SAYS(dup2(p.a, 1 << 30)); goes_on(p);
    SAYS(close_range(p.b, 1, 0)); SAYS(close_range(3, ~0u, 0x80)); goes_on(p);
    SAYS(close_range(3, ~0u, CLOSE_RANGE_CLOEXEC)); goes_on(p);
    int other = dup(p.b), third = dup(p.a); char c;
    close(p.b); p.b = other; goes_on(p);
    SAYS(close(third)); SAYS(close(third)); SAYS(recv(third, &c, 1, 0));
    ended(p);
    p = made();
    SAYS(close_range(p.b, p.b, 0)); SAYS(recv(p.a, &c, 1, 0)); SAYS(recv(p.b, &c, 1, 0));
    close(p.a);
    p = made();
    /* A number that comes again is another thing. */
    int pipes[2]; close(p.b); SAYS(recv(p.a, &c, 1, 0)); pipe(pipes);
    write(pipes[1], "z", 1); SAYS(read(pipes[0], &c, 1)); close(pipes[0]); close(pipes[1]); close(p.a);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) { p = made(); closefrom(3); SAYS(recv(p.a, &c, 1, 0)); fflush(stdout); _exit(0); }
    waitpid(child, NULL, 0);
}

/* ---- other programs ---- */

static void echo(int fd)
{
    char buffer[5000];
    for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) put(fd, buffer, n);
}
/* In a process made by clone, on a small stack of its own. */
static int returns_after_echo(void *pair) { struct pair *p = pair; close(p->a); echo(p->b); return 0; }
static int cloned(void *pair) { returns_after_echo(pair); _exit(0); }
int __clone(int (*)(void *), void *, int, void *, ...);
FILE *_IO_popen(const char *, const char *);
static void *waiting_child(void *pid) { waitpid((pid_t)(long)pid, NULL, 0); return NULL; }
static void case_programs(void)
{
    static const char *const names[] = { "execl", "execl with many words", "execle", "execlp", "execv", "execve", "execvp", "execvpe", "fexecve", "execveat", "raw execve",
        "raw execveat", "vfork and execl", "vfork and execle", "posix_spawn", "posix_spawnp", "system", "popen", "daemon", "_Fork", "fork", "fork twice", "raw clone", "execl of what is not there", "execle without us", "clone", "__clone", "clone that returns", "raw clone3", "_IO_popen" };
    static char stack[16 << 10] __attribute__((aligned(16)));
    char *nothing[] = { NULL };
    for (int form = 0; form < (int)(sizeof names / sizeof *names); form++) {
        struct pair p = made();
        char fd[16], command[5000], path[5000];
        snprintf(fd, sizeof fd, "%d", p.b);
        snprintf(command, sizeof command, "exec %s echo %s", program, fd);
        char *words[] = { (char *)program, "echo", fd, NULL };
        pid_t child = -1; FILE *stream = NULL; int self = open(program, O_RDONLY);
        fcntl(p.b, F_SETFD, 0); fcntl(p.a, F_SETFD, FD_CLOEXEC);
        put(p.a, "unread in the ring", 18); ready(p.b);
        fflush(stdout);
        int forks = form <= 11 || form >= 18;
        if (form == 12 || form == 13) child = vfork();
        else if (form == 19) child = _Fork();
        else if (form == 22) child = RAW(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        else if (form == 25 || form == 26) child = (form == 25 ? clone : __clone)(cloned, stack + sizeof stack, SIGCHLD, &p);
        else if (form == 27) child = clone(returns_after_echo, stack + sizeof stack, SIGCHLD, &p);
        else if (form == 28) { unsigned long how[8] = { 0, 0, 0, 0, SIGCHLD }; child = RAW(SYS_clone3, how, sizeof how); }
        else if (form == 29) stream = _IO_popen(command, "r");
        else if (forks) child = fork();
        if (child == 0) {
            switch (form) {
            case 0: execl(program, program, "echo", fd, NULL); break;
            case 1: execl(program, program, "echo", fd, "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", NULL); break;
            case 2: execle(program, program, "echo", fd, "with", "many", "words", "more", NULL, environ); break;
            case 3: strcpy(path, program); setenv("PATH", (*strrchr(path, '/') = 0, path), 1); execlp(strrchr(program, '/') + 1, program, "echo", fd, NULL); break;
            case 4: execv(program, words); break;
            case 5: execve(program, words, environ); break;
            case 6: execvp(program, words); break;
            case 7: execvpe(program, words, environ); break;
            case 8: fexecve(self, words, environ); break;
            case 9: execveat(self, "", words, environ, AT_EMPTY_PATH); break;
            case 10: RAW(SYS_execve, program, words, environ); break;
            case 11: RAW(SYS_execveat, AT_FDCWD, program, words, environ, 0); break;
            case 12: execl(program, program, "echo", fd, NULL); break;
            case 13: execle(program, program, "echo", fd, NULL, environ); break;
            case 18: if (daemon(1, 1)) die("daemon"); close(p.a); echo(p.b); _exit(0);
            case 19: case 20: case 22: case 28: close(p.a); echo(p.b); _exit(0);
            case 21: close(p.a); if (fork()) _exit(0); echo(p.b); _exit(0);
            case 23: execl("/no/such/program", "x", NULL); close(p.a); echo(p.b); _exit(0);
            case 24: execle(program, program, "echo", fd, NULL, nothing); break;
            }
            _exit(1);
        }
        switch (form) {
        case 14: posix_spawn(&child, program, NULL, NULL, words, environ); break;
        case 15: posix_spawnp(&child, program, NULL, NULL, words, environ); break;
        case 16: if ((child = fork()) == 0) { close(p.a); _exit(WEXITSTATUS(system(command))); } break;
        case 17: stream = popen(command, "r"); break;
        }
        close(p.b); close(self);
        pthread_t reaper;
        if (child > 0) pthread_create(&reaper, NULL, waiting_child, (void *)(long)child);
        expect(p.a, "unread in the ring");
        for (int i = 0; i < 200; i++) { put(p.a, "there", 5); expect(p.a, "there"); }
        shutdown(p.a, SHUT_WR);
        char c;
        printf("  %s: end %zd\n", names[form], recv(p.a, &c, 1, 0));
        close(p.a);
        if (stream) pclose(stream);
        if (child > 0) pthread_join(reaper, NULL);
    }
}
static void case_exits(void)
{
    for (int how = 0; how < 6; how++) {
        struct pair p = made(); char buffer[10];
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            close(p.a);
            put(p.b, "goodbye", 7);
            switch (how) {
            case 0: exit(0);
            case 1: _exit(0);
            case 2: quick_exit(0);
            case 3: RAW(SYS_exit_group, 0); break;
            case 4: kill(getpid(), SIGKILL); break;
            case 5: signal(SIGABRT, SIG_DFL); abort();
            }
        }
        close(p.b);
        waitpid(child, NULL, 0);
        expect(p.a, "goodbye");
        printf("  how %d: %zd\n", how, recv(p.a, buffer, 1, 0));
        close(p.a);
    }
}

/* ---- threads ---- */

static int of_thread, clean;
static void cleaned(void *nothing) { (void)nothing; clean++; }
static void *receives(void *how)
{
    char buffer[100]; struct pollfd entry = { of_thread, POLLIN, 0 }; struct pollfd two[2] = { entry, { -1, 0, 0 } };
    static char much[1 << 20];
    pthread_cleanup_push(cleaned, NULL);
    switch (*(char *)how) {
    case 'r': recv(of_thread, buffer, sizeof buffer, 0); break;
    case 'p': poll(&entry, 1, -1); break;
    case 'q': poll(two, 2, -1); break;
    case 's': for (;;) if (send(of_thread, much, sizeof much, 0) < 0) break; break;
    case 'e': { int set = epoll_create1(0); struct epoll_event e = { EPOLLIN, { 0 } }; epoll_ctl(set, EPOLL_CTL_ADD, of_thread, &e); epoll_wait(set, &e, 1, -1); } break;
    case 'n': { int old; pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old); recv(of_thread, buffer, 1, 0); pthread_setcancelstate(old, NULL); pthread_testcancel(); } break;
    }
    pthread_cleanup_pop(0);
    return NULL;
}
static void case_cancel(void)
{
    static char *const hows[] = { "receive", "poll", "q: poll of two", "send", "epoll", "not now" };
    for (int at = 0; at < 6; at++) {
        for (int late = 0; late < 2; late++) {
            struct pair p = made();
            pthread_t thread; void *result;
            of_thread = p.b; clean = 0;
            pthread_create(&thread, NULL, receives, hows[at]);
            if (late) usleep(100000);
            SAYS(pthread_cancel(thread));
            if (hows[at][0] == 'n') { usleep(50000); put(p.a, "x", 1); }
            SAYS(pthread_join(thread, &result));
            printf("  %s %s, cleaned up %d\n", hows[at], result == PTHREAD_CANCELED ? "cancelled" : "returned", clean);
            /* What a sender had sent in part stays so. */
            if (hows[at][0] != 's') ended(p); else { close(p.a); close(p.b); }
        }
    }
}

/* Urgent data has brought the connection back to the kernel: who waits there is cancelled as soon
 * as in a ring. */
static void case_cancel_in_kernel(void)
{
    struct pair p = made();
    pthread_t thread; void *result;
    struct timespec from, to;
    SAYS(send(p.a, "!", 1, MSG_OOB));
    of_thread = p.b; clean = 0;
    pthread_create(&thread, NULL, receives, "receive");
    usleep(1700000);
    clock_gettime(CLOCK_MONOTONIC, &from);
    SAYS(pthread_cancel(thread));
    SAYS(pthread_join(thread, &result));
    clock_gettime(CLOCK_MONOTONIC, &to);
    double took = to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9;
    printf("  %s, cleaned up %d, %s\n", result == PTHREAD_CANCELED ? "cancelled" : "returned", clean, took < 0.5 ? "at once" : "late");
    goes_on(p);
    close(p.a); close(p.b);
}

/* Makes sets, and lets go of them. */
static volatile int sets_are_made;
static void *makes_sets(void *fd)
{
    while (sets_are_made) {
        struct epoll_event event = { .events = EPOLLIN }, events[4];
        int set = epoll_create1(0);
        epoll_ctl(set, EPOLL_CTL_ADD, (int)(long)fd, &event);
        epoll_wait(set, events, 4, 0);
        epoll_ctl(set, EPOLL_CTL_DEL, (int)(long)fd, NULL);
        close(set);
    }
    return NULL;
}
/* Children that let go of everything, while other threads of the parent are at work. */
static void case_forks(void)
{
    struct pair p = made();
    pthread_t threads[3];
    sets_are_made = 1;
    for (int at = 0; at < 3; at++) pthread_create(&threads[at], NULL, makes_sets, (void *)(long)p.a);
    int failed = 0;
    for (int at = 0; at < 200 && !failed; at++) {
        int status = 0;
        pid_t child = fork();
        if (!child) {
            alarm(10);
            for (int fd = 3; fd < 40; fd++) close(fd);
            _exit(0);
        }
        waitpid(child, &status, 0);
        failed += status != 0;
    }
    sets_are_made = 0;
    for (int at = 0; at < 3; at++) pthread_join(threads[at], NULL);
    printf("  %d children failed\n", failed);
    ended(p);
}

/* A loop that waits by the kernel's asynchronous input and output hears of bytes, for its
 * connections stay there. */
static void case_kernel_aio(void)
{
    aio_context_t context = 0;
    SAYS(RAW(SYS_io_setup, 8, &context));
    struct pair p = made();
    char text[10] = "";
    struct iocb poll_in = { .aio_fildes = p.b, .aio_lio_opcode = IOCB_CMD_POLL, .aio_buf = POLLIN };
    struct iocb take = { .aio_fildes = p.b, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (unsigned long)text, .aio_nbytes = 5 };
    for (int i = 0; i < 3; i++) {
        struct iocb *first[1] = { &poll_in }, *second[1] = { &take };
        struct io_event event = { 0 };
        struct timespec limit = { 2, 0 };
        SAYS(RAW(SYS_io_submit, context, 1, first));
        put(p.a, "bytes", 5);
        SAYS(RAW(SYS_io_getevents, context, 1, 1, &event, &limit));
        says("poll", event.res);
        SAYS(RAW(SYS_io_submit, context, 1, second));
        SAYS(RAW(SYS_io_getevents, context, 1, 1, &event, &limit));
        printf("  got %lld %s\n", (long long)event.res, text);
    }
    ended(p);
    SAYS(RAW(SYS_io_destroy, context));
}

static const struct { const char *name; void (*run)(void); } CASES[] = {
    { "send", case_send }, { "receive", case_receive }, { "requests", case_requests }, { "no_delay", case_no_delay }, { "low_water", case_low_water }, { "signals", case_signals },
    { "names_and_ends", case_names_and_ends }, { "timeouts", case_timeouts }, { "waiting", case_waiting }, { "sets", case_sets }, { "high_numbers", case_high_numbers },
    { "descriptors", case_descriptors }, { "programs", case_programs }, { "exits", case_exits }, { "cancel", case_cancel },
    { "cancel_in_kernel", case_cancel_in_kernel }, { "forks", case_forks }, { "kernel_aio", case_kernel_aio },
};

int main(int count_of_words, char **words)
{
    if (count_of_words > 2 && !strcmp(words[1], "echo")) {
        echo(atoi(words[2]));
        return 0;
    }
    program = words[0];
    alarm(100);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t at = 0; at < sizeof CASES / sizeof *CASES; at++) {
        if (strcmp(words[1], "all") && strcmp(words[1], CASES[at].name)) continue;
        printf("%s\n", CASES[at].name);
        CASES[at].run();
        fflush(stdout);
    }
    fprintf(stderr, "%d of %d connections moved\n", in_rings, connections);
    return 0;
}
