//! Whether commands print what documents show.
//!
//! Invariant: a line that a document shows below a command was printed by it, with other numbers;
//! and nothing else was printed, unless the document says so with a line `...`. The order is not
//! looked at: several processes print.

use crate::first_hour::commands;

/// Compares a block with the log of its session; gives the number of lines. What `names` has first
/// is shown as what it has second. A build from nothing prints more than is shown (`more`).
pub(crate) fn compare(
    place: &str,
    block: &[String],
    log: &str,
    names: &[(&str, &str)],
    more: bool,
) -> Result<usize, String> {
    let Some((_, rest)) = log.split_once(&format!("== {place}\n")) else { return Ok(0) };
    let mut rest = rest.split("\n== ").next().unwrap_or_default();
    let commands = commands(block);
    let mut count = 0;
    for (index, shown) in shown(block).into_iter().enumerate() {
        let Some((_, after)) = rest.split_once(&format!("$ {}", commands[index])) else { continue };
        let next = commands.get(index + 1).map(|next| format!("\n$ {next}"));
        let printed = next.and_then(|next| after.split_once(&next)).map_or(after, |(printed, _)| printed);
        rest = &after[printed.len()..];
        count += shown.len();
        lines(&shown, printed, names, more).map_err(|why| format!("{place}: `{}` {why}", commands[index]))?;
    }
    Ok(count)
}

/// What a block shows below each of its commands.
fn shown(block: &[String]) -> Vec<Vec<&str>> {
    let mut all: Vec<Vec<&str>> = Vec::new();
    for line in block.iter().filter(|line| !line.starts_with("> ")) {
        match all.last_mut() {
            _ if line.starts_with("$ ") => all.push(Vec::new()),
            Some(last) => last.push(line),
            None => {}
        }
    }
    all
}

fn lines(shown: &[&str], printed: &str, names: &[(&str, &str)], more: bool) -> Result<(), String> {
    if shown.is_empty() {
        return Ok(());
    }
    let named = names.iter().fold(printed.to_string(), |text, (from, to)| text.replace(from, to));
    let mut left: Vec<String> = named.lines().map(without_numbers).filter(|line| !line.is_empty()).collect();
    for line in shown.iter().filter(|line| **line != "...") {
        let wanted = without_numbers(line);
        match left.iter().position(|printed| *printed == wanted) {
            Some(at) => drop(left.remove(at)),
            None if wanted.is_empty() => {}
            None => return Err(format!("does not print {line:?}, but:\n{}", named.trim())),
        }
    }
    match left.first() {
        Some(line) if !more && !shown.contains(&"...") => {
            Err(format!("prints a line like {line:?}, which is not shown"))
        }
        _ => Ok(()),
    }
}

/// Units that follow a number, which differ as it does.
const UNITS: &[&str] = &["ns", "us", "µs", "ms", "s", "B/s", "KB/s", "MB/s", "GB/s", "KiB", "MiB", "GiB"];

/// A line with `#` for each number or word with a digit in it, without units after them; spaces and
/// rules are as wide as what stands in them, so they become one.
fn without_numbers(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '/');
        if UNITS.contains(&bare) && words.last().is_some_and(|last| last.ends_with('#')) {
            let last = words.last_mut().expect("it is there");
            last.push_str(word.split_once(bare).map_or("", |(_, after)| after));
            continue;
        }
        words.push(replaced(word));
    }
    words.join(" ")
}

fn replaced(word: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || ".:-_".contains(c);
    let (mut out, mut rest) = (String::new(), word);
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| is_part(c) != is_part(first)).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        if is_part(first) && run.contains(|c: char| c.is_ascii_digit()) {
            out.push('#');
            out.push_str(if run.ends_with(':') { ":" } else { "" });
        } else if run.chars().all(|c| c == '─') {
            out.push('─');
        } else {
            out.push_str(run);
        }
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_widths_are_left_out() {
        for (one, other) in [
            ("one way 285 ns (1.06x)", "one way   3.1 us (204x)"),
            ("[0] on node run-960-0: 51387.7 of 64000.0", "[2] on node run-7-1: 6306.1 of 64000.0"),
            ("takes 4.5 µs one way, 14.5 GB/s", "takes 23.291µs one way, 2.8 MB/s"),
            ("─────  ──", "─  ────"),
        ] {
            assert_eq!(without_numbers(one), without_numbers(other));
        }
        assert_ne!(without_numbers("the meter moves: 300"), without_numbers("the meter stands at 300"));
    }

    #[test]
    fn what_is_shown_is_printed_and_nothing_else() {
        let block: Vec<String> =
            ["$ one", "a 1 ns", "b", "$ two \\", "> more", "...", "c", "$ three"].map(str::to_string).to_vec();
        let log = |one: &str, two: &str| {
            format!("== x.md:1\n$ zero\n== d.md:3\n$ one\n{one}$ two \\\nmore\n{two}$ three\nd\n== e\n")
        };
        let compare = |log: String| compare("d.md:3", &block, &log, &[("node-7", "b")], false);
        assert_eq!(compare(log("node-7\na 22 us\n", "x\nc\n")), Ok(4));
        assert!(compare(log("b\n", "c\n")).expect_err("a line less").contains("`one` does not print \"a 1 ns\""));
        assert!(compare(log("b\na 1\ne\n", "c\n")).expect_err("a line more").contains("prints a line like \"e\""));
        assert!(compare(log("b\na 1\n", "x\n")).expect_err("a line less").contains("\"c\""));
        assert_eq!(compare("== other\n".into()), Ok(0), "a block that was skipped");
    }
}
