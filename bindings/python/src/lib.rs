//! The native module of the Python package `vmmc`.
//!
//! ```text
//!   python/vmmc/*.py ── classes ──▶ _vmmc (this crate) ──▶ crates vmmc, vmmc-mp, vmmc-node, vmmc-rpc
//!   NumPy, memoryview ── buffer protocol ──▶ mapped memory, kept by the object that gave the view
//! ```
//!
//! **Promises.** The interpreter's lock is released in every wait, and a key press (any Python
//! signal handler that raises) ends it. Errors are exceptions of `vmmc.Error`. A view of mapped
//! memory keeps its mapping: no end of an export, import or session makes it dangle.
//!
//! **Does not.** Bytes that other processes or threads write while they are copied may be a mix of
//! old and new, as with any shared memory.

mod arguments;
mod buffer;
mod bytes;
mod continuations;
mod endpoint;
mod errors;
mod export;
mod group;
mod import;
mod job;
mod launch;
mod memory;
mod messages;
mod node;
mod notification;
mod owned;
mod pinned;
mod redirection;
mod reducing;
mod request;
mod ring;
mod rpc_client;
mod rpc_server;
mod session;
mod source;
mod token;
mod transfer;
mod wait_any;

use pyo3::prelude::*;

#[pymodule]
mod _vmmc {
    #[pymodule_export]
    use crate::buffer::Buffer;
    #[pymodule_export]
    use crate::continuations::Continuations;
    #[pymodule_export]
    use crate::endpoint::{Connection, Endpoint, Frame, Message};
    #[pymodule_export]
    use crate::export::Export;
    #[pymodule_export]
    use crate::group::{Group, MessageStatus, mp_wait_any};
    #[pymodule_export]
    use crate::import::{Binding, Import};
    #[pymodule_export]
    use crate::job::Job;
    #[pymodule_export]
    use crate::launch::{Event, Launched, launch};
    #[pymodule_export]
    use crate::messages::{Memory, MemoryRange, Messages};
    #[pymodule_export]
    use crate::node::{Node, run_node};
    #[pymodule_export]
    use crate::notification::{Handler, Notification};
    #[pymodule_export]
    use crate::pinned::{Lent, PinnedTable};
    #[pymodule_export]
    use crate::redirection::{Redirection, Report};
    #[pymodule_export]
    use crate::request::Request;
    #[pymodule_export]
    use crate::ring::{Record, Ring};
    #[pymodule_export]
    use crate::rpc_client::{RpcClient, RpcPending, RpcRegion};
    #[pymodule_export]
    use crate::rpc_server::{RpcCall, RpcServer};
    #[pymodule_export]
    use crate::session::{Session, attach};
    #[pymodule_export]
    use crate::source::{BufferRange, LentRange, Pinned, TableRange};
    #[pymodule_export]
    use crate::token::{ByToken, TokenBuffer};
    #[pymodule_export]
    use crate::transfer::Transfer;
    #[pymodule_export]
    use crate::wait_any::{Word, Writable};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
