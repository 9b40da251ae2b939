/* A CLIENT of libtirpc whose calls go over VMMC.
 *
 * Invariant: one call at a time, under the lock of the handle, as with libtirpc's own transports;
 * the result's memory is the caller's, who frees it by clnt_freeres(). Source: RFC 5531, libtirpc's
 * clnt_vc(3t), whose behaviour with deadlines and batched calls this has. */

#include "transport.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How often a credential is made anew for one call: as often as libtirpc does. */
#define REFRESHES 2
/* Time for a call to reach the server when nobody waits for its reply: that of rpcgen's stubs. */
#define SEND_TIMEOUT_US 25000000u

struct client {
    struct onc_client *to;
    pthread_mutex_t lock;
    struct rpc_err error;
    struct timeval wait;
    /* CLSET_TIMEOUT was called: what calls say does not count. */
    bool wait_set;
    /* Of the last call. */
    uint32_t xid;
    rpcprog_t prog;
    rpcvers_t vers;
    size_t record_max;
    struct outgoing out;
};

/* A call that is being encoded. */
struct encoding {
    struct client *client;
    AUTH *auth;
    rpcproc_t proc;
    xdrproc_t args;
    void *args_at;
};

static struct client *client_of(CLIENT *clnt) {
    return clnt->cl_private;
}

static bool time_ok(const struct timeval *time) {
    return time->tv_sec >= 0 && time->tv_sec <= 100000000 && time->tv_usec >= 0 && time->tv_usec < 1000000;
}

static bool encode_call(XDR *xdrs, void *user) {
    struct encoding *call = user;
    struct rpc_msg head;
    head.rm_xid = call->client->xid;
    head.rm_direction = CALL;
    head.rm_call.cb_rpcvers = RPC_MSG_VERSION;
    head.rm_call.cb_prog = call->client->prog;
    head.rm_call.cb_vers = call->client->vers;
    int32_t proc = (int32_t)call->proc;
    return xdr_callhdr(xdrs, &head) && XDR_PUTINT32(xdrs, &proc) && AUTH_MARSHALL(call->auth, xdrs) &&
           AUTH_WRAP(call->auth, xdrs, call->args, (caddr_t)call->args_at);
}

static void set_status(struct client *client, enum clnt_stat status, int error) {
    memset(&client->error, 0, sizeof client->error);
    client->error.re_status = status;
    client->error.re_errno = error;
}

/* Reads the reply of a call. True: the credential may be refreshed and the call made again. */
static bool decode_reply(CLIENT *clnt, const struct onc_reply *reply, xdrproc_t results, void *results_at) {
    struct client *client = client_of(clnt);
    XDR xdrs;
    struct rpc_msg head;
    memset(&head, 0, sizeof head);
    bool again = false;
    head.acpted_rply.ar_verf = _null_auth;
    head.acpted_rply.ar_results.where = NULL;
    head.acpted_rply.ar_results.proc = (xdrproc_t)xdr_void;
    xdrmem_create(&xdrs, (char *)reply->bytes, (u_int)reply->len, XDR_DECODE);
    if (!xdr_replymsg(&xdrs, &head) || head.rm_xid != client->xid) {
        set_status(client, RPC_CANTDECODERES, 0);
    } else {
        _seterr_reply(&head, &client->error);
        if (client->error.re_status != RPC_SUCCESS) {
            again = AUTH_REFRESH(clnt->cl_auth, &head);
        } else if (!AUTH_VALIDATE(clnt->cl_auth, &head.acpted_rply.ar_verf)) {
            client->error.re_status = RPC_AUTHERROR;
            client->error.re_why = AUTH_INVALIDRESP;
        } else if (!AUTH_UNWRAP(clnt->cl_auth, &xdrs, results, results_at)) {
            client->error.re_status = RPC_CANTDECODERES;
        }
    }
    if (head.rm_direction == REPLY && head.rm_reply.rp_stat == MSG_ACCEPTED &&
        head.acpted_rply.ar_verf.oa_base != NULL) {
        xdrs.x_op = XDR_FREE;
        (void)xdr_opaque_auth(&xdrs, &head.acpted_rply.ar_verf);
    }
    XDR_DESTROY(&xdrs);
    return again;
}

/* Makes a call once. */
static bool call_once(CLIENT *clnt, struct encoding *call, xdrproc_t results, void *results_at, bool send_only) {
    struct client *client = client_of(clnt);
    client->xid--;
    int error = 0;
    if (!outgoing_encode(&client->out, client->record_max, encode_call, call, call->args, call->args_at)) {
        set_status(client, RPC_CANTENCODEARGS, 0);
        return false;
    }
    const uint8_t *record = (const uint8_t *)client->out.bytes;
    if (send_only) {
        /* A call of a batch, where no result is wanted; else a message. */
        int status = vmmc_onc_send(client->to, record, client->out.len, SEND_TIMEOUT_US, &error);
        enum clnt_stat sent = results == NULL ? RPC_SUCCESS : RPC_TIMEDOUT;
        set_status(client, status == RPC_SUCCESS ? sent : (enum clnt_stat)status, error);
        return false;
    }
    uint64_t wait_us = (uint64_t)client->wait.tv_sec * 1000000 + (uint64_t)client->wait.tv_usec;
    struct onc_reply reply;
    int status = vmmc_onc_call(client->to, record, client->out.len, wait_us, &error, &reply);
    set_status(client, (enum clnt_stat)status, error);
    if (status != RPC_SUCCESS) {
        return false;
    }
    bool again = decode_reply(clnt, &reply, results, results_at);
    vmmc_onc_reply_free(reply);
    return again;
}

static enum clnt_stat client_call(CLIENT *clnt, rpcproc_t proc, xdrproc_t args, void *args_at, xdrproc_t results,
                                  void *results_at, struct timeval timeout) {
    struct client *client = client_of(clnt);
    pthread_mutex_lock(&client->lock);
    if (!client->wait_set && time_ok(&timeout)) {
        client->wait = timeout;
    }
    bool send_only = timeout.tv_sec == 0 && timeout.tv_usec == 0;
    struct encoding call = {client, clnt->cl_auth, proc, args, args_at};
    int refreshes = REFRESHES;
    while (call_once(clnt, &call, results, results_at, send_only) && refreshes > 0) {
        refreshes--;
    }
    enum clnt_stat status = client->error.re_status;
    pthread_mutex_unlock(&client->lock);
    return status;
}

static void client_abort(CLIENT *clnt) {
    (void)clnt;
}

static void client_geterr(CLIENT *clnt, struct rpc_err *error) {
    *error = client_of(clnt)->error;
}

static bool_t client_freeres(CLIENT *clnt, xdrproc_t results, void *results_at) {
    (void)clnt;
    XDR xdrs;
    memset(&xdrs, 0, sizeof xdrs);
    xdrs.x_op = XDR_FREE;
    return (*results)(&xdrs, results_at);
}

static bool_t client_control(CLIENT *clnt, u_int request, void *info) {
    struct client *client = client_of(clnt);
    bool_t done = TRUE;
    if (request == CLSET_FD_CLOSE || request == CLSET_FD_NCLOSE) {
        /* There is no descriptor that somebody else could have. */
        return TRUE;
    }
    if (info == NULL) {
        return FALSE;
    }
    pthread_mutex_lock(&client->lock);
    switch (request) {
    case CLSET_TIMEOUT:
        if ((done = time_ok(info))) {
            memcpy(&client->wait, info, sizeof client->wait);
            client->wait_set = true;
        }
        break;
    case CLGET_TIMEOUT:
        memcpy(info, &client->wait, sizeof client->wait);
        break;
    case CLGET_XID:
        memcpy(info, &client->xid, sizeof client->xid);
        break;
    case CLSET_XID:
        /* The next call has this number. */
        memcpy(&client->xid, info, sizeof client->xid);
        client->xid++;
        break;
    case CLGET_VERS:
        memcpy(info, &client->vers, sizeof client->vers);
        break;
    case CLSET_VERS:
        memcpy(&client->vers, info, sizeof client->vers);
        break;
    case CLGET_PROG:
        memcpy(info, &client->prog, sizeof client->prog);
        break;
    case CLSET_PROG:
        memcpy(&client->prog, info, sizeof client->prog);
        break;
    default:
        /* The others are about addresses and descriptors, which it does not have. */
        done = FALSE;
    }
    pthread_mutex_unlock(&client->lock);
    return done;
}

static void client_free(struct client *client) {
    if (client->to != NULL) {
        vmmc_onc_close(client->to);
    }
    free(client->out.bytes);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

static void client_destroy(CLIENT *clnt) {
    client_free(client_of(clnt));
    free(clnt->cl_netid);
    free(clnt);
}

static struct clnt_ops client_ops = {client_call,    client_abort,   client_geterr,
                                     client_freeres, client_destroy, client_control};

static void create_error(enum clnt_stat status, int error) {
    rpc_createerr.cf_stat = status;
    rpc_createerr.cf_error.re_status = status;
    rpc_createerr.cf_error.re_errno = error;
}

/* A client without a way to its server. */
static CLIENT *client_make(rpcprog_t prog, rpcvers_t vers) {
    CLIENT *clnt = calloc(1, sizeof *clnt);
    struct client *client = calloc(1, sizeof *client);
    char *netid = strdup(NETID);
    if (clnt == NULL || client == NULL || netid == NULL || !outgoing_make(&client->out)) {
        free(clnt);
        free(client);
        free(netid);
        return NULL;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    client->xid = (uint32_t)getpid() ^ (uint32_t)now.tv_sec ^ (uint32_t)now.tv_nsec;
    client->wait.tv_sec = SEND_TIMEOUT_US / 1000000;
    client->prog = prog;
    client->vers = vers;
    pthread_mutex_init(&client->lock, NULL);
    clnt->cl_ops = &client_ops;
    clnt->cl_private = client;
    clnt->cl_netid = netid;
    clnt->cl_auth = authnone_create();
    return clnt;
}

CLIENT *clnt_vmmc_create_with(const char *host, rpcprog_t prog, rpcvers_t vers, const struct clnt_vmmc_options *options) {
    struct clnt_vmmc_options given = {.size = sizeof given};
    if (options != NULL) {
        given.size = options->size;
        memcpy(&given, options, options->size < sizeof given ? options->size : sizeof given);
    }
    if (given.size == 0 || given.flags & ~(CLNT_VMMC_OWNER | CLNT_VMMC_OR_TCP)) {
        vmmc_onc_note(BAD_OPTIONS);
        create_error(RPC_SYSTEMERROR, EINVAL);
        return NULL;
    }
    CLIENT *clnt = client_make(prog, vers);
    if (clnt == NULL) {
        vmmc_onc_note(NO_MEMORY);
        create_error(RPC_SYSTEMERROR, ENOMEM);
        return NULL;
    }
    struct client *client = client_of(clnt);
    const uint32_t *owner = given.flags & CLNT_VMMC_OWNER ? &given.owner : NULL;
    int error = 0;
    int status = vmmc_onc_open(given.node, host, prog, vers, owner, given.timeout_us, &error, &client->record_max,
                               &client->to);
    if (status == RPC_SUCCESS) {
        return clnt;
    }
    client_destroy(clnt);
    bool absent = status == RPC_PROGNOTREGISTERED || status == RPC_UNKNOWNHOST || error == ENETDOWN;
    if (given.flags & CLNT_VMMC_OR_TCP && absent) {
        return clnt_create(host == NULL ? "localhost" : host, prog, vers, "tcp");
    }
    create_error((enum clnt_stat)status, error);
    return NULL;
}

CLIENT *clnt_vmmc_create(const char *host, rpcprog_t prog, rpcvers_t vers) {
    return clnt_vmmc_create_with(host, prog, vers, NULL);
}

const char *vmmc_onc_message(void) {
    return vmmc_onc_last_message();
}
