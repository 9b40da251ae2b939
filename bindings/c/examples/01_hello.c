/* Hello: one process exports memory, another one imports it and writes into it. */
#include "tutorial.h"

/* Where the text goes, and the word that says how long it is. */
enum { TEXT_AT = 64, LENGTH_AT = 0 };
static const char TEXT[] = "hello from another process";

static void receiver(vmmc_session *session) {
    vmmc_export *memory = export_named(session, 4096, "hello", 0);
    printf("receiver: exported 4096 bytes as \"hello\"\n");

    /* The receiver takes no part in the transfer. It looks at its own memory until the length is
     * there. */
    uint64_t length = wait_at_least(memory, LENGTH_AT, 1);
    char text[64] = {0};
    check(length < sizeof text, "the length is wrong");
    must(vmmc_export_read(memory, TEXT_AT, text, length));
    printf("receiver: found in my memory: \"%s\"\n", text);
    check(strcmp(text, TEXT) == 0, "the text is wrong");
    must(vmmc_export_free(memory));
}

static void sender(vmmc_session *session) {
    /* The export may not exist yet: wait for it. */
    vmmc_import *memory = import(session, "hello", 0);
    char *explanation;
    must(vmmc_import_explain(memory, false, &explanation));
    printf("sender:   %s\n", explanation);
    must(vmmc_string_free(explanation));

    uint64_t length = strlen(TEXT);
    must(vmmc_import_send(memory, TEXT_AT, TEXT, length));
    /* Sends from one process to one export appear in order, so who sees the length sees the text.
     */
    must(vmmc_import_send(memory, LENGTH_AT, &length, sizeof length));
    printf("sender:   wrote %llu bytes into the receiver's memory\n", (unsigned long long)length);
    must(vmmc_import_free(memory));
}

RUN({"receiver", receiver}, {"sender", sender})
