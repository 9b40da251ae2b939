/* Notifications: the receiver sleeps until a sender says that something has come. By waiting, and
 * by a handler on a thread of its own. */
#include "tutorial.h"
#include <poll.h>
#include <stdatomic.h>

static const char *const LETTERS[] = {"first letter", "second letter", "third letter"};
enum { SLOT_BYTES = 64 };

/* What the handler has seen: how many notifications, and the offset of the last one. */
struct seen {
    atomic_uint count;
    _Atomic uint64_t offset;
    atomic_bool in_order;
};

static void on_letter(const vmmc_notification *notification, void *user) {
    struct seen *seen = user;
    if (notification->offset <= seen->offset) {
        seen->in_order = false;
    }
    seen->offset = notification->offset;
    printf("receiver: the handler's thread was told of offset %llu\n", (unsigned long long)notification->offset);
    seen->count++;
}

static void receiver(vmmc_session *session) {
    /* Both sides must want a notification: the export allows them, the send asks for one. */
    vmmc_export *mailbox = export_named(session, 4096, "mailbox", VMMC_EXPORT_NOTIFY);
    printf("receiver: waiting for a notification, without using the processor\n");
    /* Here in the way of event loops: a descriptor becomes readable. */
    struct pollfd readable = {.events = POLLIN};
    must(vmmc_session_event_fd(session, &readable.fd));
    vmmc_notification first;
    vmmc_status status;
    while ((status = vmmc_session_take_notification(session, &first)) == VMMC_AGAIN) {
        check(poll(&readable, 1, 10000) > 0, "no notification came");
    }
    must(status);
    char letter[SLOT_BYTES] = {0};
    must(vmmc_export_read(mailbox, first.offset, letter, first.len));
    printf("receiver: %llu bytes came to offset %llu: \"%s\"\n", (unsigned long long)first.len,
           (unsigned long long)first.offset, letter);
    check(strcmp(letter, LETTERS[0]) == 0, "the wrong letter");

    /* While they are blocked, notifications queue. */
    must(vmmc_export_block_notifications(mailbox, true));
    struct seen seen = {.in_order = true};
    vmmc_handler *handler;
    must(vmmc_export_on_notification(mailbox, on_letter, &seen, &handler));
    vmmc_import *go_on = import(session, "go-on", 0);
    uint64_t step = 1;
    must(vmmc_import_send(go_on, 0, &step, sizeof step));
    sleep_ms(100);
    check(seen.count == 0, "a blocked notification was delivered");
    printf("receiver: blocked for a while; now they may come\n");
    must(vmmc_export_block_notifications(mailbox, false));
    for (uint64_t start = now_ns(); seen.count < 2; sleep_ms(1)) {
        check(now_ns() - start < 10000000000ull, "a notification is missing");
    }
    check(seen.in_order, "notifications of one sender must come in order");
    must(vmmc_handler_free(handler));
    vmmc_stats stats;
    must(vmmc_session_stats(session, &stats, sizeof stats));
    printf("receiver: %llu notifications taken, %llu lost\n", (unsigned long long)stats.notifications_taken,
           (unsigned long long)stats.notifications_lost_in_rings);
    step = 2;
    must(vmmc_import_send(go_on, 0, &step, sizeof step));
    must(vmmc_import_free(go_on));
    must(vmmc_export_free(mailbox));
}

static void sender(vmmc_session *session) {
    vmmc_export *go_on = export_named(session, 64, "go-on", 0);
    vmmc_import *mailbox = import(session, "mailbox", 0);
    vmmc_send_options notify = {.size = sizeof notify, .flags = VMMC_SEND_NOTIFY};
    /* Long enough for the receiver to be asleep. */
    sleep_ms(50);
    vmmc_source letter = {.memory = LETTERS[0], .len = strlen(LETTERS[0])};
    must(vmmc_import_send_with(mailbox, 0, &letter, 1, &notify));
    wait_at_least(go_on, 0, 1);
    for (uint64_t number = 1; number < 3; number++) {
        letter = (vmmc_source){.memory = LETTERS[number], .len = strlen(LETTERS[number])};
        must(vmmc_import_send_with(mailbox, number * SLOT_BYTES, &letter, 1, &notify));
        printf("sender:   sent letter %llu\n", (unsigned long long)number);
    }
    wait_at_least(go_on, 0, 2);
    must(vmmc_import_free(mailbox));
    must(vmmc_export_free(go_on));
}

RUN({"receiver", receiver}, {"sender", sender})
