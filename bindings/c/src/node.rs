//! Nodes inside the program, and the program as a node.
//!
//! Invariant: an embedded node ends with its handle and the last session attached to it.

use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::memory::{give_string, strings};
use crate::session::{builder, vmmc_session, vmmc_session_options};
use crate::status::vmmc_status::{self, VMMC_INVALID, VMMC_NO_NODE, VMMC_SYSTEM};
use ::vmmc_node::{Embedded, NodeConfig};
use std::ffi::c_char;

/// A node that lives in this process.
pub struct vmmc_node(());

pub(crate) type Object = Embedded;
handle!(vmmc_node, Node, Object, "node");

unsafe fn config(options: *const *const c_char, count: usize) -> Result<NodeConfig, Failure> {
    // SAFETY: the caller's word, passed on.
    let options = unsafe { strings(options, count, "options") }?;
    NodeConfig::from_args(options).map_err(|error| Failure::new(VMMC_INVALID, error.to_string()))
}

/// Starts a node inside this process, which runs while callers wait. `options` are `count` strings
/// as those of `vmmc node run`: "--name", "a", "--listen", "127.0.0.1:0", "--peer",
/// "ADDRESS,ADDRESS", "--key-file", "FILE", "--plain", "--peer-timeout-ms", "N".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_node_start(
    options: *const *const c_char,
    count: usize,
    node: *mut *mut vmmc_node,
) -> vmmc_status {
    let start = || {
        // SAFETY: a list of strings of the caller.
        let config = NodeConfig { handle_signals: false, ..unsafe { config(options, count) }? };
        let node = Embedded::start(config).map_err(|error| Failure::new(VMMC_NO_NODE, error.to_string()))?;
        put(handle::Object::Node(node))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(node, "node", start) }
}

/// Attaches this process to its embedded node. `node` in `options` has no effect; `options` may be
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_node_attach(
    node: *const vmmc_node,
    options: *const vmmc_session_options,
    session: *mut *mut vmmc_session,
) -> vmmc_status {
    let attach = || {
        // SAFETY: options of the caller.
        let builder = unsafe { builder(options) }?;
        let way = get(node)?.attach().map_err(|error| Failure::new(VMMC_SYSTEM, error.to_string()))?;
        put(handle::Object::Session(builder.over(way)?))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(session, "session", attach) }
}

/// UDP addresses that the node listens on, separated by commas, as `--peer` of another node takes
/// them; free the string with vmmc_string_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_node_addresses(node: *const vmmc_node, addresses: *mut *mut c_char) -> vmmc_status {
    let list = || {
        let all: Vec<String> = get(node)?.addresses().iter().map(ToString::to_string).collect();
        Ok(give_string(&all.join(",")))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(addresses, "addresses", list) }
}

/// Frees the node, which ends it once the last session attached to it has ended.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_node_free(node: *mut vmmc_node) -> vmmc_status {
    call(|| handle::free(node))
}

/// Runs a node in this process until it is told to stop (SIGTERM, SIGINT, `vmmc node stop`), with
/// `options` as for vmmc_node_start() and "--linger-s", "N" and "--detach". A program that calls it
/// can serve as $VMMC_BIN: it is then called as `PROGRAM node start OPTIONS`, for which there is
/// vmmc_node_start_daemon(), and as `PROGRAM node run OPTIONS`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_node_run(options: *const *const c_char, count: usize) -> vmmc_status {
    call(|| {
        // SAFETY: a list of strings of the caller.
        let config = unsafe { config(options, count) }?;
        ::vmmc_node::run(config).map_err(|error| Failure::new(VMMC_NO_NODE, error.to_string()))
    })
}

/// Starts a node in the background by running this program again as `PROGRAM node run OPTIONS`, for
/// which the program calls vmmc_node_run(). Returns when processes can attach.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_node_start_daemon(options: *const *const c_char, count: usize) -> vmmc_status {
    call(|| {
        // SAFETY: a list of strings of the caller.
        let config = unsafe { config(options, count) }?;
        let program = std::env::current_exe().map_err(|error| Failure::new(VMMC_SYSTEM, error.to_string()))?;
        ::vmmc_node::start_detached(&program, &config).map_err(|error| Failure::new(VMMC_NO_NODE, error.to_string()))
    })
}
