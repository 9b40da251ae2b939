//! Numbers that collective calls compute with, and how.
//!
//! Invariant: what travels is the same on every machine: least byte first.

/// How values of members become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Their sum; integers wrap around.
    Sum,
    /// Their product; integers wrap around.
    Product,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// Bits that all have; of integers.
    And,
    /// Bits that any has; of integers.
    Or,
    /// Bits that an odd number has; of integers.
    Xor,
}

/// A number of fixed size: integers of 8 to 64 bits, `f32` and `f64`.
pub trait Number: Copy + Send + 'static + sealed::Sealed {
    /// Its bytes.
    const BYTES: usize;
    /// Whether it has bits to compute with.
    const IS_INTEGER: bool;

    /// Of bytes of a message, of which there are [`BYTES`](Self::BYTES).
    fn from_bytes(bytes: &[u8]) -> Self;

    /// To bytes of a message, of which there are [`BYTES`](Self::BYTES).
    fn to_bytes(self, bytes: &mut [u8]);

    /// This one and another one. Of a float bits are not computed with, and this one stays.
    fn with(self, other: Self, op: Op) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! number {
    ($type:ty, $integer:literal, |$a:ident, $b:ident, $op:ident| $with:expr) => {
        impl sealed::Sealed for $type {}

        impl Number for $type {
            const BYTES: usize = size_of::<$type>();
            const IS_INTEGER: bool = $integer;

            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                <$type>::from_le_bytes(bytes.try_into().expect("as many bytes as it has"))
            }

            #[inline(always)]
            fn to_bytes(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            #[inline(always)]
            fn with(self, other: Self, $op: Op) -> Self {
                let ($a, $b) = (self, other);
                $with
            }
        }
    };
}

macro_rules! integers {
    ($($type:ty)*) => {
        $(number!($type, true, |a, b, op| match op {
            Op::Sum => a.wrapping_add(b),
            Op::Product => a.wrapping_mul(b),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
            Op::And => a & b,
            Op::Or => a | b,
            Op::Xor => a ^ b,
        });)*
    };
}

macro_rules! floats {
    ($($type:ty)*) => {
        $(number!($type, false, |a, b, op| match op {
            Op::Sum => a + b,
            Op::Product => a * b,
            Op::Min => a.min(b),
            Op::Max => a.max(b),
            Op::And | Op::Or | Op::Xor => a,
        });)*
    };
}

integers! { i8 u8 i16 u16 i32 u32 i64 u64 }
floats! { f32 f64 }
