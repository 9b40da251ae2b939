/* A job: ranks in a ring pass a sum around through each other's memory. Started alone, the program
 * starts itself as a job of four and shows what the ranks print; `vmmc run -n 4 -- ./08_job` starts
 * it too. */
#include "tutorial.h"

enum { RANKS = 4, WAIT_US = 20000000 };

static int member(vmmc_job *job) {
    uint32_t rank, size;
    must(vmmc_job_rank(job, &rank));
    must(vmmc_job_size(job, &size));
    vmmc_export *mine;
    vmmc_import *next;
    must(vmmc_job_export(job, "sum", 64, NULL, &mine));
    must(vmmc_job_import(job, (rank + 1) % size, "sum", NULL, &next));

    /* Rank 0 begins with its own number plus one; each adds its own and passes it on; rank 0 gets
     * the whole. */
    uint64_t sum = 0;
    if (rank > 0) {
        must(vmmc_export_wait_word(mine, 0, VMMC_NOT_EQUAL, 0, WAIT_US, &sum));
    }
    sum += rank + 1;
    must(vmmc_import_send(next, 0, &sum, sizeof sum));
    if (rank == 0) {
        must(vmmc_export_wait_word(mine, 0, VMMC_NOT_EQUAL, 0, WAIT_US, &sum));
        printf("the sum over %u ranks is %llu\n", size, (unsigned long long)sum);
        check(sum == (uint64_t)size * (size + 1) / 2, "the sum is wrong");
    }

    /* A few bytes of every rank for every rank. */
    char mine_text[16], texts[64][16];
    size_t lens[64], count;
    snprintf(mine_text, sizeof mine_text, "rank %u", rank);
    must(vmmc_job_allgather(job, mine_text, strlen(mine_text), texts, sizeof *texts, lens, 64, WAIT_US, &count));
    check(count == size && lens[size - 1] >= 6 && memcmp(texts[size - 1], "rank ", 5) == 0, "the gathered texts are wrong");
    must(vmmc_job_barrier(job, WAIT_US));
    printf("%s of %u has heard from %zu\n", mine_text, size, count);
    must(vmmc_import_free(next));
    must(vmmc_export_free(mine));
    must(vmmc_job_free(job));
    return EXIT_SUCCESS;
}

static int launcher(const char *program) {
    vmmc_launch_options options = {.size = sizeof options, .program = program, .ranks = RANKS};
    vmmc_launched *job;
    must(vmmc_job_launch(&options, &job));
    int lines = 0, failures = 0;
    vmmc_job_event event = {.kind = VMMC_EVENT_STARTED};
    for (uint64_t start = now_ns(); event.kind != VMMC_EVENT_ENDED;) {
        check(now_ns() - start < SECONDS_MAX * 1000000000ull, "the job does not end");
        vmmc_status status = vmmc_launched_next_event(job, 1000000, &event);
        if (status == VMMC_AGAIN) {
            continue;
        }
        must(status);
        if (event.kind == VMMC_EVENT_OUTPUT || event.kind == VMMC_EVENT_ERROR_OUTPUT) {
            printf("[%u] %.*s", event.rank, (int)event.len, (const char *)event.data);
            lines++;
        } else if (event.kind == VMMC_EVENT_NOT_STARTED || (event.kind == VMMC_EVENT_EXITED && event.number != 0)) {
            fprintf(stderr, "rank %u: %s\n", event.rank, event.text);
            failures++;
        }
    }
    must(vmmc_launched_free(job));
    check(failures == 0 && lines >= RANKS, "not all ranks did their part");
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    (void)argc;
    (void)argv;
    setvbuf(stdout, NULL, _IOLBF, 0);
    vmmc_job *job;
    vmmc_status status = vmmc_job_attach(&job);
    if (status != VMMC_NO_JOB) {
        must(status);
        return member(job);
    }
    static char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    check(length > 0, "the program does not find itself");
    return launcher(program);
}
