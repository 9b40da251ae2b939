//! Text for people: words of others that must not move a terminal, and times.
//!
//! Invariant: what comes out of [`printable`] has no character that a terminal obeys, or that
//! changes the order in which a reader sees the others.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

/// Text of somebody else, fit for a terminal, a line of a log or a cell of a table: what a terminal
/// would obey is written as in a string of Rust (`\u{1b}`, `\n`).
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, moves_a_terminal)
}

/// The same for text of several lines, in which ends of lines and tabs stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| !matches!(c, '\n' | '\t') && moves_a_terminal(c))
}

/// JSON, which is ours, of strings that may not be: control characters that JSON allows as they are
/// get its own escapes.
pub fn printable_json(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| c != '\n' && moves_a_terminal(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // All of them are in the first plane, so four digits say which.
        if c != '\n' && moves_a_terminal(c) { out += &format!("\\u{:04x}", c as u32) } else { out.push(c) }
    }
    Cow::Owned(out)
}

fn escape(text: &str, bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&bad) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if bad(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Control characters (C0, DEL, C1), and those that turn the direction of writing, end lines or
/// have no width.
fn moves_a_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A time as `2026-11-24T04:10:11.123Z`.
pub fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// Year, month and day of a number of days after the first of 1970, by the Gregorian calendar.
/// Years are counted from March here, so that the odd day of February is the last one. Source: H.
/// Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn nothing_that_a_terminal_obeys_comes_through() {
        let evil = "a\x1b]0;owned\x07\u{9b}2J\r\n\t\x7f\u{202e}x";
        assert_eq!(printable(evil), "a\\u{1b}]0;owned\\u{7}\\u{9b}2J\\r\\n\\t\\u{7f}\\u{202e}x");
        assert_eq!(printable_lines("one\n\x1btwo\n"), "one\n\\u{1b}two\n");
        assert_eq!(printable_json("{\n\"a\": \"\u{9b}\"}"), "{\n\"a\": \"\\u009b\"}");
        let harmless = "stra\u{df}e \u{1f600} \u{6f22}";
        assert!(matches!(printable(harmless), Cow::Borrowed(text) if text == harmless));
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds: u64| utc(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7));
        assert_eq!(at(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.007Z");
    }
}
