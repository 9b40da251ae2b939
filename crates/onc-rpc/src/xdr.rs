//! XDR: numbers of four and eight bytes, most significant first, and counted bytes that are filled
//! up to a multiple of four.
//!
//! Invariant: a decoder reads no byte twice, and nothing beyond the bytes it was given; fill bytes
//! are zeros, as the standard says, so what decodes encodes to the same bytes. Source: RFC 4506.

use thiserror::Error;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// They end too early.
    #[error("the message ends in the middle of its {what}")]
    Short {
        /// Of what.
        what: &'static str,
    },
    /// Something is longer than it may be.
    #[error("the message has a {what} of {len}, and {max} is the most")]
    TooLong {
        /// What.
        what: &'static str,
        /// Its length, bytes or entries.
        len: usize,
        /// The bound.
        max: usize,
    },
    /// A value means nothing.
    #[error("the message has {what} {value}, which means nothing")]
    Value {
        /// What.
        what: &'static str,
        /// The value.
        value: u32,
    },
    /// A string is none.
    #[error("the message has a {what} that is no UTF-8")]
    Text {
        /// What.
        what: &'static str,
    },
    /// There is more than there may be.
    #[error("the message has {len} bytes behind its {what}")]
    Rest {
        /// What is the last.
        what: &'static str,
        /// Bytes behind it.
        len: usize,
    },
    /// The caller speaks another version of RPC; the answer is
    /// [`Denied::RpcMismatch`](crate::Denied).
    #[error("call {xid:#x} is of version {version} of RPC, and there is version 2")]
    RpcVersion {
        /// Number of the call.
        xid: u32,
        /// Its version.
        version: u32,
    },
}

/// Bytes that are filled up to a multiple of four.
fn filled(len: usize) -> usize {
    len.next_multiple_of(4) - len
}

/// Writes XDR.
#[derive(Clone, Debug, Default)]
pub struct Encoder(Vec<u8>);

impl Encoder {
    /// With nothing written.
    pub fn new() -> Encoder {
        Encoder::default()
    }

    /// A number, or the value of an enum.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// A hyper.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// A truth value.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u32(value.into())
    }

    /// So many bytes as both sides know.
    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self.0.extend([0; 3].iter().take(filled(bytes.len())));
        self
    }

    /// Bytes with their count before them: opaque data or a string.
    ///
    /// # Panics
    /// If they are 4 GiB or more.
    pub fn counted(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(u32::try_from(bytes.len()).expect("shorter than 4 GiB")).fixed(bytes)
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Reads XDR.
#[derive(Clone, Copy, Debug)]
pub struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    /// Of these bytes.
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder(bytes)
    }

    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Malformed::Short { what })?;
        self.0 = rest;
        Ok(*first)
    }

    /// A number; `what` it is goes into the error.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    pub fn u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        self.take(what).map(u32::from_be_bytes)
    }

    /// A hyper.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    pub fn u64(&mut self, what: &'static str) -> Result<u64, Malformed> {
        self.take(what).map(u64::from_be_bytes)
    }

    /// A truth value.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn bool(&mut self, what: &'static str) -> Result<bool, Malformed> {
        match self.u32(what)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(Malformed::Value { what, value }),
        }
    }

    /// So many bytes.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn fixed(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short { what })?;
        let (fill, rest) = rest.split_at_checked(filled(len)).ok_or(Malformed::Short { what })?;
        if let Some(fill) = fill.iter().find(|byte| **byte != 0) {
            return Err(Malformed::Value { what: "a fill byte", value: (*fill).into() });
        }
        self.0 = rest;
        Ok(bytes)
    }

    /// Bytes with their count before them, of which there may be `max`.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn counted(&mut self, what: &'static str, max: usize) -> Result<&'a [u8], Malformed> {
        let len = self.count(what, max)?;
        self.fixed(what, len)
    }

    /// The count of something, of which there may be `max`.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn count(&mut self, what: &'static str, max: usize) -> Result<usize, Malformed> {
        let len = self.u32(what)? as usize;
        if len > max { Err(Malformed::TooLong { what, len, max }) } else { Ok(len) }
    }

    /// A string of up to `max` bytes. Ours are UTF-8; the standard says ASCII.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn string(&mut self, what: &'static str, max: usize) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.counted(what, max)?).map_err(|_| Malformed::Text { what })
    }

    /// What was not read yet.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Nothing may be left behind `what`.
    ///
    /// # Errors
    /// [`Malformed::Rest`].
    pub fn end(self, what: &'static str) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Rest { what, len: self.0.len() }) }
    }
}
