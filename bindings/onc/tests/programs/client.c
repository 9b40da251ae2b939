/* A client of letters.x: HOW is "vmmc", "vmmc-or-tcp", "tcp" (by rpcbind) or "port:N"; WHAT names
 * what it does. It prints "ok", or what went wrong. */

#include "letters.h"
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <vmmc_onc.h>

static void need(int condition, const char *what) {
    if (!condition) {
        printf("client: %s: %s\n", what, vmmc_onc_message());
        exit(1);
    }
}

static CLIENT *make(const char *how, const char *host) {
    if (strcmp(how, "vmmc") == 0) {
        return clnt_vmmc_create(host, LETTERS, LETTERS_1);
    }
    if (strcmp(how, "vmmc-or-tcp") == 0) {
        struct clnt_vmmc_options options = {.size = sizeof options, .flags = CLNT_VMMC_OR_TCP};
        return clnt_vmmc_create_with(host, LETTERS, LETTERS_1, &options);
    }
    if (strncmp(how, "owner:", 6) == 0) {
        struct clnt_vmmc_options options = {
            .size = sizeof options, .flags = CLNT_VMMC_OWNER, .owner = (uint32_t)atoi(how + 6)};
        return clnt_vmmc_create_with(host, LETTERS, LETTERS_1, &options);
    }
    if (strncmp(how, "port:", 5) == 0) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(how + 5))};
        inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
        int fd = RPC_ANYSOCK;
        return clnttcp_create(&address, LETTERS, LETTERS_1, &fd, 0, 0);
    }
    return clnt_create(host == NULL ? "localhost" : host, LETTERS, LETTERS_1, how);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void null_call(CLIENT *clnt) {
    need(letters_null_1(NULL, clnt) != NULL, clnt_sperror(clnt, "null"));
}

static void strings(CLIENT *clnt) {
    char *name = "world";
    char **reply = letters_greet_1(&name, clnt);
    need(reply != NULL, clnt_sperror(clnt, "greet"));
    need(strcmp(*reply, "hello, world") == 0, *reply);
    need(clnt_freeres(clnt, (xdrproc_t)xdr_wrapstring, (caddr_t)reply), "freeres");
}

static void lists(CLIENT *clnt) {
    entry last = {"three", 3, NULL}, second = {"two", 2, &last}, first = {"one", 1, &second};
    entry *reply = letters_reverse_1(&first, clnt);
    need(reply != NULL, clnt_sperror(clnt, "reverse"));
    int number = 3;
    for (entry *at = reply; at != NULL; at = at->next, number--) {
        need(at->number == number, "order of the list");
    }
    need(number == 0 && strcmp(reply->name, "three") == 0, "length of the list");
    need(clnt_freeres(clnt, (xdrproc_t)xdr_entry, (caddr_t)reply), "freeres");
}

static void arrays(CLIENT *clnt, u_int len) {
    words numbers = {len, malloc(sizeof(u_int) * (len + 1))};
    for (u_int at = 0; at < len; at++) {
        numbers.words_val[at] = at * 2654435761u;
    }
    words *reply = letters_double_1(&numbers, clnt);
    need(reply != NULL, clnt_sperror(clnt, "double"));
    need(reply->words_len == len, "length of the array");
    for (u_int at = 0; at < len; at++) {
        need(reply->words_val[at] == 2 * numbers.words_val[at], "numbers of the array");
    }
    need(clnt_freeres(clnt, (xdrproc_t)xdr_words, (caddr_t)reply), "freeres");
    free(numbers.words_val);
}

static void all(CLIENT *clnt) {
    for (int round = 0; round < 20; round++) {
        null_call(clnt);
        strings(clnt);
        lists(clnt);
    }
    /* Around what one message carries, and a MiB. */
    for (u_int words = 16370; words < 16384; words++) {
        arrays(clnt, words);
    }
    arrays(clnt, 0);
    arrays(clnt, 262144);
    arrays(clnt, 262144);
}

/* The status of a call of "greet" with this name. */
static enum clnt_stat greet(CLIENT *clnt, char *name, double seconds) {
    static char *reply;
    struct timeval wait = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    reply = NULL;
    enum clnt_stat status =
        clnt_call(clnt, LETTERS_GREET, (xdrproc_t)xdr_wrapstring, &name, (xdrproc_t)xdr_wrapstring, &reply, wait);
    if (status == RPC_SUCCESS) {
        printf("said: %.200s\n", reply);
        clnt_freeres(clnt, (xdrproc_t)xdr_wrapstring, (caddr_t)&reply);
    }
    return status;
}

static void expect(CLIENT *clnt, enum clnt_stat status, enum clnt_stat expected, const char *what) {
    struct rpc_err error;
    clnt_geterr(clnt, &error);
    if (status != expected || error.re_status != expected) {
        printf("client: %s: status %d, of geterr %d, not %d: %s: %s\n", what, status, error.re_status, expected,
               clnt_sperror(clnt, what), vmmc_onc_message());
        exit(1);
    }
}

static void deadlines(CLIENT *clnt) {
    double begun = now();
    expect(clnt, greet(clnt, "sleep 0.5", 0.1), RPC_TIMEDOUT, "a slow call");
    need(now() - begun < 0.45, "the deadline came late");
    /* The server is still at it; when it is there again, the reply is that of the second call. */
    strings(clnt);
    struct timeval wait = {0, 50000}, is;
    need(clnt_control(clnt, CLSET_TIMEOUT, (char *)&wait), "CLSET_TIMEOUT");
    need(clnt_control(clnt, CLGET_TIMEOUT, (char *)&is) && is.tv_sec == 0 && is.tv_usec == 50000, "CLGET_TIMEOUT");
    expect(clnt, greet(clnt, "sleep 0.2", 20), RPC_TIMEDOUT, "a slow call with CLSET_TIMEOUT");
    wait.tv_sec = 25;
    need(clnt_control(clnt, CLSET_TIMEOUT, (char *)&wait), "CLSET_TIMEOUT again");
    strings(clnt);
}

static void controls(CLIENT *clnt) {
    uint32_t number, xid = 77;
    need(clnt_control(clnt, CLSET_XID, (char *)&xid), "CLSET_XID");
    null_call(clnt);
    need(clnt_control(clnt, CLGET_XID, (char *)&number) && number == 77, "CLGET_XID");
    need(clnt_control(clnt, CLGET_PROG, (char *)&number) && number == LETTERS, "CLGET_PROG");
    need(clnt_control(clnt, CLGET_VERS, (char *)&number) && number == LETTERS_1, "CLGET_VERS");
    need(!clnt_control(clnt, CLGET_FD, (char *)&number), "CLGET_FD");
    need(!clnt_control(clnt, CLSET_TIMEOUT, NULL), "no timeout");
    number = 9;
    need(clnt_control(clnt, CLSET_VERS, (char *)&number), "CLSET_VERS");
    expect(clnt, greet(clnt, "x", 5), RPC_PROGVERSMISMATCH, "another version");
    struct rpc_err error;
    clnt_geterr(clnt, &error);
    need(error.re_vers.low == LETTERS_1 && error.re_vers.high == LETTERS_1, "versions that are there");
    number = LETTERS_1;
    need(clnt_control(clnt, CLSET_VERS, (char *)&number), "CLSET_VERS back");
    number = 5;
    need(clnt_control(clnt, CLSET_PROG, (char *)&number), "CLSET_PROG");
    expect(clnt, greet(clnt, "x", 5), RPC_PROGUNAVAIL, "another program");
    number = LETTERS;
    need(clnt_control(clnt, CLSET_PROG, (char *)&number), "CLSET_PROG back");
    struct timeval wait = {5, 0};
    enum clnt_stat status = clnt_call(clnt, 99, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, wait);
    expect(clnt, status, RPC_PROCUNAVAIL, "another procedure");
    status = clnt_call(clnt, LETTERS_GREET, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL, wait);
    expect(clnt, status, RPC_CANTDECODEARGS, "no arguments");
    strings(clnt);
}

static void too_long(CLIENT *clnt) {
    size_t len = 9 << 20;
    char *name = malloc(len + 1);
    memset(name, 'y', len);
    name[len] = 0;
    expect(clnt, greet(clnt, name, 5), RPC_CANTENCODEARGS, "arguments of 9 MiB");
    expect(clnt, greet(clnt, NULL, 5), RPC_CANTENCODEARGS, "arguments that cannot be encoded");
    expect(clnt, greet(clnt, "too long", 5), RPC_SYSTEMERROR, "a result of 9 MiB");
    free(name);
    strings(clnt);
}

static void batches(CLIENT *clnt) {
    struct timeval none = {0, 0};
    char *name = "nothing";
    for (int at = 0; at < 3000; at++) {
        enum clnt_stat sent =
            clnt_call(clnt, LETTERS_GREET, (xdrproc_t)xdr_wrapstring, &name, (xdrproc_t)NULL, NULL, none);
        expect(clnt, sent, RPC_SUCCESS, "a call of a batch");
    }
    expect(clnt, greet(clnt, "nothing", 0), RPC_TIMEDOUT, "a message");
    expect(clnt, greet(clnt, "nothing", 2), RPC_TIMEDOUT, "a call without a reply");
    strings(clnt);
}

/* As user 65534, with a claim to be root. */
static void users(CLIENT *clnt) {
    auth_destroy(clnt->cl_auth);
    clnt->cl_auth = authunix_create_default();
    expect(clnt, greet(clnt, "who", 5), RPC_SUCCESS, "as oneself");
    auth_destroy(clnt->cl_auth);
    clnt->cl_auth = authunix_create("here", geteuid() + 1, 0, 0, NULL);
    expect(clnt, greet(clnt, "who", 5), RPC_AUTHERROR, "as another one");
    struct rpc_err error;
    clnt_geterr(clnt, &error);
    need(error.re_why == AUTH_BADCRED, "why");
    auth_destroy(clnt->cl_auth);
    clnt->cl_auth = authnone_create();
    expect(clnt, greet(clnt, "who", 5), RPC_SUCCESS, "as nobody");
    expect(clnt, greet(clnt, "counts", 5), RPC_SUCCESS, "counts");
}

static void *thread(void *user) {
    CLIENT *clnt = user;
    for (int round = 0; round < 200; round++) {
        char *name = "a thread", *reply = NULL;
        struct timeval wait = {20, 0};
        need(clnt_call(clnt, LETTERS_GREET, (xdrproc_t)xdr_wrapstring, &name, (xdrproc_t)xdr_wrapstring, &reply,
                       wait) == RPC_SUCCESS && strcmp(reply, "hello, a thread") == 0, "a call of a thread");
        clnt_freeres(clnt, (xdrproc_t)xdr_wrapstring, (caddr_t)&reply);
    }
    return NULL;
}

static void threads(CLIENT *clnt) {
    pthread_t of[4];
    for (int at = 0; at < 4; at++) {
        need(pthread_create(&of[at], NULL, thread, clnt) == 0, "a thread");
    }
    for (int at = 0; at < 4; at++) {
        pthread_join(of[at], NULL);
    }
}

/* Calls until the server has been killed. */
static void killed(CLIENT *clnt) {
    printf("calling\n");
    fflush(stdout);
    enum clnt_stat status;
    double begun;
    do {
        begun = now();
        status = greet(clnt, "sleep 20", 30);
    } while (status == RPC_SUCCESS);
    need(status == RPC_CANTRECV, clnt_sperror(clnt, "the killed server"));
    need(now() - begun < 15, "the death was told late");
    begun = now();
    status = greet(clnt, "again", 30);
    need(status == RPC_CANTRECV || status == RPC_CANTSEND, clnt_sperror(clnt, "after the death"));
    need(now() - begun < 5, "the second call took long");
    clnt_perror(clnt, "as expected");
}

int main(int count, char **words) {
    need(count >= 3, "client HOW WHAT [HOST]");
    CLIENT *clnt = make(words[1], count > 3 ? words[3] : NULL);
    if (clnt == NULL) {
        printf("no client: %d: %s: %s\n", rpc_createerr.cf_stat, clnt_spcreateerror("create"), vmmc_onc_message());
        return 2;
    }
    const char *what = words[2];
    if (strcmp(what, "all") == 0) {
        all(clnt);
    } else if (strcmp(what, "errors") == 0) {
        deadlines(clnt);
        controls(clnt);
        too_long(clnt);
        batches(clnt);
        threads(clnt);
    } else if (strcmp(what, "users") == 0) {
        users(clnt);
    } else if (strcmp(what, "killed") == 0) {
        killed(clnt);
    } else {
        expect(clnt, greet(clnt, words[2], 20), RPC_SUCCESS, what);
    }
    auth_destroy(clnt->cl_auth);
    clnt_destroy(clnt);
    printf("ok\n");
    return 0;
}
