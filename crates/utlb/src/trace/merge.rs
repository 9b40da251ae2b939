//! Traces of the processes of a node merged by time stamp, as the paper does. [UTLB §6]
//!
//! Invariant: records come out in the order of time; of equal times, in the order of the inputs.
//! One record of each input is in memory.

use super::{Record, Records, TraceError};
use crate::ids::Process;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Several traces as one.
pub struct Merge<'a> {
    inputs: Vec<Records<'a>>,
    heads: Vec<Option<Record>>,
    // (time, input) of each head.
    order: BinaryHeap<Reverse<(u64, usize)>>,
    failed: Option<TraceError>,
    // With `apart`: new process numbers.
    numbers: Option<HashMap<(usize, Process), Process>>,
}

impl<'a> Merge<'a> {
    /// Of these inputs. With `apart`, equal process numbers in different inputs are different
    /// processes; numbers are given in order of appearance.
    pub fn new(inputs: Vec<Records<'a>>, apart: bool) -> Merge<'a> {
        let heads = inputs.iter().map(|_| None).collect();
        let numbers = apart.then(HashMap::new);
        let mut merge = Merge { inputs, heads, order: BinaryHeap::new(), failed: None, numbers };
        (0..merge.inputs.len()).for_each(|input| merge.refill(input));
        merge
    }

    fn refill(&mut self, input: usize) {
        match self.inputs[input].next() {
            None => (),
            Some(Err(error)) => self.failed = Some(error),
            Some(Ok(record)) => {
                self.heads[input] = Some(record);
                self.order.push(Reverse((record.time_ns, input)));
            }
        }
    }
}

impl Iterator for Merge<'_> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            self.order.clear();
            return Some(Err(error));
        }
        let Reverse((_, input)) = self.order.pop()?;
        let mut record = self.heads[input].take().expect("every place in the order has its head");
        self.refill(input);
        if let Some(numbers) = &mut self.numbers {
            // More than 65536 processes share the last number.
            let next = Process(u16::try_from(numbers.len()).unwrap_or(u16::MAX));
            record.process = *numbers.entry((input, record.process)).or_insert(next);
        }
        Some(Ok(record))
    }
}
