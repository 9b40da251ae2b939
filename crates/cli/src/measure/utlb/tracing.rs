//! What recording costs: the same transfers by two sessions, of which one writes a trace.
//!
//! Invariant: both move the same bytes between the same memories, in turns; the median of the
//! rounds' differences beside that of the rounds without.

use super::{BATCH, Memory, PAGE, keep, median, per_call};
use crate::failure::Failure;
use std::sync::atomic::{AtomicU64, Ordering};
use vmmc::{Import, PinOptions, Pinned, Session};
use vmmc_node::{Embedded, KeySource, NodeConfig};

/// Rounds of either kind.
const ROUNDS: usize = 61;

/// A kind of transfer, ns.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Traced {
    pub(crate) what: &'static str,
    /// Whether somebody receives it.
    pub(crate) arrives: bool,
    pub(crate) plain_ns: f64,
    pub(crate) traced_ns: f64,
}

fn node(name: &str) -> Result<Embedded, Failure> {
    let mut config = NodeConfig::new(&format!("bench-trace-{name}-{}", std::process::id())).key(KeySource::Plain);
    // The far one serves itself while the caller steps its own.
    config.poller = name == "b";
    config.listen.push(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
    Embedded::start(config).map_err(Failure::new)
}

/// What a page goes through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stored,
    Read,
    Copied,
    Pinned,
    Between,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Stored, Kind::Read, Kind::Copied, Kind::Pinned, Kind::Between];

    fn what(self) -> &'static str {
        match self {
            Kind::Stored => "a page stored by mapping, which nobody reads",
            Kind::Read => "a page sent by mapping and read by another thread, with its answer",
            Kind::Copied => "a page sent by way of a copy, one node",
            Kind::Pinned => "a pinned page sent, one node",
            Kind::Between => "a pinned page sent and arrived, two nodes",
        }
    }

    fn send(self, import: &Import, body: &[u8]) -> Result<(), vmmc::TransferError> {
        match self {
            Kind::Stored | Kind::Read => import.send(0, body),
            Kind::Copied => import.post_send(0, body, vmmc::SendOptions::default())?.wait().map(drop),
            Kind::Pinned | Kind::Between => import.send(0, Pinned(body)),
        }
    }
}

/// Without recording, and what recording adds.
fn rounds(
    [plain, traced]: [&Import; 2],
    mut send: impl FnMut(&Import) -> Result<(), vmmc::TransferError>,
) -> Result<(f64, f64), Failure> {
    let mut failed = Ok(());
    let mut round = |import: &Import| per_call(BATCH, || keep(&mut failed, send(import)));
    round(plain);
    round(traced);
    let (mut without, mut more) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        // Between two without, so that what changes slowly is on both sides.
        let (before, with, after) = (round(plain), round(traced), round(plain));
        without.push((before + after) / 2.0);
        more.push(with - (before + after) / 2.0);
    }
    failed.map_err(Failure::new)?;
    Ok((median(without), median(more)))
}

/// Another thread waits for the page, reads it, and says so.
fn read_elsewhere(export: &vmmc::Export, imports: [&Import; 2], body: &mut [u8]) -> Result<(f64, f64), Failure> {
    const LAST: usize = PAGE - 8;
    let (done, mut sent) = (AtomicU64::new(0), 0u64);
    let word = export.word(LAST as u64).map_err(Failure::new)?;
    word.store(0, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut page = [0u8; PAGE];
            let mut seen = 0;
            while seen != u64::MAX {
                let now = word.load(Ordering::Acquire);
                if now == seen {
                    std::hint::spin_loop();
                    continue;
                }
                seen = now;
                // A word of the page was read, so the page can be.
                let _ = export.read(0, &mut page);
                std::hint::black_box(&page);
                done.store(now, Ordering::Release);
            }
        });
        let result = rounds(imports, |import| {
            sent += 1;
            body[LAST..].copy_from_slice(&sent.to_ne_bytes());
            import.send(0, &*body)?;
            while done.load(Ordering::Acquire) != sent {
                std::hint::spin_loop();
            }
            Ok(())
        });
        word.store(u64::MAX, Ordering::Release);
        result
    })
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
    for session in [&plain, &traced] {
        session.set_pinning(PinOptions::default().copied_up_to(0));
    }
    let address = far.addresses().first().copied().ok_or_else(|| Failure::new("a node without address"))?;
    plain.add_peer(&[address.to_string()]).map_err(Failure::new)?;
    let mut all = Vec::new();
    for kind in Kind::ALL {
        let session = if kind == Kind::Between { &owner } else { &own };
        let name = format!("x{}", all.len());
        let mappable = matches!(kind, Kind::Stored | Kind::Read);
        let export = session.export(PAGE as u64).name(&name).mappable(mappable).create().map_err(Failure::new)?;
        let open = |user: &Session| -> Result<Import, Failure> {
            let import = user.import(&name);
            let import = if kind == Kind::Between { import.node(&owner.node().name) } else { import };
            import.wait(std::time::Duration::from_secs(5)).open().map_err(Failure::from)
        };
        let (first, second) = (open(&plain)?, open(&traced)?);
        let mut memory = Memory::new(1);
        let body = memory.pages(0, 1);
        let (without, more) = match kind {
            Kind::Read => read_elsewhere(&export, [&first, &second], body)?,
            _ => rounds([&first, &second], |import| kind.send(import, body))?,
        };
        all.push(Traced {
            what: kind.what(),
            arrives: kind != Kind::Stored,
            plain_ns: without,
            traced_ns: without + more,
        });
    }
    drop(traced);
    let _ = std::fs::remove_file(file);
    Ok(all)
}
