//! Numbers for people: three digits and a unit.
//!
//! Invariant: sizes are powers of two (KiB), rates and times are decimal (GB/s, us).

/// A time in nanoseconds; empty if it is not known.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        n if n.is_nan() => String::new(),
        n if n < 1e3 => format!("{} ns", digits(n)),
        n if n < 1e6 => format!("{} us", digits(n / 1e3)),
        n if n < 1e9 => format!("{} ms", digits(n / 1e6)),
        n => format!("{} s", digits(n / 1e9)),
    }
}

/// A rate in bytes a second.
pub(crate) fn rate(bytes_per_s: f64) -> String {
    match bytes_per_s {
        b if b < 1e6 => format!("{} kB/s", digits(b / 1e3)),
        b if b < 1e9 => format!("{} MB/s", digits(b / 1e6)),
        b => format!("{} GB/s", digits(b / 1e9)),
    }
}

/// A size in bytes.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (unit, name) in UNITS {
        if bytes >= unit {
            let whole = bytes % unit == 0;
            let value = bytes as f64 / unit as f64;
            return if whole { format!("{} {name}", bytes / unit) } else { format!("{} {name}", digits(value)) };
        }
    }
    format!("{bytes} B")
}

/// A factor.
pub(crate) fn ratio(x: f64) -> String {
    format!("{}x", if x < 10.0 { format!("{x:.2}") } else { digits(x) })
}

/// Three significant digits.
pub(crate) fn digits(x: f64) -> String {
    match x {
        x if x < 10.0 => format!("{x:.2}"),
        x if x < 100.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

/// A size as users write it: `8`, `64K`, `1MiB`, `2g`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let number: String = lower.chars().take_while(char::is_ascii_digit).collect();
    let shift = match &lower[number.len()..] {
        "" | "b" => 0,
        "k" | "kib" | "kb" => 10,
        "m" | "mib" | "mb" => 20,
        "g" | "gib" | "gb" => 30,
        other => return Err(format!("{other:?} is no unit of size; use B, K, M or G (powers of 1024)")),
    };
    let value: u64 = number.parse().map_err(|_| format!("{text:?} is no size; write for example 8, 64K or 1M"))?;
    let bytes = value.saturating_mul(1 << shift);
    if bytes == 0 || bytes > crate::limits::SIZE_BYTES_MAX {
        return Err(format!("sizes lie between 1 B and {}, not {text}", size(crate::limits::SIZE_BYTES_MAX)));
    }
    Ok(bytes)
}

/// The same of what may be empty.
pub(crate) fn parse_size_or_zero(text: &str) -> Result<u64, String> {
    if text.trim() == "0" { Ok(0) } else { parse_size(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!((time(87.26), time(4530.0), time(2.5e7)), ("87.3 ns".into(), "4.53 us".into(), "25.0 ms".into()));
        assert_eq!((rate(3.84e10), rate(6.43e8)), ("38.4 GB/s".into(), "643 MB/s".into()));
        assert_eq!(
            (size(8), size(65536), size(1 << 20), size(1536)),
            ("8 B".into(), "64 KiB".into(), "1 MiB".into(), "1.50 KiB".into())
        );
        assert_eq!((ratio(1.149), ratio(53.2)), ("1.15x".into(), "53.2x".into()));
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        assert_eq!(parse_size("8"), Ok(8));
        assert!(parse_size("0").is_err() && parse_size("many").is_err() && parse_size("4x").is_err());
        assert!(parse_size("99999999999999999999g").is_err());
    }
}
