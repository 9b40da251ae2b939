//! One man page for each call of the C interface, made of the header's comments.
//!
//! Invariant: what the page says is what the header says; a function without a comment gets no page
//! and fails the check of symbols. A page shows every type and constant that its call takes, and
//! names only pages that exist.

use crate::man_statuses;
use std::fmt::Write;

/// A function of the header.
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// Its declaration, on as many lines as in the header.
    declaration: String,
    /// Its comment, in paragraphs.
    comment: Vec<String>,
}

/// A page.
pub(crate) struct Page {
    /// Its name.
    pub(crate) name: String,
    /// Its section.
    pub(crate) section: u8,
    /// Its text.
    pub(crate) text: String,
}

impl Function {
    /// Its declaration.
    #[cfg(test)]
    pub(crate) fn declaration(&self) -> &str {
        &self.declaration
    }
}

/// All functions of a header, in its order.
pub(crate) fn functions(header: &str) -> Vec<Function> {
    let mut functions = Vec::new();
    let mut comment = Vec::new();
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        if line == "/**" {
            comment = paragraphs(lines.by_ref().take_while(|line| line.trim() != "*/"));
        } else if line.contains('(') && !line.starts_with([' ', '#', '/', '*']) && !line.starts_with("typedef") {
            let mut declaration = line.to_string();
            while !declaration.ends_with(';') {
                let Some(next) = lines.next() else { break };
                let _ = write!(declaration, "\n{next}");
            }
            let before = declaration.split('(').next().unwrap_or_default();
            let name = before.rsplit([' ', '*']).next().unwrap_or_default().to_string();
            functions.push(Function { name, declaration, comment: std::mem::take(&mut comment) });
        }
    }
    functions
}

/// Lines of a comment as paragraphs.
fn paragraphs<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let text: Vec<&str> = lines.map(|line| line.trim().trim_start_matches('*').trim()).collect();
    text.split(|line| line.is_empty()).map(|p| p.join(" ")).filter(|p| !p.is_empty()).collect()
}

/// The definition of a struct or enum, with its comments, if the header has one.
fn definition<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let start = ["struct", "enum"].iter().find_map(|kind| header.find(&format!("\ntypedef {kind} {name} {{")))? + 1;
    let end = header[start..].find(&format!("}} {name};"))? + start + name.len() + 3;
    Some(&header[start..end])
}

/// All pages.
pub(crate) fn pages(header: &str, version: &str) -> Vec<Page> {
    let functions = functions(header);
    let mut pages: Vec<Page> = functions.iter().map(|f| page(header, version, f, &functions)).collect();
    pages.push(overview(header, version, &functions));
    pages
}

/// The pages of the library for ONC RPC: its calls are of libtirpc's kind, with its results.
pub(crate) fn pages_of_onc(header: &str, version: &str) -> Vec<Page> {
    let library = Library { name: "vmmc_onc", header: "vmmc_onc.h", what: "ONC RPC" };
    pages_of(&library, header, version)
}

/// The pages of BSPlib.
pub(crate) fn pages_of_bsp(header: &str, version: &str) -> Vec<Page> {
    let library = Library { name: "vmmc_bsp", header: "bsp.h", what: "bulk synchronous parallel programs" };
    pages_of(&library, header, version)
}

/// A library beside that of `vmmc.h`.
struct Library {
    name: &'static str,
    header: &'static str,
    what: &'static str,
}

fn pages_of(library: &Library, header: &str, version: &str) -> Vec<Page> {
    let functions = functions(header);
    let mut pages: Vec<Page> = functions.iter().map(|f| page_of(library, header, version, f, &functions)).collect();
    pages.push(overview_of(library, header, version, &functions.iter().collect::<Vec<_>>()));
    pages
}

/// The page of a whole library.
fn overview_of(library: &Library, header: &str, version: &str, functions: &[&Function]) -> Page {
    let (name, file, what) = (library.name, library.header, library.what);
    let mut text = head(name, 7, version);
    let _ = write!(
        text,
        ".SH NAME\n{name} \\- {what} over virtual memory-mapped communication\n.SH SYNOPSIS\n.nf\n\\fB#include <{file}>\\fR\n\ncc program.c $(pkg-config \\-\\-cflags \\-\\-libs {name})\n.fi\n.SH DESCRIPTION\n"
    );
    let comment = header.split("*/").next().unwrap_or_default().trim_start_matches("/*");
    text.push_str(&paragraphs(comment.lines()).iter().map(|p| escape(p) + "\n").collect::<Vec<_>>().join(".PP\n"));
    text.push_str(".SH CALLS\n");
    for function in functions {
        let _ = write!(text, ".TP\n.BR {} (3)\n{}\n", function.name, escape(summary(function)));
    }
    Page { name: name.into(), section: 7, text }
}

/// The pages of NX: one for both forms of a call, without the other calls, which are many.
pub(crate) fn pages_of_nx(header: &str, version: &str) -> Vec<Page> {
    let library = Library { name: "vmmc_nx", header: "nx.h", what: "the message passing of NX" };
    let functions = functions(header);
    let pairs = pairs(header);
    let plain: Vec<&Function> = functions.iter().filter(|f| pairs.iter().all(|(quiet, _)| *quiet != f.name)).collect();
    let mut pages: Vec<Page> = Vec::new();
    for function in &plain {
        let name = &function.name;
        let quiet = functions.iter().find(|other| other.name.strip_prefix('_') == Some(name));
        let mut text = head(name, 3, version);
        let _ = write!(text, ".SH NAME\n{name} \\- {}\n.SH SYNOPSIS\n.nf\n", escape(summary(function)));
        let _ = write!(text, "\\fB#include <{}>\\fR\n\n", library.header);
        for form in [Some(*function), quiet].into_iter().flatten() {
            let _ = writeln!(text, "{}", escape(&form.declaration));
        }
        let paragraphs: Vec<String> = function.comment.iter().map(|p| escape(p)).collect();
        let _ = writeln!(text, ".fi\n.SH DESCRIPTION\n{}", paragraphs.join("\n.PP\n"));
        for (definition, comment) in pointers(header, &function.declaration) {
            let _ = write!(text, ".PP\n.nf\n{}\n.fi\n{}\n", escape(definition), escape(&comment));
        }
        if let Some(quiet) = quiet {
            let _ = write!(
                text,
                ".SH ERRORS\nAn error ends all processes of the application, after a message.\n.TP\n.B {}\n{}\n.PP\n.BR {} (7)\nhas the values of errno.\n",
                quiet.name,
                escape(&quiet.comment.join(" ")),
                library.name
            );
        }
        let _ = writeln!(text, ".SH SEE ALSO\n.BR {} (7),\n.BR nx_perror (3)", library.name);
        pages.push(Page { name: name.clone(), section: 3, text });
    }
    pages.push(overview_of(&library, header, version, &plain));
    pages
}

/// Calls whose name begins with an underscore, each with the one that it is a form of.
pub(crate) fn pairs(header: &str) -> Vec<(String, String)> {
    let names = functions(header).into_iter().map(|function| function.name);
    names.filter_map(|name| name.strip_prefix('_').map(|plain| (name.clone(), plain.to_string()))).collect()
}

/// Types of functions that a declaration names: their definition, and its comment.
fn pointers<'a>(header: &'a str, declaration: &str) -> Vec<(&'a str, String)> {
    let mut found = Vec::new();
    let mut comment = String::new();
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        if line == "/**" {
            comment = paragraphs(lines.by_ref().take_while(|line| line.trim() != "*/")).join(" ");
        } else if let Some((_, rest)) = line.strip_prefix("typedef ").and_then(|rest| rest.split_once("(*")) {
            let name = rest.split(')').next().unwrap_or_default();
            if declaration.contains(&format!("{name} ")) {
                found.push((line, comment.clone()));
            }
        }
    }
    found
}

fn page_of(library: &Library, header: &str, version: &str, function: &Function, all: &[Function]) -> Page {
    let mut text = head(&function.name, 3, version);
    let _ = write!(text, ".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.nf\n", function.name, escape(summary(function)));
    let file = library.header;
    let _ = write!(text, "\\fB#include <{file}>\\fR\n\n{}\n.fi\n.SH DESCRIPTION\n", escape(&function.declaration));
    let _ = writeln!(text, "{}", function.comment.iter().map(|p| escape(p)).collect::<Vec<_>>().join("\n.PP\n"));
    let mut words = function.comment.join(" ");
    for part in header.split("\nstruct ").skip(1) {
        let name = part.split(' ').next().unwrap_or_default();
        if function.declaration.contains(&format!("struct {name} ")) {
            let definition = format!("struct {}}};", part.split("\n};").next().unwrap_or_default().to_string() + "\n");
            words += &definition;
            let _ = write!(text, ".SH {}\n.nf\n{}\n.fi\n", name.to_uppercase(), escape(&plain(&definition)));
        }
    }
    let constants = constants(header, &words);
    if !constants.is_empty() {
        text.push_str(".SH CONSTANTS\n");
        for (name, comment) in constants {
            let _ = write!(text, ".TP\n.B {}\n{}\n", escape(&name), escape(&comment));
        }
    }
    let _ = write!(text, ".SH SEE ALSO\n.BR {} (7)", library.name);
    for other in all.iter().filter(|other| other.name != function.name) {
        let _ = write!(text, ",\n.BR {} (3)", other.name);
    }
    text.push('\n');
    Page { name: function.name.clone(), section: 3, text }
}

/// The first sentence of what a function is.
fn summary(function: &Function) -> &str {
    let first = function.comment.first().map(String::as_str).unwrap_or_default();
    first.split_once(". ").map_or(first.trim_end_matches('.'), |(summary, _)| summary)
}

fn page(header: &str, version: &str, function: &Function, all: &[Function]) -> Page {
    let mut text = head(&function.name, 3, version);
    let _ = write!(text, ".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.nf\n", function.name, escape(summary(function)));
    let _ = write!(text, "\\fB#include <vmmc.h>\\fR\n\n{}\n.fi\n.SH DESCRIPTION\n", escape(&function.declaration));
    let _ = writeln!(text, "{}", function.comment.iter().map(|p| escape(p)).collect::<Vec<_>>().join("\n.PP\n"));
    let shown = definitions(header, function);
    for (name, definition) in &shown {
        let _ = write!(text, ".SH {}\n.nf\n{}\n.fi\n", name.to_uppercase(), escape(&plain(definition)));
    }
    let words = shown.iter().fold(function.comment.join(" "), |words, (_, definition)| words + definition);
    let constants = constants(header, &words);
    if !constants.is_empty() {
        text.push_str(".SH CONSTANTS\n");
        for (name, comment) in constants {
            let _ = write!(text, ".TP\n.B {}\n{}\n", escape(&name), escape(&comment));
        }
    }
    if function.declaration.starts_with("vmmc_status ") || function.declaration.starts_with("enum vmmc_status ") {
        text.push_str(".SH RETURN VALUE\nVMMC_OK, or the reason as a status;\n.BR vmmc_error_message (3)\ntells it in words.\nResults are written on VMMC_OK only.\n.SH ERRORS\n");
        for status in man_statuses::of(&function.name, &function.declaration) {
            let meaning = meaning(header, status);
            let _ = write!(text, ".TP\n.B VMMC_{status}\n{}\n", escape(&meaning));
        }
    }
    let group = function.name.rsplitn(2, '_').last().unwrap_or_default();
    let family = group.split('_').take(2).collect::<Vec<_>>().join("_");
    let others = all.iter().filter(|f| f.name.starts_with(&family) && f.name != function.name);
    let others: Vec<String> = others.map(|f| format!(".BR {} (3)", f.name)).collect();
    let _ = write!(text, ".SH SEE ALSO\n.BR vmmc (7)");
    others.iter().for_each(|line| {
        let _ = write!(text, ",\n{line}");
    });
    text.push('\n');
    Page { name: function.name.clone(), section: 3, text }
}

/// The page of the whole interface: the head of the header, the statuses, the list of calls.
fn overview(header: &str, version: &str, functions: &[Function]) -> Page {
    let mut text = head("vmmc", 7, version);
    text.push_str(".SH NAME\nvmmc \\- virtual memory-mapped communication\n.SH SYNOPSIS\n.nf\n\\fB#include <vmmc.h>\\fR\n\ncc program.c $(pkg-config \\-\\-cflags \\-\\-libs vmmc)\n.fi\n.SH DESCRIPTION\n");
    let comment = header.split("*/").next().unwrap_or_default().trim_start_matches("/*");
    let _ =
        writeln!(text, "{}", paragraphs(comment.lines()).iter().map(|p| escape(p)).collect::<Vec<_>>().join("\n.PP\n"));
    let statuses = definition(header, "vmmc_status").map(plain).unwrap_or_default();
    let _ = write!(text, ".SH STATUSES\n.nf\n{}\n.fi\n.SH CALLS\n", escape(&statuses));
    for function in functions {
        let _ = write!(text, ".TP\n.BR {} (3)\n{}\n", function.name, escape(summary(function)));
    }
    Page { name: "vmmc".into(), section: 7, text }
}

fn head(name: &str, section: u8, version: &str) -> String {
    format!(".TH {} {section} \"\" \"VMMC {version}\" \"VMMC\"\n.ad l\n.nh\n", name.to_uppercase())
}

/// Definitions of the types that a call takes, of those in them, and of those that its comment
/// names; statuses have a section of their own.
fn definitions<'a>(header: &'a str, function: &Function) -> Vec<(String, &'a str)> {
    let mut found: Vec<(String, &str)> = Vec::new();
    let mut waiting = types(&function.declaration);
    waiting.extend(types(&function.comment.join(" ")));
    waiting.reverse();
    while let Some(name) = waiting.pop() {
        if name == "vmmc_status" || found.iter().any(|(known, _)| *known == name) {
            continue;
        }
        if let Some(definition) = definition(header, &name) {
            let inner = types(definition).into_iter().filter(|inner| *inner != name);
            waiting.extend(inner.rev());
            found.push((name, definition));
        }
    }
    found
}

/// Constants of the header that a text names, with their comments.
fn constants(header: &str, words: &str) -> Vec<(String, String)> {
    let named: Vec<&str> = words.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let mut found = Vec::new();
    let mut comment = Vec::new();
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        if line == "/**" {
            comment = paragraphs(lines.by_ref().take_while(|line| line.trim() != "*/"));
        } else if let Some((name, value)) = line.strip_prefix("#define ").and_then(|rest| rest.split_once(' ')) {
            if named.contains(&name) {
                found.push((format!("{name} {value}"), comment.join(" ")));
            }
        }
    }
    found
}

/// What the header says of a status.
fn meaning(header: &str, status: &str) -> String {
    let before = header.split(&format!("    VMMC_{status} = ")).next().unwrap_or_default();
    let comment = before.rsplit("/**").next().unwrap_or_default();
    paragraphs(comment.lines().take_while(|line| line.trim() != "*/")).join(" ")
}

/// Names of types of ours in a text.
fn types(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| word.starts_with("vmmc_"));
    words.map(str::to_string).collect()
}

/// Pages that a page names, as (name, section).
pub(crate) fn references(page: &str) -> Vec<(String, String)> {
    let text = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("(3)(", "(3) (");
    let named = text.lines().filter_map(|line| {
        // `.BR name (3)` in our own pages, `name(1)` in those of the command.
        let line = line.strip_prefix(".BR ").map_or_else(|| line.to_string(), |rest| rest.replace(" (", "("));
        let (name, rest) = line.split_once('(')?;
        let (section, _) = rest.split_once(')')?;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let is_page = section.len() == 1 && section.starts_with(|c: char| c.is_ascii_digit());
        (is_page && name.starts_with("vmmc") && name.chars().all(plain))
            .then(|| (name.to_string(), section.to_string()))
    });
    named.collect()
}

/// A definition with its comments on one line each.
fn plain(definition: &str) -> String {
    let text = definition.lines().filter(|line| !matches!(line.trim(), "/**" | "*/"));
    text.map(|line| line.replacen("     * ", "    // ", 1)).collect::<Vec<_>>().join("\n")
}

/// Text as troff takes it literally.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('`', "");
    let lines =
        text.lines().map(|line| if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_string() });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> String {
        let path = crate::root().join("bindings/c/include/vmmc.h");
        std::fs::read_to_string(path).expect("the header is in the tree")
    }

    #[test]
    fn every_page_that_a_page_names_exists() {
        let pages = pages(&header(), "1");
        let mut count = 0;
        for page in &pages {
            for (name, section) in references(&page.text) {
                let exists = pages.iter().any(|other| other.name == name && other.section.to_string() == section);
                assert!(exists, "{}({}) names {name}({section}), which has no page", page.name, page.section);
                count += 1;
            }
        }
        assert!(count > pages.len(), "{count} references on {} pages", pages.len());
    }

    #[test]
    fn the_pages_for_onc_rpc_show_every_struct_constant_and_call() {
        let header = crate::onc::header().expect("it is in the tree");
        let pages = pages_of_onc(&header, "1");
        let all: String = pages.iter().map(|page| page.text.as_str()).collect();
        for name in ["CLNT_VMMC_OPTIONS", "SVC_VMMC_OPTIONS", "SVC_VMMC_COUNTS"] {
            assert!(all.contains(&format!(".SH {name}\n")), "{name}");
        }
        for name in header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' ')) {
            assert!(all.contains(&format!(".B {} {}\n", name.0, name.1)), "{name:?}");
        }
        for (name, section) in pages.iter().flat_map(|page| references(&page.text)) {
            assert!(pages.iter().any(|page| page.name == name && page.section.to_string() == section), "{name}");
        }
        assert_eq!(pages.len(), 8);
    }

    #[test]
    fn every_call_of_bsplib_has_a_page_with_what_the_header_says() {
        let pages = pages_of_bsp(&crate::bsp::header().expect("it is in the tree"), "1");
        assert_eq!(pages.len(), 21);
        for page in pages.iter().filter(|page| page.section == 3) {
            assert!(page.name.starts_with("bsp_") && page.text.contains("<bsp.h>"), "{}", page.name);
            assert!(page.text.split(".SH DESCRIPTION\n").nth(1).is_some_and(|text| text.len() > 100), "{}", page.name);
        }
    }

    #[test]
    fn every_call_of_nx_has_a_page_with_both_of_its_forms() {
        let header = crate::nx::header().expect("it is in the tree");
        let (pages, pairs) = (pages_of_nx(&header, "1"), pairs(&header));
        assert_eq!(
            (pages.len(), pairs.len()),
            (pairs.len() + 2, 62),
            "nx_perror has one form, and there is vmmc_nx(7)"
        );
        for (quiet, plain) in &pairs {
            let page = pages.iter().find(|page| page.name == *plain).expect("a page");
            assert!(page.text.contains(&format!(" {plain}(")) && page.text.contains(&format!(" {quiet}(")), "{plain}");
            assert!(page.text.contains(&format!(".B {quiet}\nAs {plain}(), but an error does not end")), "{plain}");
        }
        let find = |name: &str| pages.iter().find(|page| page.name == name).expect("a page").text.as_str();
        assert!(
            find("hrecv").contains("typedef void (*nx_handler)(long type") && !find("hrecv").contains("nx_xhandler")
        );
        assert!(find("vmmc_nx").contains("EMSGSIZE") && find("gopf").contains("less certain than for most calls"));
        for (name, section) in pages.iter().flat_map(|page| references(&page.text)) {
            assert!(pages.iter().any(|page| page.name == name && page.section.to_string() == section), "{name}");
        }
    }

    #[test]
    fn every_type_and_constant_stands_on_a_page_of_a_call() {
        let header = header();
        let pages = pages(&header, "1");
        let all: String = pages.iter().filter(|page| page.section == 3).map(|page| page.text.as_str()).collect();
        let types = header.lines().filter_map(|line| line.strip_prefix("} ")?.strip_suffix(';'));
        let constants = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
        let types: Vec<String> = types.map(|name| format!(".SH {}\n", name.to_uppercase())).collect();
        let constants: Vec<String> =
            constants.map(|(name, value)| format!(".B {}\n", escape(&format!("{name} {value}")))).collect();
        assert!(types.len() > 20 && constants.len() > 10, "{} types, {} constants", types.len(), constants.len());
        let missing: Vec<&String> = types
            .iter()
            .chain(&constants)
            .filter(|head| !all.contains(head.as_str()) && head.as_str() != ".SH VMMC_STATUS\n")
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn every_call_lists_its_statuses_with_their_meaning() {
        for page in pages(&header(), "1").iter().filter(|page| page.text.contains(".SH RETURN VALUE")) {
            let errors = page.text.split(".SH ERRORS\n").nth(1).unwrap_or_default();
            assert!(errors.contains(".B VMMC_INTERNAL\nAn error inside the library"), "{}", page.name);
        }
        let pages = pages(&header(), "1");
        let find = |name: &str| pages.iter().find(|page| page.name == name).expect("a page").text.as_str();
        assert!(find("vmmc_import_send").contains(".B VMMC_REVOKED\nThe exporter took the export back."));
        assert!(find("vmmc_export_wait_word").contains("VMMC_NOT_EQUAL = 1"));
    }

    const HEADER: &str = "/* Head.\n *\n * More. */\n#include <stdint.h>\n\n/**\n * Choices.\n */\ntypedef struct vmmc_o {\n    /**\n     * How many.\n     */\n    int n;\n} vmmc_o;\n\n/**\n * Does a thing. And more.\n *\n * Second paragraph.\n */\nvmmc_status vmmc_thing_do(const struct vmmc_o *o,\n                          int *out);\n";

    #[test]
    fn a_function_becomes_a_page() {
        let found = functions(HEADER);
        assert_eq!((found.len(), found[0].name.as_str()), (1, "vmmc_thing_do"));
        let pages = pages(HEADER, "1");
        let text = &pages[0].text;
        assert!(text.contains("vmmc_thing_do \\- Does a thing\n"), "{text}");
        assert!(text.contains("int *out);") && text.contains(".PP\nSecond paragraph."), "{text}");
        assert!(text.contains("// How many."), "{text}");
        assert!(pages[1].text.contains(".BR vmmc_thing_do (3)"));
    }
}
