//! What ranks print: to our own streams with the rank before each line, or into files.
//!
//! Invariant: a line of one rank is never torn by a line of another one; nothing is lost while the
//! reader is there; waiting for a slow reader ends with an interrupt.

use crate::args::run::Run;
use crate::failure::Failure;
use crate::limits::READER_PATIENCE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use vmmc_job::Stream;

/// Bytes that a pipe takes as a whole once it is writable.
const PIPE_BYTES: usize = 4096;
/// Colours of ranks on a terminal: those that can be read on dark and bright ground.
const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It is out.
    All,
    /// Nobody read the rest, and the user wants an end.
    Part,
    /// Nobody reads any more.
    ReaderGone,
}

/// Shows output.
pub(super) struct Printer {
    folder: Option<PathBuf>,
    files: HashMap<(u32, bool), File>,
    prefix: bool,
    colour: [bool; 2],
    /// The user wants an end: a reader that does not read is waited for no longer.
    hurry: bool,
    /// Nobody reads.
    stuck: bool,
}

impl Printer {
    pub(super) fn new(run: &Run) -> Result<Printer, Failure> {
        if let Some(folder) = &run.output_dir {
            let failed = |e| Failure::Usage(format!("--output-dir {}: {e}", folder.display()));
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = [std::io::stdout().is_terminal() && !plain, std::io::stderr().is_terminal() && !plain];
        Ok(Printer {
            folder: run.output_dir.clone(),
            files: HashMap::new(),
            prefix: !run.no_prefix,
            colour,
            hurry: false,
            stuck: false,
        })
    }

    /// Prints lines of a rank.
    pub(super) fn print(
        &mut self,
        rank: u32,
        stream: Stream,
        bytes: &[u8],
        interrupts: &UnixStream,
    ) -> Result<Written, Failure> {
        let is_err = stream == Stream::Err;
        if let Some(folder) = &self.folder {
            let file = match self.files.entry((rank, is_err)) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    let path = folder.join(format!("{rank}.{}", if is_err { "err" } else { "out" }));
                    entry.insert(File::create(path)?)
                }
            };
            file.write_all(bytes)?;
            return Ok(Written::All);
        }
        let text = if self.prefix { marked(rank, bytes, self.colour[usize::from(is_err)]) } else { bytes.to_vec() };
        let (out, err) = (std::io::stdout(), std::io::stderr());
        let fd = if is_err { err.as_fd() } else { out.as_fd() };
        if self.stuck {
            return Ok(Written::All);
        }
        let written = write(fd, &text, interrupts, self.hurry)?;
        self.stuck = self.hurry && written == Written::Part;
        Ok(written)
    }

    /// From now on, what is not read at once is not shown.
    pub(super) fn hurry(&mut self) {
        self.hurry = true;
    }

    /// All is out.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        for file in self.files.values_mut() {
            file.flush()?;
        }
        Ok(())
    }
}

/// Each line with its rank before it; the last one ends.
fn marked(rank: u32, bytes: &[u8], colour: bool) -> Vec<u8> {
    let mark = match colour {
        true => format!("\x1b[{}m[{rank}]\x1b[0m ", COLOURS[rank as usize % COLOURS.len()]),
        false => format!("[{rank}] "),
    };
    let mut text = Vec::with_capacity(bytes.len() + bytes.len() / 4 + mark.len());
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        text.extend_from_slice(mark.as_bytes());
        text.extend_from_slice(line);
    }
    if text.last() != Some(&b'\n') {
        text.push(b'\n');
    }
    text
}

fn write(fd: BorrowedFd<'_>, mut text: &[u8], interrupts: &UnixStream, hurry: bool) -> Result<Written, Failure> {
    let patience = Timespec { tv_sec: 0, tv_nsec: i64::from(READER_PATIENCE.subsec_nanos()) };
    while !text.is_empty() {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT), PollFd::new(interrupts, PollFlags::IN)];
        let ready = poll(if hurry { &mut fds[..1] } else { &mut fds }, hurry.then_some(&patience));
        if fds[0].revents().is_empty() {
            match ready {
                // A signal: the next poll shows its byte.
                Err(_) => continue,
                Ok(_) => return Ok(Written::Part),
            }
        }
        match rustix::io::write(fd, &text[..text.len().min(PIPE_BYTES)]) {
            Ok(n) => text = &text[n..],
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::PIPE) => return Ok(Written::ReaderGone),
            Err(errno) => return Err(std::io::Error::from(errno).into()),
        }
    }
    Ok(Written::All)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_marked_and_the_last_one_ends() {
        assert_eq!(marked(3, b"one\n\ntwo", false), b"[3] one\n[3] \n[3] two\n");
        assert_eq!(marked(0, b"x\n", true), b"\x1b[36m[0]\x1b[0m x\n");
    }
}
