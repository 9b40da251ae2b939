//! Comments and prose have at most [`WIDTH`] columns, so that two files fit beside each other.
//!
//! Tables, headings, diagrams and code within them are as wide as they need to be, and so is a line
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

/// Numbers of the lines that are too wide.
fn wide(text: &str, prefixes: &[&str]) -> Vec<usize> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let Some(prefix) = prefixes.iter().find(|prefix| trimmed.starts_with(**prefix)) else {
            // A fence that is open at the end of a comment is none.
            fenced = false;
            continue;
        };
        let prose = trimmed[prefix.len()..].trim();
        let is_fence = prose.starts_with("```");
        fenced ^= is_fence;
        // What a reader of Markdown may not wrap: rows, headings, marks for the test that types it.
        let is_whole = ["|", "<!--", "# ", "## ", "### "].iter().any(|start| prose.starts_with(start));
        let excepted = fenced || is_fence || is_whole || !prose.contains(' ');
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
    fn an_open_fence_of_one_comment_says_nothing_of_the_next() {
        let long = "word ".repeat(30);
        let text = format!("/// ```\nfn a() {{}}\n/// {long}\n");
        assert_eq!(wide(&text, prefixes("a.rs").unwrap()), [3]);
    }
}
