//! What libtirpc's callers are told: a status of a call, and an error of the system beside it.
//!
//! Invariant: each error has one status, and those that a program tells apart are told apart: that
//! the time was over, that nothing was sent, that the server is lost. Source: `clnt_stat.h`.

use crate::error::OncError;
use vmmc::ErrorKind;
use vmmc_rpc::RpcError;

/// Numbers of `enum clnt_stat`, which are part of libtirpc's binary interface.
#[allow(missing_docs)] // they say what they are
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ClntStat {
    Success = 0,
    CantEncodeArgs = 1,
    CantSend = 3,
    CantRecv = 4,
    TimedOut = 5,
    SystemError = 12,
    UnknownHost = 13,
    ProgNotRegistered = 15,
}

/// Numbers of errors of the system, the same on every Linux.
mod errno {
    pub(super) const EACCES: i32 = 13;
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EPROTO: i32 = 71;
    pub(super) const EMSGSIZE: i32 = 90;
    pub(super) const ENETDOWN: i32 = 100;
    pub(super) const ECONNRESET: i32 = 104;
    pub(super) const ETIMEDOUT: i32 = 110;
    pub(super) const EHOSTUNREACH: i32 = 113;
}

/// An error as the status of a client that could not be made.
pub fn of_create(error: &OncError) -> (ClntStat, i32) {
    let status = match error.kind() {
        ErrorKind::UnknownName => ClntStat::ProgNotRegistered,
        ErrorKind::UnknownNode => ClntStat::UnknownHost,
        ErrorKind::TimedOut => ClntStat::TimedOut,
        _ => ClntStat::SystemError,
    };
    (status, errno_of(error.kind()))
}

/// An error as the status of a call.
pub fn of_call(error: &OncError) -> (ClntStat, i32) {
    let status = match error {
        OncError::TooLong { .. } => ClntStat::CantEncodeArgs,
        // The program behind it gave no reply, as it does for calls that want none.
        OncError::Call(RpcError::TimedOut { .. } | RpcError::NoAnswer { .. }) => ClntStat::TimedOut,
        OncError::Call(error) if !error.may_have_happened() => ClntStat::CantSend,
        _ => ClntStat::CantRecv,
    };
    let errno = if status == ClntStat::CantEncodeArgs { errno::EMSGSIZE } else { errno_of(error.kind()) };
    (status, errno)
}

fn errno_of(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::TimedOut => errno::ETIMEDOUT,
        ErrorKind::NotPermitted | ErrorKind::NoRight => errno::EACCES,
        ErrorKind::Full | ErrorKind::Busy | ErrorKind::ServerBusy => errno::EAGAIN,
        ErrorKind::MemoryShort => errno::ENOMEM,
        ErrorKind::Revoked | ErrorKind::OwnerDied | ErrorKind::Stale | ErrorKind::Lost => errno::ECONNRESET,
        ErrorKind::NodeGone | ErrorKind::NoNode => errno::ENETDOWN,
        ErrorKind::NodeUnreachable | ErrorKind::NodeRestarted | ErrorKind::UnknownNode => errno::EHOSTUNREACH,
        ErrorKind::Version => errno::EPROTO,
        _ => errno::EINVAL,
    }
}
