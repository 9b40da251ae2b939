//! Lines of the station for the log of its daemon.
//!
//! Invariant: a line is made only where somebody will read it, and never on the way of data. What
//! waits is bounded; the daemon, which bounds what each source may cause, takes it after each step.

use super::Station;
use crate::limits::LOG_WAITING_MAX;
use crate::log::LogLevel;
use std::collections::VecDeque;
use vmmc_nic::NodeName;

/// What waits to be written.
pub(super) struct Logging {
    level: LogLevel,
    /// Where it will be, as descriptions say.
    pub(super) place: String,
    lines: VecDeque<LogLine>,
}

impl Default for Logging {
    fn default() -> Logging {
        Logging { level: LogLevel::Off, place: String::new(), lines: VecDeque::new() }
    }
}

/// One line.
pub(crate) struct LogLine {
    pub(crate) level: LogLevel,
    /// Kind of source.
    pub(crate) topic: &'static str,
    /// Which of this kind.
    pub(crate) who: u64,
    pub(crate) text: String,
}

impl Station {
    /// From now on lines down to this level are taken.
    pub(crate) fn set_log(&mut self, level: LogLevel, place: String) {
        (self.log.level, self.log.place) = (level, place);
    }

    /// The next line.
    pub(crate) fn take_log_line(&mut self) -> Option<LogLine> {
        self.log.lines.pop_front()
    }

    /// A line about a process of this user, or a connection of it.
    pub(super) fn log_user(&mut self, level: LogLevel, uid: u32, text: impl FnOnce() -> String) {
        self.log(level, "process", u64::from(uid), text);
    }

    /// A line about a peer.
    pub(super) fn log_peer(&mut self, level: LogLevel, name: &NodeName, text: impl FnOnce() -> String) {
        use std::hash::{Hash, Hasher};
        let mut who = std::hash::DefaultHasher::new();
        name.hash(&mut who);
        self.log(level, "peer", who.finish(), text);
    }

    pub(super) fn log(&mut self, level: LogLevel, topic: &'static str, who: u64, text: impl FnOnce() -> String) {
        if level <= self.log.level && self.log.lines.len() < LOG_WAITING_MAX {
            self.log.lines.push_back(LogLine { level, topic, who, text: text() });
        }
    }
}
