//! Wire format: docs/protocol.md is its description, this folder its only implementation.
//!
//! Invariant: decoding takes any bytes and never panics; what it returns can only hold what makes
//! sense. Numbers are little endian.

pub(crate) mod chunk;
pub(crate) mod frame;
pub(crate) mod hello;
pub(crate) mod packet;

/// Takes fields off the front of foreign bytes.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn short_text(&mut self) -> Option<&'a str> {
        let len = self.u8()?;
        std::str::from_utf8(self.bytes(len.into())?).ok()
    }
}

/// The field at a place of bytes that are known to be there.
#[inline]
pub(crate) fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// As [`u64_at`].
#[inline]
pub(crate) fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Puts fields into a buffer that is known to be large enough; a buffer that is not is our mistake.
pub(crate) struct Writer<'a> {
    buf: &'a mut [u8],
    at: usize,
    /// Bytes of `buf` that must stay free.
    kept: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buf: &'a mut [u8]) -> Writer<'a> {
        Writer { buf, at: 0, kept: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.at
    }

    pub(crate) fn room(&self) -> usize {
        self.buf.len() - self.kept - self.at
    }

    /// Keeps room free for `len` bytes that stand elsewhere and are put in here when the packet is
    /// sent.
    pub(crate) fn keep(&mut self, len: usize) {
        assert!(len <= self.room(), "the caller looked for room");
        self.kept += len;
    }

    /// The next `len` bytes, for the caller to fill.
    #[inline]
    pub(crate) fn space(&mut self, len: usize) -> &mut [u8] {
        let space = &mut self.buf[self.at..self.at + len];
        self.at += len;
        space
    }

    #[inline]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
    }

    #[inline]
    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    #[inline]
    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Text of at most 255 bytes; longer text is cut, which the callers' checks exclude.
    pub(crate) fn short_text(&mut self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(255)];
        self.u8(bytes.len() as u8);
        self.bytes(bytes);
    }
}
