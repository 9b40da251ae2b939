/* Bulk synchronous parallel programs over VMMC: the calls of BSPlib.
 *
 * Processes compute, put, get and send in a superstep; bsp_sync() ends it for all, and then what
 * was put, got and sent is there. `vmmc run -n 4 ./program` starts four of them (mpirun and srun
 * do, too); a program that is started alone is the only process.
 *
 * A call that makes no sense ends the program, with a message that says what to do: all processes
 * then end with status 1. One thread of a process makes the calls. Memory that is given to a call
 * must be valid for the length given, and registered memory until its registration has ended.
 *
 * Build with `pkg-config --cflags --libs vmmc_bsp`; docs/bsp.md tells more. Source: Hill and
 * others, BSPlib: The BSP programming library, 1998. */

#ifndef VMMC_BSP_H
#define VMMC_BSP_H

#ifdef __GNUC__
#define BSP_LIKE_PRINTF __attribute__((format(printf, 1, 2)))
#else
#define BSP_LIKE_PRINTF
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Begins the parallel part. Up to `maxprocs` of the processes that were started take part, by what
 * process 0 says; the others end here, with status 0. It is the first statement of main, or of the
 * function that was given to bsp_init().
 */
void bsp_begin(int maxprocs);

/**
 * Ends the parallel part, in all processes: each waits for the others. No calls of BSPlib follow.
 */
void bsp_end(void);

/**
 * Says that the parallel part is the function `spmd`, which begins with bsp_begin() and ends with
 * bsp_end(). It is the first statement of main, in programs in which that is not bsp_begin():
 * process 0 returns, and calls `spmd` when it likes; the others call it here, and end after it.
 */
void bsp_init(void (*spmd)(void), int argc, char **argv);

/**
 * Ends all processes, after a message as of printf() on the standard error of this one.
 */
void bsp_abort(const char *format, ...) BSP_LIKE_PRINTF;

/**
 * Number of processes. Before bsp_begin() that of those that were started.
 */
int bsp_nprocs(void);

/**
 * Number of this process, counted from 0.
 */
int bsp_pid(void);

/**
 * Seconds since bsp_begin().
 */
double bsp_time(void);

/**
 * Ends the superstep, and waits until all processes do so. Gets have read before anything was
 * written; puts are written, and messages are in the queue; registrations count from here on.
 */
void bsp_sync(void);

/**
 * Registers memory, from the next bsp_sync() on. All processes register together, in the same
 * order; sizes may differ. A process that has nothing there gives NULL. The last registration of an
 * address counts.
 */
void bsp_push_reg(const void *ident, int size);

/**
 * Ends the last registration of an address, from the next bsp_sync() on. All processes do so
 * together; one that has nothing there gives NULL.
 */
void bsp_pop_reg(const void *ident);

/**
 * Copies bytes at once, and writes them with the next bsp_sync() into the memory of process `pid`
 * that was registered together with `dst` here, `offset` bytes from its beginning.
 */
void bsp_put(int pid, const void *src, void *dst, int offset, int nbytes);

/**
 * As bsp_put(), but `src` must stay as it is until the next bsp_sync() has returned. This library
 * copies at once all the same, and writes in that call.
 */
void bsp_hpput(int pid, const void *src, void *dst, int offset, int nbytes);

/**
 * Reads, with the next bsp_sync(), bytes of the memory of process `pid` that was registered
 * together with `src` here, `offset` bytes from its beginning, as they are before anything is put,
 * and writes them to `dst`, which need not be registered.
 */
void bsp_get(int pid, const void *src, int offset, void *dst, int nbytes);

/**
 * As bsp_get(), but the memory must stay as it is until the next bsp_sync() has returned. This
 * library reads and writes in that call.
 */
void bsp_hpget(int pid, const void *src, int offset, void *dst, int nbytes);

/**
 * Sets the size of tags, in bytes, from the next bsp_sync() on, in all processes the same, and
 * gives the one before there. It is 0 at first.
 */
void bsp_set_tagsize(int *tag_nbytes);

/**
 * Copies a message and its tag at once, for the queue of process `pid` after the next bsp_sync().
 */
void bsp_send(int pid, const void *tag, const void *payload, int payload_nbytes);

/**
 * Gives the number of messages in the queue, and of their bytes without tags. A place that is NULL
 * is left out. Messages that are still in the queue at the next bsp_sync() are lost.
 */
void bsp_qsize(int *nmessages, int *accum_nbytes);

/**
 * Gives the bytes of the first message, and its tag; -1, and no tag, if the queue is empty.
 */
void bsp_get_tag(int *status, void *tag);

/**
 * Takes the first message out of the queue, and copies up to `reception_nbytes` bytes of it.
 */
void bsp_move(void *payload, int reception_nbytes);

/**
 * Takes the first message out of the queue, and gives where its tag and its bytes are until the
 * next bsp_sync(), and its bytes; -1 if the queue is empty. Both begin at a multiple of 8.
 */
int bsp_hpmove(void **tag_ptr, void **payload_ptr);

#ifdef __cplusplus
}
#endif

#endif
