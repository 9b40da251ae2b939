//! Transfer redirection.
use crate::*;

/// A posted redirection.
pub struct Redirection {}

/// What happened to the bytes of a redirected range; (offset in the export, length).
pub type RedirectionReport = vmmc_host::control::Redirection;

#[allow(unused_variables)]
impl Redirection {
    /// What has happened so far.
    pub fn report(&self) -> Result<RedirectionReport, RedirectError> {
        unimplemented!("skeleton")
    }
    /// Waits until all bytes have come.
    pub fn wait(&self) -> Result<RedirectionReport, RedirectError> {
        unimplemented!("skeleton")
    }
    /// As [`wait`](Self::wait), until a deadline.
    pub fn wait_by(&self, deadline: Deadline) -> Result<RedirectionReport, RedirectError> {
        unimplemented!("skeleton")
    }
    /// Ends it: data that has not come goes to the export again.
    pub fn cancel(self) -> Result<RedirectionReport, RedirectError> {
        unimplemented!("skeleton")
    }
}
