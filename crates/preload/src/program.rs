//! Whether a program that is about to be started will be one of ours, so that it can go on with
//! upgraded connections.
//!
//! Invariant: yes only if the dynamic linker will load this library into it and the library will be
//! active there; whatever is unknown is a no, and its connections go back to the kernel first. Only
//! heads of files are read, and nothing in them is believed beyond their length. Source: elf(5),
//! ld.so(8), execve(2).

use crate::config;
use crate::probe::Texts;
use libc::{c_char, c_int};
use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Levels of scripts that name each other as interpreters; the kernel's own bound is 4.
const SCRIPTS_MAX: usize = 4;
/// Bytes of a script's first line that the kernel reads.
const LINE_BYTES: usize = 256;
/// Most bytes read of a table in a file: more than any linker writes.
const TABLE_BYTES_MAX: usize = 64 << 10;
/// Variables that must reach the program as they reached us: the library, and its node.
const VARIABLES: [&[u8]; 2] = [b"LD_PRELOAD", b"VMMC_SOCKETS_NODE"];

/// Words of a program, or its environment: texts, and null at the end.
pub(crate) type Words = *const *const c_char;

/// How the program is named.
#[derive(Clone, Copy)]
pub(crate) enum Named {
    /// A path.
    Path(*const c_char),
    /// A path, or a name that is looked for as a shell does.
    Searched(*const c_char),
    /// An open file.
    Open(c_int),
    /// A path from somewhere else.
    Elsewhere(*const c_char),
}

/// Whether the kernel refuses to start a program by this name, with these words and this
/// environment, because it cannot read them (`EFAULT`) or they are too long.
pub(crate) fn is_refused(named: Named, argv: Words, env: Words) -> bool {
    let mut texts = Texts::new();
    let there = match named {
        Named::Path(name) | Named::Searched(name) | Named::Elsewhere(name) => texts.text(name),
        Named::Open(_) => true,
    };
    !(there && texts.list(argv) && texts.list(env))
}

/// Whether it will be one of ours.
///
/// # Safety
/// Name and environment are as the exec family takes them, and can be read ([`is_refused`]).
pub(crate) unsafe fn is_ours(named: Named, env: Words) -> bool {
    // SAFETY: the caller's promise.
    let (path, env) = unsafe { (named.path(), variables(env)) };
    let value = |name: &[u8]| env.iter().find_map(|v| v.strip_prefix(name)?.strip_prefix(b"=")).map(OsStr::from_bytes);
    let same = |name: &&[u8]| {
        let own = std::env::var_os(OsStr::from_bytes(name));
        value(name).map(OsStr::to_os_string) == own
    };
    let Some(program) = path.and_then(|path| interpreted(&path)) else { return false };
    let text = |name: &str| value(name.as_bytes()).map(|v| v.to_string_lossy().into_owned()).unwrap_or_default();
    std::env::var_os("LD_PRELOAD").is_some()
        && VARIABLES.iter().all(same)
        && config::would_be_active(&text(config::EXEC_VARIABLE), &text(config::EXCLUDE_VARIABLE), &program)
        && loads_us(&program)
}

impl Named {
    /// # Safety
    /// As [`is_ours`].
    unsafe fn path(self) -> Option<PathBuf> {
        // SAFETY: the caller's promise: a string, or null.
        let text =
            |p: *const c_char| (!p.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(p) }.to_bytes()));
        match self {
            Named::Path(path) => text(path).map(PathBuf::from),
            Named::Searched(name) => find(text(name)?),
            Named::Open(fd) => std::fs::read_link(format!("/proc/self/fd/{fd}")).ok(),
            Named::Elsewhere(_) => None,
        }
    }
}

/// # Safety
/// An array of strings that ends with null, or null.
unsafe fn variables<'a>(env: Words) -> Vec<&'a [u8]> {
    let mut all = Vec::new();
    if env.is_null() {
        return all;
    }
    for at in 0.. {
        // SAFETY: the caller's promise; the loop ends at the null.
        let entry = unsafe { *env.add(at) };
        if entry.is_null() {
            break;
        }
        // SAFETY: as above.
        all.push(unsafe { CStr::from_ptr(entry) }.to_bytes());
    }
    all
}

fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let runs = |path: &PathBuf| path.metadata().is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0);
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(runs)
}

/// The program that runs a script, or the program itself.
fn interpreted(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..=SCRIPTS_MAX {
        let line = piece(&File::open(&path).ok()?, 0, LINE_BYTES);
        let Some(line) = line.strip_prefix(b"#!") else { return std::fs::canonicalize(path).ok() };
        let line = line.split(|b| *b == b'\n').next()?;
        let word = line.split(|b| b" \t".contains(b)).find(|word| !word.is_empty())?;
        path = PathBuf::from(OsStr::from_bytes(word));
    }
    None
}

/// Up to so many bytes of a file.
fn piece(file: &File, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.min(TABLE_BYTES_MAX)];
    let n = file.read_at(&mut bytes, at).unwrap_or(0);
    bytes.truncate(n);
    bytes
}

/// Whether the dynamic linker of our C library loads it, in a way that honours LD_PRELOAD, and it
/// makes its calls through that library.
fn loads_us(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let privileged = file.metadata().map_or(true, |m| m.mode() & 0o6000 != 0) || has_capabilities(path);
    !privileged && is_dynamic(&file)
}

fn has_capabilities(path: &Path) -> bool {
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.push(0);
    // SAFETY: two strings that end with zero; no memory is written for a size of 0.
    let n = unsafe { libc::getxattr(name.as_ptr().cast(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    n > 0
}

fn is_dynamic(file: &File) -> bool {
    let head = piece(file, 0, 64);
    let short = |at: usize| head.get(at..at + 2).map(|b| u64::from(u16::from_le_bytes([b[0], b[1]])));
    let long =
        |bytes: &[u8], at: usize| bytes.get(at..at + 8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")));
    let machine: u64 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    if !head.starts_with(b"\x7fELF\x02\x01") || short(18) != Some(machine) {
        return false;
    }
    let (Some(segments), Some(segment_bytes), Some(count)) = (long(&head, 32), short(54), short(56)) else {
        return false;
    };
    const INTERPRETER: [u8; 4] = 3u32.to_le_bytes();
    let linker = (0..count).find_map(|i| {
        let segment = piece(file, segments.checked_add(i * segment_bytes)?, 56);
        let named = segment.starts_with(&INTERPRETER).then(|| (long(&segment, 8), long(&segment, 32)));
        let (Some(at), Some(len)) = named? else { return None };
        Some(piece(file, at, len as usize))
    });
    let contains = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|w| w == what);
    let of_our_library = linker.is_some_and(|linker| contains(&linker, b"ld-linux"));
    // Go makes its system calls itself, also when it uses the C library beside.
    let names = (|| {
        let (sections, section_bytes, at) = (long(&head, 40)?, short(58)?, short(62)?);
        let section = piece(file, sections.checked_add(at * section_bytes)?, 64);
        Some(piece(file, long(&section, 24)?, long(&section, 32)? as usize))
    })();
    of_our_library && !names.is_some_and(|names| contains(&names, b".go.buildinfo") || contains(&names, b".note.go."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn is_dynamic_file(path: &Path) -> bool {
        loads_us(path)
    }

    #[test]
    fn this_test_would_load_the_library_and_a_text_would_not() {
        let own = std::env::current_exe().expect("a test is a file");
        assert!(is_dynamic_file(&own));
        assert!(!is_dynamic_file(Path::new("/proc/self/status")));
        assert!(!is_dynamic_file(Path::new("/no/such/file")));
    }

    #[test]
    fn a_script_is_its_interpreter() {
        let path = std::env::temp_dir().join(format!("vmmc-script-{}", std::process::id()));
        let mut file = File::create(&path).expect("writable");
        file.write_all(b"#! /bin/sh -e\nexit 0\n").expect("writable");
        assert_eq!(interpreted(&path), std::fs::canonicalize("/bin/sh").ok());
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(find(OsStr::new("sh")).and_then(|p| p.file_name().map(OsStr::to_os_string)), Some("sh".into()));
    }

    #[test]
    fn cut_files_are_no_programs_of_ours_and_no_panic() {
        let own = std::fs::read(std::env::current_exe().expect("a test is a file")).expect("readable");
        let path = std::env::temp_dir().join(format!("vmmc-cut-{}", std::process::id()));
        for cut in (0..700).step_by(13) {
            std::fs::write(&path, &own[..cut]).expect("writable");
            assert!(!is_dynamic_file(&path) || cut > 64);
        }
        std::fs::remove_file(&path).expect("ours");
    }
}
