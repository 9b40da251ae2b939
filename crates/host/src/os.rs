//! Calls of the system that need `unsafe`, or that several crates make alike.
//!
//! Invariant: nothing here knows what it is called for; an error is that of the kernel.

pub mod aio;
pub mod tcp;
pub mod threads;

use std::io::Read;

/// 32 random bytes of the kernel, fit for secrets.
///
/// # Errors
/// When there is no `/dev/urandom`, or no descriptor is left.
pub fn random_bytes() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

/// Fills memory with random bytes of the kernel's.
///
/// # Errors
/// The kernel's.
pub fn fill_random(bytes: &mut [u8]) -> std::io::Result<()> {
    std::fs::File::open("/dev/urandom")?.read_exact(bytes)
}
