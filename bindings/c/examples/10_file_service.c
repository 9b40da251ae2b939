/* A file service: what is read goes from the server's memory straight into a buffer of the client,
 * by a token that travels with the call. */
#include "tutorial.h"
#include <stdatomic.h>

enum { SIZE = 1, READ, CLOSE };
enum { FILE_BYTES = 8 << 20, PIECE_BYTES = 64 << 10, NAME_BYTES = 32 };

/* Arguments of all methods. Client and server are one program, so they agree on what it is. */
struct place {
    char name[NAME_BYTES];
    uint64_t from, max;
};

/* The client is done. */
static atomic_bool over;

/* Byte `at` of the file. */
static unsigned char byte(uint64_t at) {
    return (unsigned char)((at / 7) ^ (at >> 12));
}

/* `user` is the file. */
static void handle(vmmc_rpc_call *call, const vmmc_rpc_incoming *incoming, void *user) {
    const unsigned char *file = user;
    if (incoming->method == CLOSE) {
        over = true;
        must(vmmc_rpc_call_answer(call, NULL, 0));
        return;
    }
    struct place place;
    if (incoming->arguments_len != sizeof place) {
        must(vmmc_rpc_call_refuse(call, VMMC_BAD_ARGUMENTS));
        return;
    }
    memcpy(&place, incoming->arguments, sizeof place);
    if (strncmp(place.name, "numbers", NAME_BYTES) != 0) {
        char why[64];
        snprintf(why, sizeof why, "there is no \"%.*s\"", NAME_BYTES - 1, place.name);
        must(vmmc_rpc_call_fail(call, why));
        return;
    }
    uint64_t result = FILE_BYTES;
    if (incoming->method == SIZE) {
        must(vmmc_rpc_call_answer(call, &result, sizeof result));
        return;
    }
    uint64_t from = place.from < FILE_BYTES ? place.from : FILE_BYTES;
    result = place.max < FILE_BYTES - from ? place.max : FILE_BYTES - from;
    must(vmmc_rpc_call_answer_bulk(call, &result, sizeof result, file + from, result));
}

static void server(vmmc_session *session) {
    unsigned char *file = malloc(FILE_BYTES);
    check(file != NULL, "memory");
    for (uint64_t at = 0; at < FILE_BYTES; at++) {
        file[at] = byte(at);
    }
    vmmc_rpc_server *server;
    must(vmmc_rpc_server_create(session, "files", NULL, handle, file, &server));
    printf("server: I have a file of %d MiB\n", FILE_BYTES >> 20);
    for (uint64_t start = now_ns(); !over; sleep_ms(1)) {
        check(now_ns() - start < SECONDS_MAX * 1000000000ull, "nobody closes");
    }
    /* The answer to the last call goes out before the server ends. */
    sleep_ms(100);
    vmmc_rpc_counts counts;
    must(vmmc_rpc_server_get_counts(server, &counts, sizeof counts));
    printf("server: %llu calls were answered\n", (unsigned long long)counts.done);
    must(vmmc_rpc_server_free(server));
    free(file);
}

/* Calls a method; `place` stays where it is meanwhile. */
static vmmc_status ask(vmmc_rpc_client *files, uint32_t method, const struct place *place, vmmc_rpc_answer **answer) {
    vmmc_rpc_request request = {.size = sizeof request, .method = method, .arguments = place, .arguments_len = sizeof *place};
    request.flags = method == READ ? VMMC_RPC_WANTS_BULK : 0;
    return vmmc_rpc_client_call(files, &request, answer);
}

static uint64_t number(const vmmc_rpc_answer *answer) {
    const void *result;
    size_t len;
    uint64_t value;
    must(vmmc_rpc_answer_result(answer, &result, &len));
    check(len == sizeof value, "a result of another length");
    memcpy(&value, result, sizeof value);
    return value;
}

static void reader(vmmc_session *session) {
    vmmc_rpc_client_options options = {.size = sizeof options, .timeout_us = 10000000};
    options.bulk_buffers = 4;
    options.bulk_bytes = PIECE_BYTES;
    vmmc_rpc_client *files;
    must(vmmc_rpc_client_connect(session, "files", &options, &files));
    vmmc_rpc_answer *answer;
    struct place place = {.name = "letters"};
    check(ask(files, SIZE, &place, &answer) == VMMC_FAILED, "a file that is not there");
    char why[128];
    snprintf(why, sizeof why, "%s", vmmc_error_message());
    place = (struct place){.name = "numbers", .max = PIECE_BYTES};
    must(ask(files, SIZE, &place, &answer));
    uint64_t size = number(answer);
    must(vmmc_rpc_answer_free(answer));
    printf("reader: the file has %llu bytes; of another one: %s\n", (unsigned long long)size, why);

    uint64_t wrong = 0, start = now_ns();
    while (place.from < size) {
        must(ask(files, READ, &place, &answer));
        /* The bytes stay where they have landed until the answer is freed. */
        const void *bulk;
        size_t len;
        must(vmmc_rpc_answer_bulk(answer, &bulk, &len));
        wrong += len == 0 || *(const volatile unsigned char *)bulk != byte(place.from);
        place.from += number(answer);
        must(vmmc_rpc_answer_free(answer));
    }
    double rate = (double)size / (double)(now_ns() - start);
    printf("reader: read in pieces of %d KiB, %.1f GB/s\n", PIECE_BYTES >> 10, rate);
    check(wrong == 0, "a piece is not what it should be");

    /* Or into memory of the program's own. */
    unsigned char end[40];
    place.from = size - 40;
    must(ask(files, READ, &place, &answer));
    must(vmmc_rpc_answer_read_bulk(answer, 0, end, sizeof end));
    check(number(answer) == 40 && end[39] == byte(FILE_BYTES - 1), "the end is another one");
    printf("reader: the last %llu bytes are right, and nothing is behind them\n", (unsigned long long)number(answer));
    must(vmmc_rpc_answer_free(answer));
    call(files, CLOSE);
    must(vmmc_rpc_client_free(files));
}

RUN({"server", server}, {"reader", reader})
