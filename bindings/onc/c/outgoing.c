/* Records that go out, in memory that grows with them.
 *
 * Invariant: no record is longer than its receiver takes. Source: RFC 5531. */

#include "transport.h"
#include <stdlib.h>

bool outgoing_make(struct outgoing *out) {
    out->bytes = malloc(SHORT_RECORD_BYTES);
    out->size = SHORT_RECORD_BYTES;
    out->len = 0;
    return out->bytes != NULL;
}

static bool encoded(struct outgoing *out, bool (*encode)(XDR *, void *), void *user) {
    XDR xdrs;
    xdrmem_create(&xdrs, out->bytes, out->size, XDR_ENCODE);
    bool done = encode(&xdrs, user);
    out->len = XDR_GETPOS(&xdrs);
    XDR_DESTROY(&xdrs);
    return done;
}

/* Memory for so many bytes. */
static bool grown(struct outgoing *out, size_t bytes) {
    char *longer = realloc(out->bytes, bytes);
    if (longer == NULL) {
        return false;
    }
    out->bytes = longer;
    out->size = (u_int)bytes;
    return true;
}

bool outgoing_encode(struct outgoing *out, size_t max, bool (*encode)(XDR *xdrs, void *user), void *user,
                     xdrproc_t body, void *body_at) {
    if (encoded(out, encode, user)) {
        return out->len <= max;
    }
    /* Too long for the memory, or not to be encoded. xdr_sizeof() gives 0 for the latter. */
    u_long len = xdr_sizeof(body, body_at);
    if (len == 0 || len > max || len + HEADER_BYTES_MAX <= out->size || !grown(out, len + HEADER_BYTES_MAX)) {
        return false;
    }
    return encoded(out, encode, user) && out->len <= max;
}
