//! Comments, prose and the code within them have at most [`WIDTH`] columns, so that two files fit
//! beside each other.
//!
//! Tables, headings, diagrams and printed output are as wide as they need to be, and so is a line
//! that is one word: a name, or an address.
//!
//! Invariant: a file of a kind that is not in [`prefixes`] is not looked at. What is generated has
//! no rule of its own: its source has.

use crate::root;
use std::process::Command;

/// Most columns of a comment or of a line of prose.
const WIDTH: usize = 100;
/// Files that are written by a program from comments elsewhere.
const GENERATED: &[&str] = &["bindings/c/include/vmmc.h"];

/// What a line of prose begins with in a file of this name; none: nothing in it is looked at.
fn prefixes(name: &str) -> Option<&'static [&'static str]> {
    let extension = name.rsplit('.').next().unwrap_or_default();
    match extension {
        "md" => Some(&[""]),
        "rs" => Some(&["//!", "///", "//"]),
        "c" | "h" => Some(&["//", "/*", "*"]),
        "py" | "pyi" | "toml" | "service" | "yml" => Some(&["#"]),
        _ => None,
    }
}

/// Looks at every file that is under version control.
pub(crate) fn check(complaints: &mut Vec<String>) {
    let output = Command::new("git").args(["ls-files"]).current_dir(root()).output();
    let listed = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    for name in listed.lines().filter(|name| !GENERATED.contains(name)) {
        let Some(prefixes) = prefixes(name) else { continue };
        let text = std::fs::read_to_string(root().join(name)).unwrap_or_default();
        for line in wide(&text, prefixes) {
            complaints.push(format!("{name}:{line}: a comment or prose of more than {WIDTH} columns"));
        }
    }
}

/// What a line between two fences is.
#[derive(Clone, Copy, PartialEq)]
enum Fenced {
    /// Code, which is wrapped as other code is.
    Code,
    /// A diagram, or what a program prints.
    Shown,
}

/// What follows a fence with this behind its mark. In Markdown a fence says what it holds; in a
/// comment of Rust code needs not say so.
fn fenced(info: &str, is_markdown: bool) -> Fenced {
    let mut words = info.split([',', ' ']).filter(|word| !word.is_empty());
    let is_code = if is_markdown {
        matches!(info, "c" | "python" | "rust")
    } else {
        let attributes = ["rust", "no_run", "compile_fail", "should_panic", "ignore"];
        words.all(|word| attributes.contains(&word) || word.starts_with("edition") || is_error(word))
    };
    if is_code { Fenced::Code } else { Fenced::Shown }
}

/// The number of an error of the compiler, which `compile_fail` may name.
fn is_error(word: &str) -> bool {
    word.strip_prefix('E').is_some_and(|number| number.len() == 4 && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Numbers of the lines that are too wide.
fn wide(text: &str, prefixes: &[&str]) -> Vec<usize> {
    let is_markdown = prefixes == [""];
    let mut within = None;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let Some(prefix) = prefixes.iter().find(|prefix| trimmed.starts_with(**prefix)) else {
            // A fence that is open at the end of a comment is none.
            within = None;
            continue;
        };
        let prose = trimmed[prefix.len()..].trim();
        let fence = prose.strip_prefix("```");
        if let Some(info) = fence {
            within = if within.is_none() { Some(fenced(info, is_markdown)) } else { None };
        }
        // What a reader of Markdown may not wrap: rows, headings, marks for the test that types it.
        let is_whole = ["|", "<!--", "# ", "## ", "### "].iter().any(|start| prose.starts_with(start));
        let excepted = match within {
            _ if fence.is_some() => true,
            Some(within) => within == Fenced::Shown,
            None => is_whole || !prose.contains(' '),
        };
        if line.chars().count() > WIDTH && !excepted {
            found.push(index + 1);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_wide_is_found_where_it_stands() {
        let long = "word ".repeat(30);
        let rust = prefixes("a.rs").unwrap();
        let text =
            format!("//! {long}\n//! ```text\n//! {long}\n//! ```\n    // {long}\nlet x = \"{long}\"; // {long}\n");
        assert_eq!(wide(&text, rust), [1, 5]);
        let markdown = format!("{long}\n| {long} |\n## {long}\n```\n{long}\n```\n{}\n* {long}\n", "x".repeat(200));
        assert_eq!(wide(&markdown, prefixes("a.md").unwrap()), [1, 8]);
        assert_eq!(wide(&format!("# {long}\nx = 1  # {long}\n"), prefixes("a.py").unwrap()), [1]);
        assert!(prefixes("a.lock").is_none());
    }

    #[test]
    fn code_between_fences_is_held_to_the_width_and_what_is_printed_is_not() {
        let long = "word ".repeat(30);
        let within = |start: &str, name: &str| {
            let mark = if name == "a.rs" { "    /// " } else { "" };
            // In code a hidden line is no heading.
            let text = format!("{mark}```{start}\n{mark}# {long}\n{mark}```\n{mark}{long}\n");
            wide(&text, prefixes(name).unwrap())
        };
        for start in ["", "rust", "no_run", "compile_fail,E0277", "rust, ignore", "edition2024,should_panic"] {
            assert_eq!(within(start, "a.rs"), [2, 4], "{start}");
        }
        for start in ["text", "console", "sh"] {
            assert_eq!(within(start, "a.rs"), [4], "{start}");
        }
        for (start, is_code) in [("c", true), ("python", true), ("rust", true), ("", false), ("console", false)] {
            assert_eq!(within(start, "a.md"), if is_code { vec![2, 4] } else { vec![4] }, "{start}");
        }
    }

    #[test]
    fn an_open_fence_of_one_comment_says_nothing_of_the_next() {
        let long = "word ".repeat(30);
        let text = format!("/// ```\nfn a() {{}}\n/// {long}\n");
        assert_eq!(wide(&text, prefixes("a.rs").unwrap()), [3]);
    }
}
