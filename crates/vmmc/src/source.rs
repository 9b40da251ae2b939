//! What a send takes its bytes from: one trait, and the kinds of memory that implement it.
//!
//! Invariant: every kind goes by every path, with every option, waited for or posted; what a kind
//! does by itself is how the engine gets its bytes. A posted send borrows what the engine may still
//! read, and nothing else.

use crate::buffer::{Buffer, BufferRange};
use crate::core::Core;
use crate::engine::Ticket;
use crate::error::{AccessError, TransferError};
use crate::import::{Import, SendOptions, Shared};
use crate::lent::{Lent, LentRange};
use crate::limits::INLINE_BYTES_MAX;
use crate::mapped::{Fault, Mapped};
use crate::pinned_table::Indexed;
use crate::sending::Sending;
use crate::transfer::Moving;
use std::ops::Range;
use std::sync::Arc;
use vmmc_host::Region;
use vmmc_nic::TokenPart;

/// Memory to send from, for [`Import::send`], [`Import::send_with`] and [`Import::post_send`].
///
/// | source | how its bytes go | a posted send borrows it |
/// | --- | --- | --- |
/// | `&[u8]`, `&[u8; N]`, `&Vec<u8>` | copied before the call returns | no |
/// | [`&Buffer`](Buffer), [`BufferRange`] of a buffer or [`Export`](crate::Export) | without a copy on the way, from registered memory | no: leave the range alone |
/// | [`Pinned`] of a slice | without a copy on the way, from any memory | yes |
/// | [`Lent`], [`LentRange`] | the same, and without a system call | yes |
/// | [`Indexed`] | the same, by the program's own table | yes, with its table |
/// | [`Gather`] of any of them | one after the other, to consecutive places | as its pieces |
/// | [`AnySource`] | one of them, chosen at run time | as its kind |
///
/// `'a` is how long a posted send borrows the source: `'static` where it does not.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-source").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc::{Gather, Pinned};
/// let export = session.export(1 << 20).name("pixels").create()?;
/// let import = session.import("pixels").open()?;
/// let (frame, buffer) = (vec![7; 100_000], session.buffer(4096)?);
/// import.send(0, b"some bytes")?;                       // copied
/// import.send(64, buffer.range(0..100))?;               // registered
/// import.send(4096, Pinned(&frame))?;                   // pinned where they are
/// import.send(4096, session.lend(&frame).range(0..50_000))?;
/// import.send(0, Gather(&[b"head", b"tail"]))?;         // one after the other
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no source of a send",
    note = "send from a `&[u8]`, `buffer.range(..)`, `Pinned(&bytes)`, `session.lend(&bytes)`, `table.range(..)` or `Gather(&[..])`"
)]
pub trait Source<'a>: Sealed<'a> {
    /// Whether all of it is inside of its memory; a send of another source is refused.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`].
    fn check(&self) -> Result<(), AccessError> {
        self.check_range()
    }

    /// A copy of its bytes as they are now.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`]: it reaches past its memory.
    fn copied(&self) -> Result<Vec<u8>, AccessError> {
        self.check_range()?;
        Ok(joined(self))
    }
}

/// Any memory, to send from or to fetch into without a copy on the way. Its whole pages are pinned
/// at first use and stay pinned, so that later transfers cost a lookup in a table.
///
/// Memory that cannot be pinned (a stack, a file, a few bytes) is copied, and so are sends of [a
/// few pages](crate::PinOptions::copied_up_to) that nobody has [lent](crate::Session::lend): that
/// is faster than to make sure that they still are where they were pinned. After
/// [`TransferError::TimedOut`] the memory of a send may still be read; that of a fetch is not
/// written any more.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-pinned").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc::{Pinned, SendOptions};
/// let export = session.export(1 << 20).name("frames").create()?;
/// let import = session.import("frames").open()?;
/// let (frame, mut back) = (vec![7; 1 << 20], vec![0; 1 << 20]);
/// let mut send = import.post_send(0, Pinned(&frame), SendOptions::default())?;
/// send.wait()?; // `frame` is borrowed until now
/// import.fetch(0, Pinned(&mut back))?;
/// assert!(back == frame);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned<T>(pub T);

/// Several sources, sent one after the other to consecutive places: a counter grows and a
/// notification comes after all of them, and the notification names the whole. Up to 216 bytes go
/// as one send. After an error others of the pieces may have been sent.
#[derive(Debug)]
pub struct Gather<'g, S>(pub &'g [S]);

/// A source whose kind is chosen at run time.
#[derive(Clone, Debug)]
pub enum AnySource<'a> {
    /// Copied.
    Bytes(&'a [u8]),
    /// Registered, and which bytes of it.
    Buffer(Buffer, Range<u64>),
    /// Any memory.
    Pinned(&'a [u8]),
    /// Lent.
    Lent(LentRange<'a>),
    /// Placed in a table.
    Indexed(Indexed<'a>),
}

/// Any source, of which the engine takes a copy: a payload by token then waits for no other node to
/// have it.
#[doc(hidden)]
#[derive(Clone)]
pub struct Copied<S>(pub S);

/// A piece of a source, as a copy by this process reads it.
pub enum Piece<'p> {
    /// Private memory.
    Bytes(&'p [u8]),
    /// A range of a region: where it begins, and its bytes.
    Shared(&'p Region, u64, u64),
}

/// What a kind of source does by itself.
#[allow(private_interfaces, reason = "nobody outside can name it")]
pub trait Sealed<'a>: Clone {
    /// Bytes.
    fn len_bytes(&self) -> u64;

    /// Checks it against the memory that it is of.
    fn check_range(&self) -> Result<(), AccessError>;

    /// Whether a session can send from it.
    fn is_of(&self, core: &Arc<Core>) -> bool {
        let _ = core;
        true
    }

    /// Gives its pieces in order.
    fn pieces(&self, each: &mut dyn FnMut(Piece<'_>));

    /// Sends through the engine; returns when the source may be changed.
    fn send_engine(&self, shared: &Shared, offset: u64, options: SendOptions) -> Result<(), TransferError>;

    /// Adds itself to a send of several commands, and the options to its last one.
    fn queue(
        &self,
        shared: &Shared,
        offset: u64,
        options: SendOptions,
        sending: &mut Sending<'a>,
    ) -> Result<(), TransferError>;

    /// Posts to the engine.
    fn post_engine(&self, shared: &Shared, offset: u64, options: SendOptions) -> Result<Moving<'a>, TransferError> {
        let mut sending = Sending::new(self.len_bytes(), true);
        self.queue(shared, offset, options, &mut sending)?;
        sending.start(shared, &shared.limit(options))?;
        Ok(Moving::Send(Box::new(sending)))
    }

    /// Copies to mapped memory.
    #[inline]
    fn send_mapped(&self, mapped: &Mapped, offset: u64) -> Result<(), Fault> {
        let (mut at, mut result) = (offset, Ok(()));
        self.pieces(&mut |piece| {
            if result.is_ok() {
                result = match piece {
                    Piece::Bytes(bytes) => mapped.send(at, bytes),
                    Piece::Shared(region, from, len) => mapped.send_region(at, region, from, len),
                };
                at += piece.len();
            }
        });
        result
    }

    /// Posts its bytes to the engine as a part of a payload by token, from byte `at` of that on.
    /// What is to be waited for before the source may be changed goes to `tickets`.
    fn post_token(
        &self,
        shared: &Shared,
        token: &TokenPart,
        at: u64,
        tickets: &mut Vec<Ticket>,
    ) -> Result<(), TransferError> {
        let _ = tickets;
        shared.post_token_copied(token, at, self)
    }

    /// Sends without options.
    #[inline]
    fn send_plain(self, import: &Import, offset: u64) -> Result<(), TransferError> {
        import.send_source(offset, &self, SendOptions::default())
    }
}

impl Piece<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::Shared(_, _, len) => *len,
        }
    }

    /// Copies its last bytes.
    fn read_end(&self, into: &mut [u8]) {
        match self {
            Piece::Bytes(bytes) => into.copy_from_slice(&bytes[bytes.len() - into.len()..]),
            Piece::Shared(region, from, len) => {
                let from = from + len - into.len() as u64;
                region.read(from, into).expect("the range was checked against its region");
            }
        }
    }
}

/// All bytes of a source in one place, for a single command.
pub(crate) fn joined<'a>(source: &impl Sealed<'a>) -> Vec<u8> {
    let mut all = vec![0; source.len_bytes() as usize];
    join_into(source, &mut all);
    all
}

fn join_into<'a>(source: &impl Sealed<'a>, all: &mut [u8]) {
    let mut at = 0;
    source.pieces(&mut |piece| {
        let end = at + piece.len() as usize;
        piece.read_end(&mut all[at..end]);
        at = end;
    });
}

/// The last (up to eight) bytes of a source, which a notification carries.
pub(crate) fn last_word<'a>(source: &impl Sealed<'a>) -> u64 {
    let (mut tail, mut kept) = ([0u8; 8], 0);
    source.pieces(&mut |piece| {
        let take = piece.len().min(8) as usize;
        let stay = kept.min(8 - take);
        tail.copy_within(kept - stay..kept, 0);
        piece.read_end(&mut tail[stay..stay + take]);
        kept = stay + take;
    });
    u64::from_le_bytes(tail)
}

/// Slices and what is as good.
pub trait Bytes<'b>: Copy {
    /// The bytes.
    fn bytes(self) -> &'b [u8];
}

impl<'b> Bytes<'b> for &'b [u8] {
    #[inline]
    fn bytes(self) -> &'b [u8] {
        self
    }
}

impl<'b, const N: usize> Bytes<'b> for &'b [u8; N] {
    #[inline]
    fn bytes(self) -> &'b [u8] {
        self
    }
}

impl<'b> Bytes<'b> for &'b Vec<u8> {
    #[inline]
    fn bytes(self) -> &'b [u8] {
        self
    }
}

impl Source<'static> for &[u8] {}
impl<const N: usize> Source<'static> for &[u8; N] {}
impl Source<'static> for &Vec<u8> {}

#[allow(private_interfaces, reason = "nobody outside can name it")]
impl<'b, B: Bytes<'b>> Sealed<'static> for B {
    fn len_bytes(&self) -> u64 {
        self.bytes().len() as u64
    }

    #[inline]
    fn check_range(&self) -> Result<(), AccessError> {
        Ok(())
    }

    fn pieces(&self, each: &mut dyn FnMut(Piece<'_>)) {
        each(Piece::Bytes(self.bytes()));
    }

    fn send_engine(&self, shared: &Shared, offset: u64, options: SendOptions) -> Result<(), TransferError> {
        shared.send_engine(offset, self.bytes(), options)
    }

    fn queue(
        &self,
        shared: &Shared,
        offset: u64,
        options: SendOptions,
        sending: &mut Sending<'static>,
    ) -> Result<(), TransferError> {
        sending.queue_copy(shared, offset, self.bytes(), options)
    }

    fn post_engine(
        &self,
        shared: &Shared,
        offset: u64,
        options: SendOptions,
    ) -> Result<Moving<'static>, TransferError> {
        shared.send_copied(offset, self.bytes(), options).map(Moving::One)
    }

    #[inline]
    fn send_mapped(&self, mapped: &Mapped, offset: u64) -> Result<(), Fault> {
        mapped.send(offset, self.bytes())
    }

    #[inline]
    fn send_plain(self, import: &Import, offset: u64) -> Result<(), TransferError> {
        import.send_bytes(offset, self.bytes())
    }
}

impl Source<'static> for BufferRange<'_> {}

#[allow(private_interfaces, reason = "nobody outside can name it")]
impl Sealed<'static> for BufferRange<'_> {
    fn len_bytes(&self) -> u64 {
        self.len()
    }

    fn check_range(&self) -> Result<(), AccessError> {
        self.buffer.check(self.range.start, self.len())
    }

    fn is_of(&self, core: &Arc<Core>) -> bool {
        self.buffer.is_of(core)
    }

    fn pieces(&self, each: &mut dyn FnMut(Piece<'_>)) {
        let from = self.buffer.region_offset(self.range.start);
        each(Piece::Shared(self.buffer.region(), from, self.len()));
    }

    #[inline]
    fn send_mapped(&self, mapped: &Mapped, offset: u64) -> Result<(), Fault> {
        let from = self.buffer.region_offset(self.range.start);
        mapped.send_region(offset, self.buffer.region(), from, self.len())
    }

    fn send_engine(&self, shared: &Shared, offset: u64, options: SendOptions) -> Result<(), TransferError> {
        let mut ticket = shared.send_registered(self, offset, options)?;
        shared.finish(&mut ticket, &shared.limit(options)).map(drop)
    }

    fn post_token(
        &self,
        shared: &Shared,
        token: &TokenPart,
        at: u64,
        tickets: &mut Vec<Ticket>,
    ) -> Result<(), TransferError> {
        tickets.extend(shared.post_token_registered(token, at, self)?);
        Ok(())
    }

    fn queue(
        &self,
        shared: &Shared,
        offset: u64,
        options: SendOptions,
        sending: &mut Sending<'static>,
    ) -> Result<(), TransferError> {
        sending.wait_for(shared.send_registered(self, offset, options)?);
        Ok(())
    }

    fn post_engine(
        &self,
        shared: &Shared,
        offset: u64,
        options: SendOptions,
    ) -> Result<Moving<'static>, TransferError> {
        shared.send_registered(self, offset, options).map(Moving::One)
    }
}

impl<'a, B: Bytes<'a>> Source<'a> for Pinned<B> {}

#[allow(private_interfaces, reason = "nobody outside can name it")]
impl<'a, B: Bytes<'a>> Sealed<'a> for Pinned<B> {
    fn len_bytes(&self) -> u64 {
        self.0.bytes().len() as u64
    }

    fn check_range(&self) -> Result<(), AccessError> {
        Ok(())
    }

    fn pieces(&self, each: &mut dyn FnMut(Piece<'_>)) {
        each(Piece::Bytes(self.0.bytes()));
    }

    fn send_engine(&self, shared: &Shared, offset: u64, options: SendOptions) -> Result<(), TransferError> {
        let bytes = self.0.bytes();
        if shared.core.pins.copies(bytes.len()) {
            return shared.send_engine(offset, bytes, options);
        }
        shared.send_pages(offset, bytes, false, options)
    }

    fn queue(
        &self,
        shared: &Shared,
        offset: u64,
        options: SendOptions,
        sending: &mut Sending<'a>,
    ) -> Result<(), TransferError> {
        let bytes = self.0.bytes();
        if shared.core.pins.copies(bytes.len()) {
            sending.push_copy(offset, bytes, options);
        } else {
            sending.push_pages(offset, bytes, false, options);
        }
        Ok(())
    }
}

impl<'a> Source<'a> for LentRange<'a> {}

#[allow(private_interfaces, reason = "nobody outside can name it")]
impl<'a> Sealed<'a> for LentRange<'a> {
    fn len_bytes(&self) -> u64 {
        self.range.len() as u64
    }

    fn check_range(&self) -> Result<(), AccessError> {
        let outside = || AccessError::OutOfBounds {
            offset: self.range.start as u64,
            len: self.len_bytes(),
            size: self.lent.bytes().len() as u64,
        };
        self.get().map(drop).ok_or_else(outside)
    }

    fn pieces(&self, each: &mut dyn FnMut(Piece<'_>)) {
        each(Piece::Bytes(self.bytes()));
    }

    fn send_engine(&self, shared: &Shared, offset: u64, options: SendOptions) -> Result<(), TransferError> {
        shared.send_pages(offset, self.bytes(), true, options)
    }

    fn queue(
        &self,
        _shared: &Shared,
        offset: u64,
        options: SendOptions,
        sending: &mut Sending<'a>,
    ) -> Result<(), TransferError> {
        sending.push_pages(offset, self.bytes(), true, options);
        Ok(())
    }
}

impl<'a> Source<'a> for Indexed<'a> {}

#[allow(private_interfaces, reason = "nobody outside can name it")]
impl<'a> Sealed<'a> for Indexed<'a> {
    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn check_range(&self) -> Result<(), AccessError> {
        match self.is_placed() {
            true => Ok(()),
            false => Err(AccessError::OutOfBounds {
                offset: self.first_byte(),
                len: self.len_bytes(),
                size: self.table.bytes(),
            }),
        }
    }

    fn pieces(&self, each: &mut dyn FnMut(Piece<'_>)) {
        self.each_page(&mut |bytes| each(Piece::Bytes(bytes)));
    }

    fn send_engine(&self, shared: &Shared, offset: u64, options: SendOptions) -> Result<(), TransferError> {
        let limit = &shared.limit(options);
        let by_command = self.is_of(&shared.core) && self.is_one_command() && !self.bytes.is_empty();
        if by_command && shared.send_entries(offset, self, options, limit)? {
            return Ok(());
        }
        let mut sending = Sending::new(self.len_bytes(), false);
        self.queue(shared, offset, options, &mut sending)?;
        sending.start(shared, limit)?;
        sending.wait(shared, limit).map(drop)
    }

    fn queue(
        &self,
        shared: &Shared,
        offset: u64,
        options: SendOptions,
        sending: &mut Sending<'a>,
    ) -> Result<(), TransferError> {
        if self.bytes.is_empty() || options.notify.is_some() && !self.is_one_command() || !self.is_of(&shared.core) {
            // One command for all, since the notification names its range. A table of another
            // session means nothing to this one's node; its memory is as good as any.
            return sending.queue_copy(shared, offset, &joined(self), options);
        }
        sending.push_entries(offset, self, options);
        Ok(())
    }
}

/// Delegates to a part that is the source.
macro_rules! whole {
    ($($a:lifetime)?, $for:ty as $of:lifetime, $source:ident => $part:expr) => {
        impl$(<$a>)? Source<$of> for $for {}

        #[allow(private_interfaces, reason = "nobody outside can name it")]
        impl$(<$a>)? Sealed<$of> for $for {
            fn len_bytes(&self) -> u64 {
                let $source = self;
                Sealed::len_bytes(&$part)
            }

            fn check_range(&self) -> Result<(), AccessError> {
                let $source = self;
                $part.check_range()
            }

            fn is_of(&self, core: &Arc<Core>) -> bool {
                let $source = self;
                $part.is_of(core)
            }

            fn pieces(&self, each: &mut dyn FnMut(Piece<'_>)) {
                let $source = self;
                $part.pieces(each)
            }

            #[inline]
            fn send_mapped(&self, mapped: &Mapped, offset: u64) -> Result<(), Fault> {
                let $source = self;
                $part.send_mapped(mapped, offset)
            }

            fn send_engine(&self, shared: &Shared, offset: u64, options: SendOptions) -> Result<(), TransferError> {
                let $source = self;
                $part.send_engine(shared, offset, options)
            }

            fn post_token(
                &self,
                shared: &Shared,
                token: &TokenPart,
                at: u64,
                tickets: &mut Vec<Ticket>,
            ) -> Result<(), TransferError> {
                let $source = self;
                $part.post_token(shared, token, at, tickets)
            }

            fn queue(
                &self,
                shared: &Shared,
                offset: u64,
                options: SendOptions,
                sending: &mut Sending<$of>,
            ) -> Result<(), TransferError> {
                let $source = self;
                $part.queue(shared, offset, options, sending)
            }

            fn post_engine(
                &self,
                shared: &Shared,
                offset: u64,
                options: SendOptions,
            ) -> Result<Moving<$of>, TransferError> {
                let $source = self;
                $part.post_engine(shared, offset, options)
            }
        }
    };
}

whole!(, &Buffer as 'static, buffer => buffer.all());
whole!('a, Lent<'a> as 'a, lent => lent.range(0..lent.bytes().len()));

impl<S> Clone for Gather<'_, S> {
    fn clone(&self) -> Self {
        Gather(self.0)
    }
}

impl<'a, S: Source<'a>> Source<'a> for Gather<'_, S> {}

impl<S> Gather<'_, S> {
    /// Whether one command is better than several, or must be: a notification names the whole.
    fn goes_as_one(len: u64, options: SendOptions) -> bool {
        len <= INLINE_BYTES_MAX as u64 || options.notify.is_some()
    }
}

#[allow(private_interfaces, reason = "nobody outside can name it")]
impl<'a, S: Source<'a>> Sealed<'a> for Gather<'_, S> {
    fn len_bytes(&self) -> u64 {
        self.0.iter().map(S::len_bytes).sum()
    }

    fn check_range(&self) -> Result<(), AccessError> {
        self.0.iter().try_for_each(S::check_range)
    }

    fn is_of(&self, core: &Arc<Core>) -> bool {
        self.0.iter().all(|piece| piece.is_of(core))
    }

    fn pieces(&self, each: &mut dyn FnMut(Piece<'_>)) {
        self.0.iter().for_each(|piece| piece.pieces(each));
    }

    fn send_engine(&self, shared: &Shared, offset: u64, options: SendOptions) -> Result<(), TransferError> {
        let len = self.len_bytes();
        if len <= INLINE_BYTES_MAX as u64 {
            let mut short = [0; INLINE_BYTES_MAX];
            join_into(self, &mut short[..len as usize]);
            return shared.send_engine(offset, &short[..len as usize], options);
        }
        let mut sending = Sending::new(len, false);
        self.queue(shared, offset, options, &mut sending)?;
        let limit = &shared.limit(options);
        sending.start(shared, limit)?;
        sending.wait(shared, limit).map(drop)
    }

    fn post_token(
        &self,
        shared: &Shared,
        token: &TokenPart,
        mut at: u64,
        tickets: &mut Vec<Ticket>,
    ) -> Result<(), TransferError> {
        for piece in self.0 {
            piece.post_token(shared, token, at, tickets)?;
            at += piece.len_bytes();
        }
        Ok(())
    }

    fn queue(
        &self,
        shared: &Shared,
        offset: u64,
        options: SendOptions,
        sending: &mut Sending<'a>,
    ) -> Result<(), TransferError> {
        if Self::goes_as_one(self.len_bytes(), options) {
            return sending.queue_copy(shared, offset, &joined(self), options);
        }
        let mut at = offset;
        for (left, piece) in (0..self.0.len()).rev().zip(self.0) {
            let options =
                if left == 0 { options } else { SendOptions { timeout: options.timeout, ..Default::default() } };
            piece.queue(shared, at, options, sending)?;
            at += piece.len_bytes();
        }
        Ok(())
    }
}

impl<'a, S: Source<'a>> Source<'a> for Copied<S> {}

#[allow(private_interfaces, reason = "nobody outside can name it")]
impl<'a, S: Source<'a>> Sealed<'a> for Copied<S> {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn check_range(&self) -> Result<(), AccessError> {
        self.0.check_range()
    }

    fn pieces(&self, each: &mut dyn FnMut(Piece<'_>)) {
        self.0.pieces(each);
    }

    fn send_engine(&self, shared: &Shared, offset: u64, options: SendOptions) -> Result<(), TransferError> {
        shared.send_engine(offset, &joined(self), options)
    }

    fn queue(
        &self,
        shared: &Shared,
        offset: u64,
        options: SendOptions,
        sending: &mut Sending<'a>,
    ) -> Result<(), TransferError> {
        sending.queue_copy(shared, offset, &joined(self), options)
    }
}

impl<'a> Source<'a> for AnySource<'a> {}

/// Does the same with whichever kind it is.
macro_rules! any {
    ($source:expr, $kind:ident => $what:expr) => {
        match $source {
            AnySource::Bytes($kind) => $what,
            AnySource::Buffer(buffer, range) => {
                let $kind = &buffer.range(range.clone());
                $what
            }
            AnySource::Pinned(bytes) => {
                let $kind = &Pinned(*bytes);
                $what
            }
            AnySource::Lent($kind) => $what,
            AnySource::Indexed($kind) => $what,
        }
    };
}

#[allow(private_interfaces, reason = "nobody outside can name it")]
impl<'a> Sealed<'a> for AnySource<'a> {
    fn len_bytes(&self) -> u64 {
        any!(self, kind => Sealed::len_bytes(kind))
    }

    fn check_range(&self) -> Result<(), AccessError> {
        any!(self, kind => Sealed::check_range(kind))
    }

    fn is_of(&self, core: &Arc<Core>) -> bool {
        any!(self, kind => Sealed::is_of(kind, core))
    }

    fn pieces(&self, each: &mut dyn FnMut(Piece<'_>)) {
        any!(self, kind => Sealed::pieces(kind, each))
    }

    fn send_engine(&self, shared: &Shared, offset: u64, options: SendOptions) -> Result<(), TransferError> {
        any!(self, kind => Sealed::send_engine(kind, shared, offset, options))
    }

    fn post_token(
        &self,
        shared: &Shared,
        token: &TokenPart,
        at: u64,
        tickets: &mut Vec<Ticket>,
    ) -> Result<(), TransferError> {
        any!(self, kind => Sealed::post_token(kind, shared, token, at, tickets))
    }

    fn queue(
        &self,
        shared: &Shared,
        offset: u64,
        options: SendOptions,
        sending: &mut Sending<'a>,
    ) -> Result<(), TransferError> {
        match self {
            // Pieces before it may wait for their turn, and so do these.
            AnySource::Bytes(bytes) if sending.answered() => return sending.queue_copy(shared, offset, bytes, options),
            AnySource::Bytes(bytes) => sending.push_copy(offset, bytes, options),
            AnySource::Buffer(buffer, range) => sending.push_registered(offset, &buffer.range(range.clone()), options),
            AnySource::Pinned(bytes) => return Pinned(*bytes).queue(shared, offset, options, sending),
            AnySource::Lent(range) => return range.queue(shared, offset, options, sending),
            AnySource::Indexed(bytes) => return bytes.queue(shared, offset, options, sending),
        }
        Ok(())
    }

    fn post_engine(&self, shared: &Shared, offset: u64, options: SendOptions) -> Result<Moving<'a>, TransferError> {
        any!(self, kind => Sealed::post_engine(kind, shared, offset, options))
    }
}
