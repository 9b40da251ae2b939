/* What the examples share: they run as several real processes, by starting themselves once for each
 * role.
 *
 * Run without arguments, an example starts its roles, waits for them and fails if one of them
 * fails. Each role attaches to the user's default node; when none runs the library starts one, and
 * the example itself serves as the program for that (VMMC_BIN). */
#ifndef TUTORIAL_H
#define TUTORIAL_H

/* Strict C (-std=c99) hides what POSIX adds to the headers unless it is asked for, before the first
 * of them: so this file is included first. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vmmc.h>

/* A role: its name, and what its process does. */
struct role {
    const char *name;
    void (*play)(vmmc_session *session);
};

enum { ROLES_MAX = 8, SECONDS_MAX = 60 };

/* Ends the process with the library's message unless a call went well. */
#define must(call) must_(call, #call, __FILE__, __LINE__)

static inline void must_(vmmc_status status, const char *call, const char *file, int line) {
    if (status == VMMC_OK) {
        return;
    }
    fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, call, vmmc_status_name(status), vmmc_error_message());
    exit(EXIT_FAILURE);
}

/* Ends the process with a message unless something holds. */
static inline void check(bool holds, const char *otherwise) {
    if (!holds) {
        fprintf(stderr, "failed: %s\n", otherwise);
        exit(EXIT_FAILURE);
    }
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void sleep_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* Imports by name, waiting ten seconds for the export. */
static inline vmmc_import *import(vmmc_session *session, const char *name, uint32_t rights) {
    vmmc_import_options options = {.size = sizeof options, .rights = rights, .wait_us = 10000000};
    vmmc_import *made;
    must(vmmc_import_open(session, name, &options, &made));
    return made;
}

/* Exports new memory under a name. */
static inline vmmc_export *export_named(vmmc_session *session, uint64_t len, const char *name, uint32_t flags) {
    vmmc_export_options options = {.size = sizeof options, .name = name, .flags = flags};
    vmmc_export *made;
    must(vmmc_export_create(session, len, &options, &made));
    return made;
}

/* Waits until a word has at least a value; gives it. */
static inline uint64_t wait_at_least(vmmc_export *memory, uint64_t offset, uint64_t value) {
    uint64_t word;
    must(vmmc_export_wait_word(memory, offset, VMMC_AT_LEAST, value, 10000000, &word));
    return word;
}

/* Connects to a service, waiting ten seconds for it; calls wait as long. */
static inline vmmc_rpc_client *connect_to(vmmc_session *session, const char *service) {
    vmmc_rpc_client_options options = {.size = sizeof options, .timeout_us = 10000000};
    vmmc_rpc_client *made;
    must(vmmc_rpc_client_connect(session, service, &options, &made));
    return made;
}

/* Calls a method whose result is of no interest. */
static inline void call(vmmc_rpc_client *client, uint32_t method) {
    vmmc_rpc_request request = {.size = sizeof request, .method = method};
    vmmc_rpc_answer *answer;
    must(vmmc_rpc_client_call(client, &request, &answer));
    must(vmmc_rpc_answer_free(answer));
}

static inline void play(const struct role *roles, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(roles[i].name, name) == 0) {
            vmmc_session *session;
            must(vmmc_session_attach(NULL, &session));
            roles[i].play(session);
            must(vmmc_session_free(session));
            exit(EXIT_SUCCESS);
        }
    }
    fprintf(stderr, "no such role: %s\n", name);
    exit(EXIT_FAILURE);
}

static inline int direct(const char *program, const struct role *roles, size_t count) {
    pid_t pids[ROLES_MAX] = {0};
    check(count <= ROLES_MAX, "too many roles");
    for (size_t i = 0; i < count; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            setenv("VMMC_BIN", program, 0);
            execl(program, program, "role", roles[i].name, (char *)NULL);
            _exit(127);
        }
    }
    bool failed = false;
    size_t left = count;
    for (uint64_t start = now_ns(); left > 0;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid > 0) {
            left--;
            for (size_t i = 0; i < count; i++) {
                if (pids[i] == pid) {
                    pids[i] = 0;
                    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
                        fprintf(stderr, "the %s failed\n", roles[i].name);
                        failed = true;
                    }
                }
            }
        }
        if (failed || now_ns() - start > SECONDS_MAX * 1000000000ull) {
            for (size_t i = 0; i < count; i++) {
                if (pids[i] > 0) {
                    kill(pids[i], SIGKILL);
                    waitpid(pids[i], NULL, 0);
                }
            }
            return EXIT_FAILURE;
        }
        if (pid == 0) {
            sleep_ms(2);
        }
    }
    return EXIT_SUCCESS;
}

static inline int run(int argc, char **argv, const struct role *roles, size_t count) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc >= 3 && strcmp(argv[1], "node") == 0) {
        const char *const *options = (const char *const *)&argv[3];
        size_t given = (size_t)argc - 3;
        must(strcmp(argv[2], "start") == 0 ? vmmc_node_start_daemon(options, given) : vmmc_node_run(options, given));
        return EXIT_SUCCESS;
    }
    if (argc == 3 && strcmp(argv[1], "role") == 0) {
        play(roles, count, argv[2]);
    }
    static char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    check(length > 0, "the program does not find itself");
    return direct(program, roles, count);
}

#define RUN(...)                                                                      \
    int main(int argc, char **argv) {                                                 \
        const struct role roles[] = {__VA_ARGS__};                                    \
        return run(argc, argv, roles, sizeof roles / sizeof *roles);                  \
    }

#endif
