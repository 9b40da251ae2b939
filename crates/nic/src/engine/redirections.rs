//! Transfer redirection, as the owner of an export asks for it [NT §3.1, §4].
//!
//! Invariant: a command is a claim; nothing happens before the export is known to belong to the
//! process and the range to lie in it. Where the destination lies the driver has checked.

use super::Engine;
use crate::command::Dma;
use crate::error::RedirectError;
use crate::event::{ByteRange, Event, RedirectReport};
use crate::ids::{ExportId, ProcessId, RegionRef};
use crate::limits::{ARRIVED_RANGES_MAX, LOCAL_PIECE_BYTES, REDIRECTS_PER_PROCESS_MAX};
use crate::local::in_bounds;
use crate::redirect::{Advance, Redirect, RedirectAt, Redirector};
use crate::tables::Export;
use crate::time::Time;

impl Engine {
    /// Posts a redirection: incoming data of part of a redirectable export goes elsewhere. What had
    /// arrived is copied now, up to [`LOCAL_PIECE_BYTES`]; if there is more there is no report yet,
    /// and the rest is for [`advance_redirect`](Self::advance_redirect), to be called again and
    /// again until it gives one. [`Event::RedirectDone`] comes when the whole range has arrived, at
    /// once if it had.
    ///
    /// # Errors
    /// [`RedirectError`]; nothing has changed then.
    pub fn redirect(
        &mut self,
        now: Time,
        process: ProcessId,
        wanted: Redirect,
        dma: &mut dyn Dma,
    ) -> Result<Option<RedirectReport>, RedirectError> {
        self.now = now;
        let Redirect { export, offset, len, to, to_offset, .. } = wanted;
        let posted = self.tables.process(process).map_or(0, |owner| owner.redirects);
        let (size, redirector) = self.redirector_of(process, export)?;
        if len == 0 || in_bounds(offset, len, size).is_err() || to_offset.checked_add(len).is_none() {
            return Err(RedirectError::OutOfBounds { offset, len, size });
        }
        redirector.check(ByteRange { start: offset, end: offset + len })?;
        if posted >= REDIRECTS_PER_PROCESS_MAX {
            return Err(RedirectError::ProcessFull { max: REDIRECTS_PER_PROCESS_MAX as u64 });
        }
        redirector.post(&wanted, RegionRef { process, region: to });
        if let Some(owner) = self.tables.process_mut(process) {
            owner.redirects += 1;
        }
        self.advance_redirect(now, process, wanted.at(), dma)
    }

    /// Goes on with a redirection that does not cover its range yet; the report once it does.
    ///
    /// # Errors
    /// [`RedirectError::NoSuchExport`], [`RedirectError::NoSuchRedirect`].
    pub fn advance_redirect(
        &mut self,
        now: Time,
        process: ProcessId,
        at: RedirectAt,
        dma: &mut dyn Dma,
    ) -> Result<Option<RedirectReport>, RedirectError> {
        self.now = now;
        let RedirectAt { export, offset, cookie } = at;
        let entry = self.own_export(process, export)?;
        let (memory, base) = (entry.memory, entry.offset);
        let redirector = entry.redirector.as_deref_mut().ok_or(RedirectError::NotRedirectable { export })?;
        let advance = redirector.advance(offset, cookie, LOCAL_PIECE_BYTES);
        let Advance { places, report } = advance.ok_or(RedirectError::NoSuchRedirect { offset })?;
        for place in places {
            dma.copy(memory, base + place.start, place.to, place.to_offset, place.len);
        }
        if let Some(report) = report.clone().filter(|report| report.complete) {
            self.tables.redirects_ended(process, 1);
            self.tables.events.push_back(Event::RedirectDone { process, export, cookie, report });
        }
        Ok(report)
    }

    /// Withdraws a redirection; what comes later goes to the default buffer again.
    ///
    /// # Errors
    /// [`RedirectError::NoSuchExport`]; [`RedirectError::NoSuchRedirect`], also when it is
    /// complete.
    pub fn cancel_redirect(
        &mut self,
        now: Time,
        process: ProcessId,
        at: RedirectAt,
    ) -> Result<RedirectReport, RedirectError> {
        self.now = now;
        let (_, redirector) = self.redirector_of(process, at.export)?;
        let report = redirector.cancel(at.offset, at.cookie);
        let report = report.ok_or(RedirectError::NoSuchRedirect { offset: at.offset })?;
        self.tables.redirects_ended(process, 1);
        Ok(report)
    }

    /// How far a redirection has come.
    ///
    /// # Errors
    /// As for [`cancel_redirect`](Self::cancel_redirect).
    pub fn redirect_report(&self, process: ProcessId, at: RedirectAt) -> Result<RedirectReport, RedirectError> {
        let RedirectAt { export, offset, cookie } = at;
        let entry = self.tables.exports.get(export.into()).filter(|entry| entry.owner == process);
        let redirector = entry.ok_or(RedirectError::NoSuchExport { export })?.redirector.as_deref();
        let report = redirector.ok_or(RedirectError::NotRedirectable { export })?.report(offset, cookie);
        report.ok_or(RedirectError::NoSuchRedirect { offset })
    }

    /// The owner has taken these bytes from the default buffer: they are not there for a later
    /// redirection any more.
    ///
    /// # Errors
    /// [`RedirectError`]; `TooFragmented` when the rest would be in too many pieces.
    pub fn consume(
        &mut self,
        process: ProcessId,
        export: ExportId,
        offset: u64,
        len: u64,
    ) -> Result<(), RedirectError> {
        let (size, redirector) = self.redirector_of(process, export)?;
        if in_bounds(offset, len, size).is_err() {
            return Err(RedirectError::OutOfBounds { offset, len, size });
        }
        if !redirector.consume(offset, offset + len) {
            return Err(RedirectError::TooFragmented { max: ARRIVED_RANGES_MAX as u64 });
        }
        Ok(())
    }

    /// Which ranges of a redirectable export hold data that was neither consumed nor redirected.
    pub fn arrived(&self, process: ProcessId, export: ExportId) -> Option<&[ByteRange]> {
        let entry = self.tables.exports.get(export.into()).filter(|entry| entry.owner == process)?;
        Some(entry.redirector.as_deref()?.arrived())
    }

    fn own_export(&mut self, process: ProcessId, export: ExportId) -> Result<&mut Export, RedirectError> {
        let entry = self.tables.exports.get_mut(export.into()).filter(|entry| entry.owner == process);
        entry.ok_or(RedirectError::NoSuchExport { export })
    }

    /// Length and redirections of an export of the process.
    fn redirector_of(&mut self, process: ProcessId, export: ExportId) -> Result<(u64, &mut Redirector), RedirectError> {
        let entry = self.own_export(process, export)?;
        let redirector = entry.redirector.as_deref_mut().ok_or(RedirectError::NotRedirectable { export })?;
        Ok((entry.len, redirector))
    }
}
