//! What happened, as a digest always and as text when asked.
//!
//! Invariant: the digest depends on every packet, deposit and event and on their order, and on
//! nothing of the machine. Text is made only when lines are kept: formatting every event would cost
//! more than simulating it.

use std::collections::VecDeque;
use std::fmt;

use crate::rng::mix;

/// The running digest and the last lines.
#[derive(Debug)]
pub(crate) struct Trace {
    digest: u64,
    lines_max: usize,
    lines: VecDeque<String>,
}

impl Trace {
    pub(crate) fn new(lines_max: usize) -> Trace {
        Trace { digest: 0, lines_max, lines: VecDeque::new() }
    }

    /// Mixes numbers into the digest.
    pub(crate) fn digest(&mut self, words: &[u64]) {
        for word in words {
            self.digest = mix(self.digest ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        }
    }

    /// Mixes bytes into the digest.
    pub(crate) fn digest_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.digest = (self.digest ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }

    /// Remembers a line, when lines are kept. Call it through `trace.line(now, format_args!(..))`.
    pub(crate) fn line(&mut self, now_ns: u64, text: fmt::Arguments<'_>) {
        if self.lines_max == 0 {
            return;
        }
        if self.lines.len() == self.lines_max {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{:>14.3} us  {text}", now_ns as f64 / 1e3));
    }

    /// The digest so far.
    pub(crate) fn value(&self) -> u64 {
        self.digest
    }

    /// The lines kept, oldest first.
    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
