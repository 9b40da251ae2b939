//! What the driver has to say to people, and the on-demand exports that it brings up or refuses.
//!
//! Invariant: the notes are the last few and short ones, so they fit a description.

use super::Station;
use crate::limits::{NOTE_BYTES_MAX, NOTES_MAX, NOTES_PER_USER_MAX};
use crate::log::LogLevel;
use vmmc_nic::{ActivationRefusal, ActivationWanted, Time};

/// A sentence, and the user who caused it.
pub(super) struct Note {
    uid: Option<u32>,
    pub(super) text: String,
}

impl Station {
    /// Remembers a sentence for those who ask for a description of the node.
    pub fn note(&mut self, now: Time, text: String) {
        let text = short(&text);
        self.log(LogLevel::Warn, "node", 0, || text.clone());
        self.keep_note(now, None, &text);
    }

    /// The same about something that a user has caused: it buries its own notes, and silences its
    /// own lines.
    pub(crate) fn note_of(&mut self, now: Time, uid: u32, text: String) {
        let text = short(&text);
        self.log_user(LogLevel::Warn, uid, || text.clone());
        self.keep_note(now, Some(uid), &text);
    }

    fn keep_note(&mut self, now: Time, uid: Option<u32>, text: &str) {
        let own = |note: &Note| uid.is_some() && note.uid == uid;
        if self.notes.iter().filter(|note| own(note)).count() >= NOTES_PER_USER_MAX {
            let oldest = self.notes.iter().position(own).expect("they were just counted");
            self.notes.remove(oldest);
        }
        if self.notes.len() >= NOTES_MAX {
            self.notes.pop_front();
        }
        let text = format!("{:.3} s after the start: {text}", now.since(self.started).as_secs_f64());
        self.notes.push_back(Note { uid, text });
    }

    /// The next on-demand export that somebody waits for and nobody has made. The driver of the
    /// station brings it up or refuses.
    #[inline]
    pub fn poll_activation(&mut self) -> Option<ActivationWanted> {
        self.engine.poll_activation()
    }

    /// Whether a user exports this name.
    pub fn is_exported(&self, name: &str, uid: u32) -> bool {
        self.engine.holder_of_name(name, uid).is_some()
    }

    /// Answers everybody who waits for this on-demand export.
    pub fn refuse_activation(&mut self, now: Time, name: &str, why: ActivationRefusal) {
        self.engine.refuse_activation(now, name, why);
    }

    /// Whether traffic between nodes is neither encrypted nor authenticated.
    pub fn is_plain(&self) -> bool {
        self.config.key.is_none()
    }
}

/// A sentence as it is kept: parts of it may be another process's words.
fn short(text: &str) -> String {
    let mut text = vmmc_host::text::printable(text).into_owned();
    while text.len() > NOTE_BYTES_MAX {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::station::StationConfig;
    use vmmc_nic::NodeName;

    #[test]
    fn a_user_buries_no_notes_but_its_own_and_silences_no_lines_of_the_node() {
        let config = StationConfig::new(NodeName::parse("notes").unwrap());
        let mut station = Station::new(config, [5; 32], Time::ZERO).unwrap();
        station.set_log(LogLevel::Warn, String::new());
        station.note(Time::ZERO, "from the node".into());
        station.note_of(Time::ZERO, 7, "from another user".into());
        for number in 0..1_000 {
            station.note_of(Time::ZERO, 8, format!("flood {number}"));
        }
        let texts: Vec<&str> = station.notes.iter().map(|note| note.text.as_str()).collect();
        assert_eq!(texts.len(), 2 + NOTES_PER_USER_MAX);
        assert!(texts[0].ends_with("from the node") && texts[1].ends_with("from another user"), "{texts:?}");
        assert!(texts.last().is_some_and(|text| text.ends_with("flood 999")), "{texts:?}");
        let mut lines = Vec::new();
        while let Some(line) = station.take_log_line() {
            lines.push((line.topic, line.who));
        }
        assert_eq!(lines[..3], [("node", 0), ("process", 7), ("process", 8)]);
        assert!(lines[3..].iter().all(|line| *line == ("process", 8)), "each source has its own share");
    }
}
