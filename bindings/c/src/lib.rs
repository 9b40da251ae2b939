//! The C interface of VMMC: what `vmmc.h` declares.
//!
//! ```text
//!   C program ── vmmc.h ──▶ extern "C" calls ── handles ──▶ crate vmmc
//!             ◀── vmmc_status, vmmc_error_message() ──       (and vmmc-node, for embedded nodes)
//! ```
//!
//! **Promises.** A handle that is NULL, freed or of another kind is an error. A panic never crosses
//! the boundary. Outputs are written on success only. What the header declares is compared with
//! these sources by a test, and so is the list of symbols that the shared library exports.
//!
//! **Does not.** It cannot check pointers to the caller's memory: those must be valid for the
//! lengths given, as with any C library. That contract holds for every call and stands at the head
//! of `vmmc.h` instead of at each function.
//!
//! Start reading at `include/vmmc.h`.

#![allow(non_camel_case_types)] // names as C has them
#![allow(clippy::missing_safety_doc)] // one contract for all calls, above

mod binding;
mod buffer;
mod continuations;
mod endpoint;
mod export;
mod failure;
mod handle;
mod import;
mod job;
mod launch;
mod lists;
mod memory;
mod node;
mod notification;
mod options;
mod owned;
mod pinned;
mod redirection;
mod ring;
mod rpc_client;
mod rpc_server;
mod running;
mod session;
mod slots;
mod source;
mod status;
mod token;
mod transfer;
mod wait;
mod wait_any;

pub use binding::*;
pub use buffer::*;
pub use continuations::*;
pub use endpoint::*;
pub use export::*;
pub use failure::*;
pub use import::*;
pub use job::*;
pub use launch::*;
pub use lists::*;
pub use memory::vmmc_string_free;
pub use node::*;
pub use notification::*;
pub use pinned::*;
pub use redirection::*;
pub use ring::*;
pub use rpc_client::*;
pub use rpc_server::*;
pub use session::*;
pub use source::*;
pub use status::*;
pub use token::*;
pub use transfer::*;
pub use wait::*;
pub use wait_any::*;
