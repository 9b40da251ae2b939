//! Every checker is shown to fail: a bug is put between the engines and the simulation, and its
//! checker names it.

use vmmc_nic::{AtomicOp, ByteRange, Event, OpError, Rights, Sender};

use crate::model::{Model, WriteRole};
use crate::run::run_tampered;
use crate::tamper::{Tamper, Write};
use crate::{Faults, Options};

type Hook<A, R> = Box<dyn FnMut(A) -> R>;
type WriteHook = Box<dyn FnMut(&Model, usize, Write) -> Vec<Write>>;

/// A bug made of closures; what is not given passes everything on.
#[derive(Default)]
struct Bug {
    write: Option<WriteHook>,
    atomic: Option<Hook<AtomicOp, Vec<AtomicOp>>>,
    event: Option<Hook<Event, Vec<Event>>>,
    level: Option<Hook<(&'static str, u64), u64>>,
}

impl Tamper for Bug {
    fn write(&mut self, model: &Model, node: usize, write: Write) -> Vec<Write> {
        self.write.as_mut().map_or_else(|| vec![write.clone()], |hook| hook(model, node, write.clone()))
    }
    fn atomic(&mut self, change: AtomicOp) -> Vec<AtomicOp> {
        self.atomic.as_mut().map_or_else(|| vec![change], |hook| hook(change))
    }
    fn event(&mut self, event: Event) -> Vec<Event> {
        self.event.as_mut().map_or_else(|| vec![event.clone()], |hook| hook(event.clone()))
    }
    fn level(&mut self, what: &'static str, value: u64) -> u64 {
        self.level.as_mut().map_or(value, |hook| hook((what, value)))
    }
}

fn writes(hook: impl FnMut(&Model, usize, Write) -> Vec<Write> + 'static) -> Bug {
    Bug { write: Some(Box::new(hook)), ..Bug::default() }
}

fn events(hook: impl FnMut(Event) -> Vec<Event> + 'static) -> Bug {
    Bug { event: Some(Box::new(hook)), ..Bug::default() }
}

/// Runs seeds with the bug, on a perfect network so that nothing else can explain a failure, until
/// `checker` has named it. Other checkers may find it first in some seeds: a lost byte is also a
/// notification before its data.
#[track_caller]
fn is_found_by(checker: &str, bug: impl Fn() -> Bug) {
    let mut found = Vec::new();
    for seed in 0..12 {
        let options = Options {
            trace_lines: 0,
            faults: Faults { process_crashes: true, ..Faults::NONE },
            ..Options::new(3, seed)
        };
        match run_tampered(options, Some(Box::new(bug()))) {
            Err(failure) if failure.checker == checker => return,
            Err(failure) => found.push(format!("seed {seed}: {}: {}", failure.checker, failure.message)),
            Ok(_) => found.push(format!("seed {seed} held")),
        }
    }
    panic!("{checker} never found the bug: {found:#?}");
}

/// Every `n`th call does `act`.
fn every(n: u64) -> impl FnMut() -> bool {
    let mut count = 0;
    move || {
        count += 1;
        count % n == 0
    }
}

#[test]
fn a_deposit_done_twice_is_found() {
    is_found_by("exactly-once", || {
        let mut now = every(20);
        writes(move |_, _, write| if now() { vec![write.clone(), write] } else { vec![write] })
    });
}

#[test]
fn a_lost_deposit_is_found() {
    is_found_by("exactly-once", || {
        let mut now = every(20);
        writes(move |_, _, write| if now() { vec![] } else { vec![write] })
    });
}

#[test]
fn a_counter_raised_twice_is_found() {
    is_found_by("exactly-once", || Bug { atomic: Some(Box::new(|change| vec![change, change])), ..Bug::default() });
}

#[test]
fn a_completion_told_twice_is_found() {
    is_found_by("exactly-once", || {
        events(|event| if matches!(event, Event::Completion { .. }) { vec![event.clone(), event] } else { vec![event] })
    });
}

#[test]
fn an_atomic_that_reports_a_wrong_old_value_is_found() {
    is_found_by("exactly-once", || {
        events(|event| match event {
            Event::Completion { process, cookie, result: Ok(value) } => {
                vec![Event::Completion { process, cookie, result: Ok(value + 1) }]
            }
            event => vec![event],
        })
    });
}

#[test]
fn sends_that_overtake_each_other_are_found() {
    is_found_by("channel-order", || {
        let mut held: Option<(usize, Write)> = None;
        let mut now = every(3);
        writes(move |_, node, write| match held.take() {
            Some((at, earlier)) if at == node => vec![write, earlier],
            Some(other) => {
                held = Some(other);
                vec![write]
            }
            None if now() => {
                held = Some((node, write));
                vec![]
            }
            None => vec![write],
        })
    });
}

#[test]
fn a_misplaced_deposit_is_found() {
    is_found_by("confinement", || {
        let mut now = every(20);
        writes(move |_, _, mut write| {
            write.offset += if now() { 8 } else { 0 };
            vec![write]
        })
    });
}

#[test]
fn a_wrong_byte_is_found() {
    is_found_by("confinement", || {
        let mut now = every(20);
        writes(move |_, _, mut write| {
            if let (Some(byte), true) = (write.data.last_mut(), now()) {
                *byte ^= 1;
            }
            vec![write]
        })
    });
}

#[test]
fn a_last_byte_before_the_rest_is_found() {
    is_found_by("confinement", || {
        writes(|_, _, write| {
            let half = write.data.len() / 2;
            let Write { to, offset, data } = write;
            let second = Write { to, offset: offset + half as u64, data: data[half..].to_vec() };
            vec![second, Write { to, offset, data: data[..half].to_vec() }]
        })
    });
}

#[test]
fn a_grant_of_more_rights_is_found() {
    is_found_by("confinement", || {
        events(|mut event| {
            if let Event::ImportDone { result: Ok(grant), .. } = &mut event {
                grant.rights = Rights::ALL;
            }
            vec![event]
        })
    });
}

#[test]
fn a_deposit_after_unexport_is_found() {
    is_found_by("revocation", || {
        let mut old: Vec<(usize, Write)> = Vec::new();
        writes(move |model, node, write| {
            let dead = |w: &Write| match model.write_role(node, w.to, w.offset, &w.data) {
                WriteRole::Send { op, .. } => model.ops[op].export.is_some_and(|e| !model.exports[e].is_live()),
                _ => false,
            };
            let late = old.iter().find(|(at, w)| *at == node && dead(w)).map(|(_, w)| w.clone());
            old.push((node, write.clone()));
            late.into_iter().chain([write]).collect()
        })
    });
}

#[test]
fn a_notification_told_twice_is_found() {
    is_found_by("notification", || {
        events(
            |event| if matches!(event, Event::Notification { .. }) { vec![event.clone(), event] } else { vec![event] },
        )
    });
}

#[test]
fn a_lost_notification_is_found() {
    is_found_by("notification", || {
        events(|event| if matches!(event, Event::Notification { .. }) { vec![] } else { vec![event] })
    });
}

#[test]
fn a_wrong_last_word_is_found() {
    is_found_by("notification", || {
        events(|mut event| {
            if let Event::Notification { last_word, .. } = &mut event {
                *last_word ^= 1;
            }
            vec![event]
        })
    });
}

#[test]
fn a_wrong_word_and_a_wrong_sender_are_found() {
    let changes: [fn(&mut u64, &mut Sender); 4] = [
        |word, _| *word ^= 1,
        |_, from| from.process.0 ^= 1,
        |_, from| from.import.generation ^= 1,
        |_, from| from.session = u32::from(from.session == 0),
    ];
    for change in changes {
        is_found_by("notification", || {
            events(move |mut event| {
                if let Event::Notification { word, from, .. } = &mut event {
                    change(word, from);
                }
                vec![event]
            })
        });
    }
}

/// What goes into a ring is changed every now and then.
fn records(change: impl Fn(&mut Write) + Clone + 'static) -> impl Fn() -> Bug {
    move || {
        let (mut now, change) = (every(7), change.clone());
        writes(move |model, node, mut write| {
            let role = model.write_role(node, write.to, write.offset, &write.data);
            if matches!(role, WriteRole::Record { .. }) && write.data.len() >= 48 && now() {
                change(&mut write);
            }
            vec![write]
        })
    }
}

#[test]
fn records_that_are_damaged_misplaced_or_name_another_sender_are_found() {
    let changes: [fn(&mut Write); 6] = [
        |write| write.data[0] += 1,
        |write| write.data[8] ^= 1,
        |write| write.data[16] ^= 1,
        |write| write.data[24] ^= 1,
        |write| write.data[33] ^= 1,
        |write| write.offset -= if write.offset >= 512 { 64 } else { 0 },
    ];
    for change in changes {
        is_found_by("rings", records(change));
    }
}

#[test]
fn a_record_counted_twice_is_found() {
    is_found_by("rings", || Bug {
        atomic: Some(Box::new(|change| match change {
            AtomicOp::Swap(count) if count < 1 << 32 => vec![change, AtomicOp::Swap(count + 64)],
            _ => vec![change],
        })),
        ..Bug::default()
    });
}

#[test]
fn a_full_ring_that_is_no_error_and_one_that_was_not_full_are_found() {
    let full = OpError::RingFull { needed: 40, free: 0, size: 8_192 };
    is_found_by("exactly-once", || {
        events(|event| match event {
            Event::Completion { process, cookie, result: Err(OpError::RingFull { .. }) } => {
                vec![Event::Completion { process, cookie, result: Ok(0) }]
            }
            event => vec![event],
        })
    });
    is_found_by("honest-errors", || {
        events(move |event| match event {
            Event::Completion { process, cookie, result: Ok(_) } => {
                vec![Event::Completion { process, cookie, result: Err(full) }]
            }
            event => vec![event],
        })
    });
}

/// What goes into the buffers of tokens is changed every now and then.
fn payloads(change: impl Fn(&mut Write) + Clone + 'static) -> impl Fn() -> Bug {
    move || {
        let (mut now, change) = (every(5), change.clone());
        writes(move |model, node, mut write| {
            let role = model.write_role(node, write.to, write.offset, &write.data);
            if matches!(role, WriteRole::Payload { .. }) && write.data.len() >= 8 && now() {
                change(&mut write);
            }
            vec![write]
        })
    }
}

#[test]
fn payloads_that_are_damaged_misplaced_or_come_twice_are_found() {
    is_found_by("tokens", payloads(|write| write.data[3] ^= 1));
    is_found_by("tokens", payloads(|write| write.offset += 8));
    is_found_by("tokens", payloads(|write| _ = write.data.pop()));
    is_found_by("tokens", || {
        let mut now = every(5);
        writes(move |model, node, write| {
            let role = model.write_role(node, write.to, write.offset, &write.data);
            let again = matches!(role, WriteRole::Payload { .. }) && !write.data.is_empty() && now();
            if again { vec![write.clone(), write] } else { vec![write] }
        })
    });
}

#[test]
fn payloads_that_are_misnamed_early_or_reported_wrongly_are_found() {
    // In the name of another payload.
    is_found_by("tokens", || Bug {
        atomic: Some(Box::new(|change| match change {
            AtomicOp::Swap(tag) if tag >> 56 == 0x70 => vec![AtomicOp::Swap(tag ^ 1)],
            _ => vec![change],
        })),
        ..Bug::default()
    });
    // Done when nothing of it is there.
    is_found_by("tokens", || Bug {
        atomic: Some(Box::new(|change| match change {
            AtomicOp::CompareSwap { expected, desired } if expected & 3 == 1 && desired == expected + 1 => {
                vec![change, AtomicOp::Swap(desired + 1)]
            }
            _ => vec![change],
        })),
        ..Bug::default()
    });
    // A refused payload is reported done.
    is_found_by("tokens", || {
        events(|event| match event {
            Event::Completion { process, cookie, result: Err(OpError::TokenRefused { .. }) } => {
                vec![Event::Completion { process, cookie, result: Ok(0) }]
            }
            event => vec![event],
        })
    });
    // One that was let in is reported refused.
    is_found_by("honest-errors", || {
        events(|event| match event {
            Event::Completion { process, cookie, result: Ok(_) } => {
                let result = Err(OpError::TokenRefused { index: 0 });
                vec![Event::Completion { process, cookie, result }]
            }
            event => vec![event],
        })
    });
}

#[test]
fn a_redirection_that_nobody_is_told_of_is_found() {
    is_found_by("redirection", || {
        events(|event| if matches!(event, Event::RedirectDone { .. }) { vec![] } else { vec![event] })
    });
}

#[test]
fn data_that_goes_past_its_redirection_is_found() {
    is_found_by("redirection", || {
        writes(|model, node, mut write| {
            let role = model.write_role(node, write.to, write.offset, &write.data);
            if let WriteRole::Send { op, at, redirect: Some(redirect), .. } = role {
                let export = &model.exports[model.redirects[redirect].export];
                write.to = model.regions[export.region].at;
                write.offset = export.offset + model.ops[op].offset + at;
            }
            vec![write]
        })
    });
}

#[test]
fn a_redirection_reported_wrongly_is_found() {
    is_found_by("redirection", || {
        events(|mut event| {
            if let Event::RedirectDone { report, .. } = &mut event {
                let all = report.range.unwrap_or(ByteRange { start: 0, end: 0 });
                // As if everything had been copied, or as if nothing had been.
                if report.copied.is_empty() {
                    report.copied = vec![all];
                } else {
                    report.copied.clear();
                }
            }
            vec![event]
        })
    });
}

#[test]
fn an_error_without_a_reason_is_found() {
    is_found_by("honest-errors", || {
        events(|event| match event {
            Event::Completion { process, cookie, result: Ok(_) } => {
                vec![Event::Completion { process, cookie, result: Err(OpError::NodeUnreachable { after_ms: 5000 }) }]
            }
            event => vec![event],
        })
    });
}

#[test]
fn a_swallowed_completion_is_found() {
    is_found_by("progress", || {
        let mut now = every(20);
        events(move |event| if matches!(event, Event::Completion { .. }) && now() { vec![] } else { vec![event] })
    });
}

#[test]
fn a_swallowed_answer_to_an_import_is_found() {
    is_found_by("progress", || {
        let mut now = every(5);
        events(move |event| if matches!(event, Event::ImportDone { .. }) && now() { vec![] } else { vec![event] })
    });
}

#[test]
fn an_untold_end_of_an_export_is_found() {
    is_found_by("progress", || {
        events(|event| if matches!(event, Event::ImportBroken { .. }) { vec![] } else { vec![event] })
    });
}

#[test]
fn a_table_over_its_limit_is_found() {
    is_found_by("bounded-memory", || Bug {
        level: Some(Box::new(|(what, value)| if what == "peers" { 1 << 20 } else { value })),
        ..Bug::default()
    });
}

#[test]
fn more_held_of_all_peers_than_stated_is_found() {
    is_found_by("bounded-memory", || Bug {
        level: Some(Box::new(|(what, value)| if what.contains("of all peers") { 1 << 30 } else { value })),
        ..Bug::default()
    });
}

#[test]
fn something_left_over_at_rest_is_found() {
    is_found_by("bounded-memory", || Bug {
        level: Some(Box::new(|(what, value)| if what == "imports" { value.max(1) } else { value })),
        ..Bug::default()
    });
}

#[test]
fn a_panic_of_an_engine_is_told_with_its_message() {
    is_found_by("panic", || events(|_| panic!("an assertion of the engine")));
}
