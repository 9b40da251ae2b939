//! Named bounds of messages.
//!
//! Invariant: whatever a peer sends makes this crate keep no more than these say.

/// Bytes of the body of a credential or verifier (RFC 5531 §8.2).
pub const AUTH_BYTES_MAX: usize = 400;
/// Bytes of a machine's name in AUTH_SYS (RFC 5531 appendix A).
pub const MACHINE_NAME_BYTES_MAX: usize = 255;
/// Groups in AUTH_SYS, beside the first (the same).
pub const GROUPS_MAX: usize = 16;
/// Bytes of a record, unless a program says otherwise: arguments or results of several MiB. A
/// length of four bytes that a peer sends would be up to 2 GiB.
pub const RECORD_BYTES_MAX: usize = 8 << 20;
/// Fragments of one record: each of them costs its reader a look at least, so empty ones without
/// end do not keep it.
pub const FRAGMENTS_MAX: usize = 4096;
/// Bytes of a network identifier, an owner or a universal address of rpcbind: an address in words,
/// with a port.
pub const RPCBIND_STRING_BYTES_MAX: usize = 255;
