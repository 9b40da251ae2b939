/* VMMC: virtual memory-mapped communication. Generated from bindings/c/src by cbindgen; do not
 * edit.
 *
 * * Calls return a vmmc_status; VMMC_OK is 0. What went wrong is told in words by
 * vmmc_error_message(). Results come through the last arguments and are written on success only.
 * Objects are handles: NULL, freed and foreign handles are errors (VMMC_BAD_HANDLE), never memory
 * errors. All handles may be used from any thread at once; an object that is freed while another
 * thread uses it goes away when the last such call returns. Objects may be freed in any order.
 *
 * * Strings are UTF-8 and end with a zero. Memory given to a call is used until it returns and no
 * longer, unless the call says otherwise, and must not be written by others meanwhile. Every wait
 * has a deadline: `timeout_us` in microseconds, 0 looks once, VMMC_DEFAULT_TIMEOUT (any negative
 * number) takes that of the thread (vmmc_thread_timeout), else of the session (5 s unless set). In
 * options, `size` is the size of the struct, and a field of 0 the default.
 *
 * * Build with `pkg-config --cflags --libs vmmc`; the same examples as for Rust and Python are
 * in bindings/c/examples; docs/c.md tells more. */


#ifndef VMMC_H
#define VMMC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Bytes of the longest control message.
 */
#define VMMC_CONTROL_MESSAGE_BYTES_MAX 128

/**
 * A right: fetch.
 */
#define VMMC_READ 1

/**
 * A right: send.
 */
#define VMMC_WRITE 2

/**
 * A right: atomic operations.
 */
#define VMMC_ATOMIC 4

/**
 * For `access` of vmmc_export_options: processes of the same user (the default).
 */
#define VMMC_ACCESS_SAME_USER 0

/**
 * For `access`: every user of every node of the cluster.
 */
#define VMMC_ACCESS_ANYONE 1

/**
 * For `access`: the users listed.
 */
#define VMMC_ACCESS_USERS 2

/**
 * For `flags` of vmmc_export_options: senders may notify.
 */
#define VMMC_EXPORT_NOTIFY 1

/**
 * For `flags`: incoming data may be redirected; importers of this node then go through the engine.
 */
#define VMMC_EXPORT_REDIRECTABLE 2

/**
 * For `flags`: importers of this node may not map the memory.
 */
#define VMMC_EXPORT_NOT_MAPPABLE 4

/**
 * For `flags` of vmmc_import_options: take the export of the user `owner` only. Names belong to
 * users.
 */
#define VMMC_IMPORT_OWNER 1

/**
 * For `flags`: take an export of whoever has one of that name and lets this process import it;
 * vmmc_import_owner() tells whose it is.
 */
#define VMMC_IMPORT_ANY_OWNER 2

/**
 * For `flags`: what goes through the import has an order of its own. A send of up to 4 KiB, an
 * append, a fetch or an atomic operation follows all that went through it before, and need not
 * wait for what this process has sent through other imports.
 */
#define VMMC_IMPORT_OWN_ORDER 4

/**
 * For `flags` of vmmc_send_options: notify the receiver after the data, if the export allows it.
 */
#define VMMC_SEND_NOTIFY 1

/**
 * For `flags`: the word at `counter` grows by one after the data is there.
 */
#define VMMC_SEND_COUNTER 2

/**
 * For `flags` of vmmc_launch_options: the job goes on when a rank fails.
 */
#define VMMC_LAUNCH_KEEP_GOING 1

/**
 * For `flags`: `input_rank` gets standard input, from vmmc_launched_write_input().
 */
#define VMMC_LAUNCH_INPUT 2

/**
 * Bytes of the longest record.
 */
#define VMMC_RECORD_BYTES_MAX 512

/**
 * For `flags` of vmmc_append_options: notify the owner too, if its ring allows it. The
 * notification carries the word.
 */
#define VMMC_APPEND_NOTIFY 1

/**
 * For `flags` of vmmc_append_options: a full ring is VMMC_FULL at once.
 */
#define VMMC_APPEND_AT_ONCE 2

/**
 * For `flags` of vmmc_rpc_client_options: the service of the user `owner` only.
 */
#define VMMC_RPC_OWNER 1

/**
 * For `flags` of vmmc_rpc_request: a bulk result is wanted; it lands in a buffer of the client.
 */
#define VMMC_RPC_WANTS_BULK 1

/**
 * For `flags` of vmmc_session_options: do not start a node when none runs.
 */
#define VMMC_SESSION_NO_START 1

/**
 * For `kind`: any memory; the library copies it.
 */
#define VMMC_BYTES 0

/**
 * For `kind`: a vmmc_buffer, registered memory; no copy on the way.
 */
#define VMMC_BUFFER 1

/**
 * For `kind`: any memory; no copy on the way. Its whole pages are pinned at first use and stay
 * pinned, so that later transfers cost a look at a table. Memory that cannot be pinned (a stack, a
 * file, a few bytes) is copied.
 */
#define VMMC_PINNED 2

/**
 * For `kind` of a source: a vmmc_lent; no copy on the way and, but for the first time, no system
 * call.
 */
#define VMMC_LENT 3

/**
 * For `kind` of a source: what stands in a vmmc_table, from the entry at `index` on; no copy on
 * the way, and no look at any other table.
 */
#define VMMC_INDEXED 4

/**
 * Bytes of a token.
 */
#define VMMC_TOKEN_BYTES 20

/**
 * For `by_token` of vmmc_message: no payload was sent by token.
 */
#define VMMC_BY_TOKEN_NONE 0

/**
 * For `by_token`: the payload is in the buffer of `token`, and has `payload_len` bytes.
 */
#define VMMC_BY_TOKEN_ARRIVED 1

/**
 * For `by_token`: the payload was dropped; `token` is none that is awaited here.
 */
#define VMMC_BY_TOKEN_WRONG 2

/**
 * For `by_token`: the payload was dropped; it has `payload_len` bytes, and the buffer is shorter.
 */
#define VMMC_BY_TOKEN_TOO_LONG 3

/**
 * For `by_token`: the payload was dropped; `token` has let another one in.
 */
#define VMMC_BY_TOKEN_USED 4

/**
 * For `by_token`: the payload was dropped; `token` was cancelled.
 */
#define VMMC_BY_TOKEN_CANCELLED 5

/**
 * As a timeout: that of the thread, else that of the session.
 */
#define VMMC_DEFAULT_TIMEOUT -1

/**
 * For `kind` of vmmc_wait_for: a notification of `export_`, or with NULL of any export that has no
 * handler of its own.
 */
#define VMMC_WAIT_NOTIFICATION 1

/**
 * For `kind`: the word of `export_` at `offset` satisfies `condition` against `operand`.
 */
#define VMMC_WAIT_WORD 2

/**
 * For `kind`: `ring` has a record.
 */
#define VMMC_WAIT_RECORD 3

/**
 * For `kind`: `transfer` is over, in whatever way.
 */
#define VMMC_WAIT_TRANSFER 4

/**
 * For `kind`: `redirection` is over, in whatever way.
 */
#define VMMC_WAIT_REDIRECTION 5

/**
 * For `kind`: `fd` is readable, has hung up, or is in error, as poll has it.
 */
#define VMMC_WAIT_READABLE 6

/**
 * For `kind`: `fd` is writable, has hung up, or is in error.
 */
#define VMMC_WAIT_WRITABLE 7

/**
 * For `kind`: a transfer of `continuations` is over: then vmmc_continuations_run() calls what
 * follows.
 */
#define VMMC_WAIT_CONTINUATIONS 8

/**
 * For `kind`: `endpoint` has a message, or a sender to let in: then vmmc_endpoint_poll() takes it,
 * or lets it in.
 */
#define VMMC_WAIT_MESSAGE 9

/**
 * The most things that one vmmc_wait_any() waits for.
 */
#define VMMC_WAIT_MAX 1024

/**
 * How a call ended. vmmc_error_message() tells more.
 */
typedef enum vmmc_status {
    /**
     * It did what it says.
     */
    VMMC_OK = 0,
    /**
     * An argument makes no sense: NULL, not UTF-8, an unknown flag; or the call is misplaced.
     */
    VMMC_INVALID = 1,
    /**
     * The handle is NULL, freed, or of another kind.
     */
    VMMC_BAD_HANDLE = 2,
    /**
     * A range lies outside of its memory.
     */
    VMMC_OUT_OF_BOUNDS = 3,
    /**
     * A word is not a multiple of 8 from the start.
     */
    VMMC_MISALIGNED = 4,
    /**
     * The deadline passed.
     */
    VMMC_TIMED_OUT = 5,
    /**
     * Export or import do not carry the right.
     */
    VMMC_NO_RIGHT = 6,
    /**
     * The user is not allowed.
     */
    VMMC_NOT_PERMITTED = 7,
    /**
     * The exporter took the export back.
     */
    VMMC_REVOKED = 8,
    /**
     * The exporting process is gone.
     */
    VMMC_OWNER_DIED = 9,
    /**
     * This process's node is gone.
     */
    VMMC_NODE_GONE = 10,
    /**
     * Another node does not answer, or there is no way to it.
     */
    VMMC_NODE_UNREACHABLE = 11,
    /**
     * Another node restarted; what was there is gone.
     */
    VMMC_NODE_RESTARTED = 12,
    /**
     * No node runs and none could be started.
     */
    VMMC_NO_NODE = 13,
    /**
     * No node of that name.
     */
    VMMC_UNKNOWN_NODE = 14,
    /**
     * No export of that name or id.
     */
    VMMC_UNKNOWN_NAME = 15,
    /**
     * The name is taken.
     */
    VMMC_NAME_TAKEN = 16,
    /**
     * The id is of something that has ended.
     */
    VMMC_STALE = 17,
    /**
     * A table, queue or bound is full.
     */
    VMMC_FULL = 18,
    /**
     * Not enough memory.
     */
    VMMC_MEMORY_SHORT = 19,
    /**
     * This memory cannot be taken over.
     */
    VMMC_UNSUITABLE = 20,
    /**
     * The import is not mapped, and this needs a mapping.
     */
    VMMC_NOT_MAPPED = 21,
    /**
     * The export does not allow it.
     */
    VMMC_NOT_ALLOWED = 22,
    /**
     * It belongs to another session.
     */
    VMMC_FOREIGN = 23,
    /**
     * The object is in use, by another thread for example.
     */
    VMMC_BUSY = 24,
    /**
     * The session was attached by the parent of this process, before a fork.
     */
    VMMC_FORKED = 25,
    /**
     * Library and node are of different releases.
     */
    VMMC_VERSION = 26,
    /**
     * The operating system refused.
     */
    VMMC_SYSTEM = 27,
    /**
     * Nothing is there yet; not a failure.
     */
    VMMC_AGAIN = 28,
    /**
     * An error inside the library; please report it.
     */
    VMMC_INTERNAL = 29,
    /**
     * The process is not part of a job.
     */
    VMMC_NO_JOB = 30,
    /**
     * The members of the job have changed: vmmc_job_changes() tells how.
     */
    VMMC_MEMBERS_CHANGED = 31,
    /**
     * The service has no such method.
     */
    VMMC_NO_METHOD = 32,
    /**
     * The service could not read the arguments of the call.
     */
    VMMC_BAD_ARGUMENTS = 33,
    /**
     * The service has too much to do: its queue is full. Call again later.
     */
    VMMC_SERVER_BUSY = 34,
    /**
     * The call was withdrawn by its caller.
     */
    VMMC_CANCELLED = 35,
    /**
     * The handler of the call says that it failed; vmmc_error_message() tells what it said.
     */
    VMMC_FAILED = 36,
    /**
     * The handler of the call panicked.
     */
    VMMC_PANICKED = 37,
    /**
     * The handler of the call let go of it without an answer.
     */
    VMMC_NO_ANSWER = 38,
    /**
     * The result of the call makes no sense.
     */
    VMMC_BAD_RESULT = 39,
    /**
     * The result of the call is longer than a result can be.
     */
    VMMC_RESULT_TOO_LONG = 40,
    /**
     * Arguments and bulk of the call are longer than those of a call can be.
     */
    VMMC_ARGUMENTS_TOO_LONG = 41,
    /**
     * The bulk result of the call did not get into the buffer of the client.
     */
    VMMC_BULK_DROPPED = 42,
    /**
     * The server was lost before it answered, or the one that it left the call to.
     */
    VMMC_LOST = 43,
} vmmc_status;

/**
 * How an ended export was made unreachable.
 */
typedef enum vmmc_revocation {
    /**
     * The engine refuses, and mapped transfers of the library have stopped at the gate.
     */
    VMMC_REVOKED_BY_GATE = 0,
    /**
     * The content was moved onto other pages; whoever still maps the old ones reaches nothing.
     */
    VMMC_REVOKED_BY_MOVE = 1,
} vmmc_revocation;

/**
 * How an import's transfers go.
 */
typedef enum vmmc_path {
    /**
     * Copies into the mapped memory of the exporter.
     */
    VMMC_PATH_MAPPED = 0,
    /**
     * Descriptors to the engine of this node, which copies.
     */
    VMMC_PATH_ENGINE = 1,
    /**
     * Descriptors to the engine of this node, packets to that of another.
     */
    VMMC_PATH_NETWORK = 2,
} vmmc_path;

/**
 * How a member of a job is.
 */
typedef enum vmmc_member_state {
    /**
     * It runs.
     */
    VMMC_MEMBER_RUNNING = 0,
    /**
     * It has said goodbye.
     */
    VMMC_MEMBER_LEFT = 1,
    /**
     * Its process has ended well.
     */
    VMMC_MEMBER_ENDED = 2,
    /**
     * Its process has failed, or its node is lost.
     */
    VMMC_MEMBER_FAILED = 3,
} vmmc_member_state;

/**
 * What happened in a job.
 */
typedef enum vmmc_event_kind {
    /**
     * The rank runs; `number` is its process id on its node.
     */
    VMMC_EVENT_STARTED = 0,
    /**
     * The rank could not be started; `text` says why.
     */
    VMMC_EVENT_NOT_STARTED = 1,
    /**
     * The rank printed `len` bytes of `data` on its standard output: whole lines, unless a line is
     * very long.
     */
    VMMC_EVENT_OUTPUT = 2,
    /**
     * The same on its standard error.
     */
    VMMC_EVENT_ERROR_OUTPUT = 3,
    /**
     * The rank has ended; `number` is its code, negative the signal that ended it.
     */
    VMMC_EVENT_EXITED = 4,
    /**
     * The rank has left the job.
     */
    VMMC_EVENT_LEFT = 5,
    /**
     * The rank has joined.
     */
    VMMC_EVENT_JOINED = 6,
    /**
     * The node of the rank is lost; `text` says which and why.
     */
    VMMC_EVENT_NODE_LOST = 7,
    /**
     * Nothing of the job runs any more; the last event.
     */
    VMMC_EVENT_ENDED = 8,
} vmmc_event_kind;

/**
 * What happened to a part of a redirected range.
 */
typedef enum vmmc_part_state {
    /**
     * It had come before, and was copied.
     */
    VMMC_PART_COPIED = 0,
    /**
     * It went straight to the new place.
     */
    VMMC_PART_REDIRECTED = 1,
    /**
     * It has not come.
     */
    VMMC_PART_PENDING = 2,
} vmmc_part_state;

/**
 * What vmmc_export_wait_word() and VMMC_WAIT_WORD wait for.
 */
typedef enum vmmc_condition {
    /**
     * The word is the operand.
     */
    VMMC_EQUAL = 0,
    /**
     * It is not the operand.
     */
    VMMC_NOT_EQUAL = 1,
    /**
     * It is the operand or above.
     */
    VMMC_AT_LEAST = 2,
    /**
     * It is the operand or below.
     */
    VMMC_AT_MOST = 3,
    /**
     * It has at least one of the operand's bits.
     */
    VMMC_ANY_BIT = 4,
    /**
     * It has all of the operand's bits.
     */
    VMMC_ALL_BITS = 5,
} vmmc_condition;

/**
 * An import bound for automatic update: plain stores through its pointer appear in the export.
 */
typedef struct vmmc_binding vmmc_binding;

/**
 * Memory registered with the node, for sends and fetches without copies.
 */
typedef struct vmmc_buffer vmmc_buffer;

/**
 * A way to an endpoint.
 */
typedef struct vmmc_connection vmmc_connection;

/**
 * Transfers under way, each with a function for its end.
 */
typedef struct vmmc_continuations vmmc_continuations;

/**
 * Where messages of many senders come in.
 */
typedef struct vmmc_endpoint vmmc_endpoint;

/**
 * Memory that others may import.
 */
typedef struct vmmc_export vmmc_export;

/**
 * A payload that has come, in one piece: a frame of its sender, or several side by side. Its
 * memory is the program's until it is freed; only then its sender may use it again. A hostile
 * sender can write it all the same.
 */
typedef struct vmmc_frame vmmc_frame;

/**
 * A notification handler.
 */
typedef struct vmmc_handler vmmc_handler;

/**
 * Access to another process's export: the proxy receive buffer.
 */
typedef struct vmmc_import vmmc_import;

/**
 * This process's membership in a job that `vmmc run` or vmmc_job_launch() started.
 */
typedef struct vmmc_job vmmc_job;

/**
 * A job that runs, seen by who started it.
 */
typedef struct vmmc_launched vmmc_launched;

/**
 * Memory that stays where it is until the handle is freed, and longer where it stands in a table.
 */
typedef struct vmmc_lent vmmc_lent;

/**
 * A node that lives in this process.
 */
typedef struct vmmc_node vmmc_node;

/**
 * A posted redirection.
 */
typedef struct vmmc_redirection vmmc_redirection;

/**
 * An export that many processes append records to.
 */
typedef struct vmmc_ring vmmc_ring;

/**
 * What a call gave.
 */
typedef struct vmmc_rpc_answer vmmc_rpc_answer;

/**
 * A call, until it is answered.
 */
typedef struct vmmc_rpc_call vmmc_rpc_call;

/**
 * A way to a service, for any number of threads.
 */
typedef struct vmmc_rpc_client vmmc_rpc_client;

/**
 * A call under way.
 */
typedef struct vmmc_rpc_pending vmmc_rpc_pending;

/**
 * Memory of a client for bulk results.
 */
typedef struct vmmc_rpc_region vmmc_rpc_region;

/**
 * A server of a service.
 */
typedef struct vmmc_rpc_server vmmc_rpc_server;

/**
 * A process's attachment to its node: the door to exports, imports, buffers and notifications.
 */
typedef struct vmmc_session vmmc_session;

/**
 * Translations of lent memory, under indices that the program chooses.
 */
typedef struct vmmc_table vmmc_table;

/**
 * A buffer that waits for a payload by its token, or has it.
 */
typedef struct vmmc_token_buffer vmmc_token_buffer;

/**
 * A transfer under way.
 */
typedef struct vmmc_transfer vmmc_transfer;

/**
 * Called when a transfer is over, by vmmc_continuations_run() or vmmc_continuations_wait(): with
 * VMMC_OK and the bytes moved, or with its error and 0. vmmc_error_message() tells the error in
 * words until the function makes a call that fails. It should not wait, and must not unwind or
 * jump out.
 */
typedef void (*vmmc_continuation)(enum vmmc_status status, uint64_t moved, void *user);

/**
 * Choices for an export.
 */
typedef struct vmmc_export_options {
    /**
     * sizeof (vmmc_export_options).
     */
    size_t size;
    /**
     * Name for importers, 1 to 255 bytes, unique among those of this user on the node; NULL: it is
     * imported by id.
     */
    const char *name;
    /**
     * What importers may be granted: VMMC_READ, VMMC_WRITE, VMMC_ATOMIC; 0: all.
     */
    uint32_t rights;
    /**
     * VMMC_EXPORT_NOTIFY, VMMC_EXPORT_REDIRECTABLE, VMMC_EXPORT_NOT_MAPPABLE.
     */
    uint32_t flags;
    /**
     * Who may import: VMMC_ACCESS_SAME_USER, VMMC_ACCESS_ANYONE, VMMC_ACCESS_USERS.
     */
    uint32_t access;
    /**
     * With VMMC_ACCESS_USERS: how many.
     */
    uint32_t user_count;
    /**
     * With VMMC_ACCESS_USERS: their user ids.
     */
    const uint32_t *users;
} vmmc_export_options;

/**
 * Names a buffer, for one payload. It travels in messages as it is, to whatever machine.
 */
typedef struct vmmc_token {
    /**
     * What they mean is the library's.
     */
    uint8_t bytes[VMMC_TOKEN_BYTES];
} vmmc_token;

/**
 * A message.
 */
typedef struct vmmc_message {
    /**
     * Who sent it: the session with the sender's node, 0 for this node. vmmc_session_node_of()
     * names the node.
     */
    uint32_t sender_session;
    /**
     * The process, in the numbers of its node: vmmc_session_process() there.
     */
    uint32_t sender_process;
    /**
     * Bytes of the control message.
     */
    uint64_t control_len;
    /**
     * The control message.
     */
    uint8_t control[VMMC_CONTROL_MESSAGE_BYTES_MAX];
    /**
     * Bytes of the payload.
     */
    uint64_t payload_len;
    /**
     * The payload, which the caller frees by vmmc_frame_free(); NULL: the message has none in a
     * frame.
     */
    struct vmmc_frame *payload;
    /**
     * Whether a payload was sent by token: VMMC_BY_TOKEN_NONE, VMMC_BY_TOKEN_ARRIVED, or why it
     * was dropped: VMMC_BY_TOKEN_WRONG, VMMC_BY_TOKEN_TOO_LONG, VMMC_BY_TOKEN_USED,
     * VMMC_BY_TOKEN_CANCELLED.
     */
    uint32_t by_token;
    /**
     * By which token.
     */
    struct vmmc_token token;
} vmmc_message;

/**
 * What became of messages and senders of an endpoint.
 */
typedef struct vmmc_endpoint_counts {
    /**
     * Messages taken.
     */
    uint64_t messages;
    /**
     * Senders that were let in.
     */
    uint64_t accepted;
    /**
     * Senders that found no room, or are of another release.
     */
    uint64_t refused;
    /**
     * Senders that were cut off, for what they wrote was no message.
     */
    uint64_t misbehaved;
    /**
     * Senders that are connected now.
     */
    uint64_t senders;
} vmmc_endpoint_counts;

/**
 * Choices for an import.
 */
typedef struct vmmc_import_options {
    /**
     * sizeof (vmmc_import_options).
     */
    size_t size;
    /**
     * Name or `address:port` of the exporting node; NULL: this node.
     */
    const char *node;
    /**
     * VMMC_READ, VMMC_WRITE, VMMC_ATOMIC; 0: read and write.
     */
    uint32_t rights;
    /**
     * VMMC_IMPORT_OWNER or VMMC_IMPORT_ANY_OWNER; neither: a name means an export of this
     * process's own user, or else one of root. And VMMC_IMPORT_OWN_ORDER, or not.
     */
    uint32_t flags;
    /**
     * Wait this long for an export that does not exist yet, microseconds; 0: a missing export is
     * an error at once.
     */
    int64_t wait_us;
    /**
     * With VMMC_IMPORT_OWNER: user id of the exporting process.
     */
    uint32_t owner;
} vmmc_import_options;

/**
 * Memory to send from: `len` bytes of it, from byte `from` on. `{.memory = data, .len = size}` are
 * any bytes.
 *
 * Until a posted send is done leave alone what is VMMC_BUFFER, VMMC_PINNED, VMMC_LENT or
 * VMMC_INDEXED; VMMC_BYTES are copied before the call returns. After VMMC_TIMED_OUT memory that is
 * not copied may still be read.
 */
typedef struct vmmc_source {
    /**
     * VMMC_BYTES, VMMC_BUFFER, VMMC_PINNED, VMMC_LENT, VMMC_INDEXED.
     */
    uint32_t kind;
    /**
     * With VMMC_INDEXED: the entry from whose start `from` counts.
     */
    uint32_t index;
    /**
     * VMMC_BYTES, VMMC_PINNED: the first byte. Others: the vmmc_buffer, vmmc_lent or vmmc_table.
     */
    const void *memory;
    /**
     * First byte to send.
     */
    uint64_t from;
    /**
     * Bytes.
     */
    uint64_t len;
} vmmc_source;

/**
 * What a process moved through an import by copies of its own.
 */
typedef struct vmmc_moved {
    /**
     * Sends.
     */
    uint64_t sends;
    /**
     * Their bytes.
     */
    uint64_t send_bytes;
    /**
     * Fetches.
     */
    uint64_t fetches;
    /**
     * Their bytes.
     */
    uint64_t fetch_bytes;
    /**
     * Atomic operations, counters of sends included.
     */
    uint64_t atomics;
} vmmc_moved;

/**
 * Choices for one send.
 */
typedef struct vmmc_send_options {
    /**
     * sizeof (vmmc_send_options).
     */
    size_t size;
    /**
     * VMMC_SEND_NOTIFY, VMMC_SEND_COUNTER.
     */
    uint32_t flags;
    /**
     * With VMMC_SEND_COUNTER: offset of an aligned 64-bit word of the export.
     */
    uint64_t counter;
    /**
     * Instead of the default timeout, microseconds; 0: the default.
     */
    int64_t timeout_us;
    /**
     * With VMMC_SEND_NOTIFY: what the notification carries.
     */
    uint64_t word;
} vmmc_send_options;

/**
 * Memory to fetch into: `len` bytes of it, from byte `from` on. `{.memory = into, .len = size}`
 * are any bytes.
 *
 * Memory of a posted fetch belongs to it until it is done or freed. After VMMC_TIMED_OUT a
 * VMMC_BUFFER may still be written, and no other memory.
 */
typedef struct vmmc_target {
    /**
     * VMMC_BYTES, VMMC_BUFFER, VMMC_PINNED.
     */
    uint32_t kind;
    /**
     * VMMC_BYTES, VMMC_PINNED: the first byte. VMMC_BUFFER: the vmmc_buffer.
     */
    void *memory;
    /**
     * First byte to fetch into.
     */
    uint64_t from;
    /**
     * Bytes.
     */
    uint64_t len;
} vmmc_target;

/**
 * A change of the set of members.
 */
typedef struct vmmc_change {
    /**
     * Who.
     */
    uint32_t rank;
    /**
     * Its new state; VMMC_MEMBER_RUNNING for one that has joined.
     */
    enum vmmc_member_state state;
} vmmc_change;

/**
 * A part of a job: a node, and how many ranks it gets.
 */
typedef struct vmmc_job_place {
    /**
     * Name or `address:port` of the node; NULL: the launcher's own.
     */
    const char *node;
    /**
     * Ranks there.
     */
    uint32_t ranks;
} vmmc_job_place;

/**
 * What to start, where, and how many.
 */
typedef struct vmmc_launch_options {
    /**
     * sizeof (vmmc_launch_options).
     */
    size_t size;
    /**
     * The program: looked up on PATH unless it contains a slash.
     */
    const char *program;
    /**
     * Its arguments, without its name.
     */
    const char *const *args;
    /**
     * How many.
     */
    size_t arg_count;
    /**
     * Processes on the launcher's own node; 0: one. Not used with `places`.
     */
    uint32_t ranks;
    /**
     * VMMC_LAUNCH_KEEP_GOING, VMMC_LAUNCH_INPUT.
     */
    uint32_t flags;
    /**
     * Nodes, in order of the ranks; NULL: the launcher's own.
     */
    const struct vmmc_job_place *places;
    /**
     * How many.
     */
    size_t place_count;
    /**
     * Name of the launcher's own node; NULL: $VMMC_NODE, else "default".
     */
    const char *node;
    /**
     * Working directory; NULL: that of this process.
     */
    const char *cwd;
    /**
     * Variables beside those of this process, as "NAME=VALUE".
     */
    const char *const *env;
    /**
     * How many.
     */
    size_t env_count;
    /**
     * With VMMC_LAUNCH_INPUT: who gets standard input.
     */
    uint32_t input_rank;
    /**
     * How long nodes may take to come up, microseconds; 0: ten seconds.
     */
    int64_t timeout_us;
} vmmc_launch_options;

/**
 * Something that happened in a job. What it points to is valid until the next call for an event of
 * the same job.
 */
typedef struct vmmc_job_event {
    /**
     * What.
     */
    enum vmmc_event_kind kind;
    /**
     * Whom it is about.
     */
    uint32_t rank;
    /**
     * Process id, or exit code.
     */
    int64_t number;
    /**
     * Why, where there is a reason; never NULL.
     */
    const char *text;
    /**
     * What was printed.
     */
    const void *data;
    /**
     * Its bytes.
     */
    size_t len;
} vmmc_job_event;

/**
 * Data, and where in the export it goes.
 */
typedef struct vmmc_piece {
    /**
     * First byte, in the export.
     */
    uint64_t offset;
    /**
     * The data.
     */
    const void *data;
    /**
     * Bytes.
     */
    size_t len;
} vmmc_piece;

/**
 * A range of an export.
 */
typedef struct vmmc_range {
    /**
     * First byte.
     */
    uint64_t offset;
    /**
     * Bytes.
     */
    uint64_t len;
} vmmc_range;

/**
 * Choices for vmmc_session_attach().
 */
typedef struct vmmc_session_options {
    /**
     * sizeof (vmmc_session_options).
     */
    size_t size;
    /**
     * Name of the node of this user; NULL: $VMMC_NODE, else "default".
     */
    const char *node;
    /**
     * VMMC_SESSION_NO_START.
     */
    uint32_t flags;
    /**
     * Default of all waits of the session, microseconds; 0: five seconds.
     */
    int64_t timeout_us;
} vmmc_session_options;

/**
 * A sender says: data has come.
 */
typedef struct vmmc_notification {
    /**
     * Id of the export that received data.
     */
    uint64_t export_id;
    /**
     * First byte of the transfer, in the export.
     */
    uint64_t offset;
    /**
     * Its bytes.
     */
    uint64_t len;
    /**
     * Its last (up to) eight bytes, little endian, padded with zeros.
     */
    uint64_t last_word;
    /**
     * The word that its sender put in (`word` of vmmc_send_options); else 0.
     */
    uint64_t word;
    /**
     * Who sent it: the session with the sender's node, 0 for this node. vmmc_session_node_of()
     * names the node.
     */
    uint32_t sender_session;
    /**
     * The process, in the numbers of its node: vmmc_session_process() there.
     */
    uint32_t sender_process;
    /**
     * Its import: vmmc_import_id() there.
     */
    uint64_t sender_import;
} vmmc_notification;

/**
 * Called for each notification on a thread of the library. It must not unwind or jump out.
 */
typedef void (*vmmc_notification_handler)(const struct vmmc_notification *notification, void *user);

/**
 * A part of a redirected range.
 */
typedef struct vmmc_part {
    /**
     * First byte, in the export.
     */
    uint64_t offset;
    /**
     * Bytes.
     */
    uint64_t len;
    /**
     * What happened to it.
     */
    enum vmmc_part_state state;
} vmmc_part;

/**
 * A record.
 */
typedef struct vmmc_record {
    /**
     * The word that its sender gave it.
     */
    uint64_t word;
    /**
     * Who appended it: the session with the sender's node, 0 for this node. vmmc_session_node_of()
     * names the node.
     */
    uint32_t sender_session;
    /**
     * The process, in the numbers of its node: vmmc_session_process() there.
     */
    uint32_t sender_process;
    /**
     * Its import: vmmc_import_id() there.
     */
    uint64_t sender_import;
    /**
     * Bytes of data.
     */
    uint64_t len;
    /**
     * The data.
     */
    uint8_t data[VMMC_RECORD_BYTES_MAX];
} vmmc_record;

/**
 * Choices for one append.
 */
typedef struct vmmc_append_options {
    /**
     * sizeof (vmmc_append_options).
     */
    size_t size;
    /**
     * VMMC_APPEND_NOTIFY, VMMC_APPEND_AT_ONCE.
     */
    uint32_t flags;
    /**
     * Stands in the record: a tag, the number of a request.
     */
    uint64_t word;
    /**
     * Instead of the default timeout, microseconds; 0: the default.
     */
    int64_t timeout_us;
} vmmc_append_options;

/**
 * Choices for a client.
 */
typedef struct vmmc_rpc_client_options {
    /**
     * sizeof (vmmc_rpc_client_options).
     */
    size_t size;
    /**
     * Name or `address:port` of the node of the service; NULL: this node.
     */
    const char *node;
    /**
     * How long a call waits for its answer, unless it says otherwise, and the connecting for the
     * service, which need not exist yet; microseconds, 0: the session's timeout.
     */
    int64_t timeout_us;
    /**
     * VMMC_RPC_OWNER; without it, the service of this process's own user, or else of root.
     */
    uint32_t flags;
    /**
     * With VMMC_RPC_OWNER: user id of the server.
     */
    uint32_t owner;
    /**
     * Who may answer, the server and those that it passes calls on to: VMMC_ACCESS_SAME_USER,
     * VMMC_ACCESS_ANYONE, VMMC_ACCESS_USERS.
     */
    uint32_t access;
    /**
     * With VMMC_ACCESS_USERS: how many.
     */
    uint32_t user_count;
    /**
     * With VMMC_ACCESS_USERS: their ids.
     */
    const uint32_t *users;
    /**
     * Frames for results, for each process that answers; 0: 4.
     */
    uint64_t frames;
    /**
     * Bytes of a frame; longer results come in pieces. 0: 16 KiB.
     */
    uint64_t frame_bytes;
    /**
     * Buffers for bulk results. Each is in use from the call until its answer is freed; 0: 8.
     */
    uint64_t bulk_buffers;
    /**
     * Bytes of such a buffer; 0: 64 KiB.
     */
    uint64_t bulk_bytes;
} vmmc_rpc_client_options;

/**
 * A call that is made. Arguments and bulk are used until the call of the library returns; together
 * they have up to 32 MiB.
 */
typedef struct vmmc_rpc_request {
    /**
     * sizeof (vmmc_rpc_request).
     */
    size_t size;
    /**
     * Number of the method, 1 to 65,535.
     */
    uint32_t method;
    /**
     * VMMC_RPC_WANTS_BULK.
     */
    uint32_t flags;
    /**
     * The arguments, in whatever form client and server agree on.
     */
    const void *arguments;
    /**
     * Their bytes.
     */
    size_t arguments_len;
    /**
     * Bulk that goes with them.
     */
    const void *bulk;
    /**
     * Its bytes.
     */
    size_t bulk_len;
    /**
     * How long to wait for the answer, microseconds; 0: as the client's options say.
     */
    int64_t timeout_us;
    /**
     * A region of the client by vmmc_rpc_client_region(): a bulk result is wanted, and lands there
     * and stays there. NULL: VMMC_RPC_WANTS_BULK says whether one is wanted.
     */
    const struct vmmc_rpc_region *region;
    /**
     * First byte of the region for it.
     */
    uint64_t region_from;
    /**
     * Bytes that it can have. From the call until its answer is freed no other call can have any
     * of them.
     */
    uint64_t region_len;
} vmmc_rpc_request;

/**
 * Called once when a call has its answer, with VMMC_OK and the answer, which the function frees by
 * vmmc_rpc_answer_free(), or with its error and NULL; then vmmc_error_message() and
 * vmmc_error_may_have_happened() tell more until the function makes a call that fails. It runs in
 * a call of the client from whatever thread, or on the thread of vmmc_rpc_client_background(); it
 * may call in turn, should not wait, and must not unwind or jump out.
 *
 * It returns true. If it cannot run now, and has changed nothing, and not freed the answer, it
 * returns false: then it is called again later, with the same.
 */
typedef bool (*vmmc_rpc_continuation)(enum vmmc_status status, struct vmmc_rpc_answer *answer, void *user);

/**
 * Choices for a server.
 */
typedef struct vmmc_rpc_server_options {
    /**
     * sizeof (vmmc_rpc_server_options).
     */
    size_t size;
    /**
     * Who may call: VMMC_ACCESS_SAME_USER, VMMC_ACCESS_ANYONE, VMMC_ACCESS_USERS.
     */
    uint32_t access;
    /**
     * With VMMC_ACCESS_USERS: how many.
     */
    uint32_t user_count;
    /**
     * With VMMC_ACCESS_USERS: their ids.
     */
    const uint32_t *users;
    /**
     * Threads that the handler runs on, up to 1,024; 0: it runs on the thread that takes the
     * calls, one call after the other, which is fastest where none of them waits.
     */
    uint32_t threads;
    /**
     * Calls that wait for a thread; further ones get VMMC_SERVER_BUSY. 0: 256.
     */
    uint32_t queue;
    /**
     * Frames for long arguments and bulk, for each client; 0: 4.
     */
    uint64_t frames;
    /**
     * Bytes of a frame; longer arguments come in pieces. 0: 16 KiB.
     */
    uint64_t frame_bytes;
} vmmc_rpc_server_options;

/**
 * What a handler is told of a call. Later releases may add fields at the end.
 */
typedef struct vmmc_rpc_incoming {
    /**
     * Number of the method.
     */
    uint32_t method;
    /**
     * Whether the caller has a buffer for a bulk result.
     */
    bool wants_bulk;
    /**
     * The arguments; valid until the call is answered, passed on or freed. Never NULL.
     */
    const void *arguments;
    /**
     * Their bytes.
     */
    size_t arguments_len;
    /**
     * Bytes of bulk that came with them, which vmmc_rpc_call_read_bulk() copies out.
     */
    uint64_t bulk_len;
    /**
     * Who sent it here, the caller or the server that has passed it on: the session with that
     * one's node, 0 for this node. vmmc_session_node_of() names the node.
     */
    uint32_t sender_session;
    /**
     * The process, in the numbers of its node: vmmc_session_process() there.
     */
    uint32_t sender_process;
    /**
     * When the caller stops waiting, microseconds from now.
     */
    uint64_t left_us;
} vmmc_rpc_incoming;

/**
 * Called for each call, on threads of the library. It answers by vmmc_rpc_call_answer() or one of
 * its kin, or says by vmmc_rpc_call_defer() that it will be answered later; if it returns without
 * either, the caller gets VMMC_NO_ANSWER and the handle is gone. `incoming` is valid until it
 * returns. It must not unwind or jump out.
 */
typedef void (*vmmc_rpc_handler)(struct vmmc_rpc_call *call, const struct vmmc_rpc_incoming *incoming, void *user);

/**
 * What became of the calls of a server. Later releases may add fields at the end: pass sizeof
 * (vmmc_rpc_counts) to vmmc_rpc_server_get_counts().
 */
typedef struct vmmc_rpc_counts {
    /**
     * Calls that a handler has begun.
     */
    uint64_t handled;
    /**
     * Answered with a result.
     */
    uint64_t done;
    /**
     * Answered with a failure, or not at all, or with arguments that made no sense.
     */
    uint64_t failed;
    /**
     * Turned away because the queue was full.
     */
    uint64_t busy;
    /**
     * Whose time was over before a handler began.
     */
    uint64_t late;
    /**
     * Withdrawn before a handler began.
     */
    uint64_t cancelled;
    /**
     * Passed on to another server.
     */
    uint64_t passed_on;
    /**
     * Messages that made no sense.
     */
    uint64_t misbehaved;
} vmmc_rpc_counts;

/**
 * Bounds of a session, for programs that plan.
 */
typedef struct vmmc_limits {
    /**
     * Bytes of a send that travel inside the descriptor.
     */
    uint64_t inline_bytes;
    /**
     * Transfers through the engine that can be outstanding at once; further ones wait.
     */
    uint64_t transfers;
    /**
     * Exports of one process.
     */
    uint64_t exports;
    /**
     * Redirections of one process at once.
     */
    uint64_t redirections;
    /**
     * Threads that run mapped transfers without sharing a lane.
     */
    uint64_t lanes;
    /**
     * Notifications that queue for one export before further ones are counted as lost.
     */
    uint64_t notifications_queued;
    /**
     * Largest export, bytes.
     */
    uint64_t export_bytes;
} vmmc_limits;

/**
 * What a session has done so far. Later releases may add fields at the end: pass sizeof
 * (vmmc_stats) to vmmc_session_stats().
 */
typedef struct vmmc_stats {
    /**
     * Sends by copying into mapped memory.
     */
    uint64_t sends_mapped;
    /**
     * Their bytes.
     */
    uint64_t send_bytes_mapped;
    /**
     * Sends through the engine with the data in the descriptor.
     */
    uint64_t sends_inline;
    /**
     * Sends through the engine by way of staging memory.
     */
    uint64_t sends_staged;
    /**
     * Sends through the engine from registered memory.
     */
    uint64_t sends_registered;
    /**
     * Bytes of all sends through the engine.
     */
    uint64_t send_bytes_engine;
    /**
     * Fetches by copying from mapped memory.
     */
    uint64_t fetches_mapped;
    /**
     * Their bytes.
     */
    uint64_t fetch_bytes_mapped;
    /**
     * Fetches through the engine.
     */
    uint64_t fetches_engine;
    /**
     * Their bytes.
     */
    uint64_t fetch_bytes_engine;
    /**
     * Atomic operations on mapped memory, counters of sends included.
     */
    uint64_t atomics_mapped;
    /**
     * Atomic operations through the engine.
     */
    uint64_t atomics_engine;
    /**
     * Notifications asked for on mapped imports.
     */
    uint64_t notifications_sent;
    /**
     * Of those, the ones that found the ring to the receiver full.
     */
    uint64_t notifications_lost_sending;
    /**
     * Notifications that came.
     */
    uint64_t notifications_received;
    /**
     * Notifications handed to waiters and handlers.
     */
    uint64_t notifications_taken;
    /**
     * Notifications lost on the way to this process because a ring was full.
     */
    uint64_t notifications_lost_in_rings;
    /**
     * Notifications lost in this process because an export's queue was full.
     */
    uint64_t notifications_lost_in_queue;
    /**
     * Notifications for exports that had ended, and those that their sender could not have caused.
     */
    uint64_t notifications_stale;
    /**
     * Waits that blocked in the kernel.
     */
    uint64_t sleeps;
    /**
     * Calls to the node.
     */
    uint64_t calls;
    /**
     * Transfers from and to pinned memory of the caller's.
     */
    uint64_t pin_transfers;
    /**
     * Their pages.
     */
    uint64_t pin_lookups;
    /**
     * Of those, the ones that were not pinned yet.
     */
    uint64_t pin_check_misses;
    /**
     * Pages pinned.
     */
    uint64_t pin_pins;
    /**
     * Pages unpinned.
     */
    uint64_t pin_unpins;
    /**
     * Of those, the ones that a limit forced out.
     */
    uint64_t pin_evictions;
    /**
     * Transfers of whole pages that were copied, because their memory cannot be pinned.
     */
    uint64_t pin_copied;
    /**
     * Pages pinned now.
     */
    uint64_t pinned_pages;
} vmmc_stats;

/**
 * One of the things that vmmc_wait_any() waits for. `{.kind = VMMC_WAIT_RECORD, .ring = inbox}` is
 * a record; what a kind does not name is not looked at.
 */
typedef struct vmmc_wait_for {
    /**
     * VMMC_WAIT_NOTIFICATION, VMMC_WAIT_WORD, VMMC_WAIT_RECORD, VMMC_WAIT_TRANSFER,
     * VMMC_WAIT_REDIRECTION, VMMC_WAIT_READABLE, VMMC_WAIT_WRITABLE, VMMC_WAIT_CONTINUATIONS,
     * VMMC_WAIT_MESSAGE.
     */
    uint32_t kind;
    /**
     * VMMC_WAIT_READABLE, VMMC_WAIT_WRITABLE: the descriptor.
     */
    int fd;
    /**
     * VMMC_WAIT_NOTIFICATION: the export, or NULL for any. VMMC_WAIT_WORD: the export.
     */
    const struct vmmc_export *export_;
    /**
     * VMMC_WAIT_RECORD: the ring.
     */
    const struct vmmc_ring *ring;
    /**
     * VMMC_WAIT_TRANSFER: the transfer.
     */
    const struct vmmc_transfer *transfer;
    /**
     * VMMC_WAIT_REDIRECTION: the redirection.
     */
    const struct vmmc_redirection *redirection;
    /**
     * VMMC_WAIT_CONTINUATIONS: the list.
     */
    const struct vmmc_continuations *continuations;
    /**
     * VMMC_WAIT_MESSAGE: the endpoint.
     */
    const struct vmmc_endpoint *endpoint;
    /**
     * VMMC_WAIT_WORD: place of the word, bytes.
     */
    uint64_t offset;
    /**
     * VMMC_WAIT_WORD: what the word is compared with.
     */
    uint64_t operand;
    /**
     * VMMC_WAIT_WORD: a vmmc_condition.
     */
    uint32_t condition;
} vmmc_wait_for;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Binds an import for automatic update; it must be mapped, with the rights read and write.
 * `combining` lets neighbouring stores be combined on their way to another node, and has no effect
 * within a node.
 */
enum vmmc_status vmmc_binding_create(const struct vmmc_import *import, bool combining, struct vmmc_binding **binding);

/**
 * Frees the binding; do not use its pointer any more.
 */
enum vmmc_status vmmc_binding_free(struct vmmc_binding *binding);

/**
 * The export's memory, valid until vmmc_binding_free(). A store to it is an automatic update;
 * after the end of the export stores reach nobody.
 */
enum vmmc_status vmmc_binding_pointer(const struct vmmc_binding *binding, void **base);

/**
 * Bytes.
 */
enum vmmc_status vmmc_binding_len(const struct vmmc_binding *binding, uint64_t *len);

/**
 * Returns when all stores so far are in the export's memory, or with an error if the export has
 * ended.
 */
enum vmmc_status vmmc_binding_flush(const struct vmmc_binding *binding, int64_t timeout_us);

/**
 * New registered memory of `len` bytes, zeroed.
 */
enum vmmc_status vmmc_buffer_create(const struct vmmc_session *session, uint64_t len, struct vmmc_buffer **buffer);

/**
 * Registers memory that the caller has, in place; what vmmc_export_memory() says about such memory
 * holds here too.
 */
enum vmmc_status vmmc_buffer_memory(const struct vmmc_session *session,
                                    void *base,
                                    size_t len,
                                    struct vmmc_buffer **buffer);

/**
 * Registers the memory of an export, for sends and fetches from and to it without copies. While it
 * exists the export's memory cannot be moved.
 */
enum vmmc_status vmmc_buffer_export(const struct vmmc_session *session,
                                    const struct vmmc_export *export_,
                                    struct vmmc_buffer **buffer);

/**
 * Frees the buffer.
 */
enum vmmc_status vmmc_buffer_free(struct vmmc_buffer *buffer);

/**
 * Bytes.
 */
enum vmmc_status vmmc_buffer_len(const struct vmmc_buffer *buffer, uint64_t *len);

/**
 * Its memory, valid until vmmc_buffer_free().
 */
enum vmmc_status vmmc_buffer_pointer(const struct vmmc_buffer *buffer, void **base);

/**
 * Copies bytes out.
 */
enum vmmc_status vmmc_buffer_read(const struct vmmc_buffer *buffer, uint64_t offset, void *into, size_t len);

/**
 * Copies bytes in.
 */
enum vmmc_status vmmc_buffer_write(const struct vmmc_buffer *buffer, uint64_t offset, const void *data, size_t len);

/**
 * A list of continuations for transfers of this session; empty.
 *
 * One thread at a time runs or waits. While it waits others get VMMC_BUSY, and while functions run
 * others may add.
 */
enum vmmc_status vmmc_continuations_create(const struct vmmc_session *session,
                                           struct vmmc_continuations **continuations);

/**
 * `function` is to be called, once and with `user`, when the transfer is over. A function of the
 * list may call this, and what it adds runs in a later call. VMMC_FOREIGN: the transfer is of
 * another session. VMMC_BUSY: another thread waits for the transfer, or for the list.
 *
 * On VMMC_OK the transfer belongs to the list, and its handle is freed; otherwise it is still the
 * caller's. What it reads and writes stays with it until its function is called.
 */
enum vmmc_status vmmc_continuations_add(const struct vmmc_continuations *continuations,
                                        struct vmmc_transfer *transfer,
                                        vmmc_continuation function,
                                        void *user);

/**
 * Calls the functions of all transfers that are over, in the order in which they were added, and
 * not of what these add; `ran` is how many. Steps an embedded node; never waits. A look when
 * nothing has come costs some loads, however many transfers there are.
 *
 * Not from a function of the same list, which is VMMC_BUSY.
 */
enum vmmc_status vmmc_continuations_run(const struct vmmc_continuations *continuations, size_t *ran);

/**
 * Waits until a transfer is over, and calls functions as vmmc_continuations_run() does; `ran` is 0
 * only if there are no transfers. The death of the node is no error here: all transfers are over
 * then, with one each.
 *
 * To wait for other things too, use VMMC_WAIT_CONTINUATIONS with vmmc_wait_any(), and then call
 * vmmc_continuations_run().
 */
enum vmmc_status vmmc_continuations_wait(const struct vmmc_continuations *continuations,
                                         int64_t timeout_us,
                                         size_t *ran);

/**
 * How many transfers are not over, or have not been found so.
 */
enum vmmc_status vmmc_continuations_len(const struct vmmc_continuations *continuations, size_t *len);

/**
 * Frees the list. Functions that have not run do not run any more, so that what their `user`
 * pointers name is the caller's to free; their transfers end as with vmmc_transfer_free().
 * VMMC_BUSY from a function of the list itself.
 */
enum vmmc_status vmmc_continuations_free(struct vmmc_continuations *continuations);

/**
 * An endpoint. Each sender has `frames` (0 to 64) frames of `frame_bytes` for payloads, a multiple
 * of 8, up to 64 KiB; a longer payload takes several side by side. `name` of `options` must be
 * there, and `access` with its users counts, VMMC_EXPORT_NOTIFY and VMMC_EXPORT_NOT_MAPPABLE. With
 * the first it has a descriptor, vmmc_endpoint_event_fd(). With the second senders of this node go
 * through the node, which then lets none of them write more than it may. The rest must be 0.
 */
enum vmmc_status vmmc_endpoint_create(const struct vmmc_session *session,
                                      uint64_t frames,
                                      uint64_t frame_bytes,
                                      const struct vmmc_export_options *options,
                                      struct vmmc_endpoint **endpoint);

/**
 * An endpoint as of vmmc_endpoint_create(), with `tokens` buffers, 1 to 4,096, of `token_bytes`
 * for payloads by token; see vmmc_endpoint_token_buffer().
 */
enum vmmc_status vmmc_endpoint_create_with_tokens(const struct vmmc_session *session,
                                                  uint64_t frames,
                                                  uint64_t frame_bytes,
                                                  uint64_t tokens,
                                                  uint64_t token_bytes,
                                                  const struct vmmc_export_options *options,
                                                  struct vmmc_endpoint **endpoint);

/**
 * The next message, if there is one, else VMMC_AGAIN; lets in senders that have asked. Senders
 * take turns.
 */
enum vmmc_status vmmc_endpoint_poll(const struct vmmc_endpoint *endpoint, struct vmmc_message *message);

/**
 * The next message; waits for one, and lets in senders meanwhile.
 */
enum vmmc_status vmmc_endpoint_wait(const struct vmmc_endpoint *endpoint,
                                    int64_t timeout_us,
                                    struct vmmc_message *message);

/**
 * A descriptor for event loops of an endpoint made with VMMC_EXPORT_NOTIFY: readable when
 * vmmc_endpoint_poll() may have something, and for ever when the node has gone. Poll until there
 * is nothing more. It is valid until the endpoint is freed; do not read or close it.
 */
enum vmmc_status vmmc_endpoint_event_fd(const struct vmmc_endpoint *endpoint, int *fd);

/**
 * What became of messages and senders so far.
 */
enum vmmc_status vmmc_endpoint_get_counts(const struct vmmc_endpoint *endpoint, struct vmmc_endpoint_counts *counts);

/**
 * Ends the endpoint and its connections; what was not taken is gone. Frames stay until they are
 * freed.
 */
enum vmmc_status vmmc_endpoint_free(struct vmmc_endpoint *endpoint);

/**
 * Copies `len` bytes at `offset` of a payload out.
 */
enum vmmc_status vmmc_frame_read(const struct vmmc_frame *frame, uint64_t offset, void *into, size_t len);

/**
 * Gives a payload's memory back to its sender.
 */
enum vmmc_status vmmc_frame_free(struct vmmc_frame *frame);

/**
 * Connects to the endpoint of this name, whose owner has to poll or wait meanwhile. Of `options`,
 * which may be NULL, `node`, `wait_us` and VMMC_IMPORT_OWNER with `owner` count; the rest must be
 * 0. `wait_us` is the time for all, also for an endpoint that does not exist yet.
 */
enum vmmc_status vmmc_connection_open(const struct vmmc_session *session,
                                      const char *endpoint,
                                      const struct vmmc_import_options *options,
                                      struct vmmc_connection **connection);

/**
 * Sends a control message of up to VMMC_CONTROL_MESSAGE_BYTES_MAX bytes, and a payload of up to
 * vmmc_connection_payload_max() (0: none). Waits for room; VMMC_FULL: there was none in time, and
 * nothing was sent. A payload that is longer than a frame waits for several side by side, which
 * shorter ones then leave alone. Messages of a connection come in the order of these calls, each
 * behind its payload. On return both may be reused.
 */
enum vmmc_status vmmc_connection_send(const struct vmmc_connection *connection,
                                      const void *control,
                                      size_t control_len,
                                      const void *payload,
                                      size_t payload_len,
                                      int64_t timeout_us);

/**
 * vmmc_connection_send() of a payload from any kind of memory: `count` sources, one after the
 * other. On return they may be changed. VMMC_OUT_OF_BOUNDS: a source reaches past its memory, and
 * nothing was sent.
 */
enum vmmc_status vmmc_connection_send_from(const struct vmmc_connection *connection,
                                           const void *control,
                                           size_t control_len,
                                           const struct vmmc_source *sources_,
                                           size_t count,
                                           int64_t timeout_us);

/**
 * Bytes of payload that one message can have: of all frames together.
 */
enum vmmc_status vmmc_connection_payload_max(const struct vmmc_connection *connection, uint64_t *bytes);

/**
 * Messages sent that the owner has not taken yet, by what it says now; between nodes it is asked,
 * which takes a round trip.
 */
enum vmmc_status vmmc_connection_outstanding(const struct vmmc_connection *connection,
                                             int64_t timeout_us,
                                             uint64_t *messages);

/**
 * VMMC_OK, or what every send would end with because the connection is broken: the owner has ended
 * the endpoint (VMMC_REVOKED), or died, or its node has.
 */
enum vmmc_status vmmc_connection_check(const struct vmmc_connection *connection);

/**
 * Waits until all that was sent is visible to the owner, who may not have taken it yet.
 */
enum vmmc_status vmmc_connection_flush(const struct vmmc_connection *connection, int64_t timeout_us);

/**
 * Ends a connection. What it has sent is taken.
 */
enum vmmc_status vmmc_connection_free(struct vmmc_connection *connection);

/**
 * Exports new memory of `len` bytes, zeroed and reserved. It starts on a page, so importers of
 * this node can map it. `options` may be NULL.
 */
enum vmmc_status vmmc_export_create(const struct vmmc_session *session,
                                    uint64_t len,
                                    const struct vmmc_export_options *options,
                                    struct vmmc_export **export_);

/**
 * Exports memory that the caller has, in place: private, writable, anonymous memory (heap or
 * private mmap), `len` bytes from `base`.
 *
 * It costs one copy of the range's pages now and one at the end. Unless the range covers whole
 * pages, importers of this node go through the engine, and other threads must not write to its
 * first and last page while this call and the end of the export run, because other objects on them
 * move along. The memory stays allocated until the export and all buffers of it are freed.
 */
enum vmmc_status vmmc_export_memory(const struct vmmc_session *session,
                                    void *base,
                                    size_t len,
                                    const struct vmmc_export_options *options,
                                    struct vmmc_export **export_);

/**
 * Exports the memory of a buffer; they share it. Importers of this node map that of a buffer made
 * by vmmc_buffer_create(); others, which may share pages, they reach through the engine.
 */
enum vmmc_status vmmc_export_buffer(const struct vmmc_session *session,
                                    const struct vmmc_buffer *buffer,
                                    const struct vmmc_export_options *options,
                                    struct vmmc_export **export_);

/**
 * Frees the export, which ends it, as vmmc_export_unexport() would. Its memory goes too, unless
 * the caller gave it: do not use its pointer any more.
 */
enum vmmc_status vmmc_export_free(struct vmmc_export *export_);

/**
 * Ends the export. After VMMC_OK no further byte arrives from anybody who uses the library; with
 * `moving` the content is moved onto other pages at the same address, so that nobody at all can
 * reach it. The memory remains until vmmc_export_free(); all other calls on the handle then fail.
 * VMMC_BUSY: a call of another thread still uses the export.
 */
enum vmmc_status vmmc_export_unexport(const struct vmmc_export *export_, bool moving, enum vmmc_revocation *revocation);

/**
 * Id for importers.
 */
enum vmmc_status vmmc_export_id(const struct vmmc_export *export_, uint64_t *id);

/**
 * Name for importers, NULL if it has none; free it with vmmc_string_free().
 */
enum vmmc_status vmmc_export_name(const struct vmmc_export *export_, char **name);

/**
 * Bytes.
 */
enum vmmc_status vmmc_export_len(const struct vmmc_export *export_, uint64_t *len);

/**
 * Its memory, valid until vmmc_export_free(). Importers write it at any time: use volatile or
 * atomic accesses for what they may be writing.
 */
enum vmmc_status vmmc_export_pointer(const struct vmmc_export *export_, void **base);

/**
 * Copies bytes out.
 */
enum vmmc_status vmmc_export_read(const struct vmmc_export *export_, uint64_t offset, void *into, size_t len);

/**
 * Copies bytes in; the last one becomes visible last.
 */
enum vmmc_status vmmc_export_write(const struct vmmc_export *export_, uint64_t offset, const void *data, size_t len);

/**
 * Loads an aligned 64-bit word. What was sent before that word by the same process is then
 * visible.
 */
enum vmmc_status vmmc_export_load(const struct vmmc_export *export_, uint64_t offset, uint64_t *value);

/**
 * Stores an aligned 64-bit word, after all that this thread stored before.
 */
enum vmmc_status vmmc_export_store(const struct vmmc_export *export_, uint64_t offset, uint64_t value);

/**
 * Waits until an aligned 64-bit word satisfies a condition against `operand`; gives its value.
 * `condition` is a vmmc_condition. Everything sent before that word by the same process is then
 * visible. It sleeps in the kernel, and is woken by sends and atomic operations of processes of
 * this node, and by the node for up to 4 KiB that comes from another one; other stores it finds
 * within 1 ms.
 */
enum vmmc_status vmmc_export_wait_word(const struct vmmc_export *export_,
                                       uint64_t offset,
                                       uint32_t condition,
                                       uint64_t operand,
                                       int64_t timeout_us,
                                       uint64_t *value);

/**
 * What went wrong last in this thread, in words: the thing, the numbers and the next step. Never
 * NULL; empty if nothing did. The string is valid until the next call of this library fails in
 * this thread.
 */
const char *vmmc_error_message(void);

/**
 * Whether the remote call that failed last in this thread may have been carried out all the same,
 * so that to call again might do it twice. False if what failed last was no remote call.
 */
bool vmmc_error_may_have_happened(void);

/**
 * Imports an export by its name. `options` may be NULL.
 */
enum vmmc_status vmmc_import_open(const struct vmmc_session *session,
                                  const char *name,
                                  const struct vmmc_import_options *options,
                                  struct vmmc_import **import);

/**
 * Imports an export by its id. `options` may be NULL.
 */
enum vmmc_status vmmc_import_open_id(const struct vmmc_session *session,
                                     uint64_t id,
                                     const struct vmmc_import_options *options,
                                     struct vmmc_import **import);

/**
 * Frees the import, after its posted sends have arrived (or one second). A mapping of it stays
 * until its bindings are freed too.
 */
enum vmmc_status vmmc_import_free(struct vmmc_import *import);

/**
 * What this process moved through it by copies of its own; nothing if it is not mapped.
 * docs/counters.md says what is not counted.
 */
enum vmmc_status vmmc_import_moved(const struct vmmc_import *import, struct vmmc_moved *moved);

/**
 * Bytes.
 */
enum vmmc_status vmmc_import_len(const struct vmmc_import *import, uint64_t *len);

/**
 * Rights granted: VMMC_READ, VMMC_WRITE, VMMC_ATOMIC.
 */
enum vmmc_status vmmc_import_rights(const struct vmmc_import *import, uint32_t *rights);

/**
 * Id of the import in this process: what a receiver finds in `sender_import` of a notification.
 */
enum vmmc_status vmmc_import_id(const struct vmmc_import *import, uint64_t *id);

/**
 * Id of the export behind it.
 */
enum vmmc_status vmmc_import_export_id(const struct vmmc_import *import, uint64_t *id);

/**
 * User id of the exporting process, as its node says.
 */
enum vmmc_status vmmc_import_owner(const struct vmmc_import *import, uint32_t *uid);

/**
 * Name of the exporting node; free it with vmmc_string_free().
 */
enum vmmc_status vmmc_import_node(const struct vmmc_import *import, char **node);

/**
 * Which path its transfers take.
 */
enum vmmc_status vmmc_import_path(const struct vmmc_import *import, enum vmmc_path *path);

/**
 * Which path its transfers take, and why not a better one: a paragraph for people, or JSON. Free
 * it with vmmc_string_free().
 */
enum vmmc_status vmmc_import_explain(const struct vmmc_import *import, bool json, char **text);

/**
 * VMMC_OK while it can be used; else the error that every transfer through it would get.
 */
enum vmmc_status vmmc_import_check(const struct vmmc_import *import);

/**
 * The mapped memory for plain loads, if the path is VMMC_PATH_MAPPED and the import may read;
 * valid until the import and its bindings are freed, also after the end of the export. For stores
 * use vmmc_binding_pointer().
 */
enum vmmc_status vmmc_import_pointer(const struct vmmc_import *import, const void **base);

/**
 * Deliberate update: copies `len` bytes to the export, any alignment, any length. The data may be
 * reused on return.
 *
 * On a mapped import the data is in the receiver's memory on return. Otherwise it is on its way:
 * vmmc_import_flush() waits for it, and should come before the process ends. Sends of one process
 * to one export appear in order, the last bytes of each last.
 */
enum vmmc_status vmmc_import_send(const struct vmmc_import *import, uint64_t offset, const void *data, size_t len);

/**
 * vmmc_import_send() from any kind of memory and with choices: sends `count` sources, one after
 * the other to consecutive places from `offset` on; returns when they may be changed. A
 * notification tells of the whole, and comes after it, as a counter does. After an error in the
 * middle of several sources some of them may have been sent. `options` may be NULL.
 */
enum vmmc_status vmmc_import_send_with(const struct vmmc_import *import,
                                       uint64_t offset,
                                       const struct vmmc_source *sources,
                                       size_t count,
                                       const struct vmmc_send_options *options);

/**
 * Remote fetch into any memory. Sees what this process sent to the same node before. On failure
 * the memory may have been written in part.
 */
enum vmmc_status vmmc_import_fetch(const struct vmmc_import *import, uint64_t offset, void *into, size_t len);

/**
 * vmmc_import_fetch() into any kind of memory: fetches consecutive bytes from `offset` on into
 * `count` targets, which must not overlap. On failure they may have been written in part.
 */
enum vmmc_status vmmc_import_fetch_into(const struct vmmc_import *import,
                                        uint64_t offset,
                                        const struct vmmc_target *targets,
                                        size_t count);

/**
 * Adds to an aligned 64-bit word of the export; gives the old value. Needs the right VMMC_ATOMIC,
 * which an import has only if its options ask for it: `rights = VMMC_READ | VMMC_WRITE |
 * VMMC_ATOMIC`.
 */
enum vmmc_status vmmc_import_fetch_add(const struct vmmc_import *import,
                                       uint64_t offset,
                                       uint64_t value,
                                       uint64_t *old);

/**
 * Stores `desired` in an aligned 64-bit word of the export if it is `expected`; gives the old
 * value. Needs the right VMMC_ATOMIC, which an import has only if its options ask for it:
 * `rights = VMMC_READ | VMMC_WRITE | VMMC_ATOMIC`.
 */
enum vmmc_status vmmc_import_compare_swap(const struct vmmc_import *import,
                                          uint64_t offset,
                                          uint64_t expected,
                                          uint64_t desired,
                                          uint64_t *old);

/**
 * Stores a value in an aligned 64-bit word of the export; gives the old value. Needs the right
 * VMMC_ATOMIC, which an import has only if its options ask for it: `rights = VMMC_READ |
 * VMMC_WRITE | VMMC_ATOMIC`.
 */
enum vmmc_status vmmc_import_swap(const struct vmmc_import *import, uint64_t offset, uint64_t value, uint64_t *old);

/**
 * Returns when all that this process sent before to the export's node is in memory there, or with
 * the error of an earlier send that failed after it had returned.
 */
enum vmmc_status vmmc_import_flush(const struct vmmc_import *import, int64_t timeout_us);

/**
 * Joins the job that this process was started for. VMMC_NO_JOB when it was not started as part of
 * one.
 */
enum vmmc_status vmmc_job_attach(struct vmmc_job **job);

/**
 * Frees the job. Its session stays as long as handles made with it.
 */
enum vmmc_status vmmc_job_free(struct vmmc_job *job);

/**
 * Number of this process in the job.
 */
enum vmmc_status vmmc_job_rank(const struct vmmc_job *job, uint32_t *rank);

/**
 * Ranks of the job as of the last vmmc_job_changes(), those that have gone included: ranks are
 * never used twice.
 */
enum vmmc_status vmmc_job_size(const struct vmmc_job *job, uint32_t *size);

/**
 * Id of the job; free it with vmmc_string_free().
 */
enum vmmc_status vmmc_job_id(const struct vmmc_job *job, char **id);

/**
 * The session that the job uses, as a handle of its own, to be freed with vmmc_session_free().
 */
enum vmmc_status vmmc_job_session(const struct vmmc_job *job, struct vmmc_session **session);

/**
 * Name of the node of a rank; free it with vmmc_string_free().
 */
enum vmmc_status vmmc_job_node_of(const struct vmmc_job *job, uint32_t rank, char **node);

/**
 * State of a rank, as of the last vmmc_job_changes().
 */
enum vmmc_status vmmc_job_state_of(const struct vmmc_job *job, uint32_t rank, enum vmmc_member_state *state);

/**
 * Ranks that run, as of the last vmmc_job_changes(): up to `capacity` of them; `count` is how many
 * there are, which may be more.
 */
enum vmmc_status vmmc_job_members(const struct vmmc_job *job, uint32_t *ranks, size_t capacity, size_t *count);

/**
 * The full name of an export of a rank, for exports that are made in other ways than
 * vmmc_job_export(); free it with vmmc_string_free().
 */
enum vmmc_status vmmc_job_name_of(const struct vmmc_job *job, uint32_t rank, const char *name, char **full);

/**
 * Exports new memory under a name of this rank; others reach it with vmmc_job_import(). `name` in
 * `options` must be NULL; `options` may be.
 */
enum vmmc_status vmmc_job_export(const struct vmmc_job *job,
                                 const char *name,
                                 uint64_t len,
                                 const struct vmmc_export_options *options,
                                 struct vmmc_export **export_);

/**
 * Imports what a rank has exported under a name. It waits for the export to appear, by default as
 * long as the session's timeout. `node` in `options` must be NULL; `options` may be.
 */
enum vmmc_status vmmc_job_import(const struct vmmc_job *job,
                                 uint32_t rank,
                                 const char *name,
                                 const struct vmmc_import_options *options,
                                 struct vmmc_import **import);

/**
 * Waits until all members are here. VMMC_MEMBERS_CHANGED when one that is needed has gone.
 */
enum vmmc_status vmmc_job_barrier(const struct vmmc_job *job, int64_t timeout_us);

/**
 * Gives every member the (short) values of all, in order of vmmc_job_members(): the i-th goes to
 * `values` + i * `stride`, its length to the i-th of `lens`. VMMC_OUT_OF_BOUNDS when `capacity`
 * values of `stride` bytes have no room for them.
 */
enum vmmc_status vmmc_job_allgather(const struct vmmc_job *job,
                                    const void *value,
                                    size_t len,
                                    void *values,
                                    size_t stride,
                                    size_t *lens,
                                    size_t capacity,
                                    int64_t timeout_us,
                                    size_t *count);

/**
 * What has changed among the members since the last call; waits for a change up to the timeout,
 * and gives none when it has passed. From then on collective calls run over the members as they
 * are. Up to `capacity` changes are given; call again when `count` is `capacity`.
 */
enum vmmc_status vmmc_job_changes(const struct vmmc_job *job,
                                  int64_t timeout_us,
                                  struct vmmc_change *changes,
                                  size_t capacity,
                                  size_t *count);

/**
 * A descriptor for event loops (poll, epoll): readable when vmmc_job_changes() may have something,
 * until that is called. Only wait for it to be readable; do not read or close it. It is valid as
 * long as the job.
 */
enum vmmc_status vmmc_job_changes_fd(const struct vmmc_job *job, int *fd);

/**
 * Says goodbye: the others are told, and however this process ends from now on is no failure of
 * the job. Collective calls are over for it.
 */
enum vmmc_status vmmc_job_leave(const struct vmmc_job *job);

/**
 * Asks for more ranks of the same program; they join as soon as the launcher has started them,
 * which vmmc_job_changes() tells.
 */
enum vmmc_status vmmc_job_grow(const struct vmmc_job *job, uint32_t ranks);

/**
 * Starts a job. Whether the program was found is told later, by VMMC_EVENT_NOT_STARTED.
 */
enum vmmc_status vmmc_job_launch(const struct vmmc_launch_options *options, struct vmmc_launched **launched);

/**
 * The next event; VMMC_AGAIN when the time has passed, and after VMMC_EVENT_ENDED.
 */
enum vmmc_status vmmc_launched_next_event(const struct vmmc_launched *launched,
                                          int64_t timeout_us,
                                          struct vmmc_job_event *event);

/**
 * Gives a rank bytes on its standard input; `taken` says how many were taken. The others have to
 * wait until the rank reads.
 */
enum vmmc_status vmmc_launched_write_input(const struct vmmc_launched *launched,
                                           uint32_t rank,
                                           const void *data,
                                           size_t len,
                                           size_t *taken);

/**
 * Ends the standard input of a rank.
 */
enum vmmc_status vmmc_launched_close_input(const struct vmmc_launched *launched, uint32_t rank);

/**
 * Sends a signal to all ranks.
 */
enum vmmc_status vmmc_launched_signal(const struct vmmc_launched *launched, int signal);

/**
 * Ends the job: SIGTERM, and SIGKILL a second later; `at_once`: SIGKILL now. VMMC_EVENT_ENDED
 * tells when it is done.
 */
enum vmmc_status vmmc_launched_end(const struct vmmc_launched *launched, bool at_once);

/**
 * Adds ranks on the nodes that have the fewest; `added` says how many.
 */
enum vmmc_status vmmc_launched_grow(const struct vmmc_launched *launched, uint32_t ranks, size_t *added);

/**
 * Frees the job, which ends it if it runs.
 */
enum vmmc_status vmmc_launched_free(struct vmmc_launched *launched);

/**
 * Sends `count` pieces, up to 1,024, each to its own place in the export, in one operation. The
 * data may be reused on return. A notification tells of all, from the first byte of any to the end
 * of the last, and comes after them, as a counter does. `options` may be NULL.
 */
enum vmmc_status vmmc_import_gather_send(const struct vmmc_import *import,
                                         const struct vmmc_piece *pieces_,
                                         size_t count,
                                         const struct vmmc_send_options *options);

/**
 * Posts a gather-send: does not wait. The data may be reused on return. The transfer is done when
 * all has arrived. `options` may be NULL.
 */
enum vmmc_status vmmc_import_post_gather_send(const struct vmmc_import *import,
                                              const struct vmmc_piece *pieces_,
                                              size_t count,
                                              const struct vmmc_send_options *options,
                                              struct vmmc_transfer **transfer);

/**
 * Fetches several ranges of the export into consecutive bytes, as far as both reach.
 */
enum vmmc_status vmmc_import_fetch_gather(const struct vmmc_import *import,
                                          const struct vmmc_range *ranges_,
                                          size_t count,
                                          void *into,
                                          size_t len);

/**
 * Frees a string that a call of this library gave. NULL is nothing.
 */
enum vmmc_status vmmc_string_free(char *text);

/**
 * Starts a node inside this process, which runs while callers wait. `options` are `count` strings
 * as those of `vmmc node run`: "--name", "a", "--listen", "127.0.0.1:0", "--peer",
 * "ADDRESS,ADDRESS", "--key-file", "FILE", "--plain", "--peer-timeout-ms", "N".
 */
enum vmmc_status vmmc_node_start(const char *const *options, size_t count, struct vmmc_node **node);

/**
 * Attaches this process to its embedded node. `node` in `options` has no effect; `options` may be
 * NULL.
 */
enum vmmc_status vmmc_node_attach(const struct vmmc_node *node,
                                  const struct vmmc_session_options *options,
                                  struct vmmc_session **session);

/**
 * UDP addresses that the node listens on, separated by commas, as `--peer` of another node takes
 * them; free the string with vmmc_string_free().
 */
enum vmmc_status vmmc_node_addresses(const struct vmmc_node *node, char **addresses);

/**
 * Frees the node, which ends it once the last session attached to it has ended.
 */
enum vmmc_status vmmc_node_free(struct vmmc_node *node);

/**
 * Runs a node in this process until it is told to stop (SIGTERM, SIGINT, `vmmc node stop`), with
 * `options` as for vmmc_node_start() and "--linger-s", "N" and "--detach". A program that calls it
 * can serve as $VMMC_BIN: it is then called as `PROGRAM node start OPTIONS`, for which there is
 * vmmc_node_start_daemon(), and as `PROGRAM node run OPTIONS`.
 */
enum vmmc_status vmmc_node_run(const char *const *options, size_t count);

/**
 * Starts a node in the background by running this program again as `PROGRAM node run OPTIONS`, for
 * which the program calls vmmc_node_run(). Returns when processes can attach.
 */
enum vmmc_status vmmc_node_start_daemon(const char *const *options, size_t count);

/**
 * The next notification of any export that has no handler of its own.
 */
enum vmmc_status vmmc_session_wait_notification(const struct vmmc_session *session,
                                                int64_t timeout_us,
                                                struct vmmc_notification *notification);

/**
 * A notification if one is there, else VMMC_AGAIN. With vmmc_session_event_fd(): call it until
 * VMMC_AGAIN, then sleep.
 */
enum vmmc_status vmmc_session_take_notification(const struct vmmc_session *session,
                                                struct vmmc_notification *notification);

/**
 * Runs a handler on a thread of its own for every notification of exports without their own
 * handler, until vmmc_handler_free(). `user` is passed to it.
 */
enum vmmc_status vmmc_session_on_notification(const struct vmmc_session *session,
                                              vmmc_notification_handler function,
                                              void *user,
                                              struct vmmc_handler **handler_);

/**
 * Blocks or unblocks the notifications of all exports: blocked ones queue up.
 */
enum vmmc_status vmmc_session_block_notifications(const struct vmmc_session *session, bool blocked);

/**
 * The next notification of this export, which must allow them (VMMC_EXPORT_NOTIFY).
 */
enum vmmc_status vmmc_export_wait_notification(const struct vmmc_export *export_,
                                               int64_t timeout_us,
                                               struct vmmc_notification *notification);

/**
 * A notification of this export if one is there, else VMMC_AGAIN.
 */
enum vmmc_status vmmc_export_take_notification(const struct vmmc_export *export_,
                                               struct vmmc_notification *notification);

/**
 * Runs a handler on a thread of its own for every notification of this export, which other takers
 * then no longer see, until vmmc_handler_free().
 */
enum vmmc_status vmmc_export_on_notification(const struct vmmc_export *export_,
                                             vmmc_notification_handler function,
                                             void *user,
                                             struct vmmc_handler **handler_);

/**
 * Blocks or unblocks the notifications of this export: blocked ones queue up.
 */
enum vmmc_status vmmc_export_block_notifications(const struct vmmc_export *export_, bool blocked);

/**
 * Ends a handler, after the call it is in. From inside of the handler itself it returns at once,
 * and the handler is not called again.
 */
enum vmmc_status vmmc_handler_free(struct vmmc_handler *handler_);

/**
 * Lends memory: it stays mapped, and where it is, until vmmc_lent_free(). Sends from it ask nobody
 * whether it has been unmapped. Nothing is pinned before it is used.
 */
enum vmmc_status vmmc_session_lend(const struct vmmc_session *session,
                                   const void *memory,
                                   size_t len,
                                   struct vmmc_lent **lent);

/**
 * Ends the lending. Memory that stands in a table must stay until it is taken out of it, or the
 * table is freed.
 */
enum vmmc_status vmmc_lent_free(struct vmmc_lent *lent);

/**
 * A table of so many translations, a page each, that the program places itself.
 */
enum vmmc_status vmmc_table_create(const struct vmmc_session *session, uint32_t entries, struct vmmc_table **table);

/**
 * Pins lent memory, which must be whole pages, and writes its translations into the entries from
 * `index` on. What stood there goes. The memory stays in place until it is taken out again or the
 * table is freed. VMMC_BUSY while a send from the table is under way.
 */
enum vmmc_status vmmc_table_place(const struct vmmc_table *table, uint32_t index, const struct vmmc_lent *lent);

/**
 * Empties `count` entries from `index` on. VMMC_BUSY while a send from the table is under way.
 */
enum vmmc_status vmmc_table_remove(const struct vmmc_table *table, uint32_t index, size_t count);

/**
 * Frees a table: nothing stands in it any more.
 */
enum vmmc_status vmmc_table_free(struct vmmc_table *table);

/**
 * Posts another destination for data that comes to a range of this export, which must be
 * redirectable (VMMC_EXPORT_REDIRECTABLE). What has come already is copied now; the rest goes
 * straight to the buffer. Until it is complete or cancelled the buffer's range belongs to the
 * redirection.
 */
enum vmmc_status vmmc_export_redirect(const struct vmmc_export *export_,
                                      uint64_t offset,
                                      uint64_t len,
                                      const struct vmmc_buffer *buffer,
                                      uint64_t buffer_offset,
                                      struct vmmc_redirection **redirection);

/**
 * As vmmc_export_redirect(), but does not wait for the node: to post thousands of receive buffers
 * ahead, one call behind the other. What only the node can find wrong is told by
 * vmmc_redirection_wait() and vmmc_redirection_report().
 */
enum vmmc_status vmmc_export_post_redirect(const struct vmmc_export *export_,
                                           uint64_t offset,
                                           uint64_t len,
                                           const struct vmmc_buffer *buffer,
                                           uint64_t buffer_offset,
                                           struct vmmc_redirection **redirection);

/**
 * The data in this range of a redirectable export has been used; the next arrival counts as new.
 */
enum vmmc_status vmmc_export_consume(const struct vmmc_export *export_, uint64_t offset, uint64_t len);

/**
 * What has happened so far: up to `capacity` parts in order of their offsets; `count` is how many
 * there are, which may be more.
 */
enum vmmc_status vmmc_redirection_report(const struct vmmc_redirection *redirection,
                                         struct vmmc_part *parts,
                                         size_t capacity,
                                         size_t *count);

/**
 * Waits until all bytes have come; tells the parts as vmmc_redirection_report() does.
 */
enum vmmc_status vmmc_redirection_wait(const struct vmmc_redirection *redirection,
                                       int64_t timeout_us,
                                       struct vmmc_part *parts,
                                       size_t capacity,
                                       size_t *count);

/**
 * Ends it: data that has not come goes to the export again. Tells what has happened until then as
 * vmmc_redirection_report() does.
 */
enum vmmc_status vmmc_redirection_cancel(const struct vmmc_redirection *redirection,
                                         struct vmmc_part *parts,
                                         size_t capacity,
                                         size_t *count);

/**
 * Frees the redirection, which cancels it if it is not complete.
 */
enum vmmc_status vmmc_redirection_free(struct vmmc_redirection *redirection);

/**
 * A ring for `bytes` of records, each with 32 bytes beside its data: 8 KiB to 4 MiB, a multiple of
 * 8. Importers need VMMC_WRITE alone, and append. Of `options`, which may be NULL, `name`,
 * `access` with its users, and VMMC_EXPORT_NOTIFY count; the rest must be 0.
 */
enum vmmc_status vmmc_ring_create(const struct vmmc_session *session,
                                  uint64_t bytes,
                                  const struct vmmc_export_options *options,
                                  struct vmmc_ring **ring);

/**
 * Its id as an export, for importers.
 */
enum vmmc_status vmmc_ring_id(const struct vmmc_ring *ring, uint64_t *id);

/**
 * The oldest record, which makes room for others; VMMC_AGAIN if there is none.
 */
enum vmmc_status vmmc_ring_take(const struct vmmc_ring *ring, struct vmmc_record *record);

/**
 * The oldest record; waits for one.
 */
enum vmmc_status vmmc_ring_wait(const struct vmmc_ring *ring, int64_t timeout_us, struct vmmc_record *record);

/**
 * Ends the ring: importers are told, and what was not taken is gone.
 */
enum vmmc_status vmmc_ring_free(struct vmmc_ring *ring);

/**
 * Appends a record of up to VMMC_RECORD_BYTES_MAX bytes to a ring, and waits until it is there; as
 * long as the ring has no room, tries again. VMMC_FULL: there was none in time. Records of one
 * import come in the order of its appends. `options` may be NULL.
 */
enum vmmc_status vmmc_import_append(const struct vmmc_import *import,
                                    const void *data,
                                    size_t len,
                                    const struct vmmc_append_options *options);

/**
 * Posts an append: does not wait, and tries once. The data may be reused on return. When one finds
 * no room, those posted behind it find none either, until vmmc_transfer_wait() or
 * vmmc_transfer_poll() has said so, or the transfer is freed. `options` may be NULL.
 */
enum vmmc_status vmmc_import_post_append(const struct vmmc_import *import,
                                         const void *data,
                                         size_t len,
                                         const struct vmmc_append_options *options,
                                         struct vmmc_transfer **transfer);

/**
 * Connects to the service of this name, whose server has to run meanwhile. `options` may be NULL.
 * VMMC_TIMED_OUT: the server did not answer. VMMC_VERSION: it is of another release.
 */
enum vmmc_status vmmc_rpc_client_connect(const struct vmmc_session *session,
                                         const char *service,
                                         const struct vmmc_rpc_client_options *options,
                                         struct vmmc_rpc_client **client);

/**
 * A region of `bytes` bytes for bulk results of up to `calls` calls at a time (`region` of
 * vmmc_rpc_request), which stay there: nothing is copied, and no buffer of the client is used. Its
 * memory is vmmc_rpc_region_buffer(). Whoever may answer and is of this node can write all of it.
 * A client has up to 64 regions.
 */
enum vmmc_status vmmc_rpc_client_region(const struct vmmc_rpc_client *client,
                                        uint64_t calls,
                                        uint64_t bytes,
                                        struct vmmc_rpc_region **region);

/**
 * The memory of a region: to read, to send from, to answer from, to export. The buffer stays when
 * the region is freed.
 */
enum vmmc_status vmmc_rpc_region_buffer(const struct vmmc_rpc_region *region, struct vmmc_buffer **buffer);

/**
 * Frees a region; it ends when the answers in it are freed too.
 */
enum vmmc_status vmmc_rpc_region_free(struct vmmc_rpc_region *region);

/**
 * Calls a method, and waits for the answer, which the caller frees by vmmc_rpc_answer_free().
 * After an error vmmc_error_may_have_happened() tells whether the call may have been carried out
 * all the same.
 */
enum vmmc_status vmmc_rpc_client_call(const struct vmmc_rpc_client *client,
                                      const struct vmmc_rpc_request *request_,
                                      struct vmmc_rpc_answer **answer);

/**
 * Calls a method, and does not wait: vmmc_rpc_pending_poll() and vmmc_rpc_pending_wait() give the
 * answer. After an error the call was not made.
 */
enum vmmc_status vmmc_rpc_client_start(const struct vmmc_rpc_client *client,
                                       const struct vmmc_rpc_request *request_,
                                       struct vmmc_rpc_pending **pending);

/**
 * Calls a method, and has `function` called, once and with `user`, when the answer is there, or an
 * error, at the latest after the call's time. After an error of this call the method was not
 * called, and the function does not run. Functions of a client that is freed do not run any more.
 */
enum vmmc_status vmmc_rpc_client_then(const struct vmmc_rpc_client *client,
                                      const struct vmmc_rpc_request *request_,
                                      vmmc_rpc_continuation function,
                                      void *user);

/**
 * Takes answers that have come, and runs their functions; does not wait. Functions that could not
 * run before run again.
 */
enum vmmc_status vmmc_rpc_client_poll(const struct vmmc_rpc_client *client);

/**
 * Starts a thread that takes answers and runs functions of vmmc_rpc_client_then(), so that nobody
 * need poll or wait: for programs with an event loop of their own, which such a function tells,
 * for example by an eventfd. It ends with the client; a second one is not started.
 */
enum vmmc_status vmmc_rpc_client_background(const struct vmmc_rpc_client *client);

/**
 * Calls that have no outcome yet.
 */
enum vmmc_status vmmc_rpc_client_outstanding(const struct vmmc_rpc_client *client, size_t *count);

/**
 * Frees the client, after functions of vmmc_rpc_client_then() that run now. Those that have not
 * run do not run any more, so that what their `user` pointers name is the caller's to free.
 * Pending calls stay until they are freed. VMMC_BUSY from such a function itself.
 */
enum vmmc_status vmmc_rpc_client_free(struct vmmc_rpc_client *client);

/**
 * The answer if it is there, else VMMC_AGAIN. Takes answers that have come. The answer, or the
 * error of the call, is given once; after that it is VMMC_STALE.
 */
enum vmmc_status vmmc_rpc_pending_poll(const struct vmmc_rpc_pending *pending, struct vmmc_rpc_answer **answer);

/**
 * Waits for the answer: until the call's time is over with VMMC_DEFAULT_TIMEOUT, else no longer
 * than that. VMMC_AGAIN: it is not there yet, and the call goes on. VMMC_TIMED_OUT: the call's
 * time is over. The answer, or the error of the call, is given once; after that it is VMMC_STALE.
 */
enum vmmc_status vmmc_rpc_pending_wait(const struct vmmc_rpc_pending *pending,
                                       int64_t timeout_us,
                                       struct vmmc_rpc_answer **answer);

/**
 * Frees a pending call. If it has no answer yet it is withdrawn: no handler begins that has not
 * begun, and its bulk result reaches nobody.
 */
enum vmmc_status vmmc_rpc_pending_free(struct vmmc_rpc_pending *pending);

/**
 * The result, and its bytes; valid until the answer is freed. Never NULL.
 */
enum vmmc_status vmmc_rpc_answer_result(const struct vmmc_rpc_answer *answer, const void **result, size_t *len);

/**
 * The bulk result, where it has landed, and its bytes; NULL and 0: the server gave none. Valid
 * until the answer is freed, and its buffer is in use until then. A hostile server of the same
 * node can write it all the same: copy what must not change before you check it.
 */
enum vmmc_status vmmc_rpc_answer_bulk(const struct vmmc_rpc_answer *answer, const void **bulk, size_t *len);

/**
 * Copies `len` bytes at `offset` of the bulk result out. VMMC_OUT_OF_BOUNDS: it is not that long,
 * or there is none.
 */
enum vmmc_status vmmc_rpc_answer_read_bulk(const struct vmmc_rpc_answer *answer,
                                           uint64_t offset,
                                           void *into,
                                           size_t len);

/**
 * Frees an answer; the buffer of its bulk result is free for another call.
 */
enum vmmc_status vmmc_rpc_answer_free(struct vmmc_rpc_answer *answer);

/**
 * Serves a service of this name, 1 to 64 bytes, on threads of the library: `handler` is called
 * with `user` and a vmmc_rpc_incoming for each call, perhaps before this returns. With several
 * threads it is called on several at once. `options` may be NULL.
 */
enum vmmc_status vmmc_rpc_server_create(const struct vmmc_session *session,
                                        const char *service,
                                        const struct vmmc_rpc_server_options *options,
                                        vmmc_rpc_handler handler,
                                        void *user,
                                        struct vmmc_rpc_server **server);

/**
 * What became of calls so far. `size` is sizeof (vmmc_rpc_counts); fields that this library does
 * not know are left as they are.
 */
enum vmmc_status vmmc_rpc_server_get_counts(const struct vmmc_rpc_server *server,
                                            struct vmmc_rpc_counts *counts,
                                            size_t size);

/**
 * Whether it serves: not when its node has gone.
 */
enum vmmc_status vmmc_rpc_server_is_serving(const struct vmmc_rpc_server *server, bool *serving);

/**
 * Ends a server, after the handlers that run; calls that no handler has begun are not answered.
 * When it returns the handler is not called any more. Calls that were deferred can still be
 * answered. VMMC_BUSY from a handler of the server itself.
 */
enum vmmc_status vmmc_rpc_server_free(struct vmmc_rpc_server *server);

/**
 * Copies `len` bytes at `offset` of the bulk that came with a call out. It is memory that its
 * sender can write: copy what must not change before you check it.
 */
enum vmmc_status vmmc_rpc_call_read_bulk(const struct vmmc_rpc_call *call_, uint64_t offset, void *into, size_t len);

/**
 * Time until the caller stops waiting, microseconds.
 */
enum vmmc_status vmmc_rpc_call_left(const struct vmmc_rpc_call *call_, uint64_t *left_us);

/**
 * Whether the caller has withdrawn a call: a handler that works for long looks now and then.
 */
enum vmmc_status vmmc_rpc_call_cancelled(const struct vmmc_rpc_call *call_, bool *cancelled);

/**
 * Keeps a call beyond the return of its handler: it is answered later, from any thread, or freed
 * by vmmc_rpc_call_free(). Say so before another thread gets the handle.
 */
enum vmmc_status vmmc_rpc_call_defer(const struct vmmc_rpc_call *call_);

/**
 * Answers a call with a result; its handle is gone on VMMC_OK, so a second answer is
 * VMMC_BAD_HANDLE. Nobody waits for the caller. A result of more than 32 MiB is
 * VMMC_RESULT_TOO_LONG there.
 */
enum vmmc_status vmmc_rpc_call_answer(struct vmmc_rpc_call *call_, const void *result, size_t len);

/**
 * Answers a call with a short result, and with bulk for the buffer of the caller, from wherever it
 * is. If the caller has no buffer (`wants_bulk`) the bulk is dropped. Its handle is gone on
 * VMMC_OK.
 */
enum vmmc_status vmmc_rpc_call_answer_bulk(struct vmmc_rpc_call *call_,
                                           const void *result,
                                           size_t len,
                                           const void *bulk,
                                           size_t bulk_len);

/**
 * As vmmc_rpc_call_answer_bulk(), with bulk from memory of every kind, `count` sources one after
 * the other: registered memory, and that of an export by vmmc_buffer_export(), goes from where it
 * is straight into the buffer of the caller. To a caller of another node this returns when that
 * node has what is registered, within the session's timeout, or the node is given up; other memory
 * is copied. On return the memory may be changed. VMMC_OUT_OF_BOUNDS: a source reaches past its
 * memory; the call is still to be answered.
 */
enum vmmc_status vmmc_rpc_call_answer_from(struct vmmc_rpc_call *call_,
                                           const void *result,
                                           size_t len,
                                           const struct vmmc_source *sources_,
                                           size_t count);

/**
 * Says that a call failed, and how, in up to 512 bytes; its caller gets VMMC_FAILED. Its handle is
 * gone on VMMC_OK.
 */
enum vmmc_status vmmc_rpc_call_fail(struct vmmc_rpc_call *call_, const char *message);

/**
 * Says that there is no such method, with VMMC_NO_METHOD, or that the arguments are none of this
 * method, with VMMC_BAD_ARGUMENTS; the caller gets that status. Its handle is gone on VMMC_OK.
 */
enum vmmc_status vmmc_rpc_call_refuse(struct vmmc_rpc_call *call_, int32_t reason);

/**
 * Leaves a call to another server, with these arguments and the bulk that came with it: that one
 * answers the caller, whose bulk result lands in the caller's buffer. On VMMC_OK the handle is
 * gone; after an error the call is still to be answered. The client stays connected until those
 * that it has passed on are answered.
 */
enum vmmc_status vmmc_rpc_call_pass_on(struct vmmc_rpc_call *call_,
                                       const struct vmmc_rpc_client *client,
                                       uint32_t method_,
                                       const void *arguments,
                                       size_t len);

/**
 * Lets go of a call that was not answered: its caller gets VMMC_NO_ANSWER.
 */
enum vmmc_status vmmc_rpc_call_free(struct vmmc_rpc_call *call_);

/**
 * Attaches to the user's node, starting it when none runs. `options` may be NULL.
 *
 * The node is started with the program $VMMC_BIN, else `vmmc` beside the running program, above
 * it, or on PATH.
 */
enum vmmc_status vmmc_session_attach(const struct vmmc_session_options *options, struct vmmc_session **session);

/**
 * Frees the session. It stays attached until all exports, imports and buffers made with it are
 * freed too.
 */
enum vmmc_status vmmc_session_free(struct vmmc_session *session);

/**
 * Leaves the node at once, as the end of the process would: exports end, later calls fail.
 */
enum vmmc_status vmmc_session_leave(const struct vmmc_session *session);

/**
 * Name of the node; free it with vmmc_string_free().
 */
enum vmmc_status vmmc_session_node(const struct vmmc_session *session, char **name);

/**
 * Id of this process on its node.
 */
enum vmmc_status vmmc_session_process(const struct vmmc_session *session, uint32_t *process);

/**
 * Whether the node is still there, as far as is known without asking it.
 */
enum vmmc_status vmmc_session_alive(const struct vmmc_session *session, bool *alive);

/**
 * Runs an embedded node once; does nothing with a daemon. For programs that compute for long
 * between calls.
 */
enum vmmc_status vmmc_session_step(const struct vmmc_session *session);

/**
 * Bounds of the session.
 */
enum vmmc_status vmmc_session_limits(const struct vmmc_session *session, struct vmmc_limits *limits);

/**
 * Counters of the session. `size` is sizeof (vmmc_stats); fields that this library does not know
 * are left as they are.
 */
enum vmmc_status vmmc_session_stats(const struct vmmc_session *session, struct vmmc_stats *stats, size_t size);

/**
 * Description of the node as JSON; `details` lists exports, imports and processes too. Free it
 * with vmmc_string_free().
 */
enum vmmc_status vmmc_session_node_info(const struct vmmc_session *session,
                                        bool details,
                                        int64_t timeout_us,
                                        char **json);

/**
 * Name of the node at the other end of a session that a notification names (`sender_session`), or
 * NULL if that session has ended; 0 is this node. Free it with vmmc_string_free().
 */
enum vmmc_status vmmc_session_node_of(const struct vmmc_session *session,
                                      uint32_t sender_session,
                                      int64_t timeout_us,
                                      char **node);

/**
 * Round trip from engine to engine, nanoseconds. `node` is a name or `address:port`.
 */
enum vmmc_status vmmc_session_ping(const struct vmmc_session *session,
                                   const char *node,
                                   int64_t timeout_us,
                                   uint64_t *rtt_ns);

/**
 * Makes the node know a peer by its addresses (`address:port`; several are several paths to one
 * node).
 */
enum vmmc_status vmmc_session_add_peer(const struct vmmc_session *session, const char *const *addresses, size_t count);

/**
 * Ends the node, for all its processes. Only its own user and root may.
 */
enum vmmc_status vmmc_session_stop_node(const struct vmmc_session *session);

/**
 * Sets the most pages that vmmc_import_send_pinned() and vmmc_import_fetch_pinned() keep pinned at
 * a time. Before the first of them; VMMC_BUSY afterwards.
 */
enum vmmc_status vmmc_session_set_pinned_max(const struct vmmc_session *session, size_t pages_max);

/**
 * Ends the pinning of memory: its whole pages are private memory again. Needed before `mremap`
 * over pinned and other memory, and good before pinned memory is unmapped: it is noticed
 * otherwise, but this costs less.
 */
enum vmmc_status vmmc_session_forget(const struct vmmc_session *session, void *memory, size_t len);

/**
 * A descriptor for event loops (poll, epoll): readable when vmmc_session_take_notification() may
 * have something, and for ever when the node has gone. Only wait for it to be readable, then take
 * until VMMC_AGAIN; do not read or close it. When vmmc_session_alive() says no, wait for it no
 * longer. It is valid as long as the session.
 */
enum vmmc_status vmmc_session_event_fd(const struct vmmc_session *session, int *fd);

/**
 * Name of a status as the header spells it, for logs; "unknown status" for other numbers. The
 * string is constant.
 */
const char *vmmc_status_name(int32_t status);

/**
 * Release of the library, as in "0.1.0". The string is constant.
 */
const char *vmmc_version(void);

/**
 * A free buffer of an endpoint made by vmmc_endpoint_create_with_tokens(). Its token, from
 * vmmc_token_buffer_token(), goes to whoever is to send the payload, be it through others; the
 * message of that one says so, `by_token` of vmmc_message. Any thread may take buffers, also while
 * another one waits for messages. VMMC_FULL: all are in use.
 */
enum vmmc_status vmmc_endpoint_token_buffer(const struct vmmc_endpoint *endpoint, struct vmmc_token_buffer **buffer);

/**
 * What names the buffer, for one payload.
 */
enum vmmc_status vmmc_token_buffer_token(const struct vmmc_token_buffer *buffer, struct vmmc_token *token);

/**
 * Bytes that a payload can have.
 */
enum vmmc_status vmmc_token_buffer_len(const struct vmmc_token_buffer *buffer, uint64_t *len);

/**
 * First byte, valid until the buffer is freed. A hostile sender of the same node can write it at
 * any time: copy what must not change before you check it.
 */
enum vmmc_status vmmc_token_buffer_pointer(const struct vmmc_token_buffer *buffer, const void **pointer);

/**
 * Copies `len` bytes at `offset` out. Before the payload has come they mean nothing.
 */
enum vmmc_status vmmc_token_buffer_read(const struct vmmc_token_buffer *buffer,
                                        uint64_t offset,
                                        void *into,
                                        size_t len);

/**
 * Bytes of the payload if it has come, else VMMC_AGAIN; also before its message is taken.
 */
enum vmmc_status vmmc_token_buffer_poll(const struct vmmc_token_buffer *buffer, uint64_t *len);

/**
 * Waits for the payload; `len` are its bytes.
 */
enum vmmc_status vmmc_token_buffer_wait(const struct vmmc_token_buffer *buffer, int64_t timeout_us, uint64_t *len);

/**
 * Cancels the token. True: nothing has come, and nothing will; false: a payload has come, or is
 * coming.
 */
enum vmmc_status vmmc_token_buffer_cancel(const struct vmmc_token_buffer *buffer, bool *cancelled);

/**
 * Gives the buffer back; its token lets nothing in any more.
 */
enum vmmc_status vmmc_token_buffer_free(struct vmmc_token_buffer *buffer);

/**
 * Sends a control message as vmmc_connection_send() does, and a payload to the buffer of a token,
 * which comes from the owner of the endpoint by whatever way. A token that lets nothing in does
 * not hold up the control message, whose receiver is told why the payload was dropped.
 */
enum vmmc_status vmmc_connection_send_by_token(const struct vmmc_connection *connection,
                                               const void *control,
                                               size_t control_len,
                                               const struct vmmc_token *token,
                                               const void *payload,
                                               size_t payload_len,
                                               int64_t timeout_us);

/**
 * vmmc_connection_send_by_token() of a payload from any kind of memory: `count` sources, one after
 * the other. Registered memory goes from where it is straight into the buffer. On return it may be
 * changed. VMMC_OUT_OF_BOUNDS: a source reaches past its memory, and nothing was sent.
 */
enum vmmc_status vmmc_connection_send_by_token_from(const struct vmmc_connection *connection,
                                                    const void *control,
                                                    size_t control_len,
                                                    const struct vmmc_token *token,
                                                    const struct vmmc_source *sources_,
                                                    size_t count,
                                                    int64_t timeout_us);

/**
 * Posts a send of `count` sources, one after the other to consecutive places from `offset` on:
 * does not wait. The transfer is done when the data has arrived. `options` may be NULL.
 * When all places for transfers are taken (vmmc_session_limits()) it waits for one, and ends with
 * VMMC_TIMED_OUT if nobody looks at those that are done.
 */
enum vmmc_status vmmc_import_post_send(const struct vmmc_import *import,
                                       uint64_t offset,
                                       const struct vmmc_source *sources,
                                       size_t count,
                                       const struct vmmc_send_options *options,
                                       struct vmmc_transfer **transfer);

/**
 * Posts a fetch of consecutive bytes from `offset` on into `count` targets, which must not
 * overlap: does not wait. The targets belong to the transfer until it is done or freed.
 */
enum vmmc_status vmmc_import_post_fetch(const struct vmmc_import *import,
                                        uint64_t offset,
                                        const struct vmmc_target *targets,
                                        size_t count,
                                        struct vmmc_transfer **transfer);

/**
 * VMMC_AGAIN while the transfer is under way; VMMC_OK and the bytes moved when it is done; else
 * its error.
 */
enum vmmc_status vmmc_transfer_poll(const struct vmmc_transfer *transfer, uint64_t *moved);

/**
 * Waits for the transfer; gives the bytes moved. May be called again after VMMC_TIMED_OUT.
 */
enum vmmc_status vmmc_transfer_wait(const struct vmmc_transfer *transfer, int64_t timeout_us, uint64_t *moved);

/**
 * Frees the transfer, which abandons its answer. A buffer that it uses stays alive until it is
 * done. A send from memory of your own that is not copied is waited for, and a fetch into memory
 * of your own is given up, so that the memory may be reused.
 */
enum vmmc_status vmmc_transfer_free(struct vmmc_transfer *transfer);

/**
 * Sets the timeout of all later calls of this thread that take none of their own: sends, fetches,
 * atomics, set-up. VMMC_DEFAULT_TIMEOUT gives them the session's again.
 */
enum vmmc_status vmmc_thread_timeout(int64_t timeout_us);

/**
 * Waits until one of `count` things of a session is there; gives its place in `what`, from 0, the
 * first if there are several. Takes nothing: vmmc_session_take_notification(), vmmc_ring_take(),
 * vmmc_transfer_poll() and so on do, and find nothing if another thread was faster.
 *
 * Up to VMMC_WAIT_MAX things stand in the list, and rings, endpoints, transfers and continuations
 * only once. Leave descriptors open until the call returns. VMMC_BUSY: a call of another thread
 * uses a ring, an endpoint, a transfer or continuations of the list.
 */
enum vmmc_status vmmc_wait_any(const struct vmmc_session *session,
                               const struct vmmc_wait_for *what,
                               size_t count,
                               int64_t timeout_us,
                               size_t *which);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* VMMC_H */
