/* Calls of ONC RPC (Sun RPC) over VMMC, for programs made by rpcgen: the stubs stay as they are,
 * and the call that makes the client or the transport is one of these.
 *
 * clnt_vmmc_create(host, PROG, VERS) stands for clnt_create(host, PROG, VERS, "tcp"), and
 * svc_vmmc_create(prog_1, PROG, VERS) beside svc_create(prog_1, PROG, VERS, "tcp").
 *
 * What they give is a CLIENT and an SVCXPRT of libtirpc, for all its calls: clnt_call,
 * clnt_control, clnt_geterr, clnt_perror, svc_run, svc_sendreply and so on.
 *
 * Build with `pkg-config --cflags --libs vmmc_onc`; docs/onc-rpc.md tells more. */

#ifndef VMMC_ONC_H
#define VMMC_ONC_H

#include <rpc/rpc.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * For `flags` of clnt_vmmc_options: the program of the user `owner` only. Without it, that of this
 * process's own user, or else of root.
 */
#define CLNT_VMMC_OWNER 1u
/**
 * For `flags` of clnt_vmmc_options: where the program is not served over VMMC, or no node is there,
 * the client is one of clnt_create() with "tcp". Without it, that is an error.
 */
#define CLNT_VMMC_OR_TCP 2u

/**
 * For `access` of svc_vmmc_options: processes of this process's user may call.
 */
#define SVC_VMMC_SAME_USER 0u
/**
 * For `access` of svc_vmmc_options: every user may call.
 */
#define SVC_VMMC_ANYONE 1u
/**
 * For `access` of svc_vmmc_options: the users in `users` may call.
 */
#define SVC_VMMC_USERS 2u

/**
 * Choices for clnt_vmmc_create_with(). A field of 0 is the default.
 */
struct clnt_vmmc_options {
    /**
     * sizeof (struct clnt_vmmc_options).
     */
    size_t size;
    /**
     * CLNT_VMMC_OWNER, CLNT_VMMC_OR_TCP.
     */
    uint32_t flags;
    /**
     * With CLNT_VMMC_OWNER: the user of the server.
     */
    uint32_t owner;
    /**
     * Name of the node of this machine to go through; NULL: what VMMC_NODE says, else "default".
     */
    const char *node;
    /**
     * Microseconds that making the client may take; 0: 5 seconds.
     */
    int64_t timeout_us;
};

/**
 * Choices for svc_vmmc_create_with(). A field of 0 is the default.
 */
struct svc_vmmc_options {
    /**
     * sizeof (struct svc_vmmc_options).
     */
    size_t size;
    /**
     * Who may call: SVC_VMMC_SAME_USER, SVC_VMMC_ANYONE, SVC_VMMC_USERS.
     */
    uint32_t access;
    /**
     * With SVC_VMMC_USERS: how many.
     */
    uint32_t user_count;
    /**
     * With SVC_VMMC_USERS: their user ids.
     */
    const uint32_t *users;
    /**
     * Name of the node of this machine to go through; NULL: what VMMC_NODE says, else "default".
     */
    const char *node;
};

/**
 * What became of the calls of a transport.
 */
struct svc_vmmc_counts {
    /**
     * Calls that were given to the program.
     */
    uint64_t calls;
    /**
     * Calls that were denied with AUTH_BADCRED: their AUTH_SYS credential names another user than
     * the one that made them, or makes no sense.
     */
    uint64_t bad_credentials;
    /**
     * What was no call, or of a caller that has not shown who it is.
     */
    uint64_t misbehaved;
    /**
     * Long calls, long replies and callers for which there was no room.
     */
    uint64_t no_room;
};

/**
 * A client of a program that is served over VMMC on a node: its name or `address:port`, or NULL,
 * "localhost" or this machine's name for this one. NULL: get_rpc_createerr() and
 * clnt_pcreateerror() say why, and vmmc_onc_message() says more. RPC_PROGNOTREGISTERED: nobody
 * serves it over VMMC there, which is told at once. Calls wait for 25 seconds unless they, or
 * CLSET_TIMEOUT, say otherwise. clnt_destroy() ends it.
 */
CLIENT *clnt_vmmc_create(const char *host, rpcprog_t prog, rpcvers_t vers);

/**
 * As clnt_vmmc_create(), with choices; NULL: none.
 */
CLIENT *clnt_vmmc_create_with(const char *host, rpcprog_t prog, rpcvers_t vers, const struct clnt_vmmc_options *options);

/**
 * A transport over which a program is served to processes of this user, and its entry in the list
 * of programs of svc_run(). Other transports of the program, as of svc_create(), are served
 * beside it. NULL: vmmc_onc_message() says why. svc_destroy() ends it. A child process cannot use
 * it: a program that becomes a daemon calls this afterwards.
 */
SVCXPRT *svc_vmmc_create(void (*dispatch)(struct svc_req *, SVCXPRT *), rpcprog_t prog, rpcvers_t vers);

/**
 * As svc_vmmc_create(), with choices; NULL: none.
 */
SVCXPRT *svc_vmmc_create_with(void (*dispatch)(struct svc_req *, SVCXPRT *), rpcprog_t prog, rpcvers_t vers,
                              const struct svc_vmmc_options *options);

/**
 * User of the caller of the call that is being carried out, for whom the kernel and the nodes
 * vouch, whatever its credential says. 0: `uid` was written. -1: the transport is no
 * svc_vmmc_create()'s, or has no call.
 */
int svc_vmmc_caller(SVCXPRT *xprt, uint32_t *uid);

/**
 * What became of the calls of a transport so far. 0: `counts` was written. -1: it is no
 * svc_vmmc_create()'s.
 */
int svc_vmmc_counts(SVCXPRT *xprt, struct svc_vmmc_counts *counts);

/**
 * What went wrong last in this thread, in words, with what to do. Valid until something else does.
 */
const char *vmmc_onc_message(void);

#ifdef __cplusplus
}
#endif

#endif /* VMMC_ONC_H */
