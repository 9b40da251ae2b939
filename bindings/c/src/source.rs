//! Memory to send from and to fetch into, of every kind.
//!
//! Invariant: a list is checked as a whole before its first piece moves. A transfer from a table
//! counts as its user, and nobody changes a table that has users.

use crate::buffer::vmmc_buffer;
use crate::failure::Failure;
use crate::handle::get;
use crate::lists::range;
use crate::memory::{bytes, bytes_mut, list};
use crate::pinned::{TableUser, vmmc_lent, vmmc_table};
use std::ffi::c_void;
use std::ops::Range;
use vmmc::{AnySource, AnyTarget};

/// For `kind`: any memory; the library copies it.
pub const VMMC_BYTES: u32 = 0;
/// For `kind`: a vmmc_buffer, registered memory; no copy on the way.
pub const VMMC_BUFFER: u32 = 1;
/// For `kind`: any memory; no copy on the way. Its whole pages are pinned at first use and stay
/// pinned, so that later transfers cost a look at a table. Memory that cannot be pinned (a stack, a
/// file, a few bytes) is copied.
pub const VMMC_PINNED: u32 = 2;
/// For `kind` of a source: a vmmc_lent; no copy on the way and, but for the first time, no system
/// call.
pub const VMMC_LENT: u32 = 3;
/// For `kind` of a source: what stands in a vmmc_table, from the entry at `index` on; no copy on
/// the way, and no look at any other table.
pub const VMMC_INDEXED: u32 = 4;

/// Memory to send from: `len` bytes of it, from byte `from` on. `{.memory = data, .len = size}` are
/// any bytes.
///
/// Until a posted send is done leave alone what is VMMC_BUFFER, VMMC_PINNED, VMMC_LENT or
/// VMMC_INDEXED; VMMC_BYTES are copied before the call returns. After VMMC_TIMED_OUT memory that is
/// not copied may still be read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_source {
    /// VMMC_BYTES, VMMC_BUFFER, VMMC_PINNED, VMMC_LENT, VMMC_INDEXED.
    pub kind: u32,
    /// With VMMC_INDEXED: the entry from whose start `from` counts.
    pub index: u32,
    /// VMMC_BYTES, VMMC_PINNED: the first byte. Others: the vmmc_buffer, vmmc_lent or vmmc_table.
    pub memory: *const c_void,
    /// First byte to send.
    pub from: u64,
    /// Bytes.
    pub len: u64,
}

/// Memory to fetch into: `len` bytes of it, from byte `from` on. `{.memory = into, .len = size}`
/// are any bytes.
///
/// Memory of a posted fetch belongs to it until it is done or freed. After VMMC_TIMED_OUT a
/// VMMC_BUFFER may still be written, and no other memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_target {
    /// VMMC_BYTES, VMMC_BUFFER, VMMC_PINNED.
    pub kind: u32,
    /// VMMC_BYTES, VMMC_PINNED: the first byte. VMMC_BUFFER: the vmmc_buffer.
    pub memory: *mut c_void,
    /// First byte to fetch into.
    pub from: u64,
    /// Bytes.
    pub len: u64,
}

/// Sources of the caller, and the tables that they use.
pub(crate) struct Sources {
    pub(crate) list: Vec<AnySource<'static>>,
    /// Goes after the last use of the list.
    pub(crate) users: Vec<TableUser>,
}

/// # Safety
/// `sources` is NULL or valid for `count` entries, and the memory of each is the caller's as long
/// as the result, and a transfer made of it, is used.
pub(crate) unsafe fn sources(sources: *const vmmc_source, count: usize) -> Result<Sources, Failure> {
    // SAFETY: the caller's word.
    let given = unsafe { list(sources, count, "sources") }?;
    let mut sources = Sources { list: Vec::with_capacity(given.len()), users: Vec::new() };
    for one in given {
        // SAFETY: the caller's word.
        let source = unsafe { source(one, &mut sources.users) }?;
        sources.list.push(source);
    }
    Ok(sources)
}

/// # Safety
/// As for [`sources`].
unsafe fn source(of: &vmmc_source, users: &mut Vec<TableUser>) -> Result<AnySource<'static>, Failure> {
    let part = range(of.from, of.len)?;
    Ok(match of.kind {
        // SAFETY: memory of the caller.
        VMMC_BYTES => AnySource::Bytes(unsafe { bytes(first(of.memory, &part), length(&part)?, "memory") }?),
        VMMC_BUFFER => AnySource::Buffer(get(of.memory.cast::<vmmc_buffer>())?.clone(), part),
        // SAFETY: memory of the caller.
        VMMC_PINNED => AnySource::Pinned(unsafe { bytes(first(of.memory, &part), length(&part)?, "memory") }?),
        VMMC_LENT => AnySource::Lent(get(of.memory.cast::<vmmc_lent>())?.range(part.start as usize..part.end as usize)),
        VMMC_INDEXED => {
            users.push(get(of.memory.cast::<vmmc_table>())?.user());
            let user = users.last().expect("just pushed");
            // SAFETY: the user stays beside whatever uses the source, and longer.
            let table = unsafe { user.table() };
            AnySource::Indexed(table.range(of.index, part.start as usize..part.end as usize))
        }
        kind => return Err(Failure::invalid(format!("`kind` of a source is {kind}, which means nothing"))),
    })
}

/// # Safety
/// `targets` is NULL or valid for `count` entries, and the memory of each is the caller's alone as
/// long as the result, and a transfer made of it, is used.
pub(crate) unsafe fn targets(targets: *const vmmc_target, count: usize) -> Result<Vec<AnyTarget<'static>>, Failure> {
    // SAFETY: the caller's word.
    let given = unsafe { list(targets, count, "targets") }?;
    disjoint(given)?;
    // SAFETY: the caller's word; none overlaps another.
    given.iter().map(|one| unsafe { target(one) }).collect()
}

/// # Safety
/// As for [`targets`].
unsafe fn target(of: &vmmc_target) -> Result<AnyTarget<'static>, Failure> {
    let part = range(of.from, of.len)?;
    let base = first(of.memory, &part).cast_mut();
    Ok(match of.kind {
        // SAFETY: memory of the caller.
        VMMC_BYTES => AnyTarget::Bytes(unsafe { bytes_mut(base, length(&part)?, "memory") }?),
        VMMC_BUFFER => AnyTarget::Buffer(get(of.memory.cast_const().cast::<vmmc_buffer>())?.clone(), part),
        // SAFETY: memory of the caller.
        VMMC_PINNED => AnyTarget::Pinned(unsafe { bytes_mut(base, length(&part)?, "memory") }?),
        kind => return Err(Failure::invalid(format!("`kind` of a target is {kind}, which means nothing"))),
    })
}

/// The first byte of a part of the caller's memory; NULL stays NULL.
fn first(memory: *const c_void, part: &Range<u64>) -> *const c_void {
    if memory.is_null() { memory } else { memory.wrapping_byte_add(part.start as usize) }
}

fn length(part: &Range<u64>) -> Result<usize, Failure> {
    usize::try_from(part.end - part.start).map_err(|_| Failure::invalid("`len` is more than memory can hold"))
}

fn disjoint(targets: &[vmmc_target]) -> Result<(), Failure> {
    let own = targets.iter().filter(|target| target.kind != VMMC_BUFFER && target.len > 0);
    let mut sorted: Vec<(u64, u64)> = own.map(|t| ((t.memory as u64).saturating_add(t.from), t.len)).collect();
    sorted.sort_unstable();
    let overlap = sorted.windows(2).any(|pair| pair[0].0.saturating_add(pair[0].1) > pair[1].0);
    if overlap { Err(Failure::invalid("two of the targets overlap")) } else { Ok(()) }
}
