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
/// Folders whose errors users of nodes and programs see. The simulators and the measurements explain themselves where they run.
const FACES: &[&str] =
    &["crates/vmmc/src", "crates/host/src", "crates/node/src", "crates/nic/src", "crates/sockets/src"];
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
    let quotes: Vec<&str> = troubles.split('`').skip(1).step_by(2).filter(|quote| quote.len() >= QUOTE_LEAST).collect();
    for folder in FACES {
        each(&root().join(folder), &["rs"], &mut |path, text| {
            for message in messages(text).into_iter().filter(|message| !quotes.iter().any(|q| says(message, q))) {
                let file = path.strip_prefix(root()).unwrap_or(path).display();
                complaints.push(format!("{TROUBLES}: quotes nothing of {message:?} ({file})"));
            }
        });
    }
    let mut all = String::new();
    each(&root().join("crates"), &["rs"], &mut |_, text| all.push_str(&text.replace('`', "")));
    for row in troubles.lines().filter(|line| line.starts_with("| `") && !line.starts_with("| `VMMC_")) {
        let cell = row.split(" | ").next().unwrap_or_default();
        for quote in cell.split('`').skip(1).step_by(2).filter(|quote| !all.contains(quote) && !OTHERS.contains(quote))
        {
            complaints.push(format!("{TROUBLES}: no text of ours says {quote:?}"));
        }
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

/// Texts of errors in a source file that say something of their own, before its tests.
fn messages(text: &str) -> Vec<&str> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let texts = code.split("#[error(").skip(1).filter_map(|rest| {
        let rest = rest.trim_start().strip_prefix('"')?;
        let end = rest.match_indices('"').find(|(at, _)| !rest[..*at].ends_with('\\'))?.0;
        Some(&rest[..end])
    });
    // One that names the operation and hands another error on is found by that error's text.
    let hands_on = |text: &str| text.ends_with(": {error}") || text.ends_with(": {why}");
    let words = |text: &str| literal(text).split_whitespace().count();
    texts.filter(|text| words(text) >= if hands_on(text) { 7 } else { 3 }).collect()
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
        assert_eq!(messages(source), ["{what}: the deadline passed", "a \\\"b\\\" c d"]);
        assert!(says("use `vmmc run` {x}", "use vmmc run"));
        let found = variables("env(\"VMMC_NODE\") \"VMMC_RANK=3\" \"VMMC_NODE is unset\"");
        assert_eq!(found, ["VMMC_NODE", "VMMC_RANK"]);
    }
}
