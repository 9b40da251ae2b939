//! What the numbered examples share: they run as several real processes, by starting themselves
//! once for each role.
//!
//! Run without arguments, an example starts its roles, waits for them and fails if one of them
//! fails. Each role attaches to the user's default node; when none runs the library starts one, and
//! the example itself serves as the program for that (`VMMC_BIN`), so that nothing need be built or
//! installed before.

use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};
use vmmc::Session;
use vmmc_node::NodeConfig;

/// What anything can fail with.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// A role: its name, and what its process does.
pub(crate) type Role = (&'static str, fn(&Session) -> Result<(), Failure>);

/// No example takes longer than this.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Runs the example: `fn main() -> ExitCode { tutorial::run(&[("receiver", receiver), ("sender",
/// sender)]) }`.
pub(crate) fn run(roles: &[Role]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        [] => direct(roles),
        ["role", name] => play(roles, name),
        ["node", "start", ..] => start_node(&arguments[2..]),
        ["node", "run", ..] => run_node(&arguments[2..]),
        _ => Err("run it without arguments".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("failed: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Starts a process for each role and waits for all.
fn direct(roles: &[Role]) -> Result<(), Failure> {
    let program = std::env::current_exe()?;
    let node_program = std::env::var_os("VMMC_BIN").unwrap_or_else(|| program.clone().into());
    let start = |name: &str| Command::new(&program).args(["role", name]).env("VMMC_BIN", &node_program).spawn();
    let mut running = Vec::new();
    for (name, _) in roles {
        running.push((*name, start(name)?));
    }
    let result = watch(&mut running);
    for (_, child) in &mut running {
        // Roles that have ended already are only collected.
        let _ = child.kill();
        child.wait()?;
    }
    result
}

/// Waits until all have ended well, one has failed, or time is up.
fn watch(running: &mut [(&'static str, Child)]) -> Result<(), Failure> {
    let start = Instant::now();
    loop {
        let mut left = 0;
        for (name, child) in running.iter_mut() {
            match child.try_wait()? {
                Some(status) if !status.success() => return Err(format!("the {name} ended with {status}").into()),
                Some(_) => {}
                None => left += 1,
            }
        }
        if left == 0 {
            return Ok(());
        }
        if start.elapsed() > TIME_MAX {
            return Err(format!("{left} processes are still running after {} s", TIME_MAX.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn play(roles: &[Role], name: &str) -> Result<(), Failure> {
    let (_, role) = roles.iter().find(|(role, _)| *role == name).ok_or("no such role")?;
    let session = Session::attach()?;
    role(&session).map_err(|failure| format!("{name}: {failure}").into())
}

fn start_node(options: &[String]) -> Result<(), Failure> {
    let config = NodeConfig::from_args(options.iter().cloned())?;
    Ok(vmmc_node::start_detached(&std::env::current_exe()?, &config)?)
}

fn run_node(options: &[String]) -> Result<(), Failure> {
    Ok(vmmc_node::run(NodeConfig::from_args(options.iter().cloned())?)?)
}

/// Fails with a message unless something holds.
#[allow(dead_code)] // not every example needs it
pub(crate) fn check(holds: bool, what: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(what.into()) }
}
