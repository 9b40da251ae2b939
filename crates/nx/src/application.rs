//! The start of an application by itself: `nx_initve`, `nx_nfork`, `nx_load`, `nx_waitall`.
//!
//! The processes of an application are ranks of a job. NX forks the process on other nodes; here
//! the program is started there from its beginning, with two variables in its environment, and its
//! call of `nx_nfork` returns 0.
//!
//! Invariant: nodes are counted by the application, and ranks by the job, in the order of nodes.

use crate::error::NxError;
use crate::limits::START_TIME;
use crate::select::{Nodes, ptype_of};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmmc_job::{Exit, JobEvent, Launch, LaunchError, Launched, Place, Stream};

/// Nodes of the application, and of these those with a process: `4: 0 1 3`.
const NODES: &str = "VMMC_NX_NODES";
/// Process type that the process begins with.
const PTYPE: &str = "VMMC_NX_PTYPE";

/// Where a process of an application is.
pub(crate) fn place(size: u32) -> Result<(Nodes, u16), NxError> {
    let read = |variable| std::env::var_os(variable).map(|value| value.to_string_lossy().into_owned());
    let wrong = |variable, value: &str| NxError::Environment { variable, value: value.to_string() };
    let nodes = match read(NODES) {
        Some(value) => parse(&value, size).ok_or_else(|| wrong(NODES, &value))?,
        None => Nodes::all(size),
    };
    let ptype = match read(PTYPE) {
        Some(value) => value.parse().map_err(|_| wrong(PTYPE, &value))?,
        None => 0,
    };
    Ok((nodes, ptype))
}

fn parse(text: &str, size: u32) -> Option<Nodes> {
    let (count, list) = text.split_once(':')?;
    let count = count.parse().ok()?;
    let list: Vec<u32> = list.split_whitespace().map(|node| node.parse().ok()).collect::<Option<_>>()?;
    let rises = list.windows(2).all(|pair| pair[0] < pair[1]) && list.last().is_some_and(|last| *last < count);
    (rises && list.len() == size as usize).then(|| Nodes::some(list, count))
}

/// Nodes for an application: `nx_initve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// How many.
    count: u32,
    /// Names of nodes of VMMC; none: the user's own.
    places: Vec<String>,
}

impl Partition {
    /// So many nodes, on the nodes of VMMC with these names, separated by commas; an empty name is
    /// the user's own node.
    ///
    /// ```
    /// let four = vmmc_nx::Partition::new("", 4);
    /// assert_eq!(four.numnodes(), 4);
    /// ```
    pub fn new(names: &str, count: u32) -> Partition {
        let places = names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_string);
        Partition { count, places: places.collect() }
    }

    /// How many nodes.
    pub fn numnodes(&self) -> u32 {
        self.count
    }

    /// Starts this very program with its arguments on nodes, on all if there is no list:
    /// `nx_nfork` in the process that controls the application.
    ///
    /// # Errors
    /// [`NxError`]: what was started is ended.
    pub fn fork(&self, nodes: Option<&[i64]>, ptype: i64) -> Result<Application, NxError> {
        let system = |what: &str, e: std::io::Error| LaunchError::System { what: what.into(), why: e.to_string() };
        let program = std::env::current_exe().map_err(|e| system("this program", e))?;
        let line = std::fs::read("/proc/self/cmdline").map_err(|e| system("/proc/self/cmdline", e))?;
        let words = line.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()));
        let mut words: Vec<OsString> = words.collect();
        words.pop();
        self.start(Launch::new(program).args(words.into_iter().skip(1)), nodes, ptype)
    }

    /// Starts a program on nodes: `nx_load`.
    ///
    /// # Errors
    /// As for [`fork`](Self::fork).
    pub fn load(&self, program: &Path, nodes: Option<&[i64]>, ptype: i64) -> Result<Application, NxError> {
        self.start(Launch::new(program), nodes, ptype)
    }

    fn start(&self, launch: Launch, nodes: Option<&[i64]>, ptype: i64) -> Result<Application, NxError> {
        let (ptype, list) = (ptype_of(ptype)?, self.list(nodes)?);
        let listed = list.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let launch = launch.env(NODES, format!("{}: {listed}", self.count)).env(PTYPE, ptype.to_string());
        let (ranks, count) = (list.len(), self.places.len().max(1));
        let part = |at: usize| (ranks * (at + 1) / count - ranks * at / count) as u32;
        let places = (0..count).map(|at| Place { node: self.places.get(at).cloned(), ranks: part(at) });
        let launched = launch.places(places.filter(|place| place.ranks > 0).collect()).timeout(START_TIME).start()?;
        Application::begun(launched, list)
    }

    /// The nodes that get a process, in their order.
    fn list(&self, nodes: Option<&[i64]>) -> Result<Vec<u32>, NxError> {
        let Some(nodes) = nodes else { return Ok((0..self.count).collect()) };
        let all = Nodes::all(self.count);
        let mut list = nodes.iter().map(|node| all.rank_of(*node)).collect::<Result<Vec<_>, _>>()?;
        list.sort_unstable();
        list.dedup();
        if list.len() < nodes.len() || list.is_empty() {
            return Err(NxError::List { len: nodes.len() as u64, count: self.count });
        }
        Ok(list)
    }
}

/// An application that this process has started. What its processes print is printed here.
/// Dropping it ends them.
pub struct Application {
    /// Nodes by rank.
    nodes: Vec<u32>,
    pids: BTreeMap<u32, u32>,
    pump: Option<JoinHandle<Vec<(u32, String)>>>,
    end: std::sync::mpsc::Sender<()>,
}

impl Application {
    fn begun(mut launched: Launched, nodes: Vec<u32>) -> Result<Application, NxError> {
        let (mut pids, mut failed) = (BTreeMap::new(), Vec::new());
        let until = Instant::now() + START_TIME;
        while pids.len() < nodes.len() && Instant::now() < until {
            let Some(event) = launched.next_event(Duration::from_millis(100))? else { continue };
            if let JobEvent::Started { rank, pid } = event {
                pids.insert(nodes[rank as usize], pid);
            }
            if let JobEvent::NotStarted { rank, why, .. } = &event {
                return Err(NxError::Process { node: nodes[*rank as usize], why: why.clone() });
            }
            note(&event, &nodes, &mut failed);
            if launched.has_ended() {
                break;
            }
        }
        if let Some(node) = nodes.iter().find(|node| !pids.contains_key(node)) {
            let why = format!("nothing is heard of it after {} s", START_TIME.as_secs());
            return Err(NxError::Process { node: *node, why });
        }
        let (end, ended) = std::sync::mpsc::channel();
        let by_rank = nodes.clone();
        let pump = std::thread::Builder::new().name("nx-application".into()).spawn(move || {
            while !launched.has_ended() {
                match ended.try_recv() {
                    // The drop of what was launched ends it.
                    Ok(()) | Err(std::sync::mpsc::TryRecvError::Disconnected) => break,
                    Err(std::sync::mpsc::TryRecvError::Empty) => {}
                }
                match launched.next_event(Duration::from_millis(50)) {
                    Ok(Some(event)) => note(&event, &by_rank, &mut failed),
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
            failed
        });
        let pump = pump.map_err(|e| NxError::Thread { what: "an application", why: e.to_string() })?;
        Ok(Application { nodes, pids, pump: Some(pump), end })
    }

    /// Process ids, each on its own node, in the order of nodes.
    pub fn pids(&self) -> Vec<i64> {
        self.nodes.iter().map(|node| self.pids.get(node).copied().unwrap_or_default().into()).collect()
    }

    /// Waits until all its processes have ended; gives the nodes whose processes have failed, and
    /// how: `nx_waitall`.
    pub fn wait(mut self) -> Vec<(u32, String)> {
        let pump = self.pump.take().expect("it is taken at the end only");
        pump.join().unwrap_or_default()
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        if let Some(pump) = self.pump.take() {
            let _ = self.end.send(());
            let _ = pump.join();
        }
    }
}

impl std::fmt::Debug for Application {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Application({} processes)", self.nodes.len())
    }
}

/// Prints what a process has printed; keeps who has failed.
fn note(event: &JobEvent, nodes: &[u32], failed: &mut Vec<(u32, String)>) {
    let node = |rank: u32| nodes.get(rank as usize).copied().unwrap_or(rank);
    match event {
        JobEvent::Output { stream, bytes, .. } => {
            // Whoever reads it may have gone.
            let _ = match stream {
                Stream::Out => std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush()),
                Stream::Err => std::io::stderr().write_all(bytes),
            };
        }
        JobEvent::Exited { rank, exit } if *exit != Exit::Code(0) => failed.push((node(*rank), exit.to_string())),
        JobEvent::NodeLost { ranks, why, .. } => failed.extend(ranks.iter().map(|rank| (node(*rank), why.clone()))),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_environment_says_of_nodes_is_read_or_refused() {
        assert_eq!(parse("4: 0 1 3", 3), Some(Nodes::some(vec![0, 1, 3], 4)));
        for wrong in ["", "4", "4:", "x: 0", "4: 0 1", "4: 0 1 4", "4: 0 3 1", "4: 0 0 1", "4: 0 -1 2"] {
            assert_eq!(parse(wrong, 3), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_list_of_nodes_names_each_once() {
        let partition = Partition::new("", 4);
        assert_eq!(partition.list(None), Ok(vec![0, 1, 2, 3]));
        assert_eq!(partition.list(Some(&[3, 1])), Ok(vec![1, 3]));
        assert_eq!(partition.list(Some(&[4])), Err(NxError::Node { node: 4, count: 4 }));
        assert_eq!(partition.list(Some(&[-1])), Err(NxError::Node { node: -1, count: 4 }));
        for wrong in [&[][..], &[1, 1]] {
            assert_eq!(partition.list(Some(wrong)), Err(NxError::List { len: wrong.len() as u64, count: 4 }));
        }
        assert_eq!(Partition::new(" a, b", 2).places, ["a", "b"]);
    }
}
