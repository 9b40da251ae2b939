//! Holds the statuses that a man page names against the errors that the code behind the call can
//! give.
//!
//! A call's errors are those of the methods of `crates/vmmc`, `crates/job` and `crates/rpc` that
//! its body in `bindings/c/src` calls; their kinds are those that these crates give them, and those
//! of the errors inside of them.
//!
//! Invariant: a page names no status that its call cannot end with by these types, and leaves out
//! none of those that do not depend on what the call is about ([`ALWAYS`]), nor any that the body
//! itself names.

use crate::{man, man_statuses};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Kinds that every call can end with whose errors have them, whatever it is about.
const ALWAYS: &[&str] = &["FORKED", "VERSION"];
/// What these calls do not end with, although their errors have kinds for it: they look only at
/// what the process itself knows, or wait for its own node's descriptor alone.
const NEVER: &[(&str, &[&str])] = &[
    ("vmmc_binding_flush", &["VERSION"]),
    ("vmmc_continuations_add", ALWAYS),
    ("vmmc_endpoint_event_fd", ALWAYS),
    ("vmmc_frame_read", ALWAYS),
    ("vmmc_job_node_of", ALWAYS),
    ("vmmc_job_state_of", ALWAYS),
    ("vmmc_launched_next_event", &["VERSION"]),
];
/// What the boundary itself gives: arguments, handles, panics.
const BOUNDARY: &[&str] = &["INVALID", "BAD_HANDLE", "INTERNAL"];
/// Types of the library behind a handle.
const BEHIND: &[(&str, &[&str])] = &[
    ("vmmc_binding", &["Import"]),
    ("vmmc_buffer", &["Buffer"]),
    ("vmmc_connection", &["Connection"]),
    ("vmmc_continuations", &["Continuations"]),
    ("vmmc_endpoint", &["Endpoint", "TokenPool"]),
    ("vmmc_export", &["Export"]),
    ("vmmc_frame", &["Frame"]),
    ("vmmc_import", &["Import"]),
    ("vmmc_job", &["Job"]),
    ("vmmc_launched", &["Launched"]),
    ("vmmc_redirection", &["Redirection"]),
    ("vmmc_ring", &["Ring"]),
    ("vmmc_rpc_answer", &["Bulk"]),
    ("vmmc_rpc_call", &["Call"]),
    ("vmmc_rpc_client", &["Client", "Request", "Call"]),
    ("vmmc_rpc_pending", &["Pending", "Request"]),
    ("vmmc_rpc_region", &["TokenRegion"]),
    ("vmmc_rpc_server", &["Server"]),
    ("vmmc_session", &["Session"]),
    ("vmmc_table", &["PinnedTable"]),
    ("vmmc_token_buffer", &["TokenBuffer"]),
    ("vmmc_transfer", &["Transfer"]),
];
/// What a body writes, and the method that it calls by that.
const BY_HELPER: &[(&str, &str, &str)] = &[
    (" create(", "ExportBuilder", "create"),
    (" open(", "ImportBuilder", "open"),
    ("builder.name(name)).create()", "RingBuilder", "create"),
    (" create(session, ", "EndpointBuilder", "create"),
    ("connect(endpoint)", "ConnectionBuilder", "open"),
    ("send(connection, control, ", "Connection", "send"),
    ("builder(options)?.attach()", "SessionBuilder", "attach"),
    ("builder.over(", "SessionBuilder", "over"),
    ("Job::attach()", "Job", "attach"),
    ("launch(options) }?.start()", "Launch", "start"),
    ("builder.connect()", "ClientBuilder", "connect"),
    (".serve(serve(", "ServerBuilder", "serve"),
    ("pending)?.take(", "Request", "call"),
    // A check of a source ends with what a check of any range does.
    ("bulk.check()", "Call", "read_bulk"),
];

type Kinds = BTreeSet<String>;

/// `OutOfBounds` as `OUT_OF_BOUNDS`.
fn upper(kind: &str) -> String {
    let mut text = String::new();
    for letter in kind.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_uppercase());
    }
    text
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

/// What follows each occurrence, as a word.
fn after<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(|rest| words(rest.get(..rest.len().min(60))?).next())
}

/// All Rust sources of a folder as one text.
fn sources(folder: &Path, text: &mut String) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let all = std::fs::read_to_string(&path).unwrap();
            text.push_str(all.split("#[cfg(test)]\nmod tests").next().unwrap_or_default());
        }
    }
}

/// The kinds of every type of errors, those of the errors inside of it included.
fn kinds(library: &str) -> BTreeMap<String, Kinds> {
    let mut found: BTreeMap<String, Kinds> = BTreeMap::new();
    let mut inside: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let ends = |text: &str| text.split("\n}\n").next().unwrap_or_default().to_string();
    for part in library.split("\nimpl Kind for ").skip(1) {
        let body = ends(part);
        let name = words(&body).next().unwrap_or_default().to_string();
        found.insert(name, after(&body, "ErrorKind::").map(upper).collect());
    }
    let of_engine = library.split("\nfn op_kind(").nth(1).map(ends).expect("kind.rs has it");
    found.insert("OpError".into(), after(&of_engine, "ErrorKind::").map(upper).collect());
    for part in library.split("\npub enum ").skip(1) {
        let body = ends(part);
        let name = words(&body).next().unwrap_or_default().to_string();
        let known = |word: &str| if word == "Refusal" { "RefusalCode".to_string() } else { word.to_string() };
        let parts = words(&body).skip(1).map(known).filter(|word| found.contains_key(word) && *word != name);
        inside.insert(name.clone(), parts.collect());
    }
    loop {
        let before = found.clone();
        for (name, parts) in &inside {
            let more: Kinds = parts.iter().flat_map(|part| before[part].iter().cloned()).collect();
            if let Some(kinds) = found.get_mut(name) {
                kinds.extend(more);
            }
        }
        if before == found {
            return found;
        }
    }
}

/// The type of errors of every public method that has one, by type and name.
fn methods(library: &str) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    let mut of = String::new();
    let mut lines = library.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("impl") {
            let rest = rest.strip_prefix('<').and_then(|all| all.split_once("> ")).map_or(rest, |(_, rest)| rest);
            of = words(rest).next().unwrap_or_default().to_string();
        }
        let Some(rest) = line.strip_prefix("    pub fn ") else { continue };
        let mut signature = rest.to_string();
        while !signature.ends_with(['{', ';', '}']) {
            let Some(next) = lines.next() else { break };
            signature.push_str(next);
        }
        let name = words(rest).next().unwrap_or_default().to_string();
        // Behind the last arrow: arguments may be functions.
        let result = signature.rsplit_once("->").map(|(_, result)| result);
        let error = result.and_then(|result| words(result).filter(|word| word.ends_with("Error")).last());
        if let Some(error) = error {
            found.insert((of.clone(), name), error.to_string());
        }
    }
    found
}

/// A call of the C interface, as far as it is looked at here.
struct Call {
    name: String,
    /// What the library can end it with.
    library: Kinds,
    /// What its own body says.
    own: Kinds,
    /// What functions beside it say, which it may call.
    helpers: Kinds,
}

fn calls(errors: &BTreeMap<String, Kinds>, methods: &BTreeMap<(String, String), String>) -> Vec<Call> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(crate::root().join("bindings/c/src")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let (mut bodies, mut rest) = (Vec::new(), String::new());
        for (index, part) in text.split("extern \"C\" fn ").enumerate() {
            let (body, after) = if index == 0 { ("", part) } else { part.split_once("\n}\n").unwrap() };
            bodies.push(body);
            rest.push_str(after);
        }
        let status = |text: &str| -> Kinds {
            let code: Vec<&str> =
                text.lines().filter(|line| !line.trim_start().starts_with("//") && !line.starts_with("use ")).collect();
            after(&code.join("\n").replace("VMMC_", " VMMC_"), " VMMC_").map(str::to_string).collect()
        };
        for body in bodies.iter().filter(|body| body.starts_with("vmmc_")) {
            let is_taken = |handle: &str| [",", ")"].iter().any(|end| body.contains(&format!("const {handle}{end}")));
            let types =
                BEHIND.iter().filter(|(handle, _)| is_taken(handle)).flat_map(|(_, types)| types.iter().copied());
            let types: Vec<&str> = types.collect();
            // What is called, also over the end of a line.
            let flat: String = body.lines().map(str::trim).collect();
            let names: BTreeSet<&str> = after(&flat, ".").collect();
            let known = methods.keys().map(|(of, name)| (of.as_str(), name.as_str()));
            let by_handle = known.filter(|(of, name)| types.contains(of) && names.contains(name));
            let by_helper =
                BY_HELPER.iter().filter(|(text, _, _)| body.contains(text)).map(|(_, of, name)| (*of, *name));
            let called: Vec<(&str, &str)> = by_handle.chain(by_helper).collect();
            let library = called.iter().filter_map(|(of, name)| methods.get(&(of.to_string(), name.to_string())));
            let library = library.flat_map(|error| errors[error].iter().cloned()).collect();
            let mut helpers = status(&rest);
            if [" put(", " create(", " open(", "under_way(", ".take("].iter().any(|makes| body.contains(makes)) {
                helpers.insert("FULL".into());
            }
            if body.contains("range") || body.contains("part(") {
                helpers.insert("OUT_OF_BOUNDS".into());
            }
            if [".client()?", "server.get()?", "find(", "end("].iter().any(|owned| body.contains(owned)) {
                helpers.insert("FORKED".into());
            }
            let name = words(body).next().unwrap_or_default().to_string();
            found.push(Call { name, library, own: status(body), helpers });
        }
    }
    found
}

#[test]
fn pages_name_the_statuses_that_the_code_gives() {
    let header = std::fs::read_to_string(crate::root().join("bindings/c/include/vmmc.h")).unwrap();
    let mut library = String::new();
    for folder in ["crates/vmmc/src", "crates/job/src", "crates/rpc/src"] {
        sources(&crate::root().join(folder), &mut library);
    }
    let (errors, methods) = (kinds(&library), methods(&library));
    // The texts are read as meant: what is looked at below is not empty.
    assert!(errors["TransferError"].is_superset(&errors["CallError"]) && errors["AccessError"].len() == 4);
    assert_eq!(methods[&("Export".into(), "read".into())], "AccessError");
    let all = calls(&errors, &methods);
    assert!(all.iter().filter(|call| !call.library.is_empty()).count() > 60);
    let known: BTreeSet<&str> =
        header.lines().filter_map(|line| line.strip_prefix("    VMMC_")?.split(" = ").next()).collect();
    let mut wrong = Vec::new();
    for function in man::functions(&header) {
        let Some(call) = all.iter().find(|call| call.name == function.name) else {
            panic!("{} is in the header and not in bindings/c/src", function.name);
        };
        let named: BTreeSet<&str> = man_statuses::of(&function.name, function.declaration()).into_iter().collect();
        let possible = |status: &str| {
            [&call.library, &call.own, &call.helpers].iter().any(|kinds| kinds.contains(status))
                || BOUNDARY.contains(&status)
        };
        for status in named.iter().filter(|status| !possible(status)) {
            wrong.push(format!("{} cannot end with {status}, which its page names", call.name));
        }
        let never = |status: &str| NEVER.iter().any(|(name, kinds)| *name == call.name && kinds.contains(&status));
        let always = ALWAYS.iter().copied().filter(|status| call.library.contains(*status) && !never(status));
        let own = call.own.iter().map(String::as_str).filter(|status| statuses(&header).contains(status));
        for status in always.chain(own).filter(|status| known.contains(status) && !named.contains(status)) {
            wrong.push(format!("{} can end with {status}, which its page does not name", call.name));
        }
    }
    assert!(wrong.is_empty(), "correct xtask/src/man_statuses.rs:\n{}", wrong.join("\n"));
}

/// The names of the statuses, without their prefix and without that of success.
fn statuses(header: &str) -> Vec<&str> {
    let list = header.split("} vmmc_status;").next().and_then(|before| before.rsplit("typedef enum").next());
    let names = list.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("    VMMC_")?.split(" = ").next());
    names.filter(|name| *name != "OK").collect()
}
