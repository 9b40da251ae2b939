/* A server of letters.x over the transports that its arguments name: "vmmc", "vmmc-anyone", "tcp"
 * and "udp" with rpcbind, "tcp-here" without. It prints its port at TCP when it is ready, and what
 * it counts when it is asked for its name. */

#include "letters.h"
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vmmc_onc.h>

void letters_1(struct svc_req *request, SVCXPRT *xprt);

static SVCXPRT *over_vmmc;

void *letters_null_1_svc(void *argument, struct svc_req *request) {
    (void)argument;
    (void)request;
    static char nothing;
    return &nothing;
}

/* "sleep N" takes so many seconds, "die" ends the server, "nothing" has no reply, "too long" one
 * that is too long, "counts" says what was counted, "who" who calls. All others are greeted. */
char **letters_greet_1_svc(char **name, struct svc_req *request) {
    static char *reply;
    free(reply);
    reply = NULL;
    if (strncmp(*name, "sleep ", 6) == 0) {
        usleep((useconds_t)(atof(*name + 6) * 1e6));
    } else if (strcmp(*name, "die") == 0) {
        _exit(3);
    } else if (strcmp(*name, "nothing") == 0) {
        return NULL;
    } else if (strcmp(*name, "too long") == 0) {
        reply = malloc(9 << 20);
        memset(reply, 'x', (9 << 20) - 1);
        reply[(9 << 20) - 1] = 0;
        return &reply;
    } else if (strcmp(*name, "counts") == 0) {
        struct svc_vmmc_counts counts;
        if (over_vmmc == NULL || svc_vmmc_counts(over_vmmc, &counts) != 0) {
            reply = strdup("no counts");
        } else if (asprintf(&reply, "bad credentials %lu, misbehaved %lu", (unsigned long)counts.bad_credentials,
                            (unsigned long)counts.misbehaved) < 0) {
            return NULL;
        }
        return &reply;
    } else if (strcmp(*name, "who") == 0) {
        uint32_t uid = 0;
        int known = svc_vmmc_caller(request->rq_xprt, &uid);
        int claim = request->rq_cred.oa_flavor == AUTH_SYS
                        ? (int)((struct authunix_parms *)request->rq_clntcred)->aup_uid
                        : -1;
        if (asprintf(&reply, "known %d uid %u claims %d", known, uid, claim) < 0) {
            return NULL;
        }
        return &reply;
    }
    if (asprintf(&reply, "hello, %s", *name) < 0) {
        return NULL;
    }
    return &reply;
}

entry *letters_reverse_1_svc(entry *list, struct svc_req *request) {
    (void)request;
    static entry reversed;
    entry *front = NULL;
    for (entry *at = list; at != NULL;) {
        entry *next = at->next;
        at->next = front;
        front = at;
        at = next;
    }
    /* The first one is no memory of its own; it is the last now. What svc_freeargs() frees stays
     * with the arguments, so the reply is a copy. */
    xdr_free((xdrproc_t)xdr_entry, &reversed);
    memset(&reversed, 0, sizeof reversed);
    entry *to = &reversed;
    for (entry *at = front; at != NULL; at = at->next) {
        to->name = strdup(at->name);
        to->number = at->number;
        to->next = at->next != NULL ? calloc(1, sizeof *to) : NULL;
        to = to->next;
    }
    /* Back to how it came. */
    entry *back = NULL;
    for (entry *at = front; at != NULL;) {
        entry *next = at->next;
        at->next = back;
        back = at;
        at = next;
    }
    return &reversed;
}

words *letters_double_1_svc(words *numbers, struct svc_req *request) {
    (void)request;
    static words doubled;
    free(doubled.words_val);
    doubled.words_len = numbers->words_len;
    doubled.words_val = malloc(sizeof(u_int) * (numbers->words_len + 1));
    for (u_int at = 0; at < numbers->words_len; at++) {
        doubled.words_val[at] = 2 * numbers->words_val[at];
    }
    return &doubled;
}

static void need(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "server: %s: %s\n", what, vmmc_onc_message());
        exit(1);
    }
}

int main(int count, char **names) {
    unsigned port = 0;
    for (int at = 1; at < count; at++) {
        if (strcmp(names[at], "vmmc") == 0) {
            need((over_vmmc = svc_vmmc_create(letters_1, LETTERS, LETTERS_1)) != NULL, "svc_vmmc_create");
        } else if (strcmp(names[at], "vmmc-anyone") == 0) {
            struct svc_vmmc_options options = {.size = sizeof options, .access = SVC_VMMC_ANYONE};
            over_vmmc = svc_vmmc_create_with(letters_1, LETTERS, LETTERS_1, &options);
            need(over_vmmc != NULL, "svc_vmmc_create_with");
        } else if (strcmp(names[at], "udp") == 0) {
            SVCXPRT *xprt = svcudp_create(RPC_ANYSOCK);
            need(xprt != NULL && svc_register(xprt, LETTERS, LETTERS_1, letters_1, IPPROTO_UDP), "udp");
        } else {
            int here = strcmp(names[at], "tcp-here") == 0;
            SVCXPRT *xprt = svctcp_create(RPC_ANYSOCK, 0, 0);
            if (!here) {
                pmap_unset(LETTERS, LETTERS_1);
            }
            need(xprt != NULL && svc_register(xprt, LETTERS, LETTERS_1, letters_1, here ? 0 : IPPROTO_TCP), names[at]);
            port = xprt->xp_port;
        }
    }
    printf("ready %u\n", port);
    fflush(stdout);
    svc_run();
    fprintf(stderr, "server: svc_run returned\n");
    return 1;
}
