//! The cluster key file.
//!
//! Invariant: a key is only taken from a file that its user alone can read; a key file appears
//! whole or not at all, also when two nodes start at the same moment.

use crate::config::KeySource;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use vmmc_nic::ClusterKey;

/// Why there is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Neither `XDG_CONFIG_HOME` nor `HOME` says where.
    #[error("neither XDG_CONFIG_HOME nor HOME is set, so there is no place for the key file; name one (--key-file)")]
    NoHome,
    /// Others could read it.
    #[error("{path} has mode {mode:04o}, so others may know the key; run `chmod 600` on it, or make a new key")]
    Mode {
        /// Which file.
        path: String,
        /// Its permission bits.
        mode: u32,
    },
    /// It belongs to somebody else.
    #[error("{path} belongs to user {owner}, not to user {uid} who runs this node; copy the key to a file of your own")]
    Owner {
        /// Which file.
        path: String,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        uid: u32,
    },
    /// It holds something else.
    #[error("{path} does not hold a key; a key is 64 hexadecimal digits (32 random bytes)")]
    Content {
        /// Which file.
        path: String,
    },
    /// It cannot be read or made.
    #[error("{path} cannot be {done}: {why}")]
    File {
        /// Which file.
        path: String,
        /// What was tried.
        done: &'static str,
        /// What the system says.
        why: String,
    },
}

/// The user's key file: `$XDG_CONFIG_HOME/vmmc/cluster.key`, or `~/.config/vmmc/cluster.key`.
pub fn default_key_file() -> Result<PathBuf, KeyError> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    Ok(base.ok_or(KeyError::NoHome)?.join("vmmc").join("cluster.key"))
}

/// The key from its source; none in plain mode.
pub(crate) fn cluster_key(source: &KeySource) -> Result<Option<ClusterKey>, KeyError> {
    let path = match source {
        KeySource::Plain => return Ok(None),
        KeySource::Given(bytes) => return Ok(Some(ClusterKey(*bytes))),
        KeySource::File(path) => path.clone(),
        KeySource::Default => default_key_file()?,
    };
    match read_key(&path)? {
        Some(key) => Ok(Some(key)),
        None => {
            make_key(&path)?;
            let gone = || KeyError::File { path: name(&path), done: "read", why: "it vanished".into() };
            Ok(Some(read_key(&path)?.ok_or_else(gone)?))
        }
    }
}

/// 32 random bytes of the kernel.
pub(crate) fn random_bytes() -> Result<[u8; 32], KeyError> {
    vmmc_host::os::random_bytes().map_err(|e| failed(Path::new("/dev/urandom"), "read", &e))
}

fn read_key(path: &Path) -> Result<Option<ClusterKey>, KeyError> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(path, "read", &e)),
    };
    let about = file.metadata().map_err(|e| failed(path, "read", &e))?;
    let uid = rustix::process::geteuid().as_raw();
    if about.uid() != uid {
        return Err(KeyError::Owner { path: name(path), owner: about.uid(), uid });
    }
    if about.mode() & 0o077 != 0 {
        return Err(KeyError::Mode { path: name(path), mode: about.mode() & 0o7777 });
    }
    let mut text = String::new();
    file.take(128).read_to_string(&mut text).map_err(|e| failed(path, "read", &e))?;
    parse(text.trim()).map(|key| Some(ClusterKey(key))).ok_or_else(|| KeyError::Content { path: name(path) })
}

/// Makes a key file, unless another node does so first: written beside it, then linked to its name,
/// which fails if the name is taken.
fn make_key(path: &Path) -> Result<(), KeyError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|e| failed(folder, "made", &e))?;
    let random = random_bytes()?;
    let draft = path.with_extension(format!("new-{}-{:02x}{:02x}", std::process::id(), random[0], random[1]));
    let text: String = random_bytes()?.iter().map(|b| format!("{b:02x}")).collect();
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    });
    let linked = written.and_then(|()| match fs::hard_link(&draft, path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    // The draft is of no use in any case; if it cannot be removed it holds no key that anybody
    // uses.
    let _ = fs::remove_file(&draft);
    linked.map_err(|e| failed(path, "made", &e))
}

fn parse(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    if digits.len() != 64 { None } else { bytes.try_into().ok() }
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

fn failed(path: &Path, done: &'static str, why: &std::io::Error) -> KeyError {
    KeyError::File { path: name(path), done, why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn folder(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("vmmc-key-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_key_file_is_made_once_and_only_its_user_can_read_it() {
        let folder = folder("made");
        let path = folder.join("deeper").join("cluster.key");
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let source = KeySource::File(path.clone());
                std::thread::spawn(move || cluster_key(&source).unwrap())
            })
            .collect();
        let keys: Vec<_> = threads.into_iter().map(|t| t.join().unwrap().unwrap().0).collect();
        assert!(keys.iter().all(|k| *k == keys[0] && *k != [0; 32]));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "drafts are left behind");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let folder = folder("mode");
        let path = folder.join("cluster.key");
        cluster_key(&KeySource::File(path.clone())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = cluster_key(&KeySource::File(path)).unwrap_err();
        assert!(matches!(error, KeyError::Mode { mode: 0o640, .. }));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_without_a_key_is_refused() {
        let folder = folder("content");
        let path = folder.join("cluster.key");
        for text in ["", "abc", &"g".repeat(64), &"é".repeat(40), &"0".repeat(66)] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let error = cluster_key(&KeySource::File(path.clone())).unwrap_err();
            assert!(matches!(error, KeyError::Content { .. }), "{text:?}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
