//! Automatic update: plain stores propagate by themselves [SHRIMP §2].
//!
//! Invariant: within a node the binding is the mapping itself, so a store is in the export's memory
//! at once and nothing checks the gate: the node is notified, and a revocation moves the exporter's
//! pages. The interface leaves room for bindings between nodes, whose stores are combined and sent
//! later: hence [`BindOptions::combining`] and [`Binding::flush`].

use crate::error::{AccessError, BindError, TransferError};
use crate::import::{Import, Shared};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use vmmc_host::control::{Call, NotMapped};
use vmmc_host::handshake::fence;
use vmmc_nic::Rights;

/// Choices for a binding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// Combine neighbouring stores on their way to another node. Within a node there is nothing to
    /// combine, and it has no effect.
    pub combining: bool,
}

/// The export's memory, bound: plain stores appear there. It borrows its import.
pub struct Binding<'a> {
    import: &'a Import,
}

impl Import {
    /// Binds the import for automatic update: stores through the binding appear in the export
    /// without a send.
    ///
    /// # Errors
    /// [`BindError`] when the import is not mapped (it says why) or lacks a right.
    pub fn bind(&self, _options: BindOptions) -> Result<Binding<'_>, BindError> {
        let shared: &Arc<Shared> = &self.shared;
        let import = || shared.label.clone();
        let Some(mapped) = &self.mapped else {
            let why = shared.not_mapped.unwrap_or(NotMapped::NotAllowed);
            return Err(BindError::NotMapped { import: import(), why });
        };
        if !shared.rights.contains(Rights::READ | Rights::WRITE) {
            return Err(BindError::NoRight { import: import(), granted: shared.rights });
        }
        mapped.probe().map_err(|fault| shared.fault(fault))?;
        let call = Call::Bind { import: shared.id };
        let answer = shared.core.call(call, &[], shared.core.default_deadline());
        answer.map_err(|error| BindError::Call { import: import(), error })?;
        Ok(Binding { import: self })
    }
}

#[allow(clippy::len_without_is_empty)] // never empty
impl Binding<'_> {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.import.len()
    }

    /// First byte: stores through it are automatic updates. For callers that take the
    /// responsibility of shared memory themselves; valid as long as the import lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region().as_ptr()
    }

    /// Stores bytes; the last one becomes visible last. After the export's end the bytes reach
    /// nobody.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`]; [`AccessError::Forked`].
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        self.import.shared.core.must_be_here()?;
        Ok(self.region().write(offset, data)?)
    }

    /// Loads bytes.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`]; [`AccessError::Forked`].
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.import.shared.core.must_be_here()?;
        Ok(self.region().read(offset, into)?)
    }

    /// An aligned word of the export: a store to it is an automatic update.
    ///
    /// # Errors
    /// [`AccessError`].
    #[inline]
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        self.import.shared.core.must_be_here()?;
        if offset % 8 != 0 {
            return Err(AccessError::Misaligned { offset });
        }
        Ok(self.region().word(offset)?)
    }

    /// Returns when all stores so far are in the export's memory, or an error if the export has
    /// ended.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn flush(&self) -> Result<(), TransferError> {
        fence();
        self.import.flush()
    }

    /// Whether the export still exists.
    pub fn is_open(&self) -> bool {
        self.import.broken().is_none()
    }

    fn region(&self) -> &vmmc_host::Region {
        self.import.mapped.as_ref().expect("only mapped imports are bound").region()
    }
}
