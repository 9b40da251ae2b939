/* Automatic update: after a binding, plain stores appear in the other process's memory. And
 * revocation: when the exporter ends the export, they no longer do. */
#include "tutorial.h"
#include <stdatomic.h>

enum { STORES = 1000 };

static void watcher(vmmc_session *session) {
    vmmc_export *meter = export_named(session, 4096, "meter", 0);
    vmmc_import *back = import(session, "meter-read", 0);
    uint64_t first = wait_at_least(meter, 0, 1);
    printf("watcher: the meter moves: %llu\n", (unsigned long long)first);
    uint64_t last = wait_at_least(meter, 0, STORES);
    printf("watcher: the meter stands at %llu\n", (unsigned long long)last);

    /* The writer could go on storing through its mapping; so the content moves onto pages that the
     * writer does not map. */
    void *base;
    must(vmmc_export_pointer(meter, &base));
    vmmc_revocation revocation;
    must(vmmc_export_unexport(meter, false, &revocation));
    printf("watcher: unexported; the pages were %s\n", revocation == VMMC_REVOKED_BY_MOVE ? "moved" : "gated");
    check(revocation == VMMC_REVOKED_BY_MOVE, "a bound export must be moved");
    uint64_t step = 1;
    must(vmmc_import_send(back, 0, &step, sizeof step));
    sleep_ms(50);
    uint64_t now = atomic_load_explicit((_Atomic uint64_t *)base, memory_order_acquire);
    printf("watcher: the writer stores on, my meter stays at %llu\n", (unsigned long long)now);
    check(now == last, "a store arrived after the end of the export");
    must(vmmc_export_free(meter));
    must(vmmc_import_free(back));
}

static void writer(vmmc_session *session) {
    vmmc_export *read = export_named(session, 64, "meter-read", 0);
    vmmc_import *memory = import(session, "meter", 0);
    vmmc_binding *binding;
    void *base;
    must(vmmc_binding_create(memory, false, &binding));
    must(vmmc_binding_pointer(binding, &base));
    _Atomic uint64_t *meter = base;
    for (uint64_t value = 1; value <= STORES; value++) {
        /* Not a call into the library: a store instruction. */
        atomic_store_explicit(meter, value, memory_order_release);
        if (value % 100 == 0) {
            sleep_ms(1);
        }
    }
    printf("writer:  stored %d values\n", STORES);
    wait_at_least(read, 0, 1);
    atomic_store_explicit(meter, 99999, memory_order_release);
    vmmc_status told = vmmc_binding_flush(binding, VMMC_DEFAULT_TIMEOUT);
    check(told == VMMC_REVOKED || told == VMMC_OWNER_DIED, "the export has ended");
    printf("writer:  %s\n", vmmc_error_message());
    must(vmmc_binding_free(binding));
    must(vmmc_import_free(memory));
    must(vmmc_export_free(read));
}

RUN({"watcher", watcher}, {"writer", writer})
