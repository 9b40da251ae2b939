//! Second-level tables on disk: where they lie, and how many of a process stay in memory. [UTLB
//! §3.3]
//!
//! Invariant: a block belongs to one table of one process. The file has no name, so nobody else
//! writes to it and nothing of it stays behind.

use rustix::fs::{MemfdFlags, Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use vmmc_utlb::{DiskBlock, SecondLevel};

/// The blocks of a node.
pub(super) struct Swap {
    /// Second-level tables of a process that stay in memory; none: all.
    max: Option<usize>,
    /// Made when the first table leaves.
    file: Option<File>,
    free: Vec<u64>,
    blocks: u64,
    pub(super) outs: u64,
    pub(super) ins: u64,
}

impl Swap {
    pub(super) fn new(max: Option<usize>) -> Swap {
        Swap { max, file: None, free: Vec::new(), blocks: 0, outs: 0, ins: 0 }
    }

    /// Whether tables ever leave.
    pub(super) fn is_on(&self) -> bool {
        self.max.is_some()
    }

    /// Whether so many tables of one process are too many.
    pub(super) fn is_full(&self, tables: usize) -> bool {
        self.max.is_some_and(|max| tables > max)
    }

    /// A block that nobody uses.
    pub(super) fn block(&mut self) -> DiskBlock {
        DiskBlock(self.free.pop().unwrap_or_else(|| {
            self.blocks += 1;
            self.blocks - 1
        }))
    }

    /// The block is not used any more.
    pub(super) fn forget(&mut self, block: DiskBlock) {
        self.free.push(block.0);
    }

    /// Writes a table.
    pub(super) fn write(&mut self, block: DiskBlock, table: &SecondLevel) -> std::io::Result<()> {
        if self.file.is_none() {
            self.file = Some(file()?);
        }
        let bytes = table.to_bytes();
        let file = self.file.as_ref().expect("made above");
        file.write_all_at(&bytes, block.0 * bytes.len() as u64)?;
        self.outs += 1;
        Ok(())
    }

    /// Reads a table.
    pub(super) fn read(&mut self, block: DiskBlock) -> std::io::Result<SecondLevel> {
        let file = self.file.as_ref().ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound))?;
        let mut bytes = [0; SecondLevel::BYTES];
        file.read_exact_at(&mut bytes, block.0 * SecondLevel::BYTES as u64)?;
        self.ins += 1;
        Ok(SecondLevel::from_bytes(&bytes))
    }
}

/// A file without a name: on disk, or in memory where the folder for temporary files takes none.
fn file() -> std::io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR);
    let fd = fd.or_else(|_| rustix::fs::memfd_create("vmmc-tables", MemfdFlags::CLOEXEC));
    Ok(File::from(fd?))
}
