//! Collective calls that compute: reduce, allreduce, scan.
//!
//! | call | few bytes | many bytes, and the order does not matter |
//! | --- | --- | --- |
//! | reduce | binomial tree | the same |
//! | allreduce | recursive doubling | a ring that reduces, then one that passes on |
//! | scan | what a member knows reaches twice as far in each step | |
//!
//! Invariant: what is combined is in order of rank, the lower one first, unless the operation says
//! that its order does not matter; all members have the same bits of a result.

use super::turn::parts;
use super::{Call, Calls, Number, Op, Turn, at_once};
use crate::error::MpError;
use crate::group::Group;
use crate::limits::ALLREDUCE_DOUBLING_MAX;

/// Makes the first one what both together are.
type Combine<'c> = &'c mut dyn FnMut(&mut [u8], &[u8]);

impl Group {
    /// Combines the values of all members, one by one, at one of them; the others keep theirs.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier). [`MpError::NoOperation`]: bits of floats.
    pub fn reduce<T: Number>(&self, root: u32, values: &mut [T], op: Op) -> Result<(), MpError> {
        checked::<T>(op)?;
        let mut bytes = bytes_of(values);
        self.reduce_by(root, &mut bytes, &mut combine::<T>(op))?;
        if self.rank() == root {
            values_of(&bytes, values);
        }
        Ok(())
    }

    /// Combines the values of all members, one by one; all have the result.
    ///
    /// ```no_run
    /// # let messages = vmmc_mp::Messages::attach()?;
    /// use vmmc_mp::Op;
    /// let mut sums = [1.0, f64::from(messages.rank())];
    /// messages.world().allreduce(&mut sums, Op::Sum)?;
    /// assert_eq!(sums[0], f64::from(messages.size()));
    /// # Ok::<(), vmmc_mp::MpError>(())
    /// ```
    ///
    /// # Errors
    /// As for [`reduce`](Self::reduce).
    pub fn allreduce<T: Number>(&self, values: &mut [T], op: Op) -> Result<(), MpError> {
        checked::<T>(op)?;
        let mut bytes = bytes_of(values);
        at_once(self.turn(Call::Allreduce).allreduce(&mut bytes, T::BYTES, &mut combine::<T>(op)))?;
        values_of(&bytes, values);
        Ok(())
    }

    /// Combines the values of all members up to this one, one by one.
    ///
    /// # Errors
    /// As for [`reduce`](Self::reduce).
    pub fn scan<T: Number>(&self, values: &mut [T], op: Op) -> Result<(), MpError> {
        checked::<T>(op)?;
        let mut bytes = bytes_of(values);
        self.scan_by(&mut bytes, &mut combine::<T>(op))?;
        values_of(&bytes, values);
        Ok(())
    }

    /// As [`reduce`](Self::reduce), of bytes that mean what `combine` makes of them: it gets those
    /// of some ranks, which it is to change, and those of the ranks behind them. It must not matter
    /// how they are grouped; their order is kept. Those of the others are of no use afterwards.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier).
    pub fn reduce_by(
        &self,
        root: u32,
        bytes: &mut [u8],
        combine: &mut dyn FnMut(&mut [u8], &[u8]),
    ) -> Result<(), MpError> {
        at_once(self.turn(Call::Reduce).reduce(root, bytes, combine))
    }

    /// As [`allreduce`](Self::allreduce), of bytes, as [`reduce_by`](Self::reduce_by).
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier).
    pub fn allreduce_by(&self, bytes: &mut [u8], combine: &mut dyn FnMut(&mut [u8], &[u8])) -> Result<(), MpError> {
        at_once(self.turn(Call::Allreduce).allreduce_doubling(bytes, combine))
    }

    /// As [`scan`](Self::scan), of bytes, as [`reduce_by`](Self::reduce_by).
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier).
    pub fn scan_by(&self, bytes: &mut [u8], combine: &mut dyn FnMut(&mut [u8], &[u8])) -> Result<(), MpError> {
        at_once(self.turn(Call::Scan).scan(bytes, combine))
    }
}

fn checked<T: Number>(op: Op) -> Result<(), MpError> {
    let bits = matches!(op, Op::And | Op::Or | Op::Xor);
    if bits && !T::IS_INTEGER { Err(MpError::NoOperation { op }) } else { Ok(()) }
}

fn bytes_of<T: Number>(values: &[T]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * T::BYTES];
    bytes.chunks_exact_mut(T::BYTES).zip(values).for_each(|(bytes, value)| value.to_bytes(bytes));
    bytes
}

fn values_of<T: Number>(bytes: &[u8], values: &mut [T]) {
    bytes.chunks_exact(T::BYTES).zip(values).for_each(|(bytes, value)| *value = T::from_bytes(bytes));
}

pub(crate) fn combine<T: Number>(op: Op) -> impl FnMut(&mut [u8], &[u8]) {
    // Each operation has a loop of its own, in which it is known.
    move |first, second| match op {
        Op::Sum => each::<T>(first, second, |a, b| a.with(b, Op::Sum)),
        Op::Product => each::<T>(first, second, |a, b| a.with(b, Op::Product)),
        Op::Min => each::<T>(first, second, |a, b| a.with(b, Op::Min)),
        Op::Max => each::<T>(first, second, |a, b| a.with(b, Op::Max)),
        Op::And => each::<T>(first, second, |a, b| a.with(b, Op::And)),
        Op::Or => each::<T>(first, second, |a, b| a.with(b, Op::Or)),
        Op::Xor => each::<T>(first, second, |a, b| a.with(b, Op::Xor)),
    }
}

#[inline(always)]
fn each<T: Number>(first: &mut [u8], second: &[u8], with: impl Fn(T, T) -> T) {
    for (first, second) in first.chunks_exact_mut(T::BYTES).zip(second.chunks_exact(T::BYTES)) {
        with(T::from_bytes(first), T::from_bytes(second)).to_bytes(first);
    }
}

impl<C: Calls> Turn<'_, C> {
    pub(crate) async fn reduce(self, root: u32, bytes: &mut [u8], combine: Combine<'_>) -> Result<(), MpError> {
        let root = self.root(root)?;
        self.reduce_to_first(bytes, combine).await?;
        if self.own == 0 && root > 0 {
            self.send(root, bytes).await?;
        } else if self.own == root && root > 0 {
            self.receive(0, bytes).await?;
        }
        Ok(())
    }

    /// `combine`: of units of so many bytes, whose order does not matter.
    pub(crate) async fn allreduce(self, bytes: &mut [u8], unit: usize, combine: Combine<'_>) -> Result<(), MpError> {
        if bytes.len() > ALLREDUCE_DOUBLING_MAX && self.count > 1 {
            self.allreduce_ring(bytes, unit, combine).await
        } else {
            self.allreduce_doubling(bytes, combine).await
        }
    }

    pub(crate) async fn scan(self, bytes: &mut [u8], combine: Combine<'_>) -> Result<(), MpError> {
        // Of as many members as it has come far, this one the last.
        let mut known = bytes.to_vec();
        let mut came = vec![0; bytes.len()];
        for far in self.distances() {
            let (to, from) = (self.own + far, self.own.checked_sub(far));
            match (to < self.count, from) {
                (true, Some(from)) => self.exchange(to, &known, from, &mut came).await?,
                (true, None) => self.send(to, &known).await?,
                (false, Some(from)) => self.receive(from, &mut came).await?,
                (false, None) => {}
            }
            if from.is_some() {
                combine(&mut came, &known);
                std::mem::swap(&mut came, &mut known);
            }
        }
        bytes.copy_from_slice(&known);
        Ok(())
    }

    /// A binomial tree: each has those of the ranks from it on, as many as it has heard of.
    async fn reduce_to_first(self, bytes: &mut [u8], combine: Combine<'_>) -> Result<(), MpError> {
        let mut came = vec![0; bytes.len()];
        for far in self.distances() {
            if self.own & far != 0 {
                return self.send(self.own - far, bytes).await;
            }
            if self.own + far < self.count {
                self.receive(self.own + far, &mut came).await?;
                combine(bytes, &came);
            }
        }
        Ok(())
    }

    /// Pairs of pairs of members know the same. Those that are more than a power of two have a
    /// neighbour take part for them.
    pub(crate) async fn allreduce_doubling(self, bytes: &mut [u8], combine: Combine<'_>) -> Result<(), MpError> {
        let power = 1 << self.count.ilog2();
        let more = self.count - power;
        let mut came = vec![0; bytes.len()];
        // Of the first `2 * more` each odd one gives its bytes to the one before it.
        if self.own < 2 * more {
            if self.own % 2 == 1 {
                self.send(self.own - 1, bytes).await?;
                return self.receive(self.own - 1, bytes).await;
            }
            self.receive(self.own + 1, &mut came).await?;
            combine(bytes, &came);
        }
        let place = if self.own < 2 * more { self.own / 2 } else { self.own - more };
        let rank = |place: usize| if place < more { 2 * place } else { place + more };
        let mut far = 1;
        while far < power {
            let other = place ^ far;
            self.exchange(rank(other), bytes, rank(other), &mut came).await?;
            if other > place {
                combine(bytes, &came);
            } else {
                combine(&mut came, bytes);
                bytes.copy_from_slice(&came);
            }
            far *= 2;
        }
        if self.own < 2 * more {
            self.send(self.own + 1, bytes).await?;
        }
        Ok(())
    }

    /// Parts go round and are combined, until each member has one part of all; then those go round.
    async fn allreduce_ring(self, bytes: &mut [u8], unit: usize, combine: Combine<'_>) -> Result<(), MpError> {
        let parts = parts(bytes.len(), unit, self.count);
        let mut came = Vec::new();
        for step in 0..self.count - 1 {
            let out = parts[(self.own + self.count - step) % self.count].clone();
            let into = parts[(self.own + 2 * self.count - step - 1) % self.count].clone();
            came.resize(into.len(), 0);
            self.exchange(self.behind(1), &bytes[out], self.before(1), &mut came).await?;
            combine(&mut bytes[into], &came);
        }
        // This member has the part behind its own, as if the last member were the root.
        self.ring(self.count - 1, &parts, bytes).await
    }
}
