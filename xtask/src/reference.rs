//! Pages that must be complete: every environment variable, every error text and every status.
//!
//! Invariant: what the sources read or say is on its page; a new variable or text fails until it
//! is.

use crate::root;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Page of environment variables.
const ENVIRONMENT: &str = "docs/environment.md";
/// Page of errors.
const TROUBLES: &str = "docs/troubleshooting.md";
/// Folders whose texts users of nodes, programs and libraries see.
const FACES: &[&str] = &[
    "crates/vmmc/src",
    "crates/bsp/src",
    "crates/mp/src",
    "crates/nx/src",
    "crates/techniques/src",
    "crates/job/src",
    "crates/host/src",
    "crates/node/src",
    "crates/nic/src",
    "crates/sockets/src",
    "crates/preload/src",
    "crates/cli/src",
    "bindings/onc/src",
    "bindings/c/src",
    "bindings/python/src",
    "bindings/python/python",
];
/// Files among them whose texts are not on the page.
const APART: &[&str] = &[
    // Tests, and what tests and fuzzers look at.
    "tests",
    "testing",
    "crates/nic/src/engine/observe",
    "crates/nic/src/fuzzing",
    // What explains itself where it is typed: simulators, measurements, and the values of options.
    "crates/cli/src/args",
    "crates/cli/src/external",
    "crates/cli/src/machine",
    "crates/cli/src/measure",
    "crates/cli/src/report",
    "crates/cli/src/commands/bench",
    "crates/cli/src/commands/sim",
    "crates/cli/src/commands/utlb",
    "crates/mp/src/simulation",
    "crates/sockets/src/core/simulation",
    // What says how things are, and how to change them.
    "crates/cli/src/commands/doctor",
    "crates/cli/src/commands/top",
    "crates/vmmc/src/explain",
];
/// Calls whose texts are not on the page.
const SILENT: &[&str] = &[
    // Our own mistakes, which end the program.
    ".expect",
    ".expect_err",
    "panic!",
    "unreachable!",
    "assert!",
    "assert_eq!",
    "assert_ne!",
    "debug_assert!",
    "debug_assert_eq!",
    "debug_assert_ne!",
    // What a command prints when all is well.
    "println!",
    "crate::output",
    "say",
    // What a number counts, which docs/counters.md says.
    "counter",
    "gauge",
    ".family",
    // Ends of a text that is quoted itself.
    ".wrong_answer",
    // Assembly.
    "global_asm!",
];
/// Texts that are not on the page.
const EXCEPT: &[&str] = &[
    // What stands before the text of an error, or within one: what was done, and to what.
    "attach to node …: …",
    "redirect bytes …..… of export …: …",
    "wait for a notification",
    "wait for a notification of export …",
    "wait for the word at … of export …",
    "the table of the job",
    "… (export …… on node …)",
    "without a name",
    "a process of user …",
    "process … of user …",
    "ask about the … of",
    "add peers to",
    "nodes asked by address",
    // How a program's own output shows an object.
    "<vmmc.Continuations of … transfers>",
    "<vmmc.Job …, rank … of …>",
    "<vmmc.Session process … on node …>",
    "<vmmc.TokenBuffer of … bytes>",
    "<vmmc.mp.Group, rank … of …>",
    "<vmmc.mp.Messages, rank … of …>",
    "Event(…, ranks=…, number=…, text=…)",
    "Group … (rank … of …)",
    "Job(…, rank … of …)",
    "Nx(node … of …, ptype …)",
    "Launched(job …, … ranks on … nodes)",
    "Notification(export …, offset=…, len=…, last_word=……)",
    "Region(… bytes at …, …)",
    "Report(copied=…, redirected=…, pending=…)",
    "Session(process … on node …)",
    "Status(source=…, tag=…, length=…)",
    // What a command prints when all is well, in parts.
    " (to other nodes: …)",
    "…, release …, up for …\n",
    "copies into mapped memory, no system call, no node",
    "import of … by process …",
    "node … serves processes, and peers on …\n",
    "node …… runs as process …, listens on …, …",
    "usage: python -m vmmc node run [--name N] [--listen ADDRESS] [--peer ADDRESS] [--plain] …",
    "vmmc: … with …, node …",
    "vmmc: connections are offered …",
    "vmmc: process … ends\n…",
    // The report of `vmmc demo`.
    "from A to B",
    "on node A",
    "export, import, fetch",
    "export, import, send",
    "Made by vmmc demo, release …, at ….",
    "The file …, …, was moved from one process to another, and its checksum taken on either side.",
    "…, …: …, …, checksum (CRC-32) … on both sides.",
    // What a node logs and serves when all is well.
    "… s after the start: …",
    "starts: node … of user …, to other nodes …, process …, release …, serves …, listens on …, …, …",
    "starts processes for jobs",
    "starts no processes",
    "it was told to by a signal, or by the program that it is part of",
    "its user told it to (vmmc node stop)",
    "nobody has been attached for as long as configured (--linger-s)",
    "node … is up at …",
    "# HELP vmmc_… …\n# TYPE vmmc_… …",
    "405 Method Not Allowed",
    "Published by processes.",
    "HTTP/1.1 …\\r\nContent-Type: text/plain; version=0.0.4\\r\nContent-Length: …\\r\nConnection: close\\r\n\\r\n",
    // Our own mistakes, which end the program.
    "a call on a descriptor that was let go",
    "the ring lies in the export",
    "the table has room for it",
    "the table has room for the largest job, which the launcher has checked",
    // What nobody is told: a datagram that is copied instead, and a key's name.
    "the pipe took … of … bytes",
    "the socket took … of … bytes",
    "vmmc: proof of datagrams outside sessions",
];
/// Words that a text has at least; a shorter one is a name, or is filled into another text.
const WORDS_LEAST: usize = 3;
/// Letters that a quoted part of a text must have, to tell it from others.
const QUOTE_LEAST: usize = 7;

/// Stands in a quoted part for what is filled in.
const FILLED: char = '…';

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
    let is_variable =
        |word: &str| word.strip_prefix("VMMC_").is_some_and(|name| !name.is_empty() && !name.starts_with("TEST_"));
    for name in words.iter().filter(|word| is_variable(word)) {
        if !read.contains(*name) && *name != "VMMC_LISTEN" {
            complaints.push(format!("{ENVIRONMENT}: {name} is on the page, and nothing reads it"));
        }
    }
    let quotes = quotes(&troubles);
    let mut all = Vec::new();
    for folder in ["crates", "bindings"] {
        each(&root().join(folder), &["rs", "py"], &mut |path, source| {
            let file = path.strip_prefix(root()).unwrap_or(path).display().to_string();
            let found = if file.ends_with(".py") { texts(&from_python(source)) } else { texts(source) };
            all.extend(found.into_iter().map(|text| (file.clone(), text)));
        });
    }
    for (file, text) in all.iter().filter(|(file, text)| is_seen(file) && is_wanted(text)) {
        if !quotes.iter().any(|quote| letters(quote) >= QUOTE_LEAST && text.contains(quote)) {
            complaints.push(format!("{TROUBLES}: quotes nothing of {text:?} ({file})"));
        }
    }
    for (file, text) in all.iter().filter(|(file, text)| is_seen(file) && speaks_rust(text)) {
        complaints.push(format!("{file}: {text:?} names something of Rust; others read it too, so say it in words"));
    }
    let says = |quote: &str| all.iter().any(|(_, text)| text.contains(quote));
    for quote in quotes.iter().filter(|quote| !says(quote) && !OTHERS.contains(quote)) {
        complaints.push(format!("{TROUBLES}: no text of ours says {quote:?}"));
    }
    for except in EXCEPT.iter().filter(|except| !all.iter().any(|(_, text)| text == *except)) {
        complaints.push(format!("xtask/src/reference.rs: {except:?} is excepted, and no text of ours"));
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

/// Whether users see what this file says, and the page has to.
fn is_seen(file: &str) -> bool {
    let face = FACES.iter().any(|folder| file.starts_with(folder));
    face && !APART.iter().any(|part| file.starts_with(part) || file.contains(&format!("/{part}")))
}

/// Whether a text has a path of Rust in it, as in `Session::attach`. Users of C, Python and the
/// command read the same texts.
fn speaks_rust(text: &str) -> bool {
    let ends = |part: &str| part.chars().next_back().is_some_and(char::is_alphabetic);
    let mut parts = text.split("::");
    let mut before = parts.next().unwrap_or_default();
    parts.any(|after| ends(std::mem::replace(&mut before, after)) && after.starts_with(char::is_alphabetic))
}

/// Whether a text has to be quoted.
fn is_wanted(text: &str) -> bool {
    let words = text.split_whitespace().filter(|word| word.contains(char::is_alphabetic)).count();
    words >= WORDS_LEAST && !EXCEPT.contains(&text)
}

/// Letters of a quoted part that are not filled in.
fn letters(quote: &str) -> usize {
    quote.chars().filter(|c| *c != FILLED).count()
}

/// Python's source without what only Python has: its documentation and comments.
fn from_python(source: &str) -> String {
    let code: String = source.split("\"\"\"").step_by(2).collect();
    let line = |line: &str| line.split("  # ").next().filter(|line| !line.trim().starts_with('#')).map(str::to_string);
    code.lines().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// All texts in a source file as the page would quote them, before its tests: each once.
fn texts(source: &str) -> BTreeSet<String> {
    let source = joined(source);
    let code = source.split("\nmod tests {").next().unwrap_or_default();
    strings(code).iter().map(|text| shown(text)).collect()
}

/// Whether the texts in a bracket are nobody's: those of a silent call, or of an attribute that
/// makes no error.
fn is_silent(before: &str, inside: &str) -> bool {
    let attribute = before.ends_with('#') || before.ends_with("#!");
    let is_call = |call: &&str| {
        let whole = |rest: &str| !rest.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        before.strip_suffix(*call).is_some_and(|rest| call.starts_with('.') || whole(rest))
    };
    attribute && !inside.starts_with("error(") || SILENT.iter().any(is_call)
}

/// The strings of a source, without those that are nobody's.
fn strings(code: &str) -> Vec<String> {
    let (mut found, mut open, mut silent_at) = (Vec::new(), 0_usize, None);
    let mut rest = code;
    while let Some(at) = rest.find(['"', '(', ')', '[', ']', '{', '}', '/', '\'']) {
        let (before, after) = (&code[..code.len() - rest.len() + at], &rest[at + 1..]);
        rest = match rest.as_bytes()[at] {
            b'"' => {
                let mut escaped = false;
                let end = after.find(|c: char| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                let Some(end) = end else { break };
                if silent_at.is_none() {
                    found.push(after[..end].replace("\\\"", "\"").replace("\\n", "\n"));
                }
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
                if silent_at.is_none() && is_silent(before, after) {
                    silent_at = Some(open);
                }
                after
            }
            b')' | b']' | b'}' => {
                silent_at = silent_at.filter(|at| *at != open);
                open = open.saturating_sub(1);
                after
            }
            _ => after,
        };
    }
    found
}

/// A text as it is quoted: with a mark for what is filled in, and without backticks.
fn shown(text: &str) -> String {
    let text = text.replace('`', "");
    let mut pieces = text.split('{');
    let first = pieces.next().unwrap_or_default().to_string();
    pieces.fold(first, |text, piece| {
        let rest = piece.split_once('}').map_or("", |(_, rest)| rest);
        format!("{text}{FILLED}{rest}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(source: &str) -> Vec<String> {
        texts(source).into_iter().filter(|text| is_wanted(text)).collect()
    }

    #[test]
    fn texts_and_variables_are_found() {
        let source = "#[error(\"{what}: the deadline passed\")]\nA,\n#[error(\n    \"a \\\"b\\\" c d\"\n)]\nB,\n\
            #[cfg(test)]\nmod tests {\n#[error(\"not of ours\")]";
        assert_eq!(listed(source), ["a \"b\" c d", "…: the deadline passed"]);
        let source = "/// Not \"in a comment\".\n#[must_use = \"not in an attribute\"]\n\
            Err(invalid(match x { '(' => \"one (two three\", _ => \"2\" }))\n\
            let why = format!(\n    \"four five {x} \\\n     six\", \"too few\");\neprintln!(\"vmmc: seven `eight`\"); \
            x.expect(\"not an assertion\"); println!(\"{}\", f(\"not a result\")); link.say(\"nine ten eleven\")";
        assert_eq!(listed(source), ["four five … six", "nine ten eleven", "one (two three", "vmmc: seven eight"]);
        let python = "\"\"\"Not the documentation.\"\"\"\n# Not \"a whole comment\".\n\
            raise Closed(f\"the {x} is closed\")  # \"nor this one\"\n";
        assert_eq!(listed(&from_python(python)), ["the … is closed"]);
        let page = "quoted `outside of the tables`\n| `first`, `and this` | `not here` |\n| `VMMC_FULL` | `Full` |\n";
        assert_eq!(quotes(page), ["first", "and this"]);
        assert_eq!(letters("… of …"), 4);
        assert!(speaks_rust("start one (`Embedded::start`)") && !speaks_rust("listens on [::1], a::, ::b"));
        let found = variables("env(\"VMMC_NODE\") \"VMMC_RANK=3\" \"VMMC_NODE is unset\"");
        assert_eq!(found, ["VMMC_NODE", "VMMC_RANK"]);
    }
}
