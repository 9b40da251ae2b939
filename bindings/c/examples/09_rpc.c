/* Remote calls: a service is a name, and methods by number. What arguments and results are is a
 * matter of client and server; here they are text. */
#include "tutorial.h"
#include <stdatomic.h>

enum { GREET = 1, THINK, GOODBYE };
enum { CALLS = 10000 };

/* The client is done. */
static atomic_bool over;

/* Runs on two threads, for two calls at once. */
static void handle(vmmc_rpc_call *call, const vmmc_rpc_incoming *incoming, void *user) {
    (void)user;
    char text[128];
    int len = 0;
    switch (incoming->method) {
    case GREET:
        if (incoming->arguments_len == 0) {
            must(vmmc_rpc_call_fail(call, "nobody is there"));
            return;
        }
        len = snprintf(text, sizeof text, "hello, %.*s", (int)incoming->arguments_len, (const char *)incoming->arguments);
        break;
    case THINK:
        sleep_ms(50);
        break;
    case GOODBYE:
        over = true;
        break;
    default:
        must(vmmc_rpc_call_refuse(call, VMMC_NO_METHOD));
        return;
    }
    must(vmmc_rpc_call_answer(call, text, (size_t)len));
}

static void server(vmmc_session *session) {
    vmmc_rpc_server_options options = {.size = sizeof options, .threads = 2};
    vmmc_rpc_server *server;
    must(vmmc_rpc_server_create(session, "greeter", &options, handle, NULL, &server));
    printf("server: I serve \"greeter\" on two threads\n");
    for (uint64_t start = now_ns(); !over; sleep_ms(1)) {
        check(now_ns() - start < SECONDS_MAX * 1000000000ull, "nobody says goodbye");
    }
    /* The answer to the last call goes out before the server ends. */
    sleep_ms(100);
    vmmc_rpc_counts counts;
    must(vmmc_rpc_server_get_counts(server, &counts, sizeof counts));
    printf("server: %llu calls were answered\n", (unsigned long long)counts.done);
    must(vmmc_rpc_server_free(server));
}

/* Whether an answer is this text; the answer is freed. */
static bool is_text(vmmc_rpc_answer *answer, const char *text) {
    const void *result;
    size_t len;
    must(vmmc_rpc_answer_result(answer, &result, &len));
    bool is = len == strlen(text) && memcmp(result, text, len) == 0;
    must(vmmc_rpc_answer_free(answer));
    return is;
}

static vmmc_rpc_request greeting(const char *name) {
    return (vmmc_rpc_request){
        .size = sizeof(vmmc_rpc_request), .method = GREET, .arguments = name, .arguments_len = strlen(name)};
}

static void client(vmmc_session *session) {
    /* The service need not exist yet. */
    vmmc_rpc_client *greeter = connect_to(session, "greeter");
    vmmc_rpc_request request = greeting("world");
    vmmc_rpc_answer *answer;
    must(vmmc_rpc_client_call(greeter, &request, &answer));
    check(is_text(answer, "hello, world"), "another answer");
    printf("client: \"hello, world\"\n");
    request = greeting("");
    check(vmmc_rpc_client_call(greeter, &request, &answer) == VMMC_FAILED, "a greeting for nobody");
    printf("client: %s\n", vmmc_error_message());

    request = greeting("again");
    uint64_t start = now_ns();
    for (int i = 0; i < CALLS; i++) {
        must(vmmc_rpc_client_call(greeter, &request, &answer));
        check(is_text(answer, "hello, again"), "another answer");
    }
    printf("client: %d calls, %llu ns each\n", CALLS, (unsigned long long)((now_ns() - start) / CALLS));

    /* A call that is not waited for. */
    vmmc_rpc_request slow = {.size = sizeof slow, .method = THINK};
    vmmc_rpc_pending *thinking;
    must(vmmc_rpc_client_start(greeter, &slow, &thinking));
    request = greeting("somebody else");
    must(vmmc_rpc_client_call(greeter, &request, &answer));
    check(is_text(answer, "hello, somebody else"), "another answer");
    printf("client: a slow call is under way, and meanwhile \"hello, somebody else\"\n");
    must(vmmc_rpc_pending_wait(thinking, VMMC_DEFAULT_TIMEOUT, &answer));
    must(vmmc_rpc_answer_free(answer));
    must(vmmc_rpc_pending_free(thinking));
    call(greeter, GOODBYE);
    must(vmmc_rpc_client_free(greeter));
}

RUN({"server", server}, {"client", client})
