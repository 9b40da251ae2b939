//! Traces of transfers: what happened, when, by whom, where. [UTLB §6]
//!
//! Invariant: a reader yields records in the order of time and with addresses that exist, or an
//! error that names file, offset and reason; it never panics and never reads more than a block
//! ahead. Readers and writers take streams: this crate opens no files.

mod csv;
mod din;
mod info;
mod merge;
mod oracle;
mod own;
#[cfg(test)]
mod tests;

pub use crate::record::{Op, OwnWriter, Record};
pub use info::{Info, ProcessInfo};
pub use merge::Merge;

use crate::ids::Pages;
use crate::limits::TRANSFER_PAGES_MAX;
use std::io::{BufRead, BufReader, Read, Write};

/// How a trace is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Our own: compact binary, see docs/utlb.md.
    Own,
    /// `time_ns,process,op,address,length` with a head line.
    Csv,
    /// Dinero: `label address` in hexadecimal; label 0 reads (a send), 1 writes (a fetch).
    Din,
    /// libCacheSim's oracleGeneral: an object is a page.
    Oracle,
}

impl Format {
    /// All.
    pub const ALL: [Format; 4] = [Format::Own, Format::Csv, Format::Din, Format::Oracle];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Own => "vmmc",
            Format::Csv => "csv",
            Format::Din => "din",
            Format::Oracle => "oracleGeneral",
        }
    }

    /// From its name.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name))
    }

    /// From the name of a file: `.csv`, `.din`, `.oracleGeneral`, any with `.zst` behind; all
    /// others are our own.
    pub fn of_file(name: &str) -> Format {
        let name = name.to_ascii_lowercase();
        let name = name.strip_suffix(".zst").unwrap_or(&name);
        match name.rsplit('.').next() {
            Some("csv") => Format::Csv,
            Some("din") => Format::Din,
            Some(end) if end.starts_with("oraclegeneral") => Format::Oracle,
            _ => Format::Own,
        }
    }
}

/// Why a trace cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: byte {offset}: {reason}")]
pub struct TraceError {
    /// As it was named when it was opened.
    pub file: String,
    /// Bytes from the beginning, after decompression.
    pub offset: u64,
    /// What is wrong there.
    pub reason: Reason,
}

/// What is wrong in a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it all")]
pub enum Reason {
    #[error("not a trace of this format: it begins with {0:02x?}; name the format")]
    Magic(Vec<u8>),
    #[error("version {0} of the format; this program reads version 1")]
    Version(u8),
    #[error("the trace ends in the middle of a record; it was cut, or its writer was killed")]
    Truncated,
    #[error("the trace says it has {said} records but has {found}")]
    Count { said: u64, found: u64 },
    #[error("bytes after the end of the trace")]
    Trailing,
    #[error("unknown kind of record {0:#x}")]
    Kind(u8),
    #[error("a number of more than 64 bits")]
    Number,
    #[error("process {0}; at most 65535")]
    Process(u64),
    #[error("time {now} ns after {before} ns; sort the trace")]
    Time { before: u64, now: u64 },
    #[error("{len_bytes} bytes at address {address:#x} leave the address space of 60 bits")]
    Address { address: u64, len_bytes: u64 },
    #[error("a transfer of {0} bytes; at most 16 GiB")]
    Length(u64),
    #[error("object {0:#x} is no page number below 2^48; renumber the objects")]
    Object(u64),
    #[error("line {line}: {what}")]
    Line { line: u64, what: String },
    #[error("process {process}, page {page:#x}: this format has room for 4096 processes and pages below 2^36")]
    NoRoom { process: u16, page: u64 },
    #[error("{0}")]
    Io(String),
}

/// Records, or the error that ends them.
pub type Records<'a> = Box<dyn Iterator<Item = Result<Record, TraceError>> + Send + 'a>;

/// The position in a stream, for errors.
struct Input<R> {
    file: String,
    offset: u64,
    stream: R,
}

impl<R: BufRead> Input<R> {
    #[cold]
    fn error(&self, reason: Reason) -> TraceError {
        TraceError { file: self.file.clone(), offset: self.offset, reason }
    }

    fn io(&self, error: &std::io::Error) -> TraceError {
        let truncated = error.kind() == std::io::ErrorKind::UnexpectedEof;
        self.error(if truncated { Reason::Truncated } else { Reason::Io(error.to_string()) })
    }

    /// Fills `bytes`; `false` if the stream ended before the first.
    #[inline]
    fn fill(&mut self, bytes: &mut [u8]) -> Result<bool, TraceError> {
        if let Some(there) = self.stream.fill_buf().ok().and_then(|buffer| buffer.get(..bytes.len())) {
            bytes.copy_from_slice(there);
            self.stream.consume(bytes.len());
            self.offset += bytes.len() as u64;
            return Ok(!bytes.is_empty());
        }
        self.fill_slowly(bytes)
    }

    /// Across the end of a buffer, or of the stream.
    #[cold]
    fn fill_slowly(&mut self, bytes: &mut [u8]) -> Result<bool, TraceError> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(self.error(Reason::Truncated)),
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => (),
                Err(e) => return Err(self.io(&e)),
            }
        }
        self.offset += filled as u64;
        Ok(true)
    }

    /// A record as read, after the checks that all formats share.
    #[inline]
    fn checked(&self, record: Record, before_ns: u64) -> Result<Record, TraceError> {
        if record.time_ns < before_ns {
            return Err(self.error(Reason::Time { before: before_ns, now: record.time_ns }));
        }
        let len_bytes = u64::from(record.len_bytes);
        match Pages::of_bytes(record.address, len_bytes) {
            None => Err(self.error(Reason::Address { address: record.address, len_bytes })),
            Some(pages) if pages.count() > TRANSFER_PAGES_MAX => Err(self.error(Reason::Length(len_bytes))),
            Some(_) => Ok(record),
        }
    }
}

/// What the readers of all formats share: records one by one, until the end or the first error.
trait Reading {
    /// The next record; none at the end.
    fn record(&mut self) -> Result<Option<Record>, TraceError>;
}

/// A reader as an iterator that ends after an error.
struct Iter<R> {
    reader: R,
    ended: bool,
}

impl<R: Reading> Iterator for Iter<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.reader.record().transpose();
        self.ended = !matches!(record, Some(Ok(_)));
        record
    }
}

fn records<'a>(reader: impl Reading + Send + 'a) -> Records<'a> {
    Box::new(Iter { reader, ended: false })
}

/// Reads a trace; zstd is recognised. `file` is for messages.
///
/// # Errors
///
/// [`TraceError`], here for the head and in the iterator for the rest.
///
/// ```
/// use vmmc_utlb::trace::{Format, read};
/// let text = "time_ns,process,op,address,length\n10,1,send,0x1000,4096\n20,2,fetch,0x2000,8\n";
/// let records: Result<Vec<_>, _> = read("t.csv", text.as_bytes(), Format::Csv).unwrap().collect();
/// assert_eq!(records.unwrap()[1].address, 0x2000);
///
/// let bad = "time_ns,process,op,address,length\n10,1,push,0x1000,4096\n";
/// let error = read("t.csv", bad.as_bytes(), Format::Csv).unwrap().next().unwrap().unwrap_err();
/// let said = "t.csv: byte 34: line 2: \"push\" is no op; give send, fetch, export or unmap";
/// assert_eq!(error.to_string(), said);
/// ```
pub fn read<'a>(file: &str, stream: impl Read + Send + 'a, format: Format) -> Result<Records<'a>, TraceError> {
    let mut stream = BufReader::with_capacity(1 << 16, stream);
    let failed = |e: std::io::Error| TraceError { file: file.into(), offset: 0, reason: Reason::Io(e.to_string()) };
    let packed = stream.fill_buf().map_err(failed)?.starts_with(&ZSTD_MAGIC);
    if packed {
        let unpacker = zstd::stream::read::Decoder::with_buffer(stream).map_err(failed)?;
        return read_as(file, BufReader::with_capacity(1 << 16, unpacker), format);
    }
    read_as(file, stream, format)
}

fn read_as<'a>(file: &str, stream: impl BufRead + Send + 'a, format: Format) -> Result<Records<'a>, TraceError> {
    let input = Input { file: file.into(), offset: 0, stream };
    Ok(match format {
        Format::Own => records(own::OwnReader::new(input)?),
        Format::Csv => records(csv::CsvReader::new(input)?),
        Format::Din => records(din::DinReader::new(input)),
        Format::Oracle => records(oracle::OracleReader::new(input)),
    })
}

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Writes a trace; how many records.
///
/// # Errors
///
/// What the input or the stream says. [`Format::Oracle`] keeps the trace in memory, because each of
/// its records knows when its page is next used.
pub fn write(
    file: &str,
    stream: impl Write,
    format: Format,
    pack: bool,
    records: impl Iterator<Item = Result<Record, TraceError>>,
) -> Result<u64, TraceError> {
    let failed = |e: std::io::Error| TraceError { file: file.into(), offset: 0, reason: Reason::Io(e.to_string()) };
    if !pack {
        let mut stream = std::io::BufWriter::with_capacity(1 << 16, stream);
        let count = write_as(file, &mut stream, format, records)?;
        stream.flush().map_err(failed)?;
        return Ok(count);
    }
    let mut packer = zstd::stream::write::Encoder::new(stream, 3).map_err(failed)?;
    packer.include_checksum(true).map_err(failed)?;
    let mut stream = std::io::BufWriter::with_capacity(1 << 16, packer);
    let count = write_as(file, &mut stream, format, records)?;
    let packer = stream.into_inner().map_err(|e| failed(e.into_error()))?;
    packer.finish().and_then(|mut stream| stream.flush()).map_err(failed)?;
    Ok(count)
}

fn write_as(
    file: &str,
    stream: &mut impl Write,
    format: Format,
    records: impl Iterator<Item = Result<Record, TraceError>>,
) -> Result<u64, TraceError> {
    let failed = |e: std::io::Error| TraceError { file: file.into(), offset: 0, reason: Reason::Io(e.to_string()) };
    let mut count = 0;
    match format {
        Format::Own => {
            let mut writer = OwnWriter::new(stream).map_err(failed)?;
            for record in records {
                writer.push(&record?).map_err(failed)?;
                count += 1;
            }
            writer.finish().map_err(failed)?;
        }
        Format::Csv => {
            stream.write_all(csv::HEAD.as_bytes()).map_err(failed)?;
            for record in records {
                csv::line(stream, &record?).map_err(failed)?;
                count += 1;
            }
        }
        Format::Din => {
            for record in records {
                din::line(stream, &record?).map_err(failed)?;
                count += 1;
            }
        }
        Format::Oracle => count = oracle::write(file, stream, records)?,
    }
    Ok(count)
}
