//! Collective calls that compute, with the numbers of a Python object: what they are its buffer
//! says.
//!
//! Invariant: the numbers are copied out before the call and in after it, so a call that fails has
//! changed nothing.

use crate::bytes::{Target, contiguous};
use crate::errors::invalid;
use crate::group::Group;
use pyo3::prelude::*;
use vmmc_mp::{Number, Op};

/// Who has the result.
#[derive(Clone, Copy)]
pub(crate) enum Reduction {
    /// This member.
    To(u32),
    /// All.
    All,
    /// Each has that of those up to itself.
    Scan,
}

const OPS: [(&str, Op); 7] = [
    ("sum", Op::Sum),
    ("product", Op::Product),
    ("min", Op::Min),
    ("max", Op::Max),
    ("and", Op::And),
    ("or", Op::Or),
    ("xor", Op::Xor),
];

fn op_of(name: &str) -> PyResult<Op> {
    let found = OPS.iter().find(|(of, _)| *of == name).map(|(_, op)| *op);
    found.ok_or_else(|| {
        let names: Vec<&str> = OPS.iter().map(|(name, _)| *name).collect();
        invalid(format!("{name:?} is no operation; it is one of {}", names.join(", ")))
    })
}

/// Combines the numbers of an object, in place.
pub(crate) fn run(
    group: &Group,
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    op: &str,
    how: (Reduction, Option<f64>),
) -> PyResult<()> {
    let (op, format) = (op_of(op)?, Format::of(values)?);
    match format {
        Format::Signed(1) => compute::<i8>(group, py, values, op, how),
        Format::Signed(2) => compute::<i16>(group, py, values, op, how),
        Format::Signed(4) => compute::<i32>(group, py, values, op, how),
        Format::Signed(_) => compute::<i64>(group, py, values, op, how),
        Format::Unsigned(1) => compute::<u8>(group, py, values, op, how),
        Format::Unsigned(2) => compute::<u16>(group, py, values, op, how),
        Format::Unsigned(4) => compute::<u32>(group, py, values, op, how),
        Format::Unsigned(_) => compute::<u64>(group, py, values, op, how),
        Format::Float(4) => compute::<f32>(group, py, values, op, how),
        Format::Float(_) => compute::<f64>(group, py, values, op, how),
    }
}

fn compute<T: Number>(
    group: &Group,
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    op: Op,
    (how, timeout): (Reduction, Option<f64>),
) -> PyResult<()> {
    let mut target = Target::of(values)?;
    let mut numbers: Vec<T> = target.bytes().chunks_exact(T::BYTES).map(T::from_bytes).collect();
    group.run(py, timeout, |_, group| match how {
        Reduction::To(root) => group.reduce(root, &mut numbers, op),
        Reduction::All => group.allreduce(&mut numbers, op),
        Reduction::Scan => group.scan(&mut numbers, op),
    })?;
    target.bytes().chunks_exact_mut(T::BYTES).zip(numbers).for_each(|(bytes, number)| number.to_bytes(bytes));
    Ok(())
}

/// Kind and bytes of the numbers of a buffer.
#[derive(Clone, Copy)]
enum Format {
    Signed(usize),
    Unsigned(usize),
    Float(usize),
}

impl Format {
    /// What the buffer says, in the letters of the module `struct`.
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Format> {
        let view = contiguous(object)?;
        let (text, bytes) = (view.format().to_string_lossy().into_owned(), view.item_size());
        let letters = text.trim_start_matches(['@', '=', if cfg!(target_endian = "little") { '<' } else { '>' }]);
        match (letters, bytes) {
            ("b" | "h" | "i" | "l" | "q" | "n", 1 | 2 | 4 | 8) => Ok(Format::Signed(bytes)),
            ("B" | "H" | "I" | "L" | "Q" | "N", 1 | 2 | 4 | 8) => Ok(Format::Unsigned(bytes)),
            ("f" | "d", 4 | 8) => Ok(Format::Float(bytes)),
            _ => Err(invalid(format!(
                "numbers of format {text:?}, {bytes} bytes each, are not computed with; use integers of 8 to 64 bits, \
                 float32 or float64, in the byte order of this machine"
            ))),
        }
    }
}
