//! PMIx, the interface of launchers (`mpirun`, `prterun`, `srun`) to the processes that they start:
//! who am I, how many are we, and values that members publish.
//!
//! The client library of the distribution (`libpmix.so.2`) is loaded when a process asks for it, so
//! nothing depends on it that does not use it.
//!
//! Invariant: one [`Pmix`] at a time in a process; it is not shared between threads. Source: PMIx
//! Standard 4.1, chapters 2 (handles) and 5 to 7.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// File names of the library, newest first.
const LIBRARIES: [&CStr; 2] = [c"libpmix.so.2", c"libpmix.so"];
/// Bytes of a namespace with its end.
const NAMESPACE_BYTES: usize = 256;
/// "Any rank": the job itself.
const RANK_WILDCARD: u32 = u32::MAX - 1;
/// Values are visible for all members.
const SCOPE_GLOBAL: u8 = 3;
/// Types of values.
const TYPE_STRING: u16 = 3;
const TYPE_UINT32: u16 = 14;

/// Why PMIx cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PmixError {
    /// No library.
    #[error("the PMIx library libpmix.so.2 cannot be loaded ({why}); install it (Debian: libpmix2)")]
    NoLibrary {
        /// What the loader says.
        why: String,
    },
    /// It lacks a function.
    #[error("the PMIx library has no {name}; install version 3 or newer")]
    NoFunction {
        /// Which.
        name: String,
    },
    /// A call failed.
    #[error("{call} failed with status {status}; was this process started by mpirun, prterun or srun?")]
    Call {
        /// Which.
        call: &'static str,
        /// PMIx's number.
        status: c_int,
    },
    /// The answer is of another type than the standard says.
    #[error("the PMIx server gave {key:?} as a value of type {found}")]
    Type {
        /// Of what.
        key: String,
        /// Type found.
        found: u16,
    },
    /// One is in use.
    #[error("this process uses PMIx already")]
    InUse,
    /// A key or value has a zero byte.
    #[error("a key or value for PMIx contains a zero byte")]
    ZeroByte,
}

#[repr(C)]
struct Process {
    namespace: [c_char; NAMESPACE_BYTES],
    rank: u32,
}

/// `pmix_value_t`: the union has 24 bytes in version 4; room for more costs nothing, as the library
/// reads the part that the type names.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
union Data {
    string: *const c_char,
    number: u32,
    room: [u64; 8],
}

type Init = unsafe extern "C" fn(*mut Process, *mut c_void, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Process, *const c_char, *const c_void, usize, *mut *mut Value) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Process, usize, *const c_void, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;

/// A connection to the launcher; ends when dropped.
pub struct Pmix {
    own: Process,
    get: Get,
    put: Put,
    commit: Commit,
    fence: Fence,
    finalize: Finalize,
}

/// Whether there is a [`Pmix`].
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Whether this process was started by a launcher that speaks PMIx.
pub fn is_offered() -> bool {
    std::env::var_os("PMIX_NAMESPACE").is_some() && std::env::var_os("PMIX_RANK").is_some()
}

impl Pmix {
    /// Connects to the launcher.
    pub fn connect() -> Result<Pmix, PmixError> {
        let library = load()?;
        // SAFETY: the signatures are those of the PMIx standard, versions 3 to 5, for functions of
        // these names.
        let (init, get, put, commit, fence, finalize) = unsafe {
            (
                symbol::<Init>(library, c"PMIx_Init")?,
                symbol::<Get>(library, c"PMIx_Get")?,
                symbol::<Put>(library, c"PMIx_Put")?,
                symbol::<Commit>(library, c"PMIx_Commit")?,
                symbol::<Fence>(library, c"PMIx_Fence")?,
                symbol::<Finalize>(library, c"PMIx_Finalize")?,
            )
        };
        if IN_USE.swap(true, Ordering::SeqCst) {
            return Err(PmixError::InUse);
        }
        let mut own = Process { namespace: [0; NAMESPACE_BYTES], rank: 0 };
        // SAFETY: `own` has the layout of `pmix_proc_t` and lives through the call; no info is
        // passed.
        let status = unsafe { init(&mut own, std::ptr::null_mut(), 0) };
        if let Err(error) = check("PMIx_Init", status) {
            IN_USE.store(false, Ordering::SeqCst);
            return Err(error);
        }
        own.namespace[NAMESPACE_BYTES - 1] = 0;
        Ok(Pmix { own, get, put, commit, fence, finalize })
    }

    /// Name of the job.
    pub fn namespace(&self) -> String {
        // SAFETY: `connect` has put a zero at the end of the array.
        unsafe { CStr::from_ptr(self.own.namespace.as_ptr()) }.to_string_lossy().into_owned()
    }

    /// Number of this process.
    pub fn rank(&self) -> u32 {
        self.own.rank
    }

    /// Processes of the job.
    pub fn size(&self) -> Result<u32, PmixError> {
        let value = self.value(RANK_WILDCARD, "pmix.job.size")?;
        // SAFETY: the library gave a whole value that it does not free before `finalize`; the type
        // says which part of the union is set.
        match unsafe { ((*value).kind, (*value).data.number) } {
            (TYPE_UINT32, number) => Ok(number),
            (found, _) => Err(PmixError::Type { key: "pmix.job.size".into(), found }),
        }
    }

    /// Publishes a text of this process under a key; others see it after [`fence`](Self::fence).
    pub fn publish(&self, key: &str, text: &str) -> Result<(), PmixError> {
        let (key, text) = (c_string(key)?, c_string(text)?);
        let mut value = Value { kind: TYPE_STRING, data: Data { room: [0; 8] } };
        value.data.string = text.as_ptr();
        // SAFETY: key and text end with zeros and live through the call, in which the library
        // copies the value.
        check("PMIx_Put", unsafe { (self.put)(SCOPE_GLOBAL, key.as_ptr(), &mut value) })?;
        // SAFETY: takes nothing.
        check("PMIx_Commit", unsafe { (self.commit)() })
    }

    /// Waits until all processes of the job have come here. How long is the launcher's choice.
    pub fn fence(&self) -> Result<(), PmixError> {
        // SAFETY: no processes given means all of the own namespace; no info is passed.
        check("PMIx_Fence", unsafe { (self.fence)(std::ptr::null(), 0, std::ptr::null(), 0) })
    }

    /// What a process has published under a key.
    pub fn look_up(&self, rank: u32, key: &str) -> Result<String, PmixError> {
        let value = self.value(rank, key)?;
        // SAFETY: as in `size`; a string of the library ends with zero.
        unsafe {
            match (*value).kind {
                TYPE_STRING if !(*value).data.string.is_null() => {
                    Ok(CStr::from_ptr((*value).data.string).to_string_lossy().into_owned())
                }
                found => Err(PmixError::Type { key: key.into(), found }),
            }
        }
    }

    /// A value that the library keeps allocated: the few that are asked for are never given back,
    /// because how to do that differs between versions.
    fn value(&self, rank: u32, key: &str) -> Result<*const Value, PmixError> {
        let key = c_string(key)?;
        let process = Process { namespace: self.own.namespace, rank };
        let mut value: *mut Value = std::ptr::null_mut();
        // SAFETY: `process` and `key` live through the call, which writes a pointer to a value of
        // its own on success.
        let status = unsafe { (self.get)(&process, key.as_ptr(), std::ptr::null(), 0, &mut value) };
        check("PMIx_Get", status)?;
        if value.is_null() { Err(PmixError::Call { call: "PMIx_Get", status }) } else { Ok(value) }
    }
}

impl Drop for Pmix {
    fn drop(&mut self) {
        // SAFETY: no info is passed, and no value of the library is used after this. If it fails
        // there is nothing left to do.
        let _ = unsafe { (self.finalize)(std::ptr::null(), 0) };
        IN_USE.store(false, Ordering::SeqCst);
    }
}

fn check(call: &'static str, status: c_int) -> Result<(), PmixError> {
    if status == 0 { Ok(()) } else { Err(PmixError::Call { call, status }) }
}

fn c_string(text: &str) -> Result<CString, PmixError> {
    CString::new(text).map_err(|_| PmixError::ZeroByte)
}

/// Loads the library, for good: it has threads and handlers of its own.
fn load() -> Result<*mut c_void, PmixError> {
    for name in LIBRARIES {
        // SAFETY: the name ends with zero; the library's initialisers are those of the
        // distribution's PMIx.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if !library.is_null() {
            return Ok(library);
        }
    }
    // SAFETY: after a failed dlopen it gives a text that lives until the next call of this thread
    // into the loader, or null.
    let why = unsafe {
        let text = libc::dlerror();
        if text.is_null() { "no reason given".to_string() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    };
    Err(PmixError::NoLibrary { why })
}

/// A function of the library.
///
/// # Safety
/// `F` must be a function pointer type with the signature of that function.
unsafe fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> Result<F, PmixError> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: `library` came from dlopen and is never closed; the name ends with zero.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    if address.is_null() {
        return Err(PmixError::NoFunction { name: name.to_string_lossy().into_owned() });
    }
    // SAFETY: a pointer of the same size, to a function of this signature by the caller's promise.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn without_a_launcher_the_error_says_so() {
        if is_offered() {
            return;
        }
        match Pmix::connect() {
            Err(PmixError::NoLibrary { why }) => println!("SKIP PMIx without a launcher: {why}"),
            other => assert!(matches!(other.map(drop), Err(PmixError::Call { call: "PMIx_Init", .. }))),
        }
    }
}
