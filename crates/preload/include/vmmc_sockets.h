/* Sending and receiving on upgraded connections without a copy: the program fills in what it sends,
 * and looks at what it received, in the memory that it shares with its peer.
 *
 * For any program with TCP sockets; nothing is linked. Under `vmmc exec` the calls are found in the
 * library that it loads. Without it, and on connections that are not in shared memory (now), they
 * fail with ENOTSUP: use send and recv, this time.
 *
 *     void *room;
 *     ssize_t n = vmmc_sockets_reserve(fd, 100, &room);       // 1 to 100 bytes
 *     if (n > 0) { fill(room, n); vmmc_sockets_commit(fd, n); }
 *     else if (n < 0 && errno == ENOTSUP) send(fd, ...);
 *
 *     const void *bytes;
 *     n = vmmc_sockets_peek(fd, &bytes);                      // 0: the end of the stream
 *     if (n > 0) { use(bytes, n); vmmc_sockets_consume(fd, n); }
 *
 * Between reserve and commit nobody else can send on the connection, between peek and consume
 * nobody else can receive: end what you begin, soon, in the same thread. That thread gets EDEADLK
 * when it sends or receives otherwise meanwhile. The peer's process can write to this memory at any
 * time: read a byte once, then check it.
 */
#ifndef VMMC_SOCKETS_H
#define VMMC_SOCKETS_H

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The function of that name, if the library is loaded; looked up once in each file that uses it.
 * RTLD_DEFAULT is null. */
#define VMMC_SOCKETS_FUNCTION_(type, name)                \
    static type found;                                    \
    static int looked;                                    \
    type function;                                        \
    if (__atomic_load_n(&looked, __ATOMIC_ACQUIRE)) {     \
        function = found;                                 \
    } else {                                              \
        *(void **)&function = dlsym((void *)0, name);     \
        found = function;                                 \
        __atomic_store_n(&looked, 1, __ATOMIC_RELEASE);   \
    }                                                     \
    if (!function) {                                      \
        errno = ENOTSUP;                                  \
        return -1;                                        \
    }

/* Room for `most` bytes or fewer, at least one. Waits for it unless the socket is non-blocking
 * (EAGAIN). -1 and errno: as send. */
static inline ssize_t vmmc_sockets_reserve(int fd, size_t most, void **memory)
{
    typedef ssize_t (*reserve_fn)(int, size_t, void **);
    VMMC_SOCKETS_FUNCTION_(reserve_fn, "vmmc_sockets_reserve_v1")
    return function(fd, most, memory);
}

/* Sends the first `bytes` of the room, 0 or more. -1 and EINVAL: this thread has reserved less. */
static inline int vmmc_sockets_commit(int fd, size_t bytes)
{
    typedef int (*commit_fn)(int, size_t);
    VMMC_SOCKETS_FUNCTION_(commit_fn, "vmmc_sockets_commit_v1")
    return function(fd, bytes);
}

/* The next received bytes, as many as lie side by side; 0: the end of the stream, nothing to
 * consume. Waits for some unless the socket is non-blocking (EAGAIN). -1 and errno: as recv. */
static inline ssize_t vmmc_sockets_peek(int fd, const void **memory)
{
    typedef ssize_t (*peek_fn)(int, const void **);
    VMMC_SOCKETS_FUNCTION_(peek_fn, "vmmc_sockets_peek_v1")
    return function(fd, memory);
}

/* Receives the first `bytes` of them, 0 or more; the others come again. -1 and EINVAL: this thread
 * has peeked at fewer. */
static inline int vmmc_sockets_consume(int fd, size_t bytes)
{
    typedef int (*consume_fn)(int, size_t);
    VMMC_SOCKETS_FUNCTION_(consume_fn, "vmmc_sockets_consume_v1")
    return function(fd, bytes);
}

#ifdef __cplusplus
}
#endif

#endif
