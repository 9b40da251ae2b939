//! What recording costs: the same transfers by two sessions, of which one writes a trace.
//!
//! Invariant: both move the same bytes between the same memories, in turns; medians.

use super::{BATCH, Memory, PAGE, ROUNDS, keep, median, per_call};
use crate::failure::Failure;
use vmmc::{Import, Session};
use vmmc_node::{Embedded, KeySource, NodeConfig};

/// A kind of transfer, ns.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Traced {
    pub(crate) what: &'static str,
    pub(crate) plain_ns: f64,
    pub(crate) traced_ns: f64,
}

fn node(name: &str) -> Result<Embedded, Failure> {
    let mut config = NodeConfig::new(&format!("bench-trace-{name}-{}", std::process::id())).key(KeySource::Plain);
    // The far one serves itself while the caller steps its own.
    config.keeper = name == "b";
    config.listen.push(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
    Embedded::start(config).map_err(Failure::new)
}

/// Measures transfers of a page.
pub(super) fn measure() -> Result<Vec<Traced>, Failure> {
    let (near, far) = (node("a")?, node("b")?);
    let file = std::env::temp_dir().join(format!("vmmc-bench-{}.trace", std::process::id()));
    let owner = Session::over(far.attach().map_err(Failure::new)?).map_err(Failure::from)?;
    let own = Session::over(near.attach().map_err(Failure::new)?).map_err(Failure::from)?;
    let plain = Session::over(near.attach().map_err(Failure::new)?).map_err(Failure::from)?;
    let attachment = near.attach().map_err(Failure::new)?;
    let traced = Session::builder().trace(&file).over(attachment).map_err(Failure::from)?;
    let address = far.addresses().first().copied().ok_or_else(|| Failure::new("a node without address"))?;
    plain.add_peer(&[address.to_string()]).map_err(Failure::new)?;
    let mut all = Vec::new();
    for (what, session, mappable, pinned) in [
        ("a page sent by mapping, one node", &own, true, false),
        ("a page sent by way of a copy, one node", &own, false, false),
        ("a pinned page sent, one node", &own, false, true),
        ("a pinned page sent and arrived, two nodes", &owner, false, true),
    ] {
        let name = format!("x{}", all.len());
        let export = session.export(PAGE as u64).name(&name).mappable(mappable).create().map_err(Failure::new)?;
        let open = |user: &Session| -> Result<Import, Failure> {
            let import = user.import(&name);
            let import =
                if session.node().name == owner.node().name { import.node(&owner.node().name) } else { import };
            import.wait(std::time::Duration::from_secs(5)).open().map_err(Failure::from)
        };
        let (first, second) = (open(&plain)?, open(&traced)?);
        let mut memory = Memory::new(1);
        let body = &*memory.pages(0, 1);
        let mut failed = Ok(());
        let mut send = |import: &Import| {
            let sent = match (mappable, pinned) {
                (_, true) => import.send_pinned(0, body),
                (true, _) => import.send(0, body),
                _ => import.send_async(0, body, vmmc::SendOptions::default()).and_then(vmmc::Transfer::wait).map(drop),
            };
            keep(&mut failed, sent);
        };
        (0..BATCH).for_each(|_| [&first, &second].into_iter().for_each(&mut send));
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            without.push(per_call(BATCH, || send(&first)));
            with.push(per_call(BATCH, || send(&second)));
        }
        failed.map_err(Failure::new)?;
        all.push(Traced { what, plain_ns: median(without), traced_ns: median(with) });
        drop(export);
    }
    drop(traced);
    let _ = std::fs::remove_file(file);
    Ok(all)
}
