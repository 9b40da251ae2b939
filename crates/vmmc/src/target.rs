//! What a fetch writes its bytes to: the kinds of memory, for fetches that wait and for posted
//! ones.
//!
//! Invariant: a posted fetch never has memory that safe code can use before its end: it owns the
//! memory, or has it for good, or the memory is registered. A handle may be forgotten; then the
//! memory is never used for anything else.

use crate::buffer::{Buffer, BufferRange};
use crate::error::TransferError;
use crate::fetching::Fetching;
use crate::import::{Import, Shared};
use crate::mapped::{Fault, Mapped};
use crate::source::Pinned;
use std::ops::Range;

/// Memory to fetch into with [`Import::fetch`], which waits.
///
/// | target | how its bytes come |
/// | --- | --- |
/// | `&mut [u8]`, `&mut [u8; N]`, `&mut Vec<u8>` | by a copy |
/// | [`&Buffer`](Buffer), [`BufferRange`] | without a copy on the way, into registered memory |
/// | [`Pinned`] of a mutable slice | without a copy on the way, into any memory |
/// | [`Scatter`] of any of them | consecutive bytes into one after the other |
/// | [`AnyTarget`] | one of them, chosen at run time |
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-target").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc::{Pinned, Scatter};
/// let export = session.export(1 << 20).name("table").create()?;
/// let import = session.import("table").open()?;
/// export.write(0, b"headtail")?;
/// let (mut head, mut tail, mut all) = ([0; 4], [0; 4], vec![0; 1 << 20]);
/// import.fetch(0, &mut head)?;
/// import.fetch(0, Scatter(&mut [&mut head, &mut tail]))?;
/// import.fetch(0, Pinned(&mut all))?;
/// assert_eq!((&head, &tail, &all[..8]), (b"head", b"tail", &b"headtail"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no target of a fetch that waits",
    note = "fetch into a `&mut [u8]`, `buffer.range(..)`, `Pinned(&mut bytes)` or `Scatter(&mut [..])`"
)]
pub trait Target: Sealed {}

/// Memory to fetch into with [`Import::post_fetch`], which does not wait: it belongs to the
/// transfer until its end. [`Transfer::into_inner`](crate::Transfer::into_inner) gives it back.
///
/// | target | how its bytes come | what is given back |
/// | --- | --- | --- |
/// | `Vec<u8>`, `&'static mut [u8]` | by a copy | the same |
/// | [`&Buffer`](Buffer), [`BufferRange`] | without a copy on the way; leave the range alone | `()` |
/// | [`Pinned`] of a `Vec<u8>` or `&'static mut [u8]` | without a copy on the way | what is pinned |
/// | `Vec` of any of them | consecutive bytes into one after the other | a `Vec` of the same |
/// | [`AnyTarget<'static>`](AnyTarget) | one of them | its slice; an empty one for registered memory |
///
/// A borrowed slice is none: its transfer could be forgotten, and the bytes would come when the
/// slice is something else.
///
/// ```compile_fail,E0597
/// # fn fetch(import: &vmmc::Import) -> Result<(), vmmc::TransferError> {
/// let mut bytes = [0; 64];
/// std::mem::forget(import.post_fetch(0, &mut bytes[..])?); // does not live long enough
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-post-target").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// let export = session.export(4096).name("answer").create()?;
/// export.write(0, b"42")?;
/// let import = session.import("answer").open()?;
/// let mut fetch = import.post_fetch(0, vec![0; 2])?;
/// // something else meanwhile
/// fetch.wait()?;
/// assert_eq!(fetch.into_inner(), b"42");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no target of a posted fetch",
    note = "give it a `Vec<u8>`, `buffer.range(..)`, `Pinned(vec)`, or a `Vec` of them, and take it back from the transfer"
)]
pub trait PostTarget: Sealed {
    /// What [`Transfer::into_inner`](crate::Transfer::into_inner) gives back.
    type Given: Memory;

    #[doc(hidden)]
    fn give(self) -> Self::Given;
}

/// Memory that a posted fetch has until its end.
pub trait Memory {
    /// How many pieces it has.
    #[doc(hidden)]
    fn places(&self) -> usize {
        1
    }

    /// The bytes of one of its pieces; none if they are registered.
    #[doc(hidden)]
    fn place(&mut self, at: usize) -> &mut [u8];
}

/// Several targets, into which consecutive bytes are fetched one after the other. After an error
/// some of them may have been written.
#[derive(Debug)]
pub struct Scatter<'s, T>(pub &'s mut [T]);

/// A target whose kind is chosen at run time.
#[derive(Debug)]
pub enum AnyTarget<'a> {
    /// By a copy.
    Bytes(&'a mut [u8]),
    /// Registered, and which bytes of it.
    Buffer(Buffer, Range<u64>),
    /// Any memory, without a copy on the way.
    Pinned(&'a mut [u8]),
}

/// What a kind of target does by itself.
#[allow(private_interfaces, reason = "nobody outside can name it")]
pub trait Sealed: Memory + Sized {
    /// Bytes.
    fn len_bytes(&self) -> u64;

    /// Checks it against the memory that it is of, and its session.
    fn check(&self, _shared: &Shared) -> Result<(), TransferError> {
        Ok(())
    }

    /// Copies from mapped memory.
    fn fetch_mapped(&mut self, mapped: &Mapped, offset: u64) -> Result<(), Fault>;

    /// Adds itself to a fetch; its first piece has the number `at`.
    fn queue(&self, shared: &Shared, offset: u64, at: usize, fetching: &mut Fetching) -> Result<(), TransferError>;

    /// Fetches through the engine.
    fn fetch_engine(&mut self, shared: &Shared, offset: u64) -> Result<(), TransferError> {
        let mut fetching = Fetching::new(self.len_bytes());
        self.queue(shared, offset, 0, &mut fetching)?;
        fetching.run(shared, self, &shared.limit(Default::default()))
    }

    /// Fetches.
    #[inline]
    fn fetch_by(&mut self, import: &Import, offset: u64) -> Result<(), TransferError> {
        import.fetch_target(offset, self)
    }
}

fn slice(bytes: &impl AsRef<[u8]>) -> &[u8] {
    bytes.as_ref()
}

/// Slices, and what has one.
macro_rules! slices {
    ([$($generics:tt)*] $kind:ty) => {
        impl<$($generics)*> Memory for $kind {
            #[inline]
            fn place(&mut self, _at: usize) -> &mut [u8] {
                self.as_mut()
            }
        }

        #[allow(private_interfaces, reason = "nobody outside can name it")]
        impl<$($generics)*> Sealed for $kind {
            fn len_bytes(&self) -> u64 {
                slice(self).len() as u64
            }

            fn fetch_mapped(&mut self, mapped: &Mapped, offset: u64) -> Result<(), Fault> {
                mapped.fetch(offset, self.as_mut())
            }

            fn queue(&self, shared: &Shared, offset: u64, at: usize, to: &mut Fetching) -> Result<(), TransferError> {
                shared.count_fetch(Sealed::len_bytes(self));
                to.push_copy(shared, offset, at, slice(self));
                Ok(())
            }

            fn fetch_engine(&mut self, shared: &Shared, offset: u64) -> Result<(), TransferError> {
                shared.fetch_engine(offset, self.as_mut())
            }

            #[inline]
            fn fetch_by(&mut self, import: &Import, offset: u64) -> Result<(), TransferError> {
                import.fetch_bytes(offset, self.as_mut())
            }
        }

        impl<$($generics)*> Memory for Pinned<$kind> {
            fn place(&mut self, _at: usize) -> &mut [u8] {
                self.0.as_mut()
            }
        }

        #[allow(private_interfaces, reason = "nobody outside can name it")]
        impl<$($generics)*> Sealed for Pinned<$kind> {
            fn len_bytes(&self) -> u64 {
                Sealed::len_bytes(&self.0)
            }

            fn fetch_mapped(&mut self, mapped: &Mapped, offset: u64) -> Result<(), Fault> {
                self.0.fetch_mapped(mapped, offset)
            }

            fn queue(&self, shared: &Shared, offset: u64, at: usize, to: &mut Fetching) -> Result<(), TransferError> {
                shared.count_fetch(Sealed::len_bytes(self));
                to.push_pages(shared, offset, at, slice(&self.0));
                Ok(())
            }
        }
    };
}

slices!(['a] &'a mut [u8]);
slices!(['a, const N: usize] &'a mut [u8; N]);
slices!(['a] &'a mut Vec<u8>);
slices!([] Vec<u8>);

impl Target for &mut [u8] {}
impl<const N: usize> Target for &mut [u8; N] {}
impl Target for &mut Vec<u8> {}
impl Target for Pinned<&mut [u8]> {}
impl<const N: usize> Target for Pinned<&mut [u8; N]> {}
impl Target for Pinned<&mut Vec<u8>> {}

impl PostTarget for Vec<u8> {
    type Given = Vec<u8>;
    fn give(self) -> Vec<u8> {
        self
    }
}

impl PostTarget for &'static mut [u8] {
    type Given = &'static mut [u8];
    fn give(self) -> &'static mut [u8] {
        self
    }
}

impl<T: PostTarget + Memory> PostTarget for Pinned<T>
where
    Pinned<T>: Sealed,
{
    type Given = T::Given;
    fn give(self) -> T::Given {
        self.0.give()
    }
}

/// Registered memory is its buffer's.
impl Memory for () {
    fn place(&mut self, _at: usize) -> &mut [u8] {
        &mut []
    }
}

impl Memory for BufferRange<'_> {
    fn place(&mut self, _at: usize) -> &mut [u8] {
        &mut []
    }
}

impl Target for BufferRange<'_> {}

#[allow(private_interfaces, reason = "nobody outside can name it")]
impl Sealed for BufferRange<'_> {
    fn len_bytes(&self) -> u64 {
        self.len()
    }

    fn check(&self, shared: &Shared) -> Result<(), TransferError> {
        shared.check_source(self)
    }

    fn fetch_mapped(&mut self, mapped: &Mapped, offset: u64) -> Result<(), Fault> {
        let at = self.buffer.region_offset(self.range.start);
        mapped.fetch_region(offset, self.buffer.region(), at, self.len())
    }

    fn queue(&self, shared: &Shared, offset: u64, _at: usize, to: &mut Fetching) -> Result<(), TransferError> {
        to.wait_for(shared.fetch_registered(offset, self)?);
        Ok(())
    }

    fn fetch_engine(&mut self, shared: &Shared, offset: u64) -> Result<(), TransferError> {
        let mut ticket = shared.fetch_registered(offset, self)?;
        shared.finish(&mut ticket, &shared.limit(Default::default())).map(drop)
    }
}

impl PostTarget for BufferRange<'_> {
    type Given = ();
    fn give(self) {}
}

impl Memory for &Buffer {
    fn place(&mut self, _at: usize) -> &mut [u8] {
        &mut []
    }
}

impl Target for &Buffer {}

#[allow(private_interfaces, reason = "nobody outside can name it")]
impl Sealed for &Buffer {
    fn len_bytes(&self) -> u64 {
        self.len()
    }

    fn check(&self, shared: &Shared) -> Result<(), TransferError> {
        self.all().check(shared)
    }

    fn fetch_mapped(&mut self, mapped: &Mapped, offset: u64) -> Result<(), Fault> {
        self.all().fetch_mapped(mapped, offset)
    }

    fn queue(&self, shared: &Shared, offset: u64, at: usize, to: &mut Fetching) -> Result<(), TransferError> {
        self.all().queue(shared, offset, at, to)
    }
}

impl PostTarget for &Buffer {
    type Given = ();
    fn give(self) {}
}

/// Lists of targets.
macro_rules! lists {
    ([$($a:lifetime)?] $kind:ty, $list:ident => $targets:expr) => {
        impl<$($a,)? T: Memory> Memory for $kind {
            fn places(&self) -> usize {
                let $list = self;
                $targets.iter().map(T::places).sum()
            }

            fn place(&mut self, mut at: usize) -> &mut [u8] {
                let $list = self;
                for target in $targets.iter_mut() {
                    if at < target.places() {
                        return target.place(at);
                    }
                    at -= target.places();
                }
                unreachable!("pieces are asked for by the numbers that they were given")
            }
        }

        #[allow(private_interfaces, reason = "nobody outside can name it")]
        impl<$($a,)? T: Sealed> Sealed for $kind {
            fn len_bytes(&self) -> u64 {
                let $list = self;
                $targets.iter().map(T::len_bytes).sum()
            }

            fn check(&self, shared: &Shared) -> Result<(), TransferError> {
                let $list = self;
                $targets.iter().try_for_each(|target| target.check(shared))
            }

            fn fetch_mapped(&mut self, mapped: &Mapped, mut offset: u64) -> Result<(), Fault> {
                let $list = self;
                $targets.iter_mut().try_for_each(|target| {
                    target.fetch_mapped(mapped, offset)?;
                    offset += target.len_bytes();
                    Ok(())
                })
            }

            fn queue(
                &self,
                shared: &Shared,
                mut offset: u64,
                mut at: usize,
                to: &mut Fetching,
            ) -> Result<(), TransferError> {
                let $list = self;
                $targets.iter().try_for_each(|target| {
                    target.queue(shared, offset, at, to)?;
                    offset += target.len_bytes();
                    at += target.places();
                    Ok(())
                })
            }
        }
    };
}

lists!(['s] Scatter<'s, T>, list => list.0);
lists!([] Vec<T>, list => list);

impl<T: Target> Target for Scatter<'_, T> {}

impl<T: PostTarget> PostTarget for Vec<T> {
    type Given = Vec<T::Given>;
    fn give(self) -> Vec<T::Given> {
        self.into_iter().map(T::give).collect()
    }
}

impl Memory for AnyTarget<'_> {
    fn place(&mut self, _at: usize) -> &mut [u8] {
        match self {
            AnyTarget::Bytes(bytes) | AnyTarget::Pinned(bytes) => bytes,
            AnyTarget::Buffer(..) => &mut [],
        }
    }
}

impl Target for AnyTarget<'_> {}

#[allow(private_interfaces, reason = "nobody outside can name it")]
impl Sealed for AnyTarget<'_> {
    fn len_bytes(&self) -> u64 {
        match self {
            AnyTarget::Bytes(bytes) | AnyTarget::Pinned(bytes) => bytes.len() as u64,
            AnyTarget::Buffer(buffer, range) => buffer.range(range.clone()).len(),
        }
    }

    fn check(&self, shared: &Shared) -> Result<(), TransferError> {
        match self {
            AnyTarget::Bytes(_) | AnyTarget::Pinned(_) => Ok(()),
            AnyTarget::Buffer(buffer, range) => buffer.range(range.clone()).check(shared),
        }
    }

    fn fetch_mapped(&mut self, mapped: &Mapped, offset: u64) -> Result<(), Fault> {
        match self {
            AnyTarget::Bytes(bytes) | AnyTarget::Pinned(bytes) => mapped.fetch(offset, bytes),
            AnyTarget::Buffer(buffer, range) => buffer.range(range.clone()).fetch_mapped(mapped, offset),
        }
    }

    fn queue(&self, shared: &Shared, offset: u64, at: usize, to: &mut Fetching) -> Result<(), TransferError> {
        match self {
            AnyTarget::Buffer(buffer, range) => return buffer.range(range.clone()).queue(shared, offset, at, to),
            AnyTarget::Bytes(bytes) => to.push_copy(shared, offset, at, bytes),
            AnyTarget::Pinned(bytes) => to.push_pages(shared, offset, at, bytes),
        }
        shared.count_fetch(self.len_bytes());
        Ok(())
    }
}

impl PostTarget for AnyTarget<'static> {
    type Given = &'static mut [u8];
    fn give(self) -> &'static mut [u8] {
        match self {
            AnyTarget::Bytes(bytes) | AnyTarget::Pinned(bytes) => bytes,
            AnyTarget::Buffer(..) => &mut [],
        }
    }
}
