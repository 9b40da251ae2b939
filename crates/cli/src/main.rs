//! The command `vmmc`: start nodes, see memory move, measure, diagnose.
//!
//! ```text
//!   args ──▶ commands ──▶ measure (pairs of processes) ──▶ report (table, JSON, page)
//!                  └────▶ vmmc (library), vmmc-node (daemon), vmmc-sim
//! ```
//!
//! **Promises.** Human tables by default, one JSON object with `--json`, documented exit codes; processes that it starts for a measurement die with it.
//!
//! **Does not.** It has no way into a node that the library does not offer everybody.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod failure;
mod limits;
mod machine;
mod measure;
mod report;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("vmmc: {failure}");
            failure.into()
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Bench(bench) => commands::bench::run(&bench),
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "vmmc", &mut std::io::stdout());
            Ok(())
        }
        Command::Man => Ok(clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout())?),
        Command::Worker { core } => measure::worker::run(core),
    }
}
