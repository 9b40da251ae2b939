//! What one sender writes to: its slots, its frames, and whether it is to mark the board.
//!
//! Invariant: a message is taken once, when its number is there; what stands in a slot is a claim.
//! Source: [GMS §2] receive ring.

use super::Message;
use super::frame::Frames;
use super::layout::{AGREED, Head, Payload, Shape, slot_end};
use crate::export::Export;
use crate::limits::SLOTS_READ_SOON;
use crate::tokens::{ByToken, TokenPool, TokenRefused};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vmmc_host::Region;
use vmmc_host::credit::{ChannelWords, is_there};
use vmmc_host::region::Prefetch;
use vmmc_nic::Sender;

/// A sender, and what it writes to.
pub(super) struct Channel {
    pub(super) export: Export,
    pub(super) memory: ChannelMemory,
    pub(super) from: Sender,
    /// What its export's name ends in.
    pub(super) number: u64,
    /// Polls that found nothing since something was found.
    pub(super) empty: u32,
    /// Its sender has no more to send.
    pub(super) leaving: bool,
    /// Its sender has imported it.
    pub(super) imported: bool,
}

impl Channel {
    /// Whether the next message is there.
    #[inline]
    pub(super) fn has_message(&self) -> bool {
        self.memory.has_message()
    }

    /// Takes the next message, which is there. False: what is there is none.
    #[inline]
    pub(super) fn take(&mut self, tokens: Option<&TokenPool>, message: &mut Message) -> bool {
        message.from = self.from;
        self.memory.take(tokens, message).is_some()
    }

    /// Whether its sender is to mark the board.
    pub(super) fn set_quiet(&self, quiet: bool) {
        self.memory.set_quiet(quiet);
    }
}

/// Slots and frames of one sender, and how many messages were taken.
pub(super) struct ChannelMemory {
    region: Region,
    shape: Shape,
    frames: Arc<Frames>,
    taken: u64,
}

impl ChannelMemory {
    pub(super) fn new(region: Region, shape: Shape) -> ChannelMemory {
        ChannelMemory { frames: Arc::new(Frames::new(region.clone(), shape)), region, shape, taken: 0 }
    }

    /// Messages taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    #[inline]
    pub(super) fn has_message(&self) -> bool {
        is_there(self.region.word(slot_end(self.taken) - 8).expect("a slot is in the channel"), self.taken)
    }

    /// Takes the next message. None: what is there is none, and `message` is of no use.
    #[inline]
    pub(super) fn take(&mut self, tokens: Option<&TokenPool>, message: &mut Message) -> Option<()> {
        let end = slot_end(self.taken);
        self.region.prefetch(slot_end(self.taken + SLOTS_READ_SOON) - 8, Prefetch::Load);
        let head = self.region.word(end - 16).expect("a slot is in the channel").load(Ordering::Relaxed);
        let head = Head::decode(head, self.shape)?;
        let control = &mut message.control[..head.control];
        self.region.read(end - head.slot_bytes(), control).expect("a slot is in the channel");
        message.len = head.control;
        (message.payload, message.by_token) = (None, None);
        match head.payload {
            Payload::None => {}
            Payload::Frames(run, bytes) => message.payload = Some(Frames::take(&self.frames, run, bytes)?),
            Payload::ByToken(len) => {
                let mut bytes = [0; 32];
                self.region.read(end - Head::TOKEN_BEFORE_END, &mut bytes).expect("a slot is in the channel");
                let (token, tag) = Head::token_from(&bytes);
                let len = tokens.map_or(Err(TokenRefused::Wrong), |pool| pool.came(token, tag, len));
                message.by_token = Some(ByToken { token, len });
            }
        }
        self.taken += 1;
        agreed(&self.region).take(self.taken);
        Some(())
    }

    /// Takes the next message, which is there, if it has a head of `N` bytes and no payload, and
    /// `place` gives memory for the rest. False: it is still there, whatever it is.
    #[inline]
    pub(super) fn take_split<'m, const N: usize>(
        &mut self,
        place: impl FnOnce(&[u8; N], usize) -> Option<&'m mut [u8]>,
    ) -> bool {
        let end = slot_end(self.taken);
        self.region.prefetch(slot_end(self.taken + SLOTS_READ_SOON) - 8, Prefetch::Load);
        let head = self.region.word(end - 16).expect("a slot is in the channel").load(Ordering::Relaxed);
        let Some(head @ Head { control, payload: Payload::None }) = Head::decode(head, self.shape) else {
            return false;
        };
        let Some(len) = control.checked_sub(N) else { return false };
        let (start, mut first) = (end - head.slot_bytes(), [0; N]);
        self.region.read(start, &mut first).expect("a slot is in the channel");
        let Some(rest) = place(&first, len).and_then(|memory| memory.get_mut(..len)) else { return false };
        self.region.read(start + N as u64, rest).expect("a slot is in the channel");
        self.taken += 1;
        agreed(&self.region).take(self.taken);
        true
    }

    fn set_quiet(&self, quiet: bool) {
        agreed(&self.region).set_quiet(quiet);
    }
}

/// The words of a channel by which both ends agree.
#[inline]
pub(super) fn agreed(region: &Region) -> &ChannelWords {
    region.overlay(AGREED).expect("the head is in the channel")
}
