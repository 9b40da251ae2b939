/* Transfer redirection: the receiver decides late where incoming data goes, even in the middle of a
 * transfer, and learns exactly which part went where. */
#include "tutorial.h"

enum { MESSAGE_BYTES = 100000, FIRST_BYTES = 40000, PARTS_MAX = 8 };

static void make_message(unsigned char *message) {
    for (unsigned i = 0; i < MESSAGE_BYTES; i++) {
        message[i] = (unsigned char)(i % 251);
    }
}

static void print_parts(const char *when, const vmmc_part *parts, size_t count) {
    static const char *const NAMES[] = {"copied", "redirected", "pending"};
    printf("receiver: %s:", when);
    for (size_t i = 0; i < count; i++) {
        printf(" %s %llu+%llu", NAMES[parts[i].state], (unsigned long long)parts[i].offset,
               (unsigned long long)parts[i].len);
    }
    printf("\n");
}

static void receiver(vmmc_session *session) {
    vmmc_export *inbox =
        export_named(session, MESSAGE_BYTES, "inbox", VMMC_EXPORT_REDIRECTABLE | VMMC_EXPORT_NOTIFY);
    vmmc_import *go_on = import(session, "second-half", 0);
    vmmc_notification first;
    must(vmmc_export_wait_notification(inbox, 10000000, &first));
    printf("receiver: %llu bytes are in the inbox; now I know where I want the message\n", (unsigned long long)first.len);

    vmmc_buffer *place;
    vmmc_redirection *redirection;
    vmmc_part parts[PARTS_MAX];
    size_t count;
    must(vmmc_buffer_create(session, MESSAGE_BYTES, &place));
    must(vmmc_export_redirect(inbox, 0, MESSAGE_BYTES, place, 0, &redirection));
    must(vmmc_redirection_report(redirection, parts, PARTS_MAX, &count));
    print_parts("so far", parts, count);
    uint64_t step = 1;
    must(vmmc_import_send(go_on, 0, &step, sizeof step));

    must(vmmc_redirection_wait(redirection, 10000000, parts, PARTS_MAX, &count));
    print_parts("complete", parts, count);
    check(count == 2 && parts[0].state == VMMC_PART_COPIED && parts[0].len == FIRST_BYTES,
          "the first half should have been copied");
    check(parts[1].state == VMMC_PART_REDIRECTED && parts[1].offset == FIRST_BYTES,
          "the second half should have gone straight");
    static unsigned char bytes[MESSAGE_BYTES], right[MESSAGE_BYTES];
    must(vmmc_buffer_read(place, 0, bytes, sizeof bytes));
    make_message(right);
    check(memcmp(bytes, right, sizeof right) == 0, "the message is damaged");
    printf("receiver: the whole message is in its place; the second half was never in the inbox\n");
    step = 2;
    must(vmmc_import_send(go_on, 0, &step, sizeof step));
    must(vmmc_redirection_free(redirection));
    must(vmmc_buffer_free(place));
    must(vmmc_import_free(go_on));
    must(vmmc_export_free(inbox));
}

static void sender(vmmc_session *session) {
    vmmc_export *second_half = export_named(session, 64, "second-half", 0);
    vmmc_import *inbox = import(session, "inbox", 0);
    static unsigned char message[MESSAGE_BYTES];
    make_message(message);
    vmmc_send_options notify = {.size = sizeof notify, .flags = VMMC_SEND_NOTIFY};
    vmmc_source first = {.memory = message, .len = FIRST_BYTES};
    must(vmmc_import_send_with(inbox, 0, &first, 1, &notify));
    wait_at_least(second_half, 0, 1);
    /* The sender sends as before: it does not know of the redirection. */
    must(vmmc_import_send(inbox, FIRST_BYTES, message + FIRST_BYTES, MESSAGE_BYTES - FIRST_BYTES));
    wait_at_least(second_half, 0, 2);
    printf("sender:   sent %d + %d bytes to the same import\n", FIRST_BYTES, MESSAGE_BYTES - FIRST_BYTES);
    must(vmmc_import_free(inbox));
    must(vmmc_export_free(second_half));
}

RUN({"receiver", receiver}, {"sender", sender})
