//! What a program is, as far as a preloaded library can reach it.
//!
//! Invariant: only the head of the file is read, and nothing in it is believed beyond its length.
//! Source: elf(5), ld.so(8).

use crate::failure::{CANNOT_EXECUTE, Failure, NOT_FOUND};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Levels of scripts that name each other as interpreters; the kernel's own bound is 4.
const SCRIPTS_MAX: usize = 4;
/// Sections that the Go linker writes.
const GO_SECTIONS: [&[u8]; 2] = [b".go.buildinfo", b".note.go.buildid"];

/// How a program makes its system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Through the C library that we stand in front of.
    Dynamic,
    /// With no dynamic linker.
    Static,
    /// By the Go runtime.
    Go,
    /// Through another C library, which cannot load ours.
    Musl,
    /// It has more rights than its caller, so the dynamic linker ignores LD_PRELOAD.
    Privileged,
    /// For another processor.
    Foreign,
    /// Not of the format that this machine runs by itself.
    Unknown,
}

impl Kind {
    /// Why such a program is not reached.
    pub(crate) fn obstacle(self) -> Option<&'static str> {
        match self {
            Kind::Dynamic | Kind::Unknown => None,
            Kind::Static => Some("is statically linked, so no library can be loaded into it"),
            Kind::Go => Some("is a Go program, which makes its system calls without the C library"),
            Kind::Musl => Some("uses the C library musl, into which a library made for glibc cannot be loaded"),
            Kind::Privileged => Some("is set-user-id or set-group-id, so the dynamic linker ignores LD_PRELOAD"),
            Kind::Foreign => Some("is for another processor or word size than the library"),
        }
    }
}

/// Where a program is, as a shell finds it; the error has the exit code that a shell would give.
pub(crate) fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = match name.to_string_lossy().contains('/') {
        true => {
            let file = PathBuf::from(name);
            file.metadata().map_err(|e| Failure::not_started(&file, &e))?;
            vec![file]
        }
        false => std::env::split_paths(&path).map(|folder| folder.join(name)).collect(),
    };
    let is_file = |path: &&PathBuf| path.metadata().is_ok_and(|about| about.is_file());
    let runs = |path: &&PathBuf| path.metadata().is_ok_and(|about| about.permissions().mode() & 0o111 != 0);
    let found = places.iter().filter(is_file).find(runs).cloned();
    found.ok_or_else(|| match places.iter().find(|place| is_file(place) || places.len() == 1 && place.exists()) {
        Some(file) => {
            let text = format!("{} is not executable; run `chmod +x` on it, or name its interpreter", file.display());
            Failure::Rank { code: CANNOT_EXECUTE, text }
        }
        None => {
            let text = format!(
                "program {:?} was not found in PATH ({}); write ./{} for one in the working directory",
                name.to_string_lossy(),
                path.to_string_lossy(),
                name.to_string_lossy()
            );
            Failure::Rank { code: NOT_FOUND, text }
        }
    })
}

/// What it is; a script is what its interpreter is.
pub(crate) fn kind(path: &Path) -> Kind {
    let mut path = path.to_path_buf();
    for _ in 0..SCRIPTS_MAX {
        let Ok(metadata) = path.metadata() else { return Kind::Unknown };
        let Ok(bytes) = std::fs::read(&path) else { return Kind::Unknown };
        match interpreter(&bytes) {
            Some(next) => path = next,
            None if metadata.mode() & 0o6000 != 0 && !rustix::process::geteuid().is_root() => return Kind::Privileged,
            None => return elf_kind(&bytes),
        }
    }
    Kind::Unknown
}

/// The program that a script names in its first line; `env NAME` is looked up.
fn interpreter(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_whitespace();
    let first = Path::new(words.next()?);
    if first.file_name() == Some(OsStr::new("env")) {
        let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
        return find(OsStr::new(name)).ok();
    }
    Some(first.to_path_buf())
}

fn elf_kind(bytes: &[u8]) -> Kind {
    if !bytes.starts_with(&elf::ELFMAG) {
        return Kind::Unknown;
    }
    let machine = match std::env::consts::ARCH {
        "aarch64" => elf::EM_AARCH64,
        _ => elf::EM_X86_64,
    };
    let Ok(header) = elf::FileHeader64::<Endianness>::parse(bytes) else { return Kind::Foreign };
    let Ok(endian) = header.endian() else { return Kind::Foreign };
    if header.e_machine(endian) != machine {
        return Kind::Foreign;
    }
    let go = header.sections(endian, bytes).is_ok_and(|sections| {
        sections.iter().any(|s| sections.section_name(endian, s).is_ok_and(|name| GO_SECTIONS.contains(&name)))
    });
    if go {
        return Kind::Go;
    }
    let Ok(segments) = header.program_headers(endian, bytes) else { return Kind::Unknown };
    let named = segments.iter().find_map(|segment| segment.interpreter(endian, bytes).ok().flatten());
    match named {
        None => Kind::Static,
        Some(linker) if String::from_utf8_lossy(linker).contains("ld-musl") => Kind::Musl,
        Some(_) => Kind::Dynamic,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_dynamic_program() {
        let own = std::env::current_exe().expect("a test is a file");
        assert_eq!(kind(&own), Kind::Dynamic);
    }

    #[test]
    fn a_script_is_what_its_interpreter_is() {
        assert_eq!(interpreter(b"#!/bin/sh -e\n"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(interpreter(b"#! /usr/bin/env -S A=b sh\nx"), find(OsStr::new("sh")).ok());
        assert_eq!(interpreter(b"\x7fELF"), None);
    }

    #[test]
    fn a_cut_file_is_no_more_than_its_head_says() {
        assert_eq!(elf_kind(b"hello"), Kind::Unknown);
        let own = std::fs::read(std::env::current_exe().expect("a test is a file")).expect("readable");
        for cut in (0..own.len().min(4096)).step_by(7) {
            let kind = elf_kind(&own[..cut]);
            let fits = match cut {
                0..4 => kind == Kind::Unknown,
                // With half a head it is for no machine.
                4..64 => kind == Kind::Foreign,
                // Behind the head, what names the linker may be cut.
                _ => matches!(kind, Kind::Unknown | Kind::Static | Kind::Dynamic),
            };
            assert!(fits, "{kind:?} of {cut} bytes");
        }
        assert_eq!(elf_kind(&own), Kind::Dynamic);
    }
}
