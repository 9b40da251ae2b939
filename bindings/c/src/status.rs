//! Status codes, and how errors of the library become codes.
//!
//! Invariant: a number means the same for ever; those of [`vmmc::ErrorKind`] are the numbers here.

use std::ffi::{CStr, c_char};
use vmmc::ErrorKind;

/// How a call ended. vmmc_error_message() tells more.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmmc_status {
    /// It did what it says.
    VMMC_OK = 0,
    /// An argument makes no sense: NULL, not UTF-8, an unknown flag; or the call is misplaced.
    VMMC_INVALID = 1,
    /// The handle is NULL, freed, or of another kind.
    VMMC_BAD_HANDLE = 2,
    /// A range lies outside of its memory.
    VMMC_OUT_OF_BOUNDS = 3,
    /// A word is not a multiple of 8 from the start.
    VMMC_MISALIGNED = 4,
    /// The deadline passed.
    VMMC_TIMED_OUT = 5,
    /// Export or import do not carry the right.
    VMMC_NO_RIGHT = 6,
    /// The user is not allowed.
    VMMC_NOT_PERMITTED = 7,
    /// The exporter took the export back.
    VMMC_REVOKED = 8,
    /// The exporting process is gone.
    VMMC_OWNER_DIED = 9,
    /// This process's node is gone.
    VMMC_NODE_GONE = 10,
    /// Another node does not answer, or there is no way to it.
    VMMC_NODE_UNREACHABLE = 11,
    /// Another node restarted; what was there is gone.
    VMMC_NODE_RESTARTED = 12,
    /// No node runs and none could be started.
    VMMC_NO_NODE = 13,
    /// No node of that name.
    VMMC_UNKNOWN_NODE = 14,
    /// No export of that name or id.
    VMMC_UNKNOWN_NAME = 15,
    /// The name is taken.
    VMMC_NAME_TAKEN = 16,
    /// The id is of something that has ended.
    VMMC_STALE = 17,
    /// A table, queue or bound is full.
    VMMC_FULL = 18,
    /// Not enough memory.
    VMMC_MEMORY_SHORT = 19,
    /// This memory cannot be taken over.
    VMMC_UNSUITABLE = 20,
    /// The import is not mapped, and this needs a mapping.
    VMMC_NOT_MAPPED = 21,
    /// The export does not allow it.
    VMMC_NOT_ALLOWED = 22,
    /// It belongs to another session.
    VMMC_FOREIGN = 23,
    /// The object is in use, by another thread for example.
    VMMC_BUSY = 24,
    /// The session was attached by the parent of this process, before a fork.
    VMMC_FORKED = 25,
    /// Library and node are of different releases.
    VMMC_VERSION = 26,
    /// The operating system refused.
    VMMC_SYSTEM = 27,
    /// Nothing is there yet; not a failure.
    VMMC_AGAIN = 28,
    /// An error inside the library; please report it.
    VMMC_INTERNAL = 29,
    /// The process is not part of a job.
    VMMC_NO_JOB = 30,
    /// The members of the job have changed: vmmc_job_changes() tells how.
    VMMC_MEMBERS_CHANGED = 31,
    /// The service has no such method.
    VMMC_NO_METHOD = 32,
    /// The service could not read the arguments of the call.
    VMMC_BAD_ARGUMENTS = 33,
    /// The service has too much to do: its queue is full. Call again later.
    VMMC_SERVER_BUSY = 34,
    /// The call was withdrawn by its caller.
    VMMC_CANCELLED = 35,
    /// The handler of the call says that it failed; vmmc_error_message() tells what it said.
    VMMC_FAILED = 36,
    /// The handler of the call panicked.
    VMMC_PANICKED = 37,
    /// The handler of the call let go of it without an answer.
    VMMC_NO_ANSWER = 38,
    /// The result of the call makes no sense.
    VMMC_BAD_RESULT = 39,
    /// The result of the call is longer than a result can be.
    VMMC_RESULT_TOO_LONG = 40,
    /// Arguments and bulk of the call are longer than those of a call can be.
    VMMC_ARGUMENTS_TOO_LONG = 41,
    /// The bulk result of the call did not get into the buffer of the client.
    VMMC_BULK_DROPPED = 42,
    /// The server was lost before it answered, or the one that it left the call to.
    VMMC_LOST = 43,
}

use vmmc_status::*;

/// All codes and their names, in order of their numbers.
const NAMES: &[(vmmc_status, &CStr)] = &[
    (VMMC_OK, c"VMMC_OK"),
    (VMMC_INVALID, c"VMMC_INVALID"),
    (VMMC_BAD_HANDLE, c"VMMC_BAD_HANDLE"),
    (VMMC_OUT_OF_BOUNDS, c"VMMC_OUT_OF_BOUNDS"),
    (VMMC_MISALIGNED, c"VMMC_MISALIGNED"),
    (VMMC_TIMED_OUT, c"VMMC_TIMED_OUT"),
    (VMMC_NO_RIGHT, c"VMMC_NO_RIGHT"),
    (VMMC_NOT_PERMITTED, c"VMMC_NOT_PERMITTED"),
    (VMMC_REVOKED, c"VMMC_REVOKED"),
    (VMMC_OWNER_DIED, c"VMMC_OWNER_DIED"),
    (VMMC_NODE_GONE, c"VMMC_NODE_GONE"),
    (VMMC_NODE_UNREACHABLE, c"VMMC_NODE_UNREACHABLE"),
    (VMMC_NODE_RESTARTED, c"VMMC_NODE_RESTARTED"),
    (VMMC_NO_NODE, c"VMMC_NO_NODE"),
    (VMMC_UNKNOWN_NODE, c"VMMC_UNKNOWN_NODE"),
    (VMMC_UNKNOWN_NAME, c"VMMC_UNKNOWN_NAME"),
    (VMMC_NAME_TAKEN, c"VMMC_NAME_TAKEN"),
    (VMMC_STALE, c"VMMC_STALE"),
    (VMMC_FULL, c"VMMC_FULL"),
    (VMMC_MEMORY_SHORT, c"VMMC_MEMORY_SHORT"),
    (VMMC_UNSUITABLE, c"VMMC_UNSUITABLE"),
    (VMMC_NOT_MAPPED, c"VMMC_NOT_MAPPED"),
    (VMMC_NOT_ALLOWED, c"VMMC_NOT_ALLOWED"),
    (VMMC_FOREIGN, c"VMMC_FOREIGN"),
    (VMMC_BUSY, c"VMMC_BUSY"),
    (VMMC_FORKED, c"VMMC_FORKED"),
    (VMMC_VERSION, c"VMMC_VERSION"),
    (VMMC_SYSTEM, c"VMMC_SYSTEM"),
    (VMMC_AGAIN, c"VMMC_AGAIN"),
    (VMMC_INTERNAL, c"VMMC_INTERNAL"),
    (VMMC_NO_JOB, c"VMMC_NO_JOB"),
    (VMMC_MEMBERS_CHANGED, c"VMMC_MEMBERS_CHANGED"),
    (VMMC_NO_METHOD, c"VMMC_NO_METHOD"),
    (VMMC_BAD_ARGUMENTS, c"VMMC_BAD_ARGUMENTS"),
    (VMMC_SERVER_BUSY, c"VMMC_SERVER_BUSY"),
    (VMMC_CANCELLED, c"VMMC_CANCELLED"),
    (VMMC_FAILED, c"VMMC_FAILED"),
    (VMMC_PANICKED, c"VMMC_PANICKED"),
    (VMMC_NO_ANSWER, c"VMMC_NO_ANSWER"),
    (VMMC_BAD_RESULT, c"VMMC_BAD_RESULT"),
    (VMMC_RESULT_TOO_LONG, c"VMMC_RESULT_TOO_LONG"),
    (VMMC_ARGUMENTS_TOO_LONG, c"VMMC_ARGUMENTS_TOO_LONG"),
    (VMMC_BULK_DROPPED, c"VMMC_BULK_DROPPED"),
    (VMMC_LOST, c"VMMC_LOST"),
];

/// Name of a status as the header spells it, for logs; "unknown status" for other numbers. The
/// string is constant.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_status_name(status: i32) -> *const c_char {
    let known = usize::try_from(status).ok().and_then(|index| NAMES.get(index));
    known.map_or(c"unknown status", |(_, name)| name).as_ptr()
}

/// Release of the library, as in "0.1.0". The string is constant.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

impl From<ErrorKind> for vmmc_status {
    fn from(kind: ErrorKind) -> vmmc_status {
        // A kind that is younger than this table is still an error.
        NAMES.get(kind as usize).map_or(VMMC_INTERNAL, |(status, _)| *status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_at_their_numbers() {
        for (index, (status, _)) in NAMES.iter().enumerate() {
            assert_eq!(*status as usize, index);
        }
        assert_eq!(vmmc_status::from(ErrorKind::Forked), VMMC_FORKED);
        assert_eq!(vmmc_status::from(ErrorKind::System), VMMC_SYSTEM);
        assert_eq!(vmmc_status::from(ErrorKind::Invalid), VMMC_INVALID);
        assert_eq!(vmmc_status::from(ErrorKind::Lost), VMMC_LOST);
    }
}
