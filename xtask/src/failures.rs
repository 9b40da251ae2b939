//! What failed, out of the log of the test runners.
//!
//! Invariant: the summary is short, whatever the tests printed: whoever reads only the end of a
//! check's output sees which tests failed, and what each one said.

/// Lines of each failed test that the summary shows.
const LINES_MAX: usize = 10;
/// Failed tests that the summary shows; the log has the others.
const TESTS_MAX: usize = 12;
/// Characters of each line that the summary shows.
const LINE_CHARACTERS_MAX: usize = 300;

/// The failed tests in a log of `cargo test`, each with what it printed from its first panic on.
pub(crate) fn summary(log: &str) -> Vec<String> {
    let mut failed = Vec::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        // The runner prints the word twice: above what the failed tests printed, and above their
        // names.
        if line != "failures:" {
            continue;
        }
        let mut printed: Vec<&str> = Vec::new();
        while let Some(line) = lines.next_if(|line| *line != "failures:" && !line.starts_with("test result:")) {
            match line.strip_prefix("---- ").and_then(|name| name.strip_suffix(" stdout ----")) {
                Some(name) => {
                    failed.extend(shortened(&printed));
                    printed = vec![name];
                }
                None if !printed.is_empty() => printed.push(line),
                None => {}
            }
        }
        failed.extend(shortened(&printed));
    }
    if failed.len() > TESTS_MAX {
        let more = failed.split_off(TESTS_MAX).len();
        failed.push(format!("and {more} more"));
    }
    failed
}

/// One failed test: its name, and the lines from its first panic on.
fn shortened(printed: &[&str]) -> Option<String> {
    let (name, said) = printed.split_first()?;
    let panic = said.iter().position(|line| line.contains("panicked at")).unwrap_or(0);
    let said = said[panic..].iter().filter(|line| !line.is_empty()).take(LINES_MAX);
    let lines = said.map(|line| format!("\n     {}", line.chars().take(LINE_CHARACTERS_MAX).collect::<String>()));
    Some(format!("{name}{}", lines.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named_with_what_they_said_and_passed_ones_are_not() {
        let log = "running 3 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... FAILED\n\nsuccesses:\n\n---- a stdout ----\nfine\n\n\nsuccesses:\n    a\n\nfailures:\n\n---- b stdout ----\nsome noise\n\nthread 'b' panicked at x.rs:1:2:\nleft 1\nright 2\n\n---- c stdout ----\nError: \"returned\"\n\n\nfailures:\n    b\n    c\n\ntest result: FAILED. 1 passed; 2 failed\n";
        assert_eq!(
            summary(log),
            ["b\n     thread 'b' panicked at x.rs:1:2:\n     left 1\n     right 2", "c\n     Error: \"returned\""]
        );
    }

    #[test]
    fn a_summary_is_short_and_a_log_without_failures_has_none() {
        assert!(summary("running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed").is_empty());
        let block = |n: usize| format!("---- t{n} stdout ----\n{}", "panicked at\n".repeat(100));
        let log = format!("failures:\n\n{}\nfailures:\n", (0..50).map(block).collect::<String>());
        let all = summary(&log);
        assert_eq!(all.last().map(String::as_str), Some("and 38 more"));
        assert!(all[0].lines().count() == 1 + LINES_MAX && all.len() == TESTS_MAX + 1);
    }
}
