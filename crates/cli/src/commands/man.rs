//! `vmmc man`: the manual pages, made of the declaration of the command line.
//!
//! Invariant: every page that a page names is written beside it.

use crate::args::Cli;
use crate::failure::Failure;
use clap::Command;
use clap_mangen::Man;
use std::path::Path;

/// Prints the page of a subcommand, or writes all pages into a folder.
pub(crate) fn run(out: Option<&Path>, words: &[String]) -> Result<(), Failure> {
    if let Some(folder) = out {
        std::fs::create_dir_all(folder)?;
        return Ok(clap_mangen::generate_to(Cli::whole(), folder)?);
    }
    let mut page = Vec::new();
    Man::new(find(words)?).render(&mut page)?;
    crate::output(&String::from_utf8_lossy(&page))
}

/// The subcommand, named as its page is.
fn find(words: &[String]) -> Result<Command, Failure> {
    // Without the subcommand `help`, which would be named and has no page.
    let mut command = Cli::whole().disable_help_subcommand(true);
    command.build();
    for word in words {
        let found = command.find_subcommand(word).cloned();
        command = found.ok_or_else(|| Failure::Usage(format!("no subcommand {word:?}; see `vmmc --help`")))?;
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Names of pages that a page mentions.
    fn named(page: &str) -> BTreeSet<String> {
        let text = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
        let words = text.split_whitespace().filter_map(|word| word.split_once("(1)"));
        words.map(|(name, _)| name.to_string()).collect()
    }

    #[test]
    fn every_page_that_a_page_names_exists() {
        let folder = std::env::temp_dir().join(format!("vmmc-man-{}", std::process::id()));
        run(Some(&folder), &[]).expect("written");
        let mut names = BTreeSet::new();
        let mut mentioned = BTreeSet::new();
        for entry in std::fs::read_dir(&folder).expect("the folder").flatten() {
            let file = entry.file_name().into_string().expect("plain names");
            let page = std::fs::read_to_string(entry.path()).expect("a page");
            let name = file.strip_suffix(".1").expect("section 1").to_string();
            let says = page.to_lowercase().contains("exit code") || ["vmmc-completion", "vmmc-man"].contains(&&*name);
            assert!(says, "{name} says nothing of exit codes");
            names.insert(name);
            mentioned.extend(named(&page));
        }
        let _ = std::fs::remove_dir_all(&folder);
        assert!(mentioned.contains("vmmc-node-start") && mentioned.contains("vmmc-run"), "{mentioned:?}");
        let missing: Vec<_> = mentioned.difference(&names).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_page_that_is_printed_names_only_pages_that_exist() {
        let print = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            let mut page = Vec::new();
            find(&words).map(|command| {
                Man::new(command).render(&mut page).expect("memory");
                String::from_utf8(page).expect("text")
            })
        };
        let Ok(text) = print(&[]) else { panic!("the page of the command") };
        assert!(named(&text).contains("vmmc-exec") && !named(&text).contains("vmmc-help"), "{text}");
        let Ok(text) = print(&["node", "start"]) else { panic!("the page of a subcommand") };
        assert!(text.contains(".TH vmmc-node-start 1"), "{text}");
        assert!(matches!(print(&["nod"]), Err(Failure::Usage(why)) if why.contains("nod")));
    }
}
