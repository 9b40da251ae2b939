//! Operations that all processes of an application make.
//!
//! Invariant: all make the same calls in the same order, each with the same lengths. Their messages
//! are apart from those of the program. All get the same bits.

use crate::error::NxError;
use crate::nx::Nx;
use vmmc_mp::{MpError, Number, Op};

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($number:ty, $op:ident);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`NxError`].
            pub fn $name(&self, values: &mut [$number]) -> Result<(), NxError> {
                self.combine(values, Op::$op)
            }
        )*
    };
}

/// Each of these works one by one on the values of all processes; all have the result.
impl Nx {
    operations! {
        /// Sums.
        gdsum(f64, Sum);
        /// Products.
        gdprod(f64, Product);
        /// The greatest.
        gdhigh(f64, Max);
        /// The least.
        gdlow(f64, Min);
        /// Sums of single precision.
        gssum(f32, Sum);
        /// Products of single precision.
        gsprod(f32, Product);
        /// The greatest of single precision.
        gshigh(f32, Max);
        /// The least of single precision.
        gslow(f32, Min);
        /// Sums of integers, which wrap around.
        gisum(i64, Sum);
        /// Products of integers, which wrap around.
        giprod(i64, Product);
        /// The greatest integers.
        gihigh(i64, Max);
        /// The least integers.
        gilow(i64, Min);
        /// Bits that all have.
        giand(i64, And);
        /// Bits that any has.
        gior(i64, Or);
        /// Bits that an odd number has.
        gixor(i64, Xor);
    }

    /// Whether it is true, that is not 0, for all: 1, else 0.
    ///
    /// # Errors
    /// [`NxError`].
    pub fn gland(&self, values: &mut [i64]) -> Result<(), NxError> {
        self.combine_logically(values, Op::And)
    }

    /// Whether it is true for any.
    ///
    /// # Errors
    /// [`NxError`].
    pub fn glor(&self, values: &mut [i64]) -> Result<(), NxError> {
        self.combine_logically(values, Op::Or)
    }

    /// Whether it is true for an odd number.
    ///
    /// # Errors
    /// [`NxError`].
    pub fn glxor(&self, values: &mut [i64]) -> Result<(), NxError> {
        self.combine_logically(values, Op::Xor)
    }

    fn combine<T: Number>(&self, values: &mut [T], op: Op) -> Result<(), NxError> {
        Ok(self.inner.world().allreduce(values, op)?)
    }

    fn combine_logically(&self, values: &mut [i64], op: Op) -> Result<(), NxError> {
        values.iter_mut().for_each(|value| *value = i64::from(*value != 0));
        self.combine(values, op)
    }

    /// Waits until all processes have called this.
    ///
    /// # Errors
    /// [`NxError`].
    pub fn gsync(&self) -> Result<(), NxError> {
        Ok(self.inner.world().barrier()?)
    }

    /// Puts the bytes of all one behind the other, by node; gives how many there are together. Each
    /// may have another number of bytes.
    ///
    /// # Errors
    /// [`NxError`]; if there is not room for them at all processes, all get the error.
    pub fn gcol(&self, own: &[u8], all: &mut [u8]) -> Result<usize, NxError> {
        let count = self.inner.messages.size() as usize;
        let mut lens = vec![0; 16 * count];
        let said = [(own.len() as u64).to_le_bytes(), (all.len() as u64).to_le_bytes()].concat();
        self.inner.world().allgather(&said, &mut lens)?;
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes")) as usize;
        let said: Vec<(usize, usize)> = lens.chunks(16).map(|b| (number(&b[..8]), number(&b[8..]))).collect();
        let total = said.iter().fold(0usize, |sum, (len, _)| sum.saturating_add(*len));
        let room = said.iter().map(|(_, room)| *room).min().unwrap_or_default();
        if total > room {
            let (what, len, wanted) = ("gcol: memory for all, at the node that has the least", room, total);
            return Err(MpError::Length { what, len: len as u64, wanted: wanted as u64 }.into());
        }
        let lens: Vec<usize> = said.iter().map(|(len, _)| *len).collect();
        self.inner.world().allgather_varied(own, &lens, &mut all[..total])?;
        Ok(total)
    }

    /// The same where each knows how many bytes each has.
    ///
    /// # Errors
    /// [`NxError`]: also that the lengths do not fit.
    pub fn gcolx(&self, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), NxError> {
        let total = lens.iter().fold(0usize, |sum, len| sum.saturating_add(*len));
        let len = all.len();
        let part = all.get_mut(..total).ok_or_else(|| {
            let what = "gcolx: memory for all";
            NxError::Messages(MpError::Length { what, len: len as u64, wanted: total as u64 })
        })?;
        Ok(self.inner.world().allgather_varied(own, lens, part)?)
    }

    /// Combines the bytes of all by a function, which gets those of some nodes, to change them, and
    /// those of nodes behind them. It must not matter how they are grouped; their order is kept.
    ///
    /// # Errors
    /// [`NxError`].
    pub fn gopf(&self, bytes: &mut [u8], function: &mut dyn FnMut(&mut [u8], &[u8])) -> Result<(), NxError> {
        Ok(self.inner.world().allreduce_by(bytes, function)?)
    }

    /// Sends a message to these nodes, to processes of this one's type.
    ///
    /// # Errors
    /// [`NxError`]; that one of the nodes does not exist before anything is sent.
    pub fn gsendx(&self, ty: i64, bytes: &[u8], nodes: &[i64]) -> Result<(), NxError> {
        let tag = crate::select::tag(ty, self.inner.ptype(), self.myptype())?;
        let ranks = nodes.iter().map(|node| self.inner.nodes.rank_of(*node)).collect::<Result<Vec<_>, _>>()?;
        ranks.into_iter().try_for_each(|rank| self.inner.send(rank, tag, bytes))
    }
}
