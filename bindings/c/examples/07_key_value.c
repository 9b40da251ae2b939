/* A key-value table that its clients work on alone: the owner of the memory runs no code at all
 * while they insert, update and look up.
 *
 * Each entry has a version word. An odd version means that a client is writing: writers take it
 * with compare-and-swap. A reader fetches the entry and then the version once more; if it moved or
 * is odd, the reader tries again. So nobody waits for the owner, and nobody sees half an entry. */
#include "tutorial.h"
#include <sched.h>

enum { ENTRIES = 1024, CLIENTS = 3, KEYS = 100, UPDATES = 20, VALUE_BYTES = 48 };

/* Keys are spread over the entries and move on to the next one when it is taken. */
struct entry {
    uint64_t version, key;
    unsigned char value[VALUE_BYTES];
};

static void owner(vmmc_session *session) {
    vmmc_export *table = export_named(session, ENTRIES * sizeof(struct entry), "table-of-pairs", 0);
    vmmc_export *done = export_named(session, 64, "clients-done", VMMC_EXPORT_NOTIFY);
    printf("owner:    %d entries exported; I sleep until the clients are done\n", ENTRIES);
    for (int left = CLIENTS - 1; left >= 0; left--) {
        vmmc_notification notification;
        must(vmmc_export_wait_notification(done, 30000000, &notification));
        printf("owner:    client %llu is done, %d left\n", (unsigned long long)notification.last_word, left);
    }
    vmmc_stats stats;
    must(vmmc_session_stats(session, &stats, sizeof stats));
    check(stats.sends_mapped + stats.fetches_mapped + stats.atomics_mapped == 0, "the owner took part");
    must(vmmc_export_free(done));
    must(vmmc_export_free(table));
}

static uint64_t place(uint64_t key, uint64_t attempt) {
    uint64_t first = (key * 0x9E3779B97F4A7C15ull) >> 32;
    return (first + attempt) % ENTRIES * sizeof(struct entry);
}

/* A word as it is now; an atomic operation, so it is ordered against the fetches around it. */
static uint64_t word(vmmc_import *table, uint64_t at) {
    uint64_t value;
    must(vmmc_import_fetch_add(table, at, 0, &value));
    return value;
}

/* Makes an even version odd; gives the even one. */
static uint64_t lock(vmmc_import *table, uint64_t at) {
    for (uint64_t version = word(table, at);; sched_yield()) {
        uint64_t even = version & ~1ull, found;
        must(vmmc_import_compare_swap(table, at, even, even + 1, &found));
        if (found == even) {
            return even;
        }
        version = found;
    }
}

static void put(vmmc_import *table, uint64_t key, const unsigned char *value) {
    uint64_t tag = key + 1; /* 0 means free */
    for (uint64_t attempt = 0; attempt < ENTRIES; attempt++) {
        uint64_t at = place(key, attempt), there;
        /* The key of an entry is set once, by whoever comes first. */
        must(vmmc_import_compare_swap(table, at + 8, 0, tag, &there));
        if (there == 0 || there == tag) {
            uint64_t next = lock(table, at) + 2;
            must(vmmc_import_send(table, at + 16, value, VALUE_BYTES));
            /* The version comes after the value: sends of one process appear in order. */
            must(vmmc_import_send(table, at, &next, sizeof next));
            return;
        }
    }
    check(false, "the table is full");
}

static bool look_up(vmmc_import *table, uint64_t key, unsigned char *value) {
    for (uint64_t attempt = 0; attempt < ENTRIES; attempt++) {
        uint64_t at = place(key, attempt);
        for (;; sched_yield()) {
            struct entry entry;
            uint64_t before = word(table, at);
            must(vmmc_import_fetch(table, at, &entry, sizeof entry));
            if (entry.key == 0) {
                return false;
            }
            if (entry.key != key + 1) {
                break;
            }
            if (before % 2 == 0 && before > 0 && word(table, at) == before) {
                memcpy(value, entry.value, VALUE_BYTES);
                return true;
            }
        }
    }
    return false;
}

/* 40 equal bytes, so that a torn value shows, then who wrote it. */
static void make_value(uint64_t key, uint64_t client, uint64_t update, unsigned char *value) {
    memset(value, (int)((key ^ client ^ update) & 0xff), 40);
    memcpy(value + 40, &client, sizeof client);
}

static void client(vmmc_session *session, uint64_t me) {
    vmmc_import *done = import(session, "clients-done", 0);
    vmmc_import *table = import(session, "table-of-pairs", VMMC_READ | VMMC_WRITE | VMMC_ATOMIC);
    unsigned char value[VALUE_BYTES], got[VALUE_BYTES];
    uint64_t operations = 0, start = now_ns();
    for (uint64_t update = 1; update <= UPDATES; update++) {
        for (uint64_t i = 0; i < KEYS; i++) {
            /* All clients write some keys, and each has keys of its own. */
            bool own = i % 2 != 0;
            uint64_t key = own ? me * 1000 + i : 1000000 + i;
            make_value(key, me, update, value);
            put(table, key, value);
            check(look_up(table, key, got), "a key vanished");
            for (int byte = 1; byte < 40; byte++) {
                check(got[byte] == got[0], "half an entry was seen");
            }
            check(!own || memcmp(got, value, VALUE_BYTES) == 0, "an own key has another client's value");
            operations += 2;
        }
    }
    printf("client %llu: %llu operations, %llu ns each\n", (unsigned long long)me, (unsigned long long)operations,
           (unsigned long long)((now_ns() - start) / operations));
    check(!look_up(table, 77, got), "a key was found that nobody put");
    vmmc_send_options notify = {.size = sizeof notify, .flags = VMMC_SEND_NOTIFY};
    must(vmmc_import_send_with(done, 8 * me, &(vmmc_source){.memory = &me, .len = sizeof me}, 1, &notify));
    must(vmmc_import_free(table));
    must(vmmc_import_free(done));
}

static void client_1(vmmc_session *session) {
    client(session, 1);
}
static void client_2(vmmc_session *session) {
    client(session, 2);
}
static void client_3(vmmc_session *session) {
    client(session, 3);
}

RUN({"owner", owner}, {"client-1", client_1}, {"client-2", client_2}, {"client-3", client_3})
