//! Redirection: bytes of a redirected range go to the new place and nowhere else, once; the report
//! says exactly which part was copied and which went straight there [NT §3.1, N12].

use vmmc_nic::{ByteRange, RedirectReport};

use super::{Checker, require};
use crate::model::{Model, OpKey, RedirectKey, Seen, WriteRole};
use crate::spans::Spans;

pub(crate) struct Redirection;

impl Checker for Redirection {
    fn name(&self) -> &'static str {
        "redirection"
    }

    fn observe(&mut self, model: &Model, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Write { len, role: WriteRole::Send { op, at, redirect: None, .. }, .. } => {
                at_home(model, *op, *at, *len)
            }
            Seen::Write { len, role: WriteRole::RedirectCopy { redirect, at }, .. } => {
                copied(model, *redirect, *at, *len)
            }
            Seen::Redirected { redirect, report, done } => reported(model, *redirect, report, *done),
            Seen::RedirectPosted { redirect } => posted(model, *redirect),
            Seen::End => {
                match model.redirects.iter().find(|(_, r)| r.is_whole() && r.at.is_some() && !r.done && !r.orphaned) {
                    Some((key, _)) => Err(format!("{key} is complete and nobody was told")),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Bytes arrived in the default buffer: no redirection may have been waiting for them.
fn at_home(model: &Model, op: OpKey, at: u64, len: u64) -> Result<(), String> {
    let Some(export) = model.ops[op].export else { return Ok(()) };
    let start = model.ops[op].place(at);
    let waiting = model.exports[export].redirects.iter().find(|&&r| {
        let redirect = &model.redirects[r];
        !redirect.ended && redirect.offset < start + len && start < redirect.offset + redirect.len
    });
    require(waiting.is_none(), || {
        let key = waiting.expect("just tested");
        format!("bytes {at}..{} of {op} went to the default buffer although {key} redirects them", at + len)
    })
}

/// Bytes are copied that had arrived, once.
fn copied(model: &Model, key: RedirectKey, at: u64, len: u64) -> Result<(), String> {
    let redirect = &model.redirects[key];
    let start = redirect.offset + at;
    let arrived = model.exports[redirect.export].arrived.covers(start, start + len);
    require(arrived, || format!("{key} copied bytes {at}..{} that had not arrived", at + len))?;
    let twice = redirect.copied.touches(at, at + len);
    require(!twice, || format!("{key} copied bytes {at}..{} twice", at + len))
}

fn reported(model: &Model, key: RedirectKey, report: &RedirectReport, done: bool) -> Result<(), String> {
    let redirect = &model.redirects[key];
    require(!(done && redirect.done), || format!("{key} was reported complete a second time"))?;
    let relative = |ranges: &[ByteRange]| {
        let mut spans = Spans::default();
        ranges.iter().for_each(|r| spans.insert(r.start - redirect.offset, r.end - redirect.offset));
        spans
    };
    let (copied, direct) = (relative(&report.copied), relative(&report.redirected));
    require(copied == redirect.copied, || {
        format!("{key} reports {copied:?} copied, in fact it was {:?}", redirect.copied)
    })?;
    require(direct == redirect.direct, || {
        format!("{key} reports {direct:?} redirected, in fact it was {:?}", redirect.direct)
    })?;
    let whole = redirect.is_whole();
    require(report.complete == whole && (whole || !done), || {
        format!("{key} of {} bytes says complete: {}, in fact: {whole}", redirect.len, report.complete || done)
    })
}

/// What had arrived in the range has been copied by now.
fn posted(model: &Model, key: RedirectKey) -> Result<(), String> {
    let redirect = &model.redirects[key];
    let (start, end) = (redirect.offset, redirect.offset + redirect.len);
    let left = model.exports[redirect.export].arrived.touches(start, end);
    require(!left, || format!("{key} left bytes behind that had arrived before"))
}
