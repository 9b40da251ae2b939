//! Percentiles and medians.
//!
//! Invariant: of an empty set there is none; nothing here divides by zero.

/// What one run of one series gave.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Sample {
    /// Times of one event, nanoseconds.
    Latency {
        /// Median.
        p50_ns: f64,
        /// 99th percentile.
        p99_ns: f64,
    },
    /// Bytes that arrived per second.
    Bandwidth {
        /// Bytes a second.
        bytes_per_s: f64,
    },
}

impl Sample {
    /// Percentiles of times that are each the sum of `events` events; sorts in place.
    pub(crate) fn latency(times_ns: &mut [f64], events: f64) -> Option<Sample> {
        times_ns.sort_by(f64::total_cmp);
        let at = |q: f64| times_ns.get(((times_ns.len() as f64 * q) as usize).min(times_ns.len().saturating_sub(1)));
        Some(Sample::Latency { p50_ns: at(0.5)? / events, p99_ns: at(0.99)? / events })
    }
}

/// Median of the runs, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// Median.
    pub(crate) median: f64,
    /// Smallest.
    pub(crate) min: f64,
    /// Largest.
    pub(crate) max: f64,
}

impl Spread {
    /// Of these values; none if there are none.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Spread { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_single_events() {
        let mut times: Vec<f64> = (1..=1000).rev().map(|i| f64::from(i) * 64.0).collect();
        let sample = Sample::latency(&mut times, 64.0).unwrap();
        assert_eq!(sample, Sample::Latency { p50_ns: 501.0, p99_ns: 991.0 });
        assert_eq!(Sample::latency(&mut [], 1.0), None);
    }

    #[test]
    fn the_median_of_an_even_number_is_the_middle() {
        assert_eq!(Spread::of(vec![4.0, 1.0, 3.0, 2.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of(vec![9.0]).map(|s| s.median), Some(9.0));
        assert_eq!(Spread::of(vec![]), None);
    }
}
