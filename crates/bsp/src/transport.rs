//! How a member's streams reach the others: its outboxes, and the boards of all.
//!
//! Invariant: an outbox is emptied when all have read it: that of a superstep two barriers later,
//! answers one barrier later.

use crate::board::{Board, Which, slot_bytes};
use crate::error::BspError;
use crate::limits::{DIRECT_BYTES_MIN, WINDOW_BYTES};
use crate::outbox::{Outbox, Segment};
use crate::superstep::{Incoming, Stream};
use crate::wire::{Block, SLOT_HEAD_BYTES, SlotHead};
use std::collections::VecDeque;

/// What a member needs to exchange streams with the others.
pub(crate) struct Transport {
    pid: u32,
    /// None: there are no others.
    board: Option<Board>,
    /// Of supersteps by turns.
    out: [Outbox; 2],
    answers: Outbox,
    /// Of the superstep that is going on; counted from 1.
    number: u64,
    /// What others have written for this superstep.
    slots: Vec<(u32, SlotHead, Vec<u8>)>,
    window: Vec<u8>,
}

impl Transport {
    pub(crate) fn new(pid: u32, nprocs: u32, board: Option<Board>) -> Transport {
        let slot_bytes = slot_bytes(nprocs);
        let outbox = |which| {
            let maker = match &board {
                Some(board) => board.maker(which),
                None => Box::new(|_, bytes| Ok(Segment::Private(vec![0; bytes as usize]))),
            };
            Outbox::new(pid, nprocs, slot_bytes, maker)
        };
        let (out, answers) = ([outbox(Which::Out(0)), outbox(Which::Out(1))], outbox(Which::Answers));
        Transport { pid, board, out, answers, number: 1, slots: Vec::new(), window: Vec::new() }
    }

    fn half(&self) -> u64 {
        self.number % 2
    }

    /// Where what goes out in this superstep is kept.
    #[inline]
    pub(crate) fn out(&mut self) -> &mut Outbox {
        &mut self.out[(self.number % 2) as usize]
    }

    /// Tells the others what there is for them, and waits until all have done so.
    pub(crate) fn meet(&mut self) -> Result<(), BspError> {
        let (number, half) = (self.number, self.half());
        let out = &self.out[half as usize];
        if out.filled().contains(&self.pid) {
            self.slots.push((self.pid, out.head(self.pid, number), out.slot(self.pid, number)));
        }
        self.answers.clear();
        let Some(board) = &mut self.board else { return Ok(()) };
        let others: Vec<u32> = out.filled().iter().copied().filter(|to| *to != self.pid).collect();
        for to in &others {
            board.write_slot(*to, Which::Out(half), &out.slot(*to, number))?;
        }
        board.flush(&others)?;
        board.barrier(number)?;
        let nprocs = board.nprocs();
        for from in (0..nprocs).filter(|from| *from != self.pid) {
            if let Some((head, bytes)) = board.read_slot(from, Which::Out(half), number)? {
                self.slots.push((from, head, bytes));
            }
        }
        self.slots.sort_by_key(|(from, ..)| *from);
        Ok(())
    }

    /// A stream of each member that has written one, in order of their numbers, and the outbox for
    /// answers.
    pub(crate) fn each(
        &mut self,
        stream: Stream,
        mut take: impl FnMut(u32, &mut Reader<'_>, &mut Outbox) -> Result<(), BspError>,
    ) -> Result<(), BspError> {
        let half = self.half();
        let Transport { pid, board, out, answers, slots, window, .. } = self;
        for (from, head, bytes) in slots.iter().filter(|(_, head, _)| head.bytes[stream as usize] > 0) {
            let source = if from == pid {
                Source::Own(&out[half as usize])
            } else {
                let board = board.as_mut().expect("what others have written came by a board");
                Source::Other { board, from: *from, which: Which::Out(half) }
            };
            take(*from, &mut Reader::new(source, head, bytes, stream, window), answers)?;
        }
        Ok(())
    }

    /// Tells those that have asked where their answers are.
    pub(crate) fn send_answers(&mut self) -> Result<(), BspError> {
        let Some(board) = &mut self.board else { return Ok(()) };
        let others = self.answers.filled().iter().filter(|to| **to != self.pid);
        others
            .into_iter()
            .try_for_each(|to| board.write_slot(*to, Which::Answers, &self.answers.slot(*to, self.number)))
    }

    /// The answers of a member.
    pub(crate) fn answers(
        &mut self,
        from: u32,
        take: impl FnOnce(&mut Reader<'_>) -> Result<(), BspError>,
    ) -> Result<(), BspError> {
        let Transport { pid, board, answers, window, number, .. } = self;
        if from == *pid {
            let (head, bytes) = (answers.head(from, *number), answers.slot(from, *number));
            return take(&mut Reader::new(Source::Own(answers), &head, &bytes, Stream::Requests, window));
        }
        let board = board.as_mut().expect("others are known by a board");
        board.wait_answers(from, *number)?;
        let slot = board.read_slot(from, Which::Answers, *number)?;
        let (head, bytes) = slot.ok_or(BspError::Misbehaved { pid: from, what: "answers of another superstep" })?;
        let source = Source::Other { board, from, which: Which::Answers };
        take(&mut Reader::new(source, &head, &bytes, Stream::Requests, window))
    }

    /// The next superstep begins.
    pub(crate) fn turn(&mut self) {
        self.slots.clear();
        self.number += 1;
        self.out().clear();
    }

    /// Waits until all have ended.
    pub(crate) fn end(&mut self) -> Result<(), BspError> {
        let number = self.number;
        let Some(board) = &mut self.board else { return Ok(()) };
        board.begin_end();
        board.barrier(number)
    }

    /// Tells all others that it is over, and why.
    pub(crate) fn abort(&mut self, text: &str) {
        if let Some(board) = &mut self.board {
            board.abort(text);
        }
    }
}

/// Where blocks are read from.
pub(crate) enum Source<'a> {
    Own(&'a Outbox),
    Other { board: &'a mut Board, from: u32, which: Which },
}

impl Source<'_> {
    fn read(&mut self, block: Block, into: &mut [u8]) -> Result<(), BspError> {
        match self {
            Source::Own(outbox) => outbox.read(block.segment, block.offset, into),
            Source::Other { board, from, which } => board.fetch(*from, *which, block.segment, block.offset, into),
        }
    }
}

/// One stream, as it is read.
pub(crate) struct Reader<'a> {
    source: Source<'a>,
    blocks: VecDeque<Block>,
    window: &'a mut Vec<u8>,
    /// What of the window was read.
    at: usize,
    left: u64,
}

impl<'a> Reader<'a> {
    fn new(source: Source<'a>, head: &SlotHead, slot: &[u8], stream: Stream, window: &'a mut Vec<u8>) -> Reader<'a> {
        let (which, left) = (stream as usize, head.bytes[stream as usize]);
        window.clear();
        if head.is_inline() {
            let start = SLOT_HEAD_BYTES + if which == 0 { 0 } else { head.bytes[0] as usize };
            window.extend_from_slice(&slot[start..start + left as usize]);
        }
        Reader { source, blocks: head.blocks[which].iter().copied().collect(), window, at: 0, left }
    }

    /// Bytes of the first block, up to so many.
    fn next(&mut self, most: usize) -> Option<Block> {
        while self.blocks.front()?.len == 0 {
            self.blocks.pop_front();
        }
        let front = self.blocks.front_mut()?;
        let part = Block { len: front.len.min(most as u64), ..*front };
        front.offset = front.offset.saturating_add(part.len);
        front.len -= part.len;
        Some(part)
    }
}

impl Incoming for Reader<'_> {
    fn left(&self) -> u64 {
        self.left
    }

    fn read(&mut self, mut into: &mut [u8]) -> Result<(), BspError> {
        debug_assert!(into.len() as u64 <= self.left);
        self.left -= into.len() as u64;
        while !into.is_empty() {
            let here = &self.window[self.at..];
            if !here.is_empty() {
                let part = here.len().min(into.len());
                let (now, rest) = std::mem::take(&mut into).split_at_mut(part);
                now.copy_from_slice(&here[..part]);
                self.at += part;
                into = rest;
            } else if into.len() >= DIRECT_BYTES_MIN {
                let block = self.next(into.len()).expect("blocks have as many bytes as the stream");
                let (now, rest) = std::mem::take(&mut into).split_at_mut(block.len as usize);
                self.source.read(block, now)?;
                into = rest;
            } else {
                let block = self.next(WINDOW_BYTES).expect("blocks have as many bytes as the stream");
                self.window.resize(block.len as usize, 0);
                self.at = 0;
                self.source.read(block, self.window)?;
            }
        }
        Ok(())
    }
}
