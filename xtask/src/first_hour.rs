//! What a document tells a user to type works, because this types it.
//!
//! ```text
//!   docs/*.md ── marked blocks ──▶ files and one session of bash, in a fresh home, with nodes of its own
//! ```
//!
//! A mark is a comment before a block: `typed`, `typed in DIR`, `typed last`, with `, needs
//! COMMAND, packages` at its end where it cannot run everywhere; `file PATH` for text to put into a
//! file; `not typed: REASON`. `needs packages` is a package index in reach, `needs logs` nodes that
//! keep logs. Where a block shows what a command prints, it must have printed that
//! ([`crate::printed`]).
//!
//! Invariant: every console block of the documents is typed or says why not. What is typed is the
//! document's text; only the profile is the check's own, so that nothing is built a second time
//! (`--full` leaves that away too). Nothing outside of the target folder changes, no logs of nodes
//! either, and no process stays.

use crate::Outcome::{self, Failed, Passed, Skipped};
use crate::install::built_folder;
use crate::steps::{PROFILE, build, is_root, log_text, run, succeeds};
use crate::{man, printed, root, target_folder};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// In the order in which somebody would read them.
const DOCUMENTS: &[&str] = &[
    "docs/installing.md",
    "docs/c.md",
    "docs/python.md",
    "README.md",
    "docs/running.md",
    "docs/exec.md",
    "docs/sockets.md",
    "docs/utlb.md",
    "crates/vmmc/examples/README.md",
    "crates/sockets/examples/README.md",
    "examples/grpc/README.md",
];
/// What is typed instead, always: ports that are free here, and time for a server to come up.
const ALWAYS: &[(&str, &str)] = &[
    (
        "redis-server --port 7000 --save '' &",
        "redis-server --port $PORT --save '' &\ntimeout 60 sh -c 'until redis-cli -p $PORT ping; do sleep 0.1; done' >/dev/null 2>&1",
    ),
    ("-p 7000", "-p $PORT"),
];
/// The same without `--full`: what the document says, with the profile that the other steps have
/// built.
const INSTEAD: &[(&str, &str)] = &[
    ("cargo xtask install --prefix", "$XTASK install --profile $PROFILE --no-build --prefix"),
    ("cargo xtask install-c --prefix", "$XTASK install-c --profile $PROFILE --no-build --prefix"),
    ("cargo xtask install --uninstall", "$XTASK install --uninstall"),
    ("cargo install --locked --path crates/cli", "install -D $BUILT/vmmc ~/.cargo/bin/vmmc"),
    ("cargo build --release --package vmmc-preload", "true"),
    ("cargo build --release && cargo build --release --example 08_job --package vmmc", "true"),
    ("cargo build --release", "true"),
    ("cargo run --release -- demo", "$BUILT/vmmc demo"),
    ("cargo run --release -p vmmc-sockets --example ", "$BUILT/examples/"),
    ("cargo run --release --example ", "$BUILT/examples/"),
    ("target/release/", "$BUILT/"),
    (
        "pip install ./bindings/python",
        "pip install --config-settings=build-args=\"--profile $PROFILE\" ./bindings/python",
    ),
];

/// Kinds of blocks with commands.
const COMMANDS: &[&str] = &["console", "sh", "bash", "shell"];

/// A marked block.
struct Block {
    /// Document and line.
    place: String,
    what: What,
    /// Its lines.
    text: Vec<String>,
}

enum What {
    /// Commands after `$ `, in a folder.
    Typed { folder: String, needs: Vec<String>, last: bool },
    /// A file of this name.
    File(String),
}

/// The step.
pub(crate) fn check() -> Outcome {
    if !succeeds(Command::new("bash").arg("--version")) {
        return Skipped("no bash here".into());
    }
    match try_check() {
        Ok(note) => Passed(note),
        Err(why) => Failed(why),
    }
}

fn try_check() -> Result<String, String> {
    let full = std::env::args().any(|word| word == "--full");
    let mut blocks = Vec::new();
    for name in DOCUMENTS {
        let text = fs::read_to_string(root().join(name)).map_err(|e| format!("{name}: {e}"))?;
        blocks.extend(parse(name, &text)?);
    }
    build()?;
    let home = target_folder().join("xtask/first-hour");
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(&home).map_err(|e| format!("{}: {e}", home.display()))?;
    let outcome = type_all(&home, &blocks, full);
    let _ = fs::remove_dir_all(&home);
    outcome
}

fn type_all(home: &Path, blocks: &[Block], full: bool) -> Result<String, String> {
    std::os::unix::fs::symlink(root(), home.join("vmmc")).map_err(|e| e.to_string())?;
    let packages = fs::create_dir_all(home.join("probe")).is_ok()
        && succeeds(
            Command::new("python3")
                .args(["-m", "pip", "download", "-q", "--no-deps", "-d"])
                .arg(home.join("probe"))
                .arg("mypy-extensions"),
        );
    let isolated = isolated();
    let there = |need: &String| match &**need {
        "packages" => packages,
        "logs" => isolated || !is_root(),
        command => succeeds(Command::new("bash").args(["-c", command])),
    };
    let (mut script, mut last, mut typed, mut skipped) = (String::from("set -euo pipefail\n"), String::new(), 0, 0);
    for block in blocks {
        match &block.what {
            What::File(path) => {
                let path = expand(home, path);
                fs::create_dir_all(path.parent().unwrap_or(home)).map_err(|e| e.to_string())?;
                fs::write(&path, block.text.join("\n") + "\n").map_err(|e| format!("{}: {e}", path.display()))?;
            }
            What::Typed { folder, needs, last: at_the_end } => {
                if let Some(need) = needs.iter().find(|need| !there(need)) {
                    crate::skipped(&format!("{}: needs {need}", block.place));
                    skipped += 1;
                    continue;
                }
                typed += 1;
                let script = if *at_the_end { &mut last } else { &mut script };
                let _ = writeln!(script, "cd {folder}; echo '== {}'", block.place);
                for line in commands(&block.text) {
                    let _ = writeln!(
                        script,
                        "echo '$ '{}\n{}",
                        quote(&line),
                        if full { instead(ALWAYS, &line) } else { instead(INSTEAD, &instead(ALWAYS, &line)) }
                    );
                }
            }
        }
    }
    // What was installed is complete before it is taken away, and afterwards nothing of it is left.
    script.push_str("cd; echo '== the installed tree'\ntest -x ~/.local/lib/vmmc/libvmmc_preload.so\ntest -f ~/.local/share/doc/vmmc/counters.md\n");
    script.push_str("if command -v systemd-analyze >/dev/null; then systemd-analyze verify ~/.local/lib/systemd/system/*.service ~/.local/share/systemd/user/*.service; else echo SKIP units: no systemd-analyze; fi\n");
    if full {
        script.push_str("test -z \"$(find ~/.local -size +15M -print)\"\n");
    }
    script.push_str(&image(&fs::read_to_string(root().join("Dockerfile")).map_err(|e| e.to_string())?, full)?);
    // The formatter takes the pages of the command too without a warning.
    script.push_str("if command -v man >/dev/null; then MANROFFSEQ= MANWIDTH=120 man --warnings -E UTF-8 -l -Tutf8 -Z ~/.local/share/man/man1/*.1 2>&1 >/dev/null | tee ~/warnings; test ! -s ~/warnings; else echo SKIP man pages: no man; fi\n");
    script.push_str("cp -r ~/.local/share/man ~/pages\nvmmc node stop >/dev/null 2>&1 || true\n");
    script.push_str(&last);
    script.push_str("cd; echo '== nothing is left'\nif [ -e ~/.local ]; then find ~/.local; exit 1; fi\n");
    // Beside the home, where it can be looked at afterwards.
    let path = home.with_extension("sh");
    fs::write(&path, script).map_err(|e| e.to_string())?;
    let outcome = run("first-hour", session(home, &path, isolated));
    // A failure in the middle leaves a node; under another user's rights than root's nothing else
    // ends it.
    let mut stop = Command::new(built_folder(PROFILE).join("vmmc"));
    let _ = stop.args(["node", "stop", "--name", &node()]).output();
    let log = log_text("first-hour");
    log.lines().filter_map(|line| line.strip_prefix("SKIP ")).for_each(crate::skipped);
    if let Failed(why) = outcome {
        let at = log.lines().rfind(|line| line.starts_with("== ")).unwrap_or("== the start");
        return Err(format!("{}: {why}", &at[3..]));
    }
    let (built, node) = (built_folder(PROFILE).display().to_string(), node());
    let names = [(built.as_str(), "target/release"), (node.as_str(), "alpha")];
    let mut compared = 0;
    for block in blocks.iter().filter(|block| matches!(block.what, What::Typed { .. })) {
        compared += printed::compare(&block.place, &block.text, &log, &names, full)?;
    }
    let outside = Path::new("/var/log/vmmc").join(&node).with_extension("log");
    if outside.exists() {
        return Err(format!("a node of this check has written {}", outside.display()));
    }
    let pages = references(&home.join("pages"))?;
    Ok(format!(
        "{typed} blocks typed, {skipped} skipped; {compared} printed lines as shown; {pages} references between man pages lead somewhere"
    ))
}

/// What the Dockerfile does, without the container: its build, what it copies from that, and what
/// it starts, by another name and for a moment.
fn image(dockerfile: &str, full: bool) -> Result<String, String> {
    let mut script = String::from("cd ~/vmmc; echo '== Dockerfile'\n");
    let mut started: Vec<String> = Vec::new();
    for line in dockerfile.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let here = rest.replace("/stage", "~/image");
        match word {
            "RUN" => drop(writeln!(script, "{}", if full { here } else { instead(INSTEAD, &here) })),
            "COPY" if rest.starts_with("--from=build ") => {
                let from = here.split(' ').nth(1).unwrap_or_default();
                let _ = writeln!(script, "test -e {from}");
            }
            "ENTRYPOINT" | "CMD" => {
                let words: Vec<String> = serde_json::from_str(rest).map_err(|e| format!("Dockerfile: {line}: {e}"))?;
                started.extend(words);
            }
            _ => {}
        }
    }
    let own = |word: &String| word.replace("default", "$VMMC_NODE-image").replace(":4791", ":0");
    let words: Vec<String> = started.iter().map(own).collect();
    let _ = writeln!(script, "timeout --preserve-status 2 ~/image/usr/local/bin/{}", words.join(" "));
    Ok(script)
}

/// How a session of root is kept apart: whatever a block has started ends with it, and root's logs
/// are its own.
const ISOLATE: &[&str] = &["--pid", "--fork", "--kill-child", "--mount-proc"];
/// What such a session begins with. Nodes of root write below /var/log, whatever the environment
/// says.
const OWN_LOGS: &str = "mount -t tmpfs logs /var/log";

/// Whether a session can be kept apart.
fn isolated() -> bool {
    succeeds(Command::new("unshare").args(ISOLATE).args(["sh", "-c", OWN_LOGS]))
}

/// A session of bash in a fresh home, kept apart where that can be had.
fn session(home: &Path, script: &Path, isolated: bool) -> Command {
    let mut command = Command::new(if isolated { "unshare" } else { "bash" });
    if isolated {
        command.args(ISOLATE).args(["sh", "-c", &format!("{OWN_LOGS} && exec bash \"$0\"")]);
    }
    let before = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let kept = |name: &str, folder: &str| std::env::var_os(name).map_or_else(|| before.join(folder), PathBuf::from);
    command.arg(script).current_dir(home).env("HOME", home).env("VMMC_NODE", node());
    // The toolchain and what it has downloaded are those of the user; what it installs goes into
    // the fresh home.
    command.env("CARGO_HOME", kept("CARGO_HOME", ".cargo")).env("RUSTUP_HOME", kept("RUSTUP_HOME", ".rustup"));
    command.env("PYENV_ROOT", kept("PYENV_ROOT", ".pyenv")).env("CARGO_INSTALL_ROOT", home.join(".cargo"));
    command.env("PIP_CACHE_DIR", target_folder().join("xtask/pip-cache")).env("CARGO_TARGET_DIR", target_folder());
    command.env("XDG_STATE_HOME", home.join("state"));
    if !isolated && is_root() {
        command.env("VMMC_LOG", "off");
    }
    // A build of the same profile may have put another file in this program's place.
    let own = std::env::current_exe().unwrap_or_default();
    let own = own.to_string_lossy().trim_end_matches(" (deleted)").to_string();
    command.env("XTASK", own).env("BUILT", built_folder(PROFILE)).env("PROFILE", PROFILE);
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("PORT", free_port().to_string());
    for name in ["XDG_CONFIG_HOME", "VMMC_BIN", "VMMC_PRELOAD", "PKG_CONFIG_PATH", "LD_LIBRARY_PATH", "PYTHONPATH"] {
        command.env_remove(name);
    }
    command
}

/// A port on which nothing listened a moment ago.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map_or(7000, |address| address.port())
}

/// A node of this check's own.
fn node() -> String {
    format!("first-hour-{}", std::process::id())
}

fn expand(home: &Path, path: &str) -> PathBuf {
    path.strip_prefix("~/").map_or_else(|| PathBuf::from(path), |rest| home.join(rest))
}

/// Marked blocks of a document; a console block without a mark is an error.
fn parse(name: &str, text: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut mark = None;
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let place = format!("{name}:{}", at + 1);
        if let Some(said) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            mark = Some(said);
        } else if let Some(kind) = line.strip_prefix("```") {
            let text: Vec<String> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").map(str::to_string).collect();
            match mark.take() {
                Some(said) => blocks.extend(what(said).map(|what| Block { place, what, text })),
                None if COMMANDS.contains(&kind)
                    || text
                        .iter()
                        .any(|line| line.starts_with("$ ") || kind.is_empty() && line.starts_with("vmmc ")) =>
                {
                    return Err(format!("{place}: mark it `<!-- typed -->` or `<!-- not typed: REASON -->`"));
                }
                None => {}
            }
        } else if !line.is_empty() {
            mark = None;
        }
    }
    Ok(blocks)
}

/// What a mark says; None: leave the block alone.
fn what(mark: &str) -> Option<What> {
    if let Some(path) = mark.strip_prefix("file ") {
        return Some(What::File(path.to_string()));
    }
    let rest = mark.strip_prefix("typed")?;
    let (place, needs) = rest.split_once(", needs ").unwrap_or((rest, ""));
    let place = place.trim();
    let last = place.starts_with("last");
    let folder = place.trim_start_matches("last").trim().strip_prefix("in ").unwrap_or("~");
    let needs = needs.split(", ").filter(|need| !need.is_empty()).map(str::to_string).collect();
    Some(What::Typed { folder: folder.to_string(), needs, last })
}

/// The commands of a block, those over several lines in one piece; other lines are what they print.
pub(crate) fn commands(text: &[String]) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for line in text {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push(command.to_string());
        } else if let (Some(rest), Some(command)) = (line.strip_prefix("> "), commands.last_mut()) {
            let _ = write!(command, "\n{rest}");
        }
    }
    commands
}

fn instead(table: &[(&str, &str)], line: &str) -> String {
    table.iter().fold(line.to_string(), |line, (from, to)| line.replace(from, to))
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Every page that an installed page names is installed too; gives the number of references.
fn references(pages: &Path) -> Result<usize, String> {
    let mut count = 0;
    for folder in fs::read_dir(pages).map_err(|e| format!("{}: {e}", pages.display()))?.flatten() {
        for page in fs::read_dir(folder.path()).map_err(|e| e.to_string())?.flatten() {
            let text = fs::read_to_string(page.path()).map_err(|e| format!("{}: {e}", page.path().display()))?;
            for (name, section) in man::references(&text) {
                count += 1;
                if !pages.join(format!("man{section}/{name}.{section}")).exists() {
                    return Err(format!("{} names {name}({section}), which is not installed", page.path().display()));
                }
            }
        }
    }
    if count > 100 { Ok(count) } else { Err(format!("only {count} references between man pages were found")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_say_what_is_done_with_a_block() {
        let text = "<!-- typed in ~/x, needs cc --version, packages -->\n```console\n$ one \\\n> two\nprinted\n$ three\n```\n\n<!-- file ~/y/z -->\n```c\nint x;\n```\n<!-- not typed: dangerous -->\n```console\n$ rm\n```\n```text\nleft\n```\n";
        let blocks = parse("d.md", text).expect("well marked");
        assert_eq!(blocks.len(), 2);
        let What::Typed { folder, needs, last } = &blocks[0].what else { panic!("a typed block") };
        assert_eq!((folder.as_str(), needs.len(), *last), ("~/x", 2, false));
        assert_eq!(commands(&blocks[0].text), ["one \\\ntwo", "three"]);
        assert!(matches!(&blocks[1].what, What::File(path) if path == "~/y/z"));
        assert_eq!(blocks[1].text, ["int x;"]);
    }

    #[test]
    fn a_console_block_without_a_mark_is_an_error() {
        let Err(why) = parse("d.md", "text\n\n```console\n$ one\n```\n") else { panic!("refused") };
        assert!(why.starts_with("d.md:3: mark it"), "{why}");
    }

    #[test]
    fn all_documents_with_commands_are_typed() {
        for path in documents(root()) {
            let name = path.strip_prefix(root()).expect("below it").display().to_string();
            let text = fs::read_to_string(&path).expect("a document");
            let blocks = parse(&name, &text).unwrap_or_else(|why| panic!("{why}"));
            assert!(blocks.is_empty() || DOCUMENTS.contains(&&*name), "{name} is in no list of DOCUMENTS");
        }
    }

    fn documents(folder: PathBuf) -> Vec<PathBuf> {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        let hidden = |path: &PathBuf| path.ends_with("target") || path.ends_with(".git") || path.ends_with("shared");
        let below = folders.into_iter().filter(|path| !hidden(path)).flat_map(documents);
        below.chain(files.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "md"))).collect()
    }
}
