//! Handles: numbers in the shape of pointers, looked up in a table with generations.
//!
//! Invariant: a handle is never dereferenced. An object is dropped when it was freed and the last
//! call that uses it has returned.

use crate::failure::Failure;
use crate::slots::{Slots, Use};
use crate::{
    binding, buffer, continuations, endpoint, export, import, job, launch, node, notification, pinned, redirection,
    ring, rpc_client, rpc_server, session, token, transfer,
};
use std::marker::PhantomData;
use std::ops::Deref;

/// What a handle can stand for. A job is larger than the others; a process has one, in a table of a
/// few hundred.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Object {
    Session(session::Object),
    Export(export::Object),
    Import(import::Object),
    Buffer(buffer::Object),
    Binding(binding::Object),
    Transfer(transfer::Object),
    Continuations(continuations::Object),
    Redirection(redirection::Object),
    Ring(ring::Object),
    Endpoint(endpoint::Object),
    Connection(endpoint::ConnectionObject),
    Frame(endpoint::FrameObject),
    TokenBuffer(token::Object),
    RpcClient(rpc_client::Object),
    RpcPending(rpc_client::PendingObject),
    RpcAnswer(rpc_client::AnswerObject),
    RpcRegion(rpc_client::RegionObject),
    RpcServer(rpc_server::Object),
    RpcCall(rpc_server::CallObject),
    Handler(notification::Object),
    Node(node::Object),
    Job(job::Object),
    Launched(launch::Object),
    Lent(pinned::LentObject),
    Table(pinned::TableObject),
}

/// A kind of handle: the type that C sees, and what it stands for.
pub(crate) trait Handle: Sized {
    type Object: 'static;
    /// For messages.
    const NAME: &'static str;
    fn of(object: &Object) -> Option<&Self::Object>;
}

/// Declares the opaque type of a kind and its place in [`Object`].
macro_rules! handle {
    ($type:ident, $variant:ident, $object:ty, $name:literal) => {
        impl $crate::handle::Handle for $type {
            type Object = $object;
            const NAME: &'static str = $name;
            fn of(object: &$crate::handle::Object) -> Option<&$object> {
                match object {
                    $crate::handle::Object::$variant(object) => Some(object),
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use handle;

static TABLE: Slots<Object> = Slots::new();

/// An object in use.
pub(crate) struct Held<H: Handle> {
    object: Use<'static, Object>,
    kind: PhantomData<H>,
}

impl<H: Handle> Deref for Held<H> {
    type Target = H::Object;
    #[inline]
    fn deref(&self) -> &H::Object {
        H::of(&self.object).expect("its kind was checked when it was looked up")
    }
}

/// The object behind a handle.
#[inline]
pub(crate) fn get<H: Handle>(handle: *const H) -> Result<Held<H>, Failure> {
    match TABLE.get(handle as u64) {
        Some(object) if H::of(&object).is_some() => Ok(Held { object, kind: PhantomData }),
        _ => Err(bad(handle)),
    }
}

/// A new handle.
pub(crate) fn put<H: Handle>(object: Object) -> Result<*mut H, Failure> {
    let key = TABLE.put(object);
    let key = key.ok_or_else(|| Failure::new(crate::vmmc_status::VMMC_FULL, "too many handles; free some"))?;
    Ok(key as *mut H)
}

/// Frees a handle; NULL is nothing.
pub(crate) fn free<H: Handle>(handle: *mut H) -> Result<(), Failure> {
    if handle.is_null() {
        return Ok(());
    }
    drop(get(handle.cast_const())?);
    // Another thread that frees the same handle at the same time gets the error.
    if TABLE.remove(handle as u64) { Ok(()) } else { Err(bad(handle)) }
}

#[cold]
fn bad<H: Handle>(handle: *const H) -> Failure {
    let why = if handle.is_null() { "NULL" } else { "not one that is open (freed already, or of another kind)" };
    Failure::bad_handle(format!("the {} handle is {why}", H::NAME))
}
