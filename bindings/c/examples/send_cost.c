/* What a call costs from C: sends and fetches of 8 bytes over an embedded node, the median of
 * several batches. Not part of the tutorial. */
#include "tutorial.h"

enum { CALLS = 200000, BATCHES = 9 };

static int by_value(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double ns_each(uint64_t start) {
    return (double)(now_ns() - start) / CALLS;
}

int main(void) {
    const char *options[] = {"--name", "send-cost", "--plain"};
    vmmc_node *node;
    vmmc_session *session;
    must(vmmc_node_start(options, 3, &node));
    must(vmmc_node_attach(node, NULL, &session));
    vmmc_export *memory = export_named(session, 4096, "cost", 0);
    vmmc_import *there = import(session, "cost", VMMC_READ | VMMC_WRITE | VMMC_ATOMIC);
    double send[BATCHES], fetch[BATCHES], add[BATCHES], look[BATCHES];
    uint64_t value = 1, len;
    for (int batch = 0; batch < BATCHES; batch++) {
        uint64_t start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            must(vmmc_import_send(there, 0, &value, sizeof value));
        }
        send[batch] = ns_each(start);
        start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            must(vmmc_import_fetch(there, 0, &value, sizeof value));
        }
        fetch[batch] = ns_each(start);
        start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            must(vmmc_import_fetch_add(there, 0, 1, &value));
        }
        add[batch] = ns_each(start);
        start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            must(vmmc_import_len(there, &len));
        }
        look[batch] = ns_each(start);
    }
    qsort(send, BATCHES, sizeof *send, by_value);
    qsort(fetch, BATCHES, sizeof *fetch, by_value);
    qsort(add, BATCHES, sizeof *add, by_value);
    qsort(look, BATCHES, sizeof *look, by_value);
    printf("send of 8 bytes %.1f ns, fetch of 8 bytes %.1f ns, fetch-and-add %.1f ns, a call that only looks up its handle %.1f ns\n",
           send[BATCHES / 2], fetch[BATCHES / 2], add[BATCHES / 2], look[BATCHES / 2]);
    must(vmmc_import_free(there));
    must(vmmc_export_free(memory));
    must(vmmc_session_free(session));
    must(vmmc_node_free(node));
    return EXIT_SUCCESS;
}
