//! The command `vmmc`: start nodes, see memory move, measure, diagnose.
//!
//! ```text
//!   args ──▶ commands ──▶ measure (pairs of processes) ──▶ report (table, JSON, page)
//!                  └────▶ vmmc (library), vmmc-node (daemon), vmmc-sim
//! ```
//!
//! **Promises.** Human tables by default, one JSON object with `--json`, documented exit codes;
//! processes that it starts for a measurement die with it.
//!
//! **Does not.** It has no way into a node that the library does not offer everybody.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod external;
mod failure;
mod limits;
mod machine;
mod measure;
mod report;

use args::{Cli, Command};
use clap::FromArgMatches;
use failure::Failure;
use std::io::Write;
use std::process::ExitCode;
use vmmc_host::text::printable_lines;

/// Prints a value as JSON.
pub(crate) fn output_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(Failure::new)?;
    text.push('\n');
    write_out(&vmmc_host::text::printable_json(&text))
}

fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&Cli::whole().get_matches()).unwrap_or_else(|e| e.exit());
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The process that would read it may have gone.
            let text = format!("vmmc: {failure}\n");
            let _ = std::io::stderr().write_all(printable_lines(&text).as_bytes());
            failure.into()
        }
    }
}

/// Writes text to standard output, with nothing in it that a terminal would obey: names and reasons
/// are others' words.
pub(crate) fn output(text: &str) -> Result<(), Failure> {
    write_out(&printable_lines(text))
}

/// A reader that has gone (`| head`) is no failure.
fn write_out(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Demo(demo) => commands::demo::run(&demo),
        Command::Run(run) => commands::run::run(&run),
        Command::Supervise { node, run_as: Some(user), .. } => commands::supervise::become_user(&node, user),
        Command::Supervise { node, export, kept, .. } => commands::supervise::run(&node, &export, kept),
        Command::Node(node) => commands::node::run(&node),
        Command::Ping(ping) => commands::ping::run(&ping),
        Command::Rpc(rpc) => commands::rpc::run(&rpc),
        Command::Bench(bench) => commands::bench::run(&bench),
        Command::Exec(exec) => commands::exec::run(&exec),
        Command::Sockets(sockets) => commands::sockets::run(&sockets),
        Command::SocketsPeer { node, peer: Some(peer), key_file: Some(key) } => {
            commands::bench_sockets::serve_between(&node, peer, &key)
        }
        Command::SocketsPeer { node, .. } => commands::bench_sockets::serve(&node),
        Command::TechniquesPeer { job } => measure::techniques::serve(&job),
        Command::Top(top) => commands::top::run(&top),
        Command::Stats(stats) => commands::stats::run(&stats),
        Command::Explain(explain) => commands::explain::run(&explain),
        Command::Doctor { json } => commands::doctor::run(json),
        Command::Sim(sim) => commands::sim::run(&sim),
        Command::Trace(args::Trace::Record(record)) => commands::trace::record(&record),
        Command::Utlb(utlb) => commands::utlb::run(&utlb),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::visible(), "vmmc", &mut script);
            write_out(&String::from_utf8_lossy(&script))
        }
        Command::Man { out, command } => commands::man::run(out.as_deref(), &command),
        Command::Worker { core } => measure::worker::run(core),
    }
}
