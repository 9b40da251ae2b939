//! Tokens: buffers of an endpoint that each take one payload, from whoever has the token.
//!
//! Invariant: a buffer that has ended is given back, and is used no more. Source: `TokenBuffer` of
//! `crates/vmmc`.

use crate::arguments::natural_or_none;
use crate::bytes::Source;
use crate::errors::{Detached, exception, invalid, raise, wait};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use vmmc::{ErrorKind, PayloadToken, TokenPool, TokenRefused};

/// A buffer that waits for a payload by its token, or has it.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct TokenBuffer {
    /// None once it was given back.
    inner: Detached<RwLock<Option<vmmc::TokenBuffer>>>,
    token: PayloadToken,
    capacity: u64,
}

/// What became of a payload that was sent by token.
#[pyclass(module = "vmmc", frozen, get_all)]
pub(crate) struct ByToken {
    /// The token.
    token: Py<PyBytes>,
    /// Bytes in its buffer; None: the payload was dropped.
    length: Option<u64>,
    /// Why it was dropped: "wrong", "too long", "used" or "cancelled"; None: it was not.
    dropped: Option<&'static str>,
}

/// A token as it travels.
pub(crate) fn parse(token: &Bound<'_, PyAny>) -> PyResult<PayloadToken> {
    let bytes = Source::of(token)?;
    let wrong = || {
        let (len, right) = (bytes.bytes().len(), PayloadToken::BYTES);
        invalid(format!("a token of {len} bytes; it has {right}, as TokenBuffer.token gives them"))
    };
    Ok(PayloadToken::from_bytes(bytes.bytes().try_into().map_err(|_| wrong())?))
}

impl ByToken {
    pub(crate) fn new(py: Python<'_>, by_token: vmmc::ByToken) -> ByToken {
        let dropped = by_token.len.err().map(|why| match why {
            TokenRefused::Wrong => "wrong",
            TokenRefused::TooLong { .. } => "too long",
            TokenRefused::Used => "used",
            TokenRefused::Cancelled => "cancelled",
        });
        let token = PyBytes::new(py, &by_token.token.to_bytes()).unbind();
        ByToken { token, length: by_token.len.ok(), dropped }
    }
}

#[pymethods]
impl ByToken {
    fn __repr__(&self) -> String {
        match (self.length, self.dropped) {
            (Some(length), _) => format!("ByToken(length={length})"),
            (None, why) => format!("ByToken(dropped={:?})", why.unwrap_or_default()),
        }
    }
}

impl TokenBuffer {
    pub(crate) fn arm(pool: &TokenPool) -> PyResult<TokenBuffer> {
        let buffer = pool.arm().map_err(raise)?;
        let (token, capacity) = (buffer.token(), buffer.capacity());
        Ok(TokenBuffer { inner: Detached::new(RwLock::new(Some(buffer))), token, capacity })
    }

    fn read_lock(&self) -> RwLockReadGuard<'_, Option<vmmc::TokenBuffer>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn gone() -> PyErr {
    exception(ErrorKind::Stale, "the buffer was given back; take another one".into())
}

#[pymethods]
impl TokenBuffer {
    /// What names it, for one payload: 20 bytes, to be sent to whoever has the payload.
    #[getter]
    fn token<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.token.to_bytes())
    }

    /// Bytes that a payload can have.
    #[getter]
    fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes of the payload; None: none has come.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let polled = py.detach(|| self.read_lock().as_ref().map(vmmc::TokenBuffer::poll));
        Ok(polled.ok_or_else(gone)?.map_err(raise)?.map(|arrival| arrival.len))
    }

    /// Waits for the payload; gives its bytes.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let guard = self.read_lock();
        let buffer = guard.as_ref().ok_or_else(gone)?;
        Ok(wait(py, timeout, || buffer.wait())?.len)
    }

    /// Cancels the token. True: nothing has come, and nothing will; False: a payload has come, or
    /// is coming.
    fn cancel(&self) -> PyResult<bool> {
        self.read_lock().as_ref().ok_or_else(gone)?.cancel().map_err(raise)
    }

    /// A copy of bytes of the buffer; of the payload without arguments.
    #[pyo3(signature = (offset=None, length=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = natural_or_none)] offset: Option<u64>,
        #[pyo3(from_py_with = natural_or_none)] length: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let guard = self.read_lock();
        let buffer = guard.as_ref().ok_or_else(gone)?;
        let offset = offset.unwrap_or(0);
        let length = match length {
            Some(length) => length,
            None => buffer.poll().map_err(raise)?.map_or(0, |arrival| arrival.len).saturating_sub(offset),
        };
        // One byte more than there are is enough to be refused.
        let bytes = usize::try_from(length.min(self.capacity + 1)).expect("a buffer is shorter");
        PyBytes::new_with(py, bytes, |into| buffer.read(offset, into).map_err(raise))
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.read(py, None, None)
    }

    /// Gives it back, as its end does; its token lets nothing in any more.
    fn close(&self) -> PyResult<()> {
        match self.inner.try_write() {
            Ok(mut buffer) => drop(buffer.take()),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => drop(poisoned.into_inner().take()),
            Err(std::sync::TryLockError::WouldBlock) => {
                return Err(exception(ErrorKind::Busy, "another thread waits for this buffer".into()));
            }
        }
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_reasons))]
    fn __exit__(&self, _reasons: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close()
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.TokenBuffer of {} bytes>", self.capacity)
    }
}
