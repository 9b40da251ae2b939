/* Delegation: a server leaves a call to another one, which answers the caller itself. The caller
 * does not see it, and the answer takes no detour. */
#include "tutorial.h"
#include <stdatomic.h>

enum { BOOK = 1, CLOSE };
enum { SHELVES = 2, TEXT_BYTES = 4096 };

/* Nobody reads any more. */
static atomic_bool over;

/* The text of a book; gives its length. */
static size_t text_of(uint32_t number, char text[TEXT_BYTES]) {
    size_t len = 0;
    for (int page = 0; page < 100; page++) {
        len += (size_t)snprintf(text + len, TEXT_BYTES - len, "book %u, page by page. ", number);
    }
    return len;
}

/* A shelf has every second book; `user` says whether the even ones. */
static void find_book(vmmc_rpc_call *call, const vmmc_rpc_incoming *incoming, void *user) {
    const uint32_t *parity = user;
    uint32_t number;
    if (incoming->method == CLOSE) {
        over = true;
        must(vmmc_rpc_call_answer(call, NULL, 0));
        return;
    }
    if (incoming->method != BOOK || incoming->arguments_len != sizeof number) {
        must(vmmc_rpc_call_refuse(call, VMMC_BAD_ARGUMENTS));
        return;
    }
    memcpy(&number, incoming->arguments, sizeof number);
    char text[TEXT_BYTES];
    if (number % SHELVES != *parity || number > 99) {
        snprintf(text, sizeof text, "book %u is not here", number);
        must(vmmc_rpc_call_fail(call, text));
        return;
    }
    uint64_t len = text_of(number, text);
    must(vmmc_rpc_call_answer_bulk(call, &len, sizeof len, text, len));
}

/* The desk knows which shelf has which book, and has none; `user` are ways to the shelves. */
static void direct_to_shelf(vmmc_rpc_call *call_, const vmmc_rpc_incoming *incoming, void *user) {
    vmmc_rpc_client **shelves = user;
    uint32_t number;
    if (incoming->method == CLOSE) {
        for (int i = 0; i < SHELVES; i++) {
            call(shelves[i], CLOSE);
        }
        over = true;
        must(vmmc_rpc_call_answer(call_, NULL, 0));
        return;
    }
    if (incoming->method != BOOK || incoming->arguments_len != sizeof number) {
        must(vmmc_rpc_call_refuse(call_, VMMC_BAD_ARGUMENTS));
        return;
    }
    memcpy(&number, incoming->arguments, sizeof number);
    vmmc_rpc_client *shelf = shelves[number % SHELVES];
    if (vmmc_rpc_call_pass_on(call_, shelf, BOOK, incoming->arguments, incoming->arguments_len) != VMMC_OK) {
        /* Then the call is still to be answered here. */
        must(vmmc_rpc_call_fail(call_, vmmc_error_message()));
    }
}

/* Serves until nobody reads any more. */
static vmmc_rpc_counts serve(vmmc_session *session, const char *name, uint32_t threads, vmmc_rpc_handler handler, void *user) {
    vmmc_rpc_server_options options = {.size = sizeof options, .threads = threads};
    vmmc_rpc_server *server;
    must(vmmc_rpc_server_create(session, name, &options, handler, user, &server));
    for (uint64_t start = now_ns(); !over; sleep_ms(1)) {
        check(now_ns() - start < SECONDS_MAX * 1000000000ull, "nobody closes");
    }
    /* The answer to the last call goes out before the server ends. */
    sleep_ms(100);
    vmmc_rpc_counts counts;
    must(vmmc_rpc_server_get_counts(server, &counts, sizeof counts));
    must(vmmc_rpc_server_free(server));
    return counts;
}

static void shelf(vmmc_session *session, uint32_t parity) {
    vmmc_rpc_counts counts = serve(session, parity == 0 ? "shelf-0" : "shelf-1", 0, find_book, &parity);
    printf("shelf %u: %llu calls were answered\n", parity, (unsigned long long)counts.done);
}

static void shelf_0(vmmc_session *session) {
    shelf(session, 0);
}

static void shelf_1(vmmc_session *session) {
    shelf(session, 1);
}

static void desk(vmmc_session *session) {
    vmmc_rpc_client *shelves[SHELVES] = {connect_to(session, "shelf-0"), connect_to(session, "shelf-1")};
    /* The last call of this server waits for the shelves, so it has a thread of its own. */
    vmmc_rpc_counts counts = serve(session, "library", 1, direct_to_shelf, shelves);
    printf("desk:    %llu calls were passed on\n", (unsigned long long)counts.passed_on);
    for (int i = 0; i < SHELVES; i++) {
        must(vmmc_rpc_client_free(shelves[i]));
    }
}

static void reader(vmmc_session *session) {
    vmmc_rpc_client *library = connect_to(session, "library");
    uint32_t number;
    vmmc_rpc_request request = {.size = sizeof request, .method = BOOK, .flags = VMMC_RPC_WANTS_BULK};
    request.arguments = &number;
    request.arguments_len = sizeof number;
    vmmc_rpc_answer *answer;
    for (number = 0; number < 20; number++) {
        char wanted[TEXT_BYTES], page[TEXT_BYTES];
        size_t len = text_of(number, wanted);
        must(vmmc_rpc_client_call(library, &request, &answer));
        must(vmmc_rpc_answer_read_bulk(answer, 0, page, len));
        check(memcmp(page, wanted, len) == 0, "another book");
        must(vmmc_rpc_answer_free(answer));
    }
    printf("reader:  20 books came straight from their shelves\n");
    number = 101;
    check(vmmc_rpc_client_call(library, &request, &answer) == VMMC_FAILED, "a book that is not there");
    printf("reader:  %s\n", vmmc_error_message());
    call(library, CLOSE);
    must(vmmc_rpc_client_free(library));
}

RUN({"shelf-0", shelf_0}, {"shelf-1", shelf_1}, {"desk", desk}, {"reader", reader})
