/* Threads open and close descriptors of upgraded connections while another one forks. What the
 * child of a fork opens is its own, whatever number it gets, and takes no byte of a connection:
 * each child opens files and reads them, and at the end each connection has all its bytes.
 * Argument: forks. It prints "fine". */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 2, FILES = 8, WAITING = 1000, EXCHANGES = 50 };
static int ends[THREADS][2];
static volatile int over;

static void die(const char *what) { printf("FAILED %s: %s\n", what, strerror(errno)); fflush(stdout); _exit(1); }
static void *churn(void *which)
{
    while (!over) {
        int fd = dup(*(int *)which);
        if (fd < 0) die("dup");
        close(fd);
    }
    return 0;
}
static void all(int fd, int sends, char *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = sends ? send(fd, bytes + done, n - done, 0) : recv(fd, bytes + done, n - done, 0);
        if (got <= 0) die(sends ? "send" : "recv");
        done += got;
    }
}
/* Files with a content that is known, under the lowest numbers that are free. */
static void child(void)
{
    char byte;
    for (int i = 0; i < FILES; i++) {
        int fd = open("/dev/zero", O_RDONLY);
        if (fd < 0) _exit(2);
        byte = 'x';
        if (read(fd, &byte, 1) != 1 || byte != 0) _exit(3);
    }
    _exit(0);
}
int main(int count, char **words)
{
    int forks = count > 1 ? atoi(words[1]) : 100, wrong = 0;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, len) || listen(listener, 9) || getsockname(listener, (void *)&at, &len)) die("listen");
    for (int t = 0; t < THREADS; t++) {
        char bytes[WAITING];
        ends[t][0] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(ends[t][0], (void *)&at, len)) die("connect");
        if ((ends[t][1] = accept(listener, 0, 0)) < 0) die("accept");
        for (int i = 0; i < EXCHANGES; i++)
            for (int e = 0; e < 2; e++) {
                all(ends[t][e], 1, "ping", 4);
                all(ends[t][!e], 0, bytes, 4);
            }
        memset(bytes, 'a' + t, WAITING);
        all(ends[t][0], 1, bytes, WAITING);
    }
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++) pthread_create(&threads[t], 0, churn, &ends[t][1]);
    for (int i = 0; i < forks; i++) {
        int status = 0;
        pid_t pid = fork();
        if (pid < 0) die("fork");
        if (!pid) child();
        if (waitpid(pid, &status, 0) != pid) die("waitpid");
        wrong += status != 0;
    }
    over = 1;
    for (int t = 0; t < THREADS; t++) {
        char bytes[WAITING], expected[WAITING];
        pthread_join(threads[t], 0);
        memset(expected, 'a' + t, WAITING);
        /* What is missing would be waited for. */
        for (int done = 0; done < WAITING;) {
            ssize_t got = recv(ends[t][1], bytes + done, WAITING - done, MSG_DONTWAIT);
            if (got <= 0) { printf("%d of %d bytes; ", done, WAITING); wrong++; break; }
            done += got;
        }
        wrong += memcmp(bytes, expected, WAITING) != 0;
    }
    if (wrong) printf("%d wrong\n", wrong);
    else printf("fine\n");
    return wrong != 0;
}
