//! What the driver has to say to people, and the services that it brings up or refuses.
//!
//! Invariant: the notes are the last few and short ones, so they fit a description.

use super::Station;
use crate::limits::{NOTE_BYTES_MAX, NOTES_MAX};
use crate::log::LogLevel;
use vmmc_nic::{ServiceRefusal, ServiceWanted, Time};

impl Station {
    /// Remembers a sentence for those who ask for a description of the node.
    pub fn note(&mut self, now: Time, text: String) {
        // Parts of it may be another process's words.
        let mut text = vmmc_host::text::printable(&text).into_owned();
        while text.len() > NOTE_BYTES_MAX {
            text.pop();
        }
        self.log(LogLevel::Warn, "node", 0, || text.clone());
        if self.notes.len() >= NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(format!("{:.3} s after the start: {text}", now.since(self.started).as_secs_f64()));
    }

    /// The next service that somebody waits for and nobody exports. Whoever drives the station brings it up or refuses.
    #[inline]
    pub fn poll_service(&mut self) -> Option<ServiceWanted> {
        self.engine.poll_service()
    }

    /// Answers everybody who waits for this service.
    pub fn refuse_service(&mut self, now: Time, name: &str, why: ServiceRefusal) {
        self.engine.refuse_service(now, name, why);
    }

    /// Whether traffic between nodes is neither encrypted nor authenticated.
    pub fn is_plain(&self) -> bool {
        self.config.key.is_none()
    }
}
