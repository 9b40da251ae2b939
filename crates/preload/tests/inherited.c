/* The child of a fork waits in an epoll set that it got from its parent, while the node does not
 * answer: it can take nothing over. The parent closes that set and sleeps in another one, for
 * another connection, and hears each byte of it at once.
 * Argument: the node's process id, or 0 without one. It prints "fine". */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXCHANGES = 2000, ROUNDS = 50, PAUSE_US = 3000, PATIENCE_MS = 5000 };
static pid_t node;

static void die(const char *what)
{
    if (node > 0) kill(node, SIGCONT);
    printf("FAILED %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}
static void exchange(int from, int to)
{
    char byte;
    if (send(from, "x", 1, 0) != 1) die("send");
    if (recv(to, &byte, 1, 0) != 1) die("recv");
}
static void pair(int listener, const struct sockaddr_in *at, int ends[2])
{
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ends[0], (void *)at, sizeof *at)) die("connect");
    if ((ends[1] = accept(listener, 0, 0)) < 0) die("accept");
    for (int i = 0; i < EXCHANGES; i++) exchange(ends[0], ends[1]), exchange(ends[1], ends[0]);
}
static int watched(int fd)
{
    struct epoll_event event = { EPOLLIN | EPOLLET, { 0 } };
    int set = epoll_create1(0);
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("set");
    return set;
}
static int waited(int set, int ms)
{
    struct epoll_event event;
    return epoll_wait(set, &event, 1, ms);
}
static void *sends(void *fd)
{
    usleep(PAUSE_US);
    return (void *)(send(*(int *)fd, "y", 1, 0) - 1);
}
int main(int count, char **words)
{
    int a[2], b[2];
    char byte;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, len) || listen(listener, 9) || getsockname(listener, (void *)&at, &len)) die("listen");
    pair(listener, &at, a);
    pair(listener, &at, b);
    int old = watched(b[1]);
    if (send(b[0], "x", 1, 0) != 1 || waited(old, PATIENCE_MS) != 1 || recv(b[1], &byte, 1, 0) != 1) die("first event");
    node = count > 1 ? atoi(words[1]) : 0;
    if (node > 0) kill(node, SIGSTOP);
    pid_t child = fork();
    if (child < 0) die("fork");
    while (!child) waited(old, 1);
    close(old);
    int set = watched(a[1]);
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t sender;
        void *failed = 0;
        pthread_create(&sender, 0, sends, &a[0]);
        int found = waited(set, PATIENCE_MS);
        pthread_join(sender, &failed);
        if (found != 1 || failed || recv(a[1], &byte, 1, 0) != 1) {
            kill(child, SIGKILL);
            die("event");
        }
    }
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
    if (node > 0) kill(node, SIGCONT);
    printf("fine\n");
    return 0;
}
