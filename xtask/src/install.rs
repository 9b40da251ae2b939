//! Installing below a prefix, and taking it away again.
//!
//! Invariant: every file and folder that an installation makes is in its manifest,
//! `share/vmmc/manifest`, from which `share/vmmc/uninstall` removes it; nothing else is ever
//! removed. What is installed names the prefix, not the folder that a packager stages it in.

use crate::steps::cargo;
use crate::{bsp, c, nx, onc, root, target_folder};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// List of what was installed: `f PATH` and `d PATH`, relative to the prefix.
const MANIFEST: &str = "share/vmmc/manifest";
/// The script that takes it away, also where no source tree is any more.
const UNINSTALL: &str = "share/vmmc/uninstall";
/// Bytes that no program or library of an installation may have; debugging data left in would
/// exceed it.
const ARTIFACT_BYTES_MAX: u64 = 15 << 20;

/// How to call it.
const USAGE: &str = "\
usage: cargo xtask install --prefix DIR [--destdir DIR] [--profile P] [--features F] [--no-build] [--no-strip]
       cargo xtask install --uninstall --prefix DIR [--destdir DIR]";

/// What the command line says.
struct Options {
    prefix: PathBuf,
    destdir: Option<PathBuf>,
    profile: String,
    /// Features of the command to build it with, as cargo takes them.
    features: Option<String>,
    build: bool,
    strip: bool,
    uninstall: bool,
}

/// What of the project.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of it.
    All,
    /// The C library alone.
    C,
}

/// `cargo xtask install` and `install-c`.
pub(crate) fn command(part: Part, arguments: &[String]) -> Result<String, String> {
    let options = parse(arguments)?;
    let mut tree = Tree::new(&options.prefix, options.destdir.as_deref(), options.strip)?;
    if options.uninstall {
        return uninstall(&tree);
    }
    if options.build {
        build(part, &options.profile, options.features.as_deref())?;
    }
    let pages = install(&mut tree, part, &options.profile)?;
    tree.finish(part)?;
    tree.within_bounds()?;
    let (what, prefix) = (if part == Part::All { "command, libraries" } else { "libraries" }, tree.prefix.display());
    let mut said = format!(
        "installed in {prefix}: {what}, {pages} man pages, {} files in all\nto take it away: sh {prefix}/{UNINSTALL}",
        tree.files.len()
    );
    if options.destdir.is_none() {
        hints(&tree.prefix, part).iter().for_each(|hint| said.push_str(&format!("\n{hint}")));
    }
    Ok(said)
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let (mut prefix, mut destdir, mut profile, mut features) = (None, None, "release".to_string(), None);
    let (mut build, mut strip, mut uninstall) = (true, true, false);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
        match word.as_str() {
            "--prefix" => prefix = Some(value()?),
            "--destdir" => destdir = Some(value()?),
            "--profile" => profile = value()?,
            "--features" => features = Some(value()?),
            "--no-build" => build = false,
            "--no-strip" => strip = false,
            "--uninstall" => uninstall = true,
            _ => return Err(format!("{word} is unknown\n{USAGE}")),
        }
    }
    let absolute = |path: String| std::path::absolute(&path).map_err(|e| format!("{path}: {e}"));
    let prefix = absolute(prefix.ok_or_else(|| format!("--prefix is missing\n{USAGE}"))?)?;
    if prefix.to_str().is_none_or(|text| text.contains(char::is_whitespace)) {
        return Err(format!("{prefix:?}: pkg-config and systemd take no prefix with a space in it"));
    }
    Ok(Options { prefix, destdir: destdir.map(absolute).transpose()?, profile, features, build, strip, uninstall })
}

fn build(part: Part, profile: &str, features: Option<&str>) -> Result<(), String> {
    let mut command = cargo(&["build", "--locked", "--profile", profile]);
    command.args(["vmmc-c", "vmmc-onc", "vmmc-bsp-c", "vmmc-nx-c"].iter().flat_map(|name| ["--package", name]));
    if part == Part::All {
        command.args(["--package", "vmmc-cli", "--package", "vmmc-preload"]);
    }
    // One build of all, so the C library's nodes get it too.
    let features = features.into_iter().flat_map(|list| list.split([',', ' '])).filter(|name| !name.is_empty());
    for feature in features {
        if part == Part::C {
            return Err(format!("--features {feature}: features are the command's; use `cargo xtask install`"));
        }
        command.args(["--features", &format!("vmmc-cli/{feature}")]);
    }
    let done = command.current_dir(root()).status();
    if done.is_ok_and(|status| status.success()) { Ok(()) } else { Err("the build failed; see above".into()) }
}

/// Copies what a build made; gives the number of man pages.
pub(crate) fn install(tree: &mut Tree, part: Part, profile: &str) -> Result<usize, String> {
    let mut pages = c::install(tree, profile)?;
    match onc::install(tree, profile)? {
        Ok(more) => pages += more,
        Err(why) => println!("{why}"),
    }
    match bsp::install(tree, profile)? {
        Ok(more) => pages += more,
        Err(why) => println!("{why}"),
    }
    match nx::install(tree, profile)? {
        Ok(more) => pages += more,
        Err(why) => println!("{why}"),
    }
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        tree.copy(&root().join(name), &format!("share/doc/vmmc/{name}"))?;
    }
    documents(tree)?;
    if part == Part::C {
        return Ok(pages);
    }
    let folder = built_folder(profile);
    let program = folder.join("vmmc");
    tree.binary(&program, "bin/vmmc")?;
    // The first place but one where `vmmc exec` looks for it (crates/cli/src/commands/exec.rs).
    tree.binary(&folder.join("libvmmc_preload.so"), "lib/vmmc/libvmmc_preload.so")?;
    for (shell, place) in [
        ("bash", "share/bash-completion/completions/vmmc"),
        ("zsh", "share/zsh/site-functions/_vmmc"),
        ("fish", "share/fish/vendor_completions.d/vmmc.fish"),
    ] {
        tree.write(place, &said(&program, &["completion", shell])?)?;
    }
    pages += commands_pages(tree, &program)?;
    units(tree)?;
    Ok(pages)
}

/// The documents, which messages, man pages and the C header name, with the figures that they show.
fn documents(tree: &mut Tree) -> Result<(), String> {
    let folder = root().join("docs");
    for entry in fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?.flatten() {
        tree.copy(&entry.path(), &format!("share/doc/vmmc/{}", entry.file_name().to_string_lossy()))?;
    }
    Ok(())
}

/// Where a profile builds.
pub(crate) fn built_folder(profile: &str) -> PathBuf {
    target_folder().join(if profile == "dev" { "debug" } else { profile })
}

/// One page for the command and for each of its subcommands, as the command prints them.
fn commands_pages(tree: &mut Tree, program: &Path) -> Result<usize, String> {
    let folder = target_folder().join("xtask/man");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    said(program, &["man", "--out", &folder.to_string_lossy()])?;
    let mut count = 0;
    for entry in fs::read_dir(&folder).map_err(|e| e.to_string())?.flatten() {
        tree.copy(&entry.path(), &format!("share/man/man1/{}", entry.file_name().to_string_lossy()))?;
        count += 1;
    }
    Ok(count)
}

/// The units, with the path of the command in them. Both folders are among those that systemd reads
/// for the prefixes /usr and /usr/local, and the user's one also for ~/.local.
fn units(tree: &mut Tree) -> Result<(), String> {
    for (from, to) in [("system", "lib/systemd/system"), ("user", "share/systemd/user")] {
        let folder = root().join("packaging/systemd").join(from);
        for entry in fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?.flatten() {
            let text = fs::read_to_string(entry.path()).map_err(|e| format!("{}: {e}", entry.path().display()))?;
            let program = tree.prefix.join("bin/vmmc");
            tree.write(
                &format!("{to}/{}", entry.file_name().to_string_lossy()),
                &unit(&text, &program.to_string_lossy()),
            )?;
        }
    }
    Ok(())
}

/// A unit whose commands name the program by its path: systemd looks bare names up in folders of
/// its own choice.
fn unit(text: &str, program: &str) -> String {
    let line = |line: &str| {
        let (key, value) = line.split_once('=').filter(|(key, _)| key.starts_with("Exec"))?;
        let bare = value.trim_start_matches(['-', '@', ':', '+', '!']);
        let prefix = &value[..value.len() - bare.len()];
        let rest = bare.strip_prefix("vmmc").filter(|rest| rest.is_empty() || rest.starts_with(' '))?;
        Some(format!("{key}={prefix}{program}{rest}"))
    };
    text.lines().map(|l| line(l).unwrap_or_else(|| l.to_string()) + "\n").collect()
}

/// What a program prints.
fn said(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let run = Command::new(program).args(arguments).output();
    let run = run.map_err(|e| format!("{}: {e}; build it first, or leave --no-build out", program.display()))?;
    if !run.status.success() {
        return Err(format!("{} {arguments:?}: {}", program.display(), String::from_utf8_lossy(&run.stderr)));
    }
    String::from_utf8(run.stdout).map_err(|e| e.to_string())
}

/// What somebody must do or know before it can be used from this prefix.
fn hints(prefix: &Path, part: Part) -> Vec<String> {
    let mut hints = Vec::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    if part == Part::All && !std::env::split_paths(&path).any(|folder| folder == prefix.join("bin")) {
        hints.push(format!("not on PATH: export PATH=\"{}/bin:$PATH\"", prefix.display()));
    }
    let known = Command::new("pkg-config").args(["--exists", "vmmc"]).status();
    if !known.is_ok_and(|status| status.success()) {
        hints.push(format!(
            "pkg-config does not look there: export PKG_CONFIG_PATH=\"{}/lib/pkgconfig\"",
            prefix.display()
        ));
    }
    hints
}

/// Runs the script that was installed.
fn uninstall(tree: &Tree) -> Result<String, String> {
    let script = tree.path(UNINSTALL);
    if !script.exists() {
        return Err(format!("{} is not there: nothing was installed in {}", script.display(), tree.prefix.display()));
    }
    let text = said(Path::new("sh"), &[&script.to_string_lossy()])?;
    Ok(text.trim_end().to_string())
}

/// Takes away what the manifest lists. A folder goes when it was made by the installation and is
/// empty.
const SCRIPT: &str = r#"#!/bin/sh
# Takes away what `cargo xtask install` has put below this prefix: the files in the manifest beside this script, and the folders that it made and that are empty.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=$(cd "$here/../.." && pwd)
list=$(cat "$here/manifest")
echo "$list" | while read -r kind path; do
    case "$path" in /* | .. | ../* | */.. | */../*) echo "$here/manifest: $path is outside of $prefix" >&2; exit 1 ;; esac
    if [ "$kind" = f ]; then rm -f "$prefix/$path"; fi
done
# Deeper ones first.
echo "$list" | LC_ALL=C sort -r | while read -r kind path; do
    if [ "$kind $path" = "d ." ]; then path=; fi
    if [ "$kind" = d ]; then rmdir "$prefix${path:+/$path}" 2>/dev/null || true; fi
done
echo "removed from $prefix: $(echo "$list" | grep -c '^f ') files"
"#;

/// A prefix that is being filled.
pub(crate) struct Tree {
    /// Where the files are when they are used.
    pub(crate) prefix: PathBuf,
    /// Where they are written.
    real: PathBuf,
    strip: bool,
    files: BTreeSet<String>,
    folders: BTreeSet<String>,
}

impl Tree {
    /// One that is filled at `destdir` followed by the prefix.
    pub(crate) fn new(prefix: &Path, destdir: Option<&Path>, strip: bool) -> Result<Tree, String> {
        let below = prefix.components().filter(|part| matches!(part, Component::Normal(_))).collect::<PathBuf>();
        let real = destdir.map_or_else(|| prefix.to_path_buf(), |folder| folder.join(below));
        Ok(Tree { prefix: prefix.to_path_buf(), real, strip, files: BTreeSet::new(), folders: BTreeSet::new() })
    }

    /// Whether debugging data stays away.
    pub(crate) fn strips(&self) -> bool {
        self.strip
    }

    /// Where something is written.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.real.join(relative)
    }

    /// A place for a file: its folders are there, and no file is, because a library or program that
    /// runs must not be written in place.
    pub(crate) fn place(&mut self, relative: &str) -> Result<PathBuf, String> {
        let path = self.path(relative);
        let mut folder = Path::new(relative).parent();
        while let Some(name) = folder.filter(|name| !name.as_os_str().is_empty()) {
            if !self.real.join(name).exists() {
                self.folders.insert(name.to_string_lossy().into_owned());
            }
            folder = name.parent();
        }
        if !self.real.exists() {
            self.folders.insert(".".into());
        }
        let folder = path.parent().expect("a file lies in a folder");
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let _ = fs::remove_file(&path);
        self.files.insert(relative.to_string());
        Ok(path)
    }

    /// Copies a file.
    pub(crate) fn copy(&mut self, from: &Path, to: &str) -> Result<(), String> {
        let to = self.place(to)?;
        fs::copy(from, &to).map(drop).map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))
    }

    /// Writes a file.
    pub(crate) fn write(&mut self, to: &str, text: &str) -> Result<(), String> {
        let to = self.place(to)?;
        fs::write(&to, text).map_err(|e| format!("{}: {e}", to.display()))
    }

    /// Makes a link beside a file.
    pub(crate) fn link(&mut self, target: &str, to: &str) -> Result<(), String> {
        let to = self.place(to)?;
        std::os::unix::fs::symlink(target, &to).map_err(|e| format!("{}: {e}", to.display()))
    }

    /// Copies a program or library, without what only a debugger reads.
    fn binary(&mut self, from: &Path, to: &str) -> Result<(), String> {
        self.copy(from, to)?;
        self.lighten(to, &["--strip-all"])
    }

    /// Strips a file that is there.
    pub(crate) fn lighten(&self, file: &str, options: &[&str]) -> Result<(), String> {
        let path = self.path(file);
        if self.strip {
            tool("strip", Command::new("strip").args(options).arg(&path))?;
        }
        Ok(())
    }

    /// Whether a stripped program or library is larger than it may be. What is there can be taken
    /// away all the same.
    pub(crate) fn within_bounds(&self) -> Result<(), String> {
        if !self.strip {
            return Ok(());
        }
        for file in &self.files {
            let bytes = fs::metadata(self.path(file)).map_err(|e| format!("{file}: {e}"))?.len();
            if bytes > ARTIFACT_BYTES_MAX {
                return Err(format!("{file} has {bytes} bytes; the bound is {ARTIFACT_BYTES_MAX}"));
            }
        }
        Ok(())
    }

    /// Writes the manifest and the script. A part of an installation leaves the rest of an older
    /// one as it is; a whole one takes away what it no longer has.
    pub(crate) fn finish(&mut self, part: Part) -> Result<(), String> {
        let older = fs::read_to_string(self.path(MANIFEST)).unwrap_or_default();
        let script = self.place(UNINSTALL)?;
        fs::write(&script, SCRIPT)
            .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
            .map_err(|e| format!("{}: {e}", script.display()))?;
        let manifest = self.place(MANIFEST)?;
        for line in older.lines() {
            match line.split_once(' ') {
                Some(("d", path)) => drop(self.folders.insert(path.to_string())),
                Some(("f", path)) if part == Part::C => drop(self.files.insert(path.to_string())),
                Some(("f", path)) if !self.files.contains(path) && !path.contains("..") => {
                    let _ = fs::remove_file(self.path(path));
                }
                _ => {}
            }
        }
        let folders = self.folders.iter().map(|path| format!("d {path}\n"));
        let text: String = folders.chain(self.files.iter().map(|path| format!("f {path}\n"))).collect();
        fs::write(&manifest, text).map_err(|e| format!("{}: {e}", manifest.display()))
    }
}

/// Runs a tool of the compiler's.
pub(crate) fn tool(name: &str, command: &mut Command) -> Result<(), String> {
    let ran = command.output().map_err(|e| format!("{name}: {e}; install a C compiler with its binutils"))?;
    if ran.status.success() { Ok(()) } else { Err(format!("{name}: {}", String::from_utf8_lossy(&ran.stderr))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that goes with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("vmmc-xtask-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).expect("a folder for the test");
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn listed(folder: &Path) -> Vec<String> {
        let find = Command::new("find").arg(folder).args(["-mindepth", "1", "-printf", "%P\n"]).output().expect("find");
        let mut names: Vec<String> = String::from_utf8_lossy(&find.stdout).lines().map(str::to_string).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_installed_is_taken_away_and_nothing_else() {
        let scratch = Scratch::new("uninstall");
        // One prefix that was there, with something in it, and one that was not.
        fs::create_dir_all(scratch.0.join("usr/lib")).expect("folder");
        fs::write(scratch.0.join("usr/lib/other.so"), "somebody else's").expect("file");
        let before = listed(&scratch.0);
        for part in [Part::All, Part::C] {
            let mut tree = Tree::new(Path::new("/usr"), Some(&scratch.0), false).expect("a tree");
            if part == Part::All {
                tree.write("bin/vmmc", "command").expect("written");
            }
            tree.write("lib/libvmmc.a", "library").expect("written");
            tree.link("libvmmc.a", "lib/libother.a").expect("linked");
            tree.write("share/man/man1/vmmc.1", "page").expect("written");
            tree.finish(part).expect("finished");
        }
        assert!(scratch.0.join("usr/bin/vmmc").exists(), "a part leaves the rest as it is");
        let tree = Tree::new(Path::new("/usr"), Some(&scratch.0), false).expect("a tree");
        uninstall(&tree).expect("uninstalled");
        let mut fresh = Tree::new(Path::new("/opt"), Some(&scratch.0), false).expect("a tree");
        fresh.write("bin/vmmc", "command").and_then(|()| fresh.finish(Part::All)).expect("filled");
        uninstall(&fresh).expect("uninstalled");
        assert_eq!(listed(&scratch.0), before);
        assert!(uninstall(&tree).expect_err("there is nothing").contains("nothing was installed"));
    }

    #[test]
    fn a_newer_installation_takes_away_what_it_no_longer_has() {
        let scratch = Scratch::new("upgrade");
        let mut tree = Tree::new(&scratch.0, None, false).expect("a tree");
        tree.write("share/man/man1/vmmc-old.1", "page").expect("written");
        tree.finish(Part::All).expect("finished");
        let mut tree = Tree::new(&scratch.0, None, false).expect("a tree");
        tree.write("share/man/man1/vmmc-new.1", "page").expect("written");
        tree.finish(Part::All).expect("finished");
        assert!(!scratch.0.join("share/man/man1/vmmc-old.1").exists());
        uninstall(&tree).expect("uninstalled");
        assert_eq!(listed(&scratch.0), Vec::<String>::new());
    }

    #[test]
    fn documents_that_messages_name_are_installed() {
        let scratch = Scratch::new("documents");
        let mut tree = Tree::new(&scratch.0, None, false).expect("a tree");
        documents(&mut tree).and_then(|()| tree.finish(Part::C)).expect("filled");
        let faces = [
            "crates/cli/src",
            "crates/node/src",
            "crates/vmmc/src",
            "crates/job/src",
            "bindings/c/include",
            "bindings/bsp/include",
            "bindings/nx/include",
            "bindings/onc",
            "bindings/python",
        ];
        let found = Command::new("grep").args(["-rhoE", "[a-z-]+\\.md\\b"]).args(faces).current_dir(root()).output();
        let found = String::from_utf8(found.expect("grep").stdout).expect("text");
        let named: BTreeSet<&str> = found.lines().collect();
        assert!(named.contains("counters.md"), "{named:?}");
        for name in named {
            assert!(scratch.0.join("share/doc/vmmc").join(name).exists(), "{name} is named, and not installed");
        }
        uninstall(&tree).expect("uninstalled");
        assert_eq!(listed(&scratch.0), Vec::<String>::new());
    }

    #[test]
    fn what_is_stripped_and_still_too_large_is_refused() {
        let scratch = Scratch::new("bounds");
        for (strip, bytes, fine) in
            [(true, ARTIFACT_BYTES_MAX, true), (true, ARTIFACT_BYTES_MAX + 1, false), (false, 1 << 30, true)]
        {
            let mut tree = Tree::new(&scratch.0, None, strip).expect("a tree");
            let path = tree.place("lib/vmmc/libvmmc_preload.so").expect("a place");
            fs::File::create(path).and_then(|file| file.set_len(bytes)).expect("a file with a hole");
            assert_eq!(tree.within_bounds().is_ok(), fine, "{strip} {bytes}");
        }
    }

    #[test]
    fn units_name_the_program_by_its_path() {
        let text = "# vmmc\n[Service]\nExecStart=vmmc node run $X\nExecStop=-vmmc node stop\nExecStartPre=/bin/true\n";
        let changed =
            "# vmmc\n[Service]\nExecStart=/p/vmmc node run $X\nExecStop=-/p/vmmc node stop\nExecStartPre=/bin/true\n";
        assert_eq!(unit(text, "/p/vmmc"), changed);
    }

    #[test]
    fn a_prefix_that_pkg_config_cannot_name_is_refused() {
        let words = ["--prefix", "/a b"].map(str::to_string);
        assert!(command(Part::All, &words).expect_err("refused").contains("space"));
        assert!(command(Part::All, &[]).expect_err("refused").contains("--prefix is missing"));
        let words = ["--prefix", "/nowhere/at/all", "--features", "aes-256-gcm"].map(str::to_string);
        assert!(command(Part::C, &words).expect_err("refused").contains("features are the command's"));
    }
}
