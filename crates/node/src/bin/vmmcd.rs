//! The node daemon as a program of its own: `vmmcd --name a --listen 127.0.0.1:4000`.
//!
//! The words `node run` before the options are accepted too, so that it can stand in for `vmmc`
//! where one is started in the background.

use std::process::ExitCode;
use vmmc_node::{NodeConfig, run_with};

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if args.starts_with(&["node".to_string(), "run".to_string()]) {
        args.drain(..2);
    }
    let config = match NodeConfig::from_args(args) {
        Ok(config) => config,
        Err(e) => {
            eprintln!("vmmcd: {e}");
            return ExitCode::from(2);
        }
    };
    let quiet = config.detach;
    let ready = |running: vmmc_node::Running| {
        if !quiet {
            let addresses: Vec<_> = running.addresses.iter().map(ToString::to_string).collect();
            println!("node {:?} serves processes, and peers on {}", running.name, addresses.join(", "));
        }
    };
    match run_with(config, ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The process that started us in the background may be gone, and its pipe with it.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("vmmcd: {e}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}
