/* Remote fetch: a process publishes a table, and another one reads rows of it without the first
 * doing anything. */
#include "tutorial.h"

enum { ROW_BYTES = 256, ROWS = 1000, HEADS = ROWS / 100 };

static void make_row(unsigned number, unsigned char *row) {
    for (unsigned i = 0; i < ROW_BYTES; i++) {
        row[i] = (unsigned char)(number * 7 + i);
    }
}

static void owner(vmmc_session *session) {
    /* The table can be read and nothing else. */
    vmmc_export_options options = {.size = sizeof options, .name = "table", .rights = VMMC_READ};
    vmmc_export *table;
    must(vmmc_export_create(session, (uint64_t)ROWS * ROW_BYTES, &options, &table));
    for (unsigned number = 0; number < ROWS; number++) {
        unsigned char row[ROW_BYTES];
        make_row(number, row);
        must(vmmc_export_write(table, (uint64_t)number * ROW_BYTES, row, sizeof row));
    }
    vmmc_export *done = export_named(session, 64, "table-read", VMMC_EXPORT_NOTIFY);
    printf("owner:  %d rows of %d bytes are published; I go to sleep\n", ROWS, ROW_BYTES);
    vmmc_notification notification;
    must(vmmc_export_wait_notification(done, 10000000, &notification));
    printf("owner:  woken: %llu rows were read and I noticed none of it\n", (unsigned long long)notification.last_word);
    vmmc_stats stats;
    must(vmmc_session_stats(session, &stats, sizeof stats));
    check(stats.fetches_mapped == 0, "the owner fetched something itself");
    must(vmmc_export_free(done));
    must(vmmc_export_free(table));
}

static void reader(vmmc_session *session) {
    vmmc_import *done = import(session, "table-read", 0);
    vmmc_import *table = import(session, "table", VMMC_READ);
    const unsigned some[] = {0, 1, 17, 500, ROWS - 1};
    uint64_t read = 0;
    for (; read < sizeof some / sizeof *some; read++) {
        unsigned char row[ROW_BYTES], right[ROW_BYTES];
        must(vmmc_import_fetch(table, (uint64_t)some[read] * ROW_BYTES, row, sizeof row));
        make_row(some[read], right);
        check(memcmp(row, right, sizeof row) == 0, "a row is not what the owner wrote");
    }
    printf("reader: fetched %llu single rows\n", (unsigned long long)read);

    /* A list of ranges in one call. */
    vmmc_range ranges[HEADS];
    unsigned char heads[HEADS * 8];
    for (unsigned i = 0; i < HEADS; i++) {
        ranges[i] = (vmmc_range){.offset = (uint64_t)i * 100 * ROW_BYTES, .len = 8};
    }
    must(vmmc_import_fetch_gather(table, ranges, HEADS, heads, sizeof heads));
    for (unsigned i = 0; i < HEADS; i++) {
        unsigned char right[ROW_BYTES];
        make_row(i * 100, right);
        check(memcmp(heads + (size_t)i * 8, right, 8) == 0, "a head is wrong");
    }
    read += HEADS;
    printf("reader: gathered the first 8 bytes of %d rows\n", HEADS);

    check(vmmc_import_send(table, 0, "graffiti", 8) == VMMC_NO_RIGHT, "the table is read-only");
    printf("reader: writing is refused: %s\n", vmmc_error_message());
    vmmc_send_options notify = {.size = sizeof notify, .flags = VMMC_SEND_NOTIFY};
    must(vmmc_import_send_with(done, 0, &(vmmc_source){.memory = &read, .len = sizeof read}, 1, &notify));
    must(vmmc_import_free(table));
    must(vmmc_import_free(done));
}

RUN({"owner", owner}, {"reader", reader})
