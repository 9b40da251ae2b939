//! Pages that must be complete: every environment variable, every error text and every status.
//!
//! Invariant: what the sources read or say is on its page; a new variable or text fails until it is.

use crate::root;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Page of environment variables.
const ENVIRONMENT: &str = "docs/environment.md";
/// Page of errors.
const TROUBLES: &str = "docs/troubleshooting.md";
/// Folders whose errors users of nodes and programs see.
const FACES: &[&str] = &[
    "crates/vmmc/src",
    "crates/host/src",
    "crates/node/src",
    "crates/nic/src",
    "crates/sockets/src",
    "crates/preload/src",
    "crates/cli/src",
    "bindings/c/src",
    "bindings/python/src",
];
/// Not among them: tests, and what explains itself where it is typed, which are the simulators, the measurements, and
/// the values of options.
const APART: &[&str] = &[
    "tests",
    "testing",
    "crates/cli/src/args",
    "crates/cli/src/external",
    "crates/cli/src/measure",
    "crates/cli/src/report",
    "crates/cli/src/commands/bench",
    "crates/cli/src/commands/sim",
    "crates/cli/src/commands/utlb",
    "crates/sockets/src/core/simulation",
];
/// What a text of an error is given to.
const GIVEN_TO: &[&str] = &[
    "#[error(",
    "refuse(",
    "refusal(",
    "invalid(",
    "shortage(",
    "let message = format!(",
    "Err(format!(",
    "ok_or_else(|| format!(",
    "Failure::new(",
    "Failure::Failed(",
    "Failure::Usage(",
    "Failure::NoNode(",
    "Failure::NodeExists(",
    "Failure::Unreachable(",
    "Failure::Check(",
];
/// Letters that a quoted part of a text must have, to tell it from others.
const QUOTE_LEAST: usize = 7;

/// Quoted there, and said by others.
const OTHERS: &[&str] = &["Package vmmc was not found", "NO_COLOR"];

/// Adds what is missing.
pub(crate) fn check(complaints: &mut Vec<String>) {
    let page = |name: &str| fs::read_to_string(root().join(name)).unwrap_or_default();
    let (environment, troubles) = (page(ENVIRONMENT), page(TROUBLES));
    let words: BTreeSet<&str> = environment.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let mut read = BTreeSet::new();
    for folder in ["crates", "bindings"] {
        each(&root().join(folder), &["rs", "py"], &mut |_, text| read.extend(variables(text)));
    }
    let header = fs::read_to_string(root().join("bindings/c/include/vmmc.h")).unwrap_or_default();
    for name in read.iter().filter(|name| !name.starts_with("VMMC_TEST_") && !names(&header, name)) {
        if !words.contains(name.as_str()) {
            complaints.push(format!("{ENVIRONMENT}: {name} is read or set, and is not on the page"));
        }
    }
    for name in words.iter().filter(|word| word.starts_with("VMMC_") && !word.starts_with("VMMC_TEST_")) {
        if !read.contains(*name) && *name != "VMMC_LISTEN" {
            complaints.push(format!("{ENVIRONMENT}: {name} is on the page, and nothing reads it"));
        }
    }
    let quotes = quotes(&troubles);
    let told = |message: &String| quotes.iter().any(|quote| quote.len() >= QUOTE_LEAST && says(message, quote));
    for folder in FACES {
        each(&root().join(folder), &["rs"], &mut |path, text| {
            let file = path.strip_prefix(root()).unwrap_or(path).display().to_string();
            if APART.iter().any(|part| file.starts_with(part) || file.contains(&format!("/{part}"))) {
                return;
            }
            for message in messages(text).into_iter().filter(|message| !told(message)) {
                complaints.push(format!("{TROUBLES}: quotes nothing of {message:?} ({file})"));
            }
        });
    }
    let mut all = String::new();
    for folder in ["crates", "bindings"] {
        each(&root().join(folder), &["rs"], &mut |_, text| all.push_str(&joined(text).replace('`', "")));
    }
    for quote in quotes.iter().filter(|quote| !all.contains(**quote) && !OTHERS.contains(quote)) {
        complaints.push(format!("{TROUBLES}: no text of ours says {quote:?}"));
    }
    let statuses = header.split("typedef enum vmmc_status {").nth(1).and_then(|rest| rest.split('}').next());
    for line in statuses.unwrap_or_default().lines().filter_map(|line| line.trim().split_once(" = ")) {
        if line.0 != "VMMC_OK" && !troubles.contains(&format!("| `{}` |", line.0)) {
            complaints.push(format!("{TROUBLES}: {} has no row", line.0));
        }
    }
}

/// All files of a kind below a folder.
fn each(folder: &Path, kinds: &[&str], look: &mut impl FnMut(&Path, &str)) {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() && !path.ends_with("target") {
            each(&path, kinds, look);
        } else if path.extension().is_some_and(|kind| kinds.iter().any(|k| kind == *k)) {
            look(&path, &fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// Names of variables of ours that stand as a whole string, or begin one as `NAME=`.
fn variables(text: &str) -> Vec<String> {
    let quoted = text.split("\"VMMC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_')?;
        rest[end..].starts_with(['"', '=']).then(|| format!("VMMC_{}", &rest[..end]))
    });
    quoted.collect()
}

/// Whether the C header has a constant of this name.
fn names(header: &str, name: &str) -> bool {
    header.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == name)
}

/// What the page quotes: in the first column of its tables, and nowhere else.
fn quotes(page: &str) -> Vec<&str> {
    let rows = page.lines().filter(|line| line.starts_with("| `") && !line.starts_with("| `VMMC_"));
    let cells = rows.map(|row| row.split(" | ").next().unwrap_or_default());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

/// A source with strings that go over several lines in one.
fn joined(text: &str) -> String {
    let mut pieces = text.split("\\\n");
    let first = pieces.next().unwrap_or_default().to_string();
    pieces.fold(first, |text, piece| text + piece.trim_start())
}

/// Texts of errors in a source file that say something of their own, before its tests.
fn messages(text: &str) -> Vec<String> {
    let text = joined(text);
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut texts = Vec::new();
    for given_to in GIVEN_TO {
        for (at, _) in code.match_indices(given_to) {
            let whole = !code[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            if whole && !code[..at].ends_with("fn ") {
                texts.extend(strings(&code[at + given_to.len()..]));
            }
        }
    }
    // One that names the operation and hands another error on is found by that error's text.
    let hands_on = |text: &str| [": {error}", ": {why}", ": {e}"].iter().any(|end| text.ends_with(end));
    let words = |text: &str| literal(text).split_whitespace().count();
    texts.retain(|text| words(text) >= if hands_on(text) { 7 } else { 3 });
    texts.sort();
    texts.dedup();
    texts
}

/// The strings of an argument list, which ends where its bracket is closed.
fn strings(code: &str) -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), 1);
    let mut rest = code;
    while open > 0 {
        let Some(at) = rest.find(['"', '(', ')', '[', ']', '{', '}', '/', '\'']) else { break };
        let after = &rest[at + 1..];
        rest = match rest.as_bytes()[at] {
            b'"' => {
                let mut escaped = false;
                let end = after.find(|c: char| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                let Some(end) = end else { break };
                found.push(after[..end].replace("\\\"", "\""));
                &after[end + 1..]
            }
            b'/' if after.starts_with('/') => after.split_once('\n').map_or("", |(_, rest)| rest),
            // A character, of which some are brackets, or the name of a lifetime.
            b'\'' => {
                let mut letters = after.chars();
                match (letters.next(), letters.next()) {
                    (Some('\\'), _) => after[2..].split_once('\'').map_or("", |(_, rest)| rest),
                    (Some(letter), Some('\'')) => &after[letter.len_utf8() + 1..],
                    _ => after,
                }
            }
            b'(' | b'[' | b'{' => {
                open += 1;
                after
            }
            b')' | b']' | b'}' => {
                open -= 1;
                after
            }
            _ => after,
        };
    }
    found
}

/// A text without what is filled in.
fn literal(text: &str) -> String {
    let pieces = text.split('{').enumerate();
    pieces.map(|(at, piece)| if at == 0 { piece } else { piece.split_once('}').map_or("", |(_, rest)| rest) }).collect()
}

/// Whether a text has a quoted part; backticks in texts cannot be quoted.
fn says(message: &str, quote: &str) -> bool {
    message.replace('`', "").contains(quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_variables_are_found() {
        let source = "#[error(\"{what}: the deadline passed\")]\nA,\n#[error(\n    \"a \\\"b\\\" c d\"\n)]\nB,\n#[error(\"{0}\")]\nC,\n#[cfg(test)]\nmod tests {\n#[error(\"not of ours\")]";
        assert_eq!(messages(source), ["a \"b\" c d", "{what}: the deadline passed"]);
        let source = "fn invalid(text: &str) {}\nErr(invalid(match x { '(' => \"one (two three\", _ => \"2\" }))\n\
            Failure::new(format!(\n    \"four five {x} \\\n     six\", \"too few\"));\n\"seven eight nine\"; \
            not_invalid(\"ten eleven twelve\")";
        assert_eq!(messages(source), ["four five {x} six", "one (two three"]);
        let page = "quoted `outside of the tables`\n| `first`, `and this` | `not here` |\n| `VMMC_FULL` | `Full` |\n";
        assert_eq!(quotes(page), ["first", "and this"]);
        assert!(says("use `vmmc run` {x}", "use vmmc run"));
        let found = variables("env(\"VMMC_NODE\") \"VMMC_RANK=3\" \"VMMC_NODE is unset\"");
        assert_eq!(found, ["VMMC_NODE", "VMMC_RANK"]);
    }
}
