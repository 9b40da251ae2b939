/* What the Rust part of this library does (src/ffi.rs), and what the two C parts share.
 *
 * Invariant: the declarations are those of src/ffi.rs. Bytes that a peer sent are given out only
 * when the Rust part has decoded their header. */

#ifndef TRANSPORT_H
#define TRANSPORT_H

#include "../include/vmmc_onc.h"
#include <stdbool.h>

/* The name of this transport among those of libtirpc. */
#define NETID "vmmc"
/* Bytes of a record that is encoded without asking first how long it will be: what one message
 * carries. */
#define SHORT_RECORD_BYTES (64u << 10)
/* Bytes of a header with two credentials of the longest, for a record whose body was measured. */
#define HEADER_BYTES_MAX 1024u

struct onc_client;
struct onc_server;
struct onc_call;

/* What is said of options that make no sense, and where there is no memory. */
#define BAD_OPTIONS "options: set `size` to their sizeof, and flags that this release knows; see vmmc_onc.h"
#define NO_MEMORY "there is not enough memory for a client or a transport"

struct onc_reply {
    uint8_t *bytes;
    size_t len;
    size_t capacity;
};

struct onc_incoming {
    struct onc_call *call;
    const uint8_t *record;
    size_t len;
    uint32_t uid;
};

void vmmc_onc_note(const char *message);
const char *vmmc_onc_last_message(void);
int vmmc_onc_open(const char *node, const char *host, uint32_t prog, uint32_t vers, const uint32_t *owner,
                  int64_t timeout_us, int *error, size_t *record_max, struct onc_client **client);
int vmmc_onc_call(const struct onc_client *client, const uint8_t *record, size_t len, uint64_t timeout_us, int *error,
                  struct onc_reply *reply);
int vmmc_onc_send(const struct onc_client *client, const uint8_t *record, size_t len, uint64_t timeout_us, int *error);
void vmmc_onc_reply_free(struct onc_reply reply);
void vmmc_onc_close(struct onc_client *client);
int vmmc_onc_serve(const char *node, uint32_t prog, uint32_t vers, uint32_t access, const uint32_t *users,
                   size_t user_count, int *error, int *fd, size_t *reply_max, struct onc_server **server);
int vmmc_onc_next(struct onc_server *server, struct onc_incoming *incoming);
void vmmc_onc_again(struct onc_server *server);
void vmmc_onc_answer(struct onc_server *server, struct onc_call *call, const uint8_t *record, size_t len);
void vmmc_onc_drop(struct onc_call *call);
struct svc_vmmc_counts vmmc_onc_server_counts(const struct onc_server *server);
void vmmc_onc_end(struct onc_server *server);

/* A record that is being encoded. */
struct outgoing {
    char *bytes;
    u_int size;
    /* Of what was encoded. */
    u_int len;
};

bool outgoing_make(struct outgoing *out);
/* Encodes a record by `encode`. Where it does not fit, `body` says how long it is, and it is
 * encoded again: encoding changes nothing. False: it cannot be encoded, or is longer than `max`. */
bool outgoing_encode(struct outgoing *out, size_t max, bool (*encode)(XDR *xdrs, void *user), void *user,
                     xdrproc_t body, void *body_at);

#endif /* TRANSPORT_H */
