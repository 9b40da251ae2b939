//! Calls with types: what the attribute [`service`](crate::service) stands on.
//!
//! Arguments and results are postcard of tuples; bulk stays bytes.
//!
//! Invariant: decoding takes any bytes of a peer, and what makes no sense is an error of that call.
//! Source: [GMS §3] stubs.

use crate::call::Call;
use crate::client::{Answer, Bulk, Client, Pending};
use crate::error::RpcError;
use crate::limits::BULK_FILLED_BYTES_MAX;
use serde::Serialize;
use serde::de::{Deserialize, DeserializeOwned};
use std::marker::PhantomData;
use vmmc::Source;

/// As it goes to the other side.
///
/// # Panics
/// If the type refuses to be serialized.
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("a type of a service can be serialized")
}

/// The inverse of [`encode`]. None: it is none of that type, or is longer.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    postcard::take_from_bytes(bytes).ok().filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value)
}

/// Memory for a bulk result that the caller wants so long. None: the caller has no buffer, or wants
/// more than a handler fills.
#[doc(hidden)]
pub fn bulk_of(call: &Call, wanted: u64) -> Option<Vec<u8>> {
    (call.wants_bulk() && wanted <= BULK_FILLED_BYTES_MAX).then(|| vec![0; wanted as usize])
}

/// The answer of a method that is marked `#[deferred]`: to be given later, from any thread, or left
/// to another server. Dropping it tells the caller that there is no answer.
#[derive(Debug)]
pub struct Reply<T> {
    call: Call,
    wanted: u64,
    result: PhantomData<fn(T)>,
}

impl<T: Serialize> Reply<T> {
    #[doc(hidden)]
    pub fn new(call: Call, wanted: u64) -> Reply<T> {
        Reply { call, wanted, result: PhantomData }
    }

    /// Bytes that the caller has room for, if the method has a `&mut [u8]`.
    pub fn bulk_wanted(&self) -> u64 {
        self.wanted
    }

    /// The call, for its deadline, its sender, and whether it was withdrawn.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Gives the result.
    pub fn answer(self, result: &T) {
        self.call.answer(&encode(result));
    }

    /// Gives the result, and the bytes for the caller's `&mut [u8]`, from wherever they are: as
    /// [`Call::answer_with_bulk`].
    pub fn answer_with_bulk<'a>(self, result: &T, bulk: impl Source<'a>) {
        self.call.answer_with_bulk(&encode(result), bulk);
    }

    /// The same out of memory that stays as it is until the caller has the answer: as
    /// [`Call::answer_in_place`].
    pub fn answer_in_place(self, result: &T, bulk: impl Source<'static>) {
        self.call.answer_in_place(&encode(result), bulk);
    }

    /// Leaves the call to another server of the same service, with the same arguments; it answers
    /// the caller itself.
    ///
    /// # Errors
    /// This, to be answered, and why it could not be passed on.
    #[allow(clippy::result_large_err)] // as of the call
    pub fn pass_on(self, to: &Client) -> Result<(), (Reply<T>, RpcError)> {
        let Reply { call, wanted, result } = self;
        let (method, arguments) = (call.method(), call.arguments().to_vec());
        call.pass_on(to, method, &arguments).map_err(|(call, error)| (Reply { call, wanted, result }, error))
    }
}

/// A typed call under way, to be polled, waited for or awaited. Dropping it withdraws it.
#[derive(Debug)]
#[must_use = "dropping it withdraws the call"]
pub struct Typed<T> {
    pub(crate) pending: Pending,
    pub(crate) client: Client,
    pub(crate) method: u16,
    result: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Typed<T> {
    #[doc(hidden)]
    pub fn new(pending: Pending, client: Client, method: u16) -> Typed<T> {
        Typed { pending, client, method, result: PhantomData }
    }

    /// The outcome, if it is there.
    pub fn poll(&mut self) -> Option<Result<T, RpcError>> {
        let outcome = self.pending.poll()?;
        Some(outcome.and_then(|answer| self.client.decode(self.method, &answer.result)))
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn wait(self) -> Result<T, RpcError> {
        let Typed { pending, client, method, .. } = self;
        client.decode(method, &pending.wait()?.result)
    }
}

/// What the attribute needs.
#[doc(hidden)]
impl Client {
    pub fn decode<T: DeserializeOwned>(&self, method: u16, result: &[u8]) -> Result<T, RpcError> {
        decode(result).ok_or_else(|| self.bad_result(method))
    }

    pub fn decode_bulk<T: DeserializeOwned>(&self, method: u16, answer: Answer) -> Result<(T, Bulk), RpcError> {
        let result = self.decode(method, &answer.result)?;
        Ok((result, answer.bulk.ok_or_else(|| self.bad_result(method))?))
    }

    pub fn fill<T: DeserializeOwned>(&self, method: u16, answer: &Answer, into: &mut [u8]) -> Result<T, RpcError> {
        let result = self.decode(method, &answer.result)?;
        let bulk = answer.bulk.as_ref().ok_or_else(|| self.bad_result(method))?;
        // A handler that gives less leaves the rest as it is.
        let len = into.len().min(bulk.len() as usize);
        let read = bulk.read(0, &mut into[..len]);
        read.map_err(|error| RpcError::Access { service: self.service().to_string(), error })?;
        Ok(result)
    }

    fn bad_result(&self, method: u16) -> RpcError {
        RpcError::BadResult { service: self.service().to_string(), method }
    }
}
