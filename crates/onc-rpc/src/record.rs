//! Record marking: records of a stream, each as fragments with their length before them.
//!
//! Invariant: what is kept is no longer than a record may be, and grows only with bytes that have
//! come, whatever length a fragment claims. Source: RFC 5531 §11.

use crate::limits::FRAGMENTS_MAX;
use crate::xdr::Malformed;

/// The bit of a fragment's head that says that it is the last one of its record.
const LAST: u32 = 1 << 31;

/// Appends a record to what goes out, in fragments of so many bytes.
///
/// # Panics
/// If a fragment is to have no bytes, or 2 GiB or more.
pub fn write_record(record: &[u8], fragment_bytes: usize, out: &mut Vec<u8>) {
    assert!(fragment_bytes > 0 && fragment_bytes < LAST as usize, "fragments of {fragment_bytes} bytes");
    let mut rest = record;
    loop {
        let (fragment, behind) = rest.split_at(rest.len().min(fragment_bytes));
        let last = if behind.is_empty() { LAST } else { 0 };
        out.extend((fragment.len() as u32 | last).to_be_bytes());
        out.extend(fragment);
        if behind.is_empty() {
            return;
        }
        rest = behind;
    }
}

/// Puts the records of a stream together.
///
/// ```
/// use onc_rpc::{Records, write_record};
/// let mut stream = Vec::new();
/// write_record(b"a record", 3, &mut stream);
/// let mut records = Records::new(100);
/// let mut all = Vec::new();
/// for byte in stream {
///     records.push(&[byte], |record| all.push(record))?; // however it is cut
/// }
/// assert_eq!(all, [b"a record"]);
/// # Ok::<(), onc_rpc::Malformed>(())
/// ```
#[derive(Clone, Debug)]
pub struct Records {
    max: usize,
    record: Vec<u8>,
    fragments: usize,
    head: [u8; 4],
    /// Bytes of the head that have come. At 4 the fragment's bytes follow.
    head_len: usize,
    /// Bytes of the fragment that have not come.
    left: usize,
}

impl Records {
    /// Of up to so many bytes.
    pub fn new(record_bytes_max: usize) -> Records {
        Records { max: record_bytes_max, record: Vec::new(), fragments: 0, head: [0; 4], head_len: 0, left: 0 }
    }

    /// Takes bytes of the stream, and gives each record that is whole.
    ///
    /// # Errors
    /// [`Malformed::TooLong`]: a record has too many bytes or fragments; the stream cannot go on.
    pub fn push(&mut self, mut bytes: &[u8], mut whole: impl FnMut(Vec<u8>)) -> Result<(), Malformed> {
        loop {
            if self.head_len < 4 {
                let Some((first, rest)) = bytes.split_first() else { return Ok(()) };
                self.head[self.head_len] = *first;
                self.head_len += 1;
                bytes = rest;
                if self.head_len == 4 {
                    self.begin_fragment()?;
                }
                continue;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(self.left));
            self.record.extend(now);
            self.left -= now.len();
            bytes = rest;
            if self.left > 0 {
                return Ok(());
            }
            self.head_len = 0;
            if u32::from_be_bytes(self.head) & LAST != 0 {
                self.fragments = 0;
                whole(std::mem::take(&mut self.record));
            }
        }
    }

    /// Whether a record has begun and is not whole.
    pub fn is_amid(&self) -> bool {
        self.head_len > 0 || self.fragments > 0
    }

    fn begin_fragment(&mut self) -> Result<(), Malformed> {
        self.left = (u32::from_be_bytes(self.head) & !LAST) as usize;
        self.fragments += 1;
        let len = self.record.len() + self.left;
        if len > self.max {
            return Err(Malformed::TooLong { what: "record", len, max: self.max });
        }
        if self.fragments > FRAGMENTS_MAX {
            return Err(Malformed::TooLong { what: "list of fragments", len: self.fragments, max: FRAGMENTS_MAX });
        }
        Ok(())
    }
}
