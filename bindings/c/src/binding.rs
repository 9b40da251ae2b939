//! Automatic update: plain stores propagate.
//!
//! Invariant: a binding keeps its import, so its pointer never dangles.

use crate::failure::{call, give};
use crate::handle::{self, get, handle, put};
use crate::import::vmmc_import;
use crate::status::vmmc_status;
use crate::wait::within;
use std::ffi::c_void;
use std::sync::Arc;
use vmmc::{BindOptions, Import};

/// An import bound for automatic update: plain stores through its pointer appear in the export.
pub struct vmmc_binding(());

pub(crate) struct Object {
    import: Arc<Import>,
    base: usize,
}
handle!(vmmc_binding, Binding, Object, "binding");

/// Binds an import for automatic update; it must be mapped, with the rights read and write.
/// `combining` lets neighbouring stores be combined on their way to another node, and has no effect
/// within a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_binding_create(
    import: *const vmmc_import,
    combining: bool,
    binding: *mut *mut vmmc_binding,
) -> vmmc_status {
    let bind = || {
        let import: Arc<Import> = get(import)?.clone();
        let base = import.bind(BindOptions { combining })?.as_ptr() as usize;
        put(handle::Object::Binding(Object { import, base }))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(binding, "binding", bind) }
}

/// Frees the binding; do not use its pointer any more.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_binding_free(binding: *mut vmmc_binding) -> vmmc_status {
    call(|| handle::free(binding))
}

/// The export's memory, valid until vmmc_binding_free(). A store to it is an automatic update;
/// after the end of the export stores reach nobody.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_binding_pointer(binding: *const vmmc_binding, base: *mut *mut c_void) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(base, "base", || Ok(get(binding)?.base as *mut c_void)) }
}

/// Bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_binding_len(binding: *const vmmc_binding, len: *mut u64) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(len, "len", || Ok(get(binding)?.import.len())) }
}

/// Returns when all stores so far are in the export's memory, or with an error if the export has
/// ended.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_binding_flush(binding: *const vmmc_binding, timeout_us: i64) -> vmmc_status {
    call(|| {
        let binding = get(binding)?;
        Ok(within(timeout_us, || binding.import.flush())?)
    })
}
