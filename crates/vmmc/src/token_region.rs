//! Token regions: memory of which any range can take one payload, from whoever has its token.
//!
//! ```text
//!   0              a whole page                                     whole pages
//!   +--------------+------------------------------------------------+
//!   | entries      | the memory:   [ range of token a ]  [ b ]      |
//!   +--------------+------------------------------------------------+
//! ```
//!
//! Invariant: ranges that payloads may come to, or are on their way to, do not overlap. Source:
//! [GMS §2] incoming payload table, whose entries name any memory.

use crate::buffer::Buffer;
use crate::error::{ExportError, TokenError};
use crate::export::ExportBuilder;
use crate::limits::{TOKEN_BYTES_MAX, TOKENS_MAX};
use crate::session::Session;
use crate::tokens::{Table, TokenBuffer};
use std::ops::Range;
use std::sync::{Arc, Weak};
use vmmc_host::control::Access;
use vmmc_host::region::PAGE_BYTES;
use vmmc_nic::{ExportId, TOKEN_ENTRY_BYTES};

/// A region whose ranges take one payload each: as a [`TokenTable`](crate::TokenTable), whose
/// buffers the owner chooses, so that payloads land where they are to stay. Clones are the same
/// memory; it ends with the last of them and of its [`TokenBuffer`]s.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-token-region").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc::Rights;
/// let region = session.token_region(4, 1 << 20).create()?; // up to four payloads at a time
/// let place = region.arm(8_192..12_288)?;
/// let token = place.token(); // goes to another process, which may pass it on
///
/// let import = session.import_id(token.table).rights(Rights::WRITE).open()?;
/// import.send_token(token, 77, b"the answer")?;
/// assert_eq!(place.wait()?.len, 10);
/// drop(place); // the range is free for another payload
/// let mut answer = [0; 10];
/// region.memory().read(8_192, &mut answer)?; // and what came stays
/// assert_eq!(&answer, b"the answer");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TokenRegion {
    table: Arc<Table>,
    memory: Buffer,
}

/// Choices for a token region; made by [`Session::token_region`](crate::Session::token_region).
#[must_use = "there is no region before `create`"]
pub struct TokenRegionBuilder {
    export: ExportBuilder,
    ranges: u64,
    bytes: u64,
}

impl TokenRegionBuilder {
    pub(crate) fn new(session: &Session, ranges: u64, bytes: u64) -> TokenRegionBuilder {
        let size = first_byte(ranges).saturating_add(bytes.saturating_add(PAGE - 1) / PAGE * PAGE);
        let entries = u32::try_from(ranges).unwrap_or(u32::MAX);
        TokenRegionBuilder { export: session.export(size).tokens(entries), ranges, bytes }
    }

    /// Who may send by token; default processes of the same user.
    pub fn access(self, access: Access) -> Self {
        TokenRegionBuilder { export: self.export.access(access), ..self }
    }

    /// As of [`TokenTableBuilder::mappable`](crate::TokenTableBuilder::mappable).
    pub fn mappable(self, mappable: bool) -> Self {
        TokenRegionBuilder { export: self.export.mappable(mappable), ..self }
    }

    /// Makes the region, zeroed.
    ///
    /// # Errors
    /// [`ExportError`]. [`ExportError::Tokens`]: there are no such regions.
    pub fn create(self) -> Result<TokenRegion, ExportError> {
        let TokenRegionBuilder { export, ranges, bytes } = self;
        if ranges == 0 || ranges > TOKENS_MAX || bytes == 0 || bytes > TOKEN_BYTES_MAX {
            return Err(ExportError::Tokens { count: ranges, bytes });
        }
        let (export, first) = (export.create()?, first_byte(ranges));
        let memory = export.buffer().part(first..first + bytes);
        Ok(TokenRegion { table: Arc::new(Table::new(export, ranges as u32)), memory })
    }
}

const PAGE: u64 = PAGE_BYTES as u64;

/// Where the memory begins: on a page, for the kernel takes whole pages of a send without a copy.
fn first_byte(ranges: u64) -> u64 {
    ranges.saturating_mul(TOKEN_ENTRY_BYTES).div_ceil(PAGE).saturating_mul(PAGE)
}

#[allow(clippy::len_without_is_empty)] // never empty
impl TokenRegion {
    /// Id for importers, which every token carries.
    pub fn id(&self) -> ExportId {
        self.table.export().id()
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.memory.len()
    }

    /// The memory, to read, to send from, or to export
    /// ([`Session::export_buffer`](crate::Session::export_buffer)).
    pub fn memory(&self) -> &Buffer {
        &self.memory
    }

    /// Arms a range with a new token, for one payload of up to its bytes. As long as the
    /// [`TokenBuffer`] is there no other token is for a byte of it; a payload that never ends,
    /// since its sender has died, keeps its range from others for good.
    ///
    /// # Errors
    /// [`TokenError::OutOfBounds`], [`TokenError::Taken`]; [`TokenError::Ranges`]: so many are
    /// armed. [`TokenError::Access`]: the process was forked.
    pub fn arm(&self, range: Range<u64>) -> Result<TokenBuffer, TokenError> {
        let Range { start, end } = range;
        if start > end || end > self.len() {
            return Err(TokenError::OutOfBounds { start, end, size: self.len() });
        }
        let first = first_byte(self.table.count());
        let armed = self.table.arm(|places, _| match places.are_taken(&(first + start..first + end)) {
            true => Err(TokenError::Taken { start, end }),
            false => Ok((first + start, end - start)),
        })?;
        armed.ok_or_else(|| TokenError::Ranges { most: self.table.count() })
    }

    pub(crate) fn table(&self) -> Weak<Table> {
        Arc::downgrade(&self.table)
    }
}

impl std::fmt::Debug for TokenRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenRegion").field("id", &self.id()).field("bytes", &self.len()).finish()
    }
}
