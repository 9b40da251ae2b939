//! What the tests of the calls share: a node of their own, objects on it, sends and waits.

// No test uses all of it.
#![allow(dead_code)]

use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};
use vmmc_c::vmmc_status::{self, *};
use vmmc_c::*;

pub(crate) const SECOND_US: i64 = 1_000_000;

pub(crate) fn message() -> String {
    // SAFETY: the string lives until the next failure in this thread.
    unsafe { CStr::from_ptr(vmmc_error_message()) }.to_string_lossy().into_owned()
}

#[track_caller]
pub(crate) fn must(status: vmmc_status) {
    assert_eq!(status, VMMC_OK, "{}", message());
}

/// A node of the test's own, and a session on it.
pub(crate) fn attach(name: &str) -> *mut vmmc_session {
    let name = CString::new(name).unwrap();
    let options = [c"--name", &name, c"--plain"].map(CStr::as_ptr);
    let (mut node, mut session) = (null_mut(), null_mut());
    // SAFETY: lists, options and places are ours.
    unsafe {
        must(vmmc_node_start(options.as_ptr(), options.len(), &mut node));
        must(vmmc_node_attach(node, null(), &mut session));
    }
    must(vmmc_node_free(node));
    session
}

pub(crate) fn export(session: *mut vmmc_session, len: u64, name: &CStr, flags: u32) -> *mut vmmc_export {
    let size = size_of::<vmmc_export_options>();
    let name = name.as_ptr();
    let options = vmmc_export_options { size, name, rights: 0, flags, access: 0, user_count: 0, users: null() };
    let mut export = null_mut();
    // SAFETY: options and place are ours.
    must(unsafe { vmmc_export_create(session, len, &options, &mut export) });
    export
}

pub(crate) fn import(session: *mut vmmc_session, name: &CStr, rights: u32) -> *mut vmmc_import {
    let size = size_of::<vmmc_import_options>();
    let options = vmmc_import_options { size, node: null(), rights, flags: 0, wait_us: 0, owner: 0 };
    let mut import = null_mut();
    // SAFETY: string, options and place are ours.
    must(unsafe { vmmc_import_open(session, name.as_ptr(), &options, &mut import) });
    import
}

pub(crate) fn send(import: *mut vmmc_import, offset: u64, data: &[u8]) -> vmmc_status {
    // SAFETY: the data is ours.
    unsafe { vmmc_import_send(import, offset, data.as_ptr().cast(), data.len()) }
}

/// Any bytes, as a source of this kind.
pub(crate) fn source_of(kind: u32, data: &[u8]) -> vmmc_source {
    vmmc_source { kind, index: 0, memory: data.as_ptr().cast(), from: 0, len: data.len() as u64 }
}

pub(crate) fn target_of(kind: u32, data: &mut [u8]) -> vmmc_target {
    vmmc_target { kind, memory: data.as_mut_ptr().cast(), from: 0, len: data.len() as u64 }
}

/// Nothing to wait for yet: a kind, and what it names comes from the test.
pub(crate) fn wait_for(kind: u32) -> vmmc_wait_for {
    vmmc_wait_for {
        kind,
        fd: -1,
        export_: null(),
        ring: null(),
        transfer: null(),
        redirection: null(),
        continuations: null(),
        endpoint: null(),
        offset: 0,
        operand: 0,
        condition: 0,
    }
}

/// The place of the first that is there, within a time.
pub(crate) fn wait_any(
    session: *mut vmmc_session,
    what: &[vmmc_wait_for],
    timeout_us: i64,
) -> Result<usize, vmmc_status> {
    let mut which = 77;
    // SAFETY: the list and the place are ours.
    match unsafe { vmmc_wait_any(session, what.as_ptr(), what.len(), timeout_us, &mut which) } {
        VMMC_OK => Ok(which),
        status => {
            assert_eq!(which, 77, "nothing was written");
            Err(status)
        }
    }
}
