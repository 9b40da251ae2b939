/* An SVCXPRT of libtirpc whose calls come over VMMC.
 *
 * Invariants: a call is replied to once. The descriptor is readable while calls may be there, so
 * svc_run(), and every other loop over svc_pollfd or svc_fdset, serves this transport beside
 * others. Source: RFC 5531, libtirpc's svc_vc.c for what the library expects of a transport. */

#include "transport.h"
#include <errno.h>
#include <rpc/svc_auth.h>
#include <rpc/svc_mt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

/* Calls that are taken in a row while other transports wait. */
#define CALLS_IN_A_ROW 64

struct transport {
    struct onc_server *server;
    /* The call that is being carried out, and its record. */
    struct onc_incoming now;
    XDR xdrs;
    uint32_t xid;
    struct outgoing out;
    size_t reply_max;
    unsigned in_a_row;
    enum xprt_stat stat;
    /* Where the program may look for an address: none but its family. */
    struct sockaddr_un address;
    char verifier[MAX_AUTH_BYTES];
    SVCXPRT_EXT ext;
};

static const struct xp_ops transport_ops;

static struct transport *transport_of(SVCXPRT *xprt) {
    return xprt->xp_p1;
}

/* Ends the call that is being carried out, if it was not replied to. */
static void transport_drop(struct transport *transport) {
    if (transport->now.call != NULL) {
        vmmc_onc_drop(transport->now.call);
        transport->now.call = NULL;
    }
}

static bool_t transport_recv(SVCXPRT *xprt, struct rpc_msg *message) {
    struct transport *transport = transport_of(xprt);
    transport_drop(transport);
    switch (vmmc_onc_next(transport->server, &transport->now)) {
    case 1:
        break;
    case 0:
        transport->in_a_row = 0;
        transport->stat = XPRT_IDLE;
        return FALSE;
    default:
        transport->stat = XPRT_DIED;
        return FALSE;
    }
    transport->stat = XPRT_MOREREQS;
    if (++transport->in_a_row >= CALLS_IN_A_ROW) {
        transport->in_a_row = 0;
        transport->stat = XPRT_IDLE;
        vmmc_onc_again(transport->server);
    }
    xdrmem_create(&transport->xdrs, (char *)transport->now.record, (u_int)transport->now.len, XDR_DECODE);
    if (!xdr_callmsg(&transport->xdrs, message)) {
        transport_drop(transport);
        return FALSE;
    }
    transport->xid = message->rm_xid;
    return TRUE;
}

static enum xprt_stat transport_stat(SVCXPRT *xprt) {
    return transport_of(xprt)->stat;
}

static bool_t transport_getargs(SVCXPRT *xprt, xdrproc_t args, void *args_at) {
    struct transport *transport = transport_of(xprt);
    if (transport->now.call == NULL) {
        return FALSE;
    }
    transport->xdrs.x_op = XDR_DECODE;
    return SVCAUTH_UNWRAP(&SVC_XP_AUTH(xprt), &transport->xdrs, args, args_at);
}

static bool_t transport_freeargs(SVCXPRT *xprt, xdrproc_t args, void *args_at) {
    struct transport *transport = transport_of(xprt);
    transport->xdrs.x_op = XDR_FREE;
    return (*args)(&transport->xdrs, args_at);
}

/* A reply that is being encoded. */
struct encoding {
    SVCXPRT *xprt;
    struct rpc_msg *head;
    /* NULL: no results follow. */
    xdrproc_t results;
    void *results_at;
};

static bool encode_reply(XDR *xdrs, void *user) {
    struct encoding *reply = user;
    return xdr_replymsg(xdrs, reply->head) &&
           (reply->results == NULL ||
            SVCAUTH_WRAP(&SVC_XP_AUTH(reply->xprt), xdrs, reply->results, reply->results_at));
}

static bool_t transport_reply(SVCXPRT *xprt, struct rpc_msg *head) {
    struct transport *transport = transport_of(xprt);
    if (transport->now.call == NULL) {
        return FALSE;
    }
    struct encoding reply = {xprt, head, NULL, NULL};
    head->rm_xid = transport->xid;
    if (head->rm_reply.rp_stat == MSG_ACCEPTED && head->acpted_rply.ar_stat == SUCCESS) {
        reply.results = head->acpted_rply.ar_results.proc;
        reply.results_at = head->acpted_rply.ar_results.where;
        head->acpted_rply.ar_results.proc = (xdrproc_t)xdr_void;
        head->acpted_rply.ar_results.where = NULL;
    }
    xdrproc_t body = reply.results != NULL ? reply.results : (xdrproc_t)xdr_void;
    if (!outgoing_encode(&transport->out, transport->reply_max, encode_reply, &reply, body, reply.results_at)) {
        /* The call stays, for the stub to say that it failed. */
        return FALSE;
    }
    vmmc_onc_answer(transport->server, transport->now.call, (const uint8_t *)transport->out.bytes, transport->out.len);
    transport->now.call = NULL;
    return TRUE;
}

static void transport_free(struct transport *transport) {
    if (transport != NULL) {
        transport_drop(transport);
        if (transport->server != NULL) {
            vmmc_onc_end(transport->server);
        }
        free(transport->out.bytes);
        free(transport);
    }
}

static void transport_destroy(SVCXPRT *xprt) {
    xprt_unregister(xprt);
    transport_free(transport_of(xprt));
    free(xprt->xp_netid);
    free(xprt);
}

static bool_t transport_control(SVCXPRT *xprt, const u_int request, void *info) {
    (void)xprt;
    (void)request;
    (void)info;
    return FALSE;
}

static const struct xp_ops transport_ops = {transport_recv,  transport_stat,     transport_getargs,
                                            transport_reply, transport_freeargs, transport_destroy};
static const struct xp_ops2 transport_ops2 = {transport_control};

/* A transport without a server. */
static SVCXPRT *transport_make(void) {
    SVCXPRT *xprt = calloc(1, sizeof *xprt);
    struct transport *transport = calloc(1, sizeof *transport);
    char *netid = strdup(NETID);
    if (xprt == NULL || transport == NULL || netid == NULL || !outgoing_make(&transport->out)) {
        free(xprt);
        free(transport);
        free(netid);
        return NULL;
    }
    transport->address.sun_family = AF_LOCAL;
    transport->stat = XPRT_IDLE;
    xprt->xp_port = (u_short)-1;
    xprt->xp_ops = &transport_ops;
    xprt->xp_ops2 = &transport_ops2;
    xprt->xp_netid = netid;
    struct netbuf address = {sizeof transport->address, sizeof transport->address, &transport->address};
    xprt->xp_rtaddr = address;
    xprt->xp_ltaddr = address;
    xprt->xp_verf.oa_base = transport->verifier;
    xprt->xp_p1 = transport;
    xprt->xp_p3 = &transport->ext;
    return xprt;
}

SVCXPRT *svc_vmmc_create_with(void (*dispatch)(struct svc_req *, SVCXPRT *), rpcprog_t prog, rpcvers_t vers,
                              const struct svc_vmmc_options *options) {
    struct svc_vmmc_options given = {.size = sizeof given};
    if (options != NULL) {
        given.size = options->size;
        memcpy(&given, options, options->size < sizeof given ? options->size : sizeof given);
    }
    if (given.size == 0) {
        vmmc_onc_note(BAD_OPTIONS);
        return NULL;
    }
    SVCXPRT *xprt = transport_make();
    if (xprt == NULL) {
        vmmc_onc_note(NO_MEMORY);
        return NULL;
    }
    struct transport *transport = transport_of(xprt);
    int error = 0;
    int status = vmmc_onc_serve(given.node, prog, vers, given.access, given.users, given.user_count, &error,
                                &xprt->xp_fd, &transport->reply_max, &transport->server);
    /* rpcbind is not told: it would give an address of this transport to nobody. */
    if (status != RPC_SUCCESS || !svc_reg(xprt, prog, vers, dispatch, NULL)) {
        transport_free(transport);
        free(xprt->xp_netid);
        free(xprt);
        return NULL;
    }
    xprt_register(xprt);
    return xprt;
}

SVCXPRT *svc_vmmc_create(void (*dispatch)(struct svc_req *, SVCXPRT *), rpcprog_t prog, rpcvers_t vers) {
    return svc_vmmc_create_with(dispatch, prog, vers, NULL);
}

int svc_vmmc_caller(SVCXPRT *xprt, uint32_t *uid) {
    if (xprt == NULL || xprt->xp_ops != &transport_ops || transport_of(xprt)->now.call == NULL) {
        return -1;
    }
    *uid = transport_of(xprt)->now.uid;
    return 0;
}

int svc_vmmc_counts(SVCXPRT *xprt, struct svc_vmmc_counts *counts) {
    if (xprt == NULL || xprt->xp_ops != &transport_ops) {
        return -1;
    }
    *counts = vmmc_onc_server_counts(transport_of(xprt)->server);
    return 0;
}
