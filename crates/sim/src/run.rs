//! One run: storm, calm, probe, rest.
//!
//! In the storm the workload acts and faults come and go. Then all faults end and everything
//! outstanding must be decided. Then fresh traffic between neighbours must work without any error.
//! Then all processes leave, and the engines must hold nothing and be quiet.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use vmmc_nic::ExportKind;

use vmmc_nic::{Access, ExportSpec, OpError, Rights};

use crate::checkers::{bound_ns, is_decided};
use crate::cluster::{Cluster, Happening};
use crate::judge::Verdict;
use crate::limits::{IDLE_NS, PROBE_PATIENCE_NS, REST_NS};
use crate::model::{ImportState, Op, Outcome, ProcKey, RegionUse, Seen, Wanted};
use crate::options::Options;
use crate::report::{EngineCounts, Failure, FaultCounts, Report, panic_message};
use crate::tamper::Tamper;

/// Runs one seed.
///
/// # Errors
/// The first property that did not hold, with the last events before it and the command that
/// replays it. A panic inside an engine is a failure too, of the checker `panic`.
pub fn run(options: Options) -> Result<Report, Box<Failure>> {
    let trace_lines = options.trace_lines;
    // Text is made only when it is wanted: a failed run is run again for it.
    let quick = Options { trace_lines: 0, ..options };
    run_tampered(quick.clone(), None).map_err(|mut failure| {
        if trace_lines > 0 {
            let again = run_tampered(Options { trace_lines, ..quick }, None).err();
            match again.filter(|again| (again.at, &again.message) == (failure.at, &failure.message)) {
                Some(told) => failure = told,
                None => failure.message += " (and ended differently when run again: it is not deterministic)",
            }
        }
        failure
    })
}

/// Runs one seed with a bug planted.
pub(crate) fn run_tampered(options: Options, tamper: Option<Box<dyn Tamper>>) -> Result<Report, Box<Failure>> {
    let began = Instant::now();
    let mut cluster = Cluster::new(options, tamper);
    let caught = catch_unwind(AssertUnwindSafe(|| cluster.play()));
    if let Err(panic) = caught {
        let message = panic_message(&*panic);
        cluster.judge.verdict.get_or_insert(Verdict { checker: "panic", message });
    }
    cluster.finish(began.elapsed())
}

impl Cluster {
    fn play(&mut self) {
        for node in 0..self.options.nodes {
            self.start_node(node);
        }
        if let Some(stranger) = self.setup.stranger {
            self.start_node(stranger);
        }
        self.after(0, Happening::Act);
        while self.model.step < self.options.steps && self.advance(u64::MAX) {}
        self.heal();
        self.decide();
        if self.judge.verdict.is_none() {
            self.probe();
        }
        if self.judge.verdict.is_none() {
            self.judge.see(&mut self.model, &Seen::End);
            self.rest();
        }
    }

    /// Runs until nothing is outstanding, or until the bound of the progress checker, which then
    /// judges.
    fn decide(&mut self) {
        let until_ns = bound_ns(&self.model).max(self.model.now_ns);
        while !is_decided(&self.model) && self.advance(until_ns) {}
        if !is_decided(&self.model) && self.judge.verdict.is_none() {
            self.model.now_ns = self.model.now_ns.max(until_ns);
            self.judge.see(&mut self.model, &Seen::End);
        }
    }

    /// After the storm every pair of neighbours must be able to talk: an import is granted and a
    /// send arrives.
    fn probe(&mut self) {
        let nodes = self.options.nodes;
        let probers: Vec<ProcKey> = (0..nodes).filter_map(|node| self.prober(node)).collect();
        self.model.healed_at_ns = Some(self.model.now_ns);
        let mut imports = Vec::new();
        for (node, &proc) in probers.iter().enumerate() {
            let next = (node + 1) % nodes;
            let wanted = Wanted::Name("probe".to_owned());
            imports.push((proc, self.import(proc, next, wanted, Rights::WRITE, true, PROBE_PATIENCE_NS)));
        }
        self.decide();
        let first_op = self.model.ops.next_key();
        for &(proc, import) in &imports {
            let state = self.model.imports[import].state.clone();
            if state != ImportState::Granted {
                return self.fail("progress", format!("after the storm, import {import} by {proc} is {state:?}"));
            }
            self.send(proc, import, (0, 64), true, None, true);
        }
        self.decide();
        let failed =
            self.model.ops.iter().find(|(key, op)| *key >= first_op && !matches!(op.outcome, Outcome::Done(_)));
        if let Some(text) =
            failed.map(|(key, op)| format!("after the storm, send {key} by {} ended as {:?}", op.sender, op.outcome))
        {
            self.fail("progress", text);
        }
    }

    fn prober(&mut self, node: usize) -> Option<ProcKey> {
        let proc = self.do_attach(node)?;
        let region = self.new_region(proc, RegionUse::Shared, vec![0; 4096]);
        let spec = ExportSpec {
            name: Some("probe".to_owned()),
            region: self.model.regions[region].at.region,
            offset: 0,
            len: 4096,
            rights: Rights::WRITE,
            access: Access::Anyone,
            notify: true,
            redirectable: false,
            kind: ExportKind::Memory,
        };
        self.export(proc, region, spec, None).then_some(proc)
    }

    /// Everybody leaves; then the cluster must be empty and quiet.
    fn rest(&mut self) {
        for node in 0..self.hosts.len() {
            for proc in self.model.living(node) {
                let pid = self.model.procs[proc].pid;
                self.detach(node, proc, pid);
            }
        }
        // A stranger goes on knocking until its own patience ends; whether the cluster is quiet is
        // another question.
        if let Some(stranger) = self.setup.stranger {
            self.crash_node(stranger);
        }
        self.run_until(self.model.now_ns + REST_NS);
        let packets = self.network.sent();
        self.run_until(self.model.now_ns + IDLE_NS);
        let packets = self.network.sent() - packets;
        self.gauge_at_rest(packets);
    }

    fn finish(self, wall_time: Duration) -> Result<Report, Box<Failure>> {
        let at = Duration::from_nanos(self.model.now_ns);
        if let Some(Verdict { checker, message }) = self.judge.verdict {
            let (options, step, trace) = (self.options, self.model.step, self.judge.trace.into_lines());
            return Err(Box::new(Failure { options, step, at, checker, message, trace }));
        }
        let mut engines = EngineCounts::default();
        for host in &self.hosts {
            engines.add(&host.counts_before);
            host.engine.iter().for_each(|engine| engines.add(&EngineCounts::of(engine.stats())));
        }
        let injected = self.network.injected();
        let count = |test: fn(&Op) -> bool| self.model.ops.iter().filter(|(_, op)| test(op)).count() as u64;
        Ok(Report {
            runs: 1,
            steps: self.model.step,
            operations: self.model.ops.len() as u64,
            operations_done: count(|op| matches!(op.outcome, Outcome::Done(_))),
            operations_failed: count(|op| matches!(op.outcome, Outcome::Failed(_))),
            exports: self.model.exports.len() as u64,
            imports: self.model.imports.len() as u64,
            imports_granted: self.model.imports.iter().filter(|(_, i)| i.id.is_some()).count() as u64,
            notifications: self.model.ops.iter().map(|(_, op)| u64::from(op.notified)).sum(),
            gather_sends: count(|op| !op.ranges.is_empty() && op.is_applied()),
            records: count(|op| op.appended),
            full_rings: count(|op| matches!(op.outcome, Outcome::Failed(OpError::RingFull { .. }))),
            redirects: self.redirects_made,
            deposited_bytes: self.judge.deposited_bytes,
            packets: self.network.sent(),
            engines,
            faults: FaultCounts {
                lost: injected.lost,
                duplicated: injected.duplicated,
                reordered: injected.reordered,
                corrupted: injected.corrupted,
                replayed: injected.replayed,
                blocked: injected.blocked,
                too_large: injected.too_large,
                ..self.faults
            },
            virtual_time: at,
            wall_time,
            digest: self.judge.trace.value(),
        })
    }
}
