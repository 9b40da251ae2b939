//! Figures that processes have published, in words.
//!
//! Invariant: what is shown of times is what their buckets say: a part of them is below a figure,
//! give or take a factor of two.

use super::units;
use vmmc_host::published::{Figure, FigureKind};

/// What a figure is called.
pub(crate) fn name(figure: &Figure) -> String {
    if figure.item.is_empty() { figure.family.clone() } else { format!("{} {}", figure.family, figure.item) }
}

/// A figure as numbers, each with its name.
pub(crate) fn numbers(figure: &Figure) -> Vec<(String, u64)> {
    let name = name(figure);
    if figure.kind != FigureKind::Times {
        return vec![(name, figure.value)];
    }
    let times = figure.times();
    let mean = figure.value.checked_div(times).unwrap_or(0);
    let part = |part: f64| figure.quantile_ns(part).unwrap_or(0);
    let all = [("count", times), ("mean_ns", mean), ("median_ns", part(0.5)), ("p99_ns", part(0.99))];
    all.map(|(what, value)| (format!("{name} {what}"), value)).into()
}

/// Times: the mean, and what 99 of 100 are below.
pub(crate) fn times(figure: &Figure) -> Option<(String, String)> {
    let mean = figure.value.checked_div(figure.times())?;
    Some((units::time(mean as f64), units::time(figure.quantile_ns(0.99)? as f64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_one_number_and_times_are_four() {
        let figure = |kind, item: &str, value, buckets: &[u64]| Figure {
            kind,
            family: "rpc_answer".into(),
            item: item.into(),
            value,
            buckets: buckets.to_vec(),
        };
        assert_eq!(numbers(&figure(FigureKind::Gauge, "", 7, &[])), [("rpc_answer".to_string(), 7)]);
        let timed = figure(FigureKind::Times, "read", 1_000, &[3, 1]);
        let all = numbers(&timed);
        let values: Vec<_> = all.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let read = ["count", "mean_ns", "median_ns", "p99_ns"].map(|what| format!("rpc_answer read {what}"));
        assert_eq!(values, read.iter().map(String::as_str).zip([4, 250, 128, 256]).collect::<Vec<_>>());
        assert_eq!(times(&timed).unwrap().1, units::time(256.0));
        assert_eq!(times(&figure(FigureKind::Times, "read", 0, &[])), None);
    }
}
