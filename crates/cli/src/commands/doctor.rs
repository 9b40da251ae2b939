//! `vmmc doctor`: what this machine offers, what is missing, what that would bring, how to get it.
//!
//! Invariant: inspection changes nothing. Only what VMMC cannot do without makes the command fail.

use crate::args::{Peer, What};
use crate::external;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::report::{table, units};
use rustix::net::sockopt;
use serde::Serialize;
use std::fs::read_to_string;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};
use vmmc_host::fault::Faults;
use vmmc_host::pin::PinSpace;
use vmmc_host::queues::Queues;
use vmmc_host::udp::{ReceiveBuffer, UdpPort};
use vmmc_host::{Protection, Region, memory};

/// How a finding is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Good,
    /// Works; more would be better.
    Note,
    /// VMMC cannot do without.
    Bad,
}

/// One thing that was checked.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    /// What.
    about: &'static str,
    /// How good.
    state: State,
    /// What was found.
    found: String,
    /// What it brings, and how to get it; empty if all is well.
    advice: String,
}

fn good(about: &'static str, found: impl Into<String>) -> Finding {
    Finding { about, state: State::Good, found: found.into(), advice: String::new() }
}

fn note(about: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { about, state: State::Note, found: found.into(), advice: advice.into() }
}

fn bad(about: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { about, state: State::Bad, found: found.into(), advice: advice.into() }
}

/// Runs the command.
pub(crate) fn run(json: bool) -> Result<(), Failure> {
    let machine = Machine::here();
    let findings = findings(&machine);
    let bad = findings.iter().filter(|f| f.state == State::Bad).count();
    if json {
        crate::output_json(&serde_json::json!({ "machine": machine, "findings": findings, "usable": bad == 0 }))?;
    } else {
        crate::output(&text(&machine, &findings))?;
    }
    if bad == 0 {
        Ok(())
    } else {
        Err(Failure::new(format!("VMMC cannot run here: {bad} of the findings above are bad")))
    }
}

fn text(machine: &Machine, findings: &[Finding]) -> String {
    let lines: Vec<Vec<String>> = findings
        .iter()
        .map(|f| {
            let state = match f.state {
                State::Good => "good",
                State::Note => "note",
                State::Bad => "BAD",
            };
            vec![state.into(), f.about.to_string(), f.found.clone()]
        })
        .collect();
    let mut out = format!("{machine}\n\n{}", table::align(&["", "about", "found"], &lines, 3));
    let advised: Vec<&Finding> = findings.iter().filter(|f| !f.advice.is_empty()).collect();
    if !advised.is_empty() {
        out.push_str("\nWhat would help:\n");
    }
    for finding in advised {
        out += &format!("  {}: {}\n", finding.about, finding.advice);
    }
    out
}

fn findings(machine: &Machine) -> Vec<Finding> {
    let mut all = vec![kernel(machine), sealed_memory(), available(), cores(machine), cipher()];
    all.extend([udp_segments(machine), udp_buffers(), marks(), userfaultfd(), page_faults(), io_uring()]);
    all.extend([locked_memory(), open_files(), huge_pages(), key_file(), nodes()]);
    all.extend(tools());
    all
}

/// Major and minor number of the kernel.
fn version(machine: &Machine) -> (u32, u32) {
    let mut numbers = machine.kernel.split(['.', '-']).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn kernel(machine: &Machine) -> Finding {
    match version(machine) {
        v if v >= (5, 10) => good("kernel", &machine.kernel),
        v if v >= (5, 3) => note("kernel", &machine.kernel, "5.10 or later is what VMMC is tested with"),
        _ => bad("kernel", &machine.kernel, "VMMC needs Linux 5.3 or later (process descriptors); update the kernel"),
    }
}

fn sealed_memory() -> Finding {
    let about = "sealed shared memory";
    let made = Region::create(8192).and_then(|r| Region::map(r.share()?, 8192, Protection::ReadWrite));
    match made {
        Ok(_) => good(about, "memfd with seals, reserved and mapped"),
        Err(e) => bad(
            about,
            e.to_string(),
            "all exports live in such memory; allow memfd_create (container policies sometimes forbid it)",
        ),
    }
}

fn available() -> Finding {
    let (available, total) = (memory::available_bytes(), memory::total_bytes().unwrap_or(0));
    let found = format!("{} of {} available", units::size(available), units::size(total));
    if available > 1 << 28 {
        good("memory", found)
    } else {
        note("memory", found, "exports reserve their memory; free some, or raise memory.max of the control group")
    }
}

fn cores(machine: &Machine) -> Finding {
    let found = machine.cores.to_string();
    if machine.cores >= 2 {
        good("processors", found)
    } else {
        note(
            "processors",
            found,
            "with two or more, a receiver can spin while the sender runs: tenths of microseconds in place of several",
        )
    }
}

fn cipher() -> Finding {
    #[cfg(target_arch = "x86_64")]
    let has_aes = Some(is_x86_feature_detected!("aes") && is_x86_feature_detected!("avx"));
    #[cfg(target_arch = "aarch64")]
    let has_aes = Some(std::arch::is_aarch64_feature_detected!("aes"));
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = None;
    let about = "AES instructions";
    match has_aes {
        Some(true) => good(about, "present"),
        Some(false) => note(
            about,
            "missing",
            "packets between nodes are sealed by software, many times slower; on a wire that you trust, use plain mode (vmmc node start --plain)",
        ),
        None => note(about, "unknown", "compare sealed and plain nodes: vmmc bench bandwidth --path two-nodes"),
    }
}

fn udp_segments(machine: &Machine) -> Finding {
    let about = "UDP segmentation";
    match version(machine) {
        v if v >= (5, 0) => good(about, "GSO and GRO"),
        v if v >= (4, 18) => note(about, "GSO only", "GRO (Linux 5.0) receives many packets in one call"),
        _ => note(about, "none", "GSO (Linux 4.18) sends many packets in one call"),
    }
}

fn udp_buffers() -> Finding {
    let about = "UDP socket buffers";
    let wanted = crate::limits::SOCKET_BUFFER_BYTES;
    let max = |name: &str| {
        read_to_string(format!("/proc/sys/net/core/{name}")).ok().and_then(|t| t.trim().parse::<u64>().ok())
    };
    let granted = UdpSocket::bind("127.0.0.1:0").ok().map(|socket| {
        if sockopt::set_socket_recv_buffer_size_force(&socket, wanted).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&socket, wanted);
        }
        // The kernel doubles what is asked for, for its own overhead.
        sockopt::socket_recv_buffer_size(&socket).unwrap_or(0) as u64 / 2
    });
    let Some(granted) = granted else {
        return bad(about, "no UDP socket on 127.0.0.1", "nodes talk over UDP; allow sockets");
    };
    let show = |n: Option<u64>| n.map_or("?".into(), units::size);
    let found = format!(
        "{} granted of {} (rmem_max {}, wmem_max {})",
        units::size(granted),
        units::size(wanted as u64),
        show(max("rmem_max")),
        show(max("wmem_max"))
    );
    if granted >= wanted as u64 {
        return good(about, found);
    }
    note(
        about,
        found,
        format!(
            "larger buffers lose fewer packets in bursts between nodes: `sysctl -w net.core.rmem_max={wanted} net.core.wmem_max={wanted}` as root"
        ),
    )
}

/// Queues of the kernel that mark packets by themselves instead of dropping them.
const MARKING_QUEUES: [&str; 6] = ["fq_codel", "codel", "cake", "fq_pie", "dualpi2", "pie"];

/// Whether sockets can ask queues for marks and see them, and what this machine's own queues do.
fn marks() -> Finding {
    let default = read_to_string("/proc/sys/net/core/default_qdisc").ok();
    let own = vmmc_host::queues::of_interfaces().unwrap_or_default();
    marks_of(codepoint_arrives().unwrap_or(false), &own, default.as_deref().map_or("?", str::trim))
}

/// The same, of these queues of interfaces and this one of interfaces that come up later.
fn marks_of(asks: bool, own: &[Queues], default: &str) -> Finding {
    let about = "marks of queues (ECN)";
    let each = own.iter().map(|queues| {
        let kinds: Vec<&str> = queues.kinds.iter().map(String::as_str).collect();
        format!("{} has {}", queues.interface, kinds.join(" and "))
    });
    let queues = each.chain([format!("new interfaces get {default}")]).collect::<Vec<_>>().join(", ");
    if !asks {
        let advice = "nodes learn of full queues by losses; a container or firewall may forbid IP_TOS or clear it";
        return note(about, format!("sockets cannot ask or do not see them; {queues}"), advice);
    }
    let marks = |kind: &str| MARKING_QUEUES.contains(&kind);
    let silent = own.iter().find(|queues| !queues.kinds.iter().all(|kind| marks(kind)));
    let how = match silent {
        Some(Queues { interface, .. }) => format!("`tc qdisc replace dev {interface} root fq_codel` as root"),
        None if !own.is_empty() || marks(default) => {
            return good(about, format!("sockets ask and see them; {queues}; those in use mark"));
        }
        None => "`sysctl -w net.core.default_qdisc=fq_codel` as root, for interfaces that come up later".to_string(),
    };
    let advice = format!("where this machine is the bottleneck a queue that marks loses fewer packets: {how}");
    note(about, format!("sockets ask and see them; {queues}; not all of them mark"), advice)
}

/// Sends itself a datagram that asks for marks; whether it arrives so.
fn codepoint_arrives() -> std::io::Result<bool> {
    let ect0 = vmmc_node::Ecn::Classic.codepoint().bits();
    let mut port = UdpPort::bind((Ipv4Addr::UNSPECIFIED, 0).into(), 1 << 16)?;
    port.set_class(ect0);
    port.send((Ipv4Addr::LOCALHOST, port.local_addr().port()).into(), b"ECN", 3)?;
    let (mut class, mut buffer) = (0, ReceiveBuffer::new());
    let end = Instant::now() + MARK_PATIENCE;
    while class == 0 && Instant::now() < end {
        buffer.receive(&mut port, 1, |_, came, datagram| class = if datagram == b"ECN" { came } else { class })?;
    }
    Ok(class == ect0)
}

/// How long a datagram to this machine itself is waited for.
const MARK_PATIENCE: Duration = Duration::from_millis(50);

fn userfaultfd() -> Finding {
    let about = "demand pinning";
    match PinSpace::of_process() {
        Ok(_) => good(about, "userfaultfd tells of unmapped memory"),
        Err(why) => note(about, why.to_string(), "without it pinned sources and targets are copied"),
    }
}

fn page_faults() -> Finding {
    let about = "page faults";
    let advice = "with userfaultfd (Linux 6.4) page faults of shared virtual memory take less time, and its pages no mappings each";
    match Faults::get().and_then(|faults| faults.offers()) {
        Err(why) => note(about, why.to_string(), advice),
        Ok(offers) => match offers.lacks() {
            Some(what) => note(about, format!("by signals only, for userfaultfd lacks {what}"), advice),
            None if offers.kernel_faults => good(about, "by userfaultfd, and system calls wait too"),
            None => good(about, "by userfaultfd; a system call on an absent page fails"),
        },
    }
}

fn io_uring() -> Finding {
    let about = "io_uring";
    match read_to_string("/proc/sys/kernel/io_uring_disabled").ok().as_deref().map(str::trim) {
        Some("0") => good(about, "allowed"),
        Some(_) => note(
            about,
            "forbidden by kernel.io_uring_disabled",
            "an alternative transport between nodes; VMMC does not use it yet",
        ),
        None => {
            note(about, "not known to this kernel", "an alternative transport between nodes; VMMC does not use it yet")
        }
    }
}

fn locked_memory() -> Finding {
    let about = "locked memory";
    match memory::locked_bytes_max() {
        None => good(about, "no limit"),
        Some(n) if n >= 1 << 30 => good(about, units::size(n)),
        Some(n) => note(
            about,
            units::size(n),
            "memory pinned on demand counts against it; what does not fit is copied: `ulimit -l`, or LimitMEMLOCK= of the service",
        ),
    }
}

fn open_files() -> Finding {
    let about = "open files";
    let advice =
        "a process needs one for each export and each mapped import: `ulimit -n 65536`, or LimitNOFILE= of the service";
    match memory::open_files_max() {
        None => good(about, "no limit"),
        Some(n) if n >= 16_384 => good(about, n.to_string()),
        Some(n) => note(about, n.to_string(), advice),
    }
}

fn huge_pages() -> Finding {
    huge_pages_of(&read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default())
}

/// What that file of the kernel's says. Nothing of VMMC asks for huge pages by `madvise`.
fn huge_pages_of(shmem: &str) -> Finding {
    let about = "huge pages";
    let mode = shmem.split(['[', ']']).nth(1);
    let found = mode.map_or("not in this kernel".to_string(), |mode| format!("shared memory: {mode}"));
    match mode {
        Some("within_size") => good(about, found),
        Some("always" | "force") => note(
            about,
            found,
            "each export, however small, takes 2 MiB: `echo within_size > /sys/kernel/mm/transparent_hugepage/shmem_enabled` as root",
        ),
        Some(_) => note(
            about,
            found,
            "fewer misses in large exports: `echo within_size > /sys/kernel/mm/transparent_hugepage/shmem_enabled` as root",
        ),
        None => note(about, found, "fewer misses in large exports; a kernel with CONFIG_TRANSPARENT_HUGEPAGE"),
    }
}

fn key_file() -> Finding {
    let about = "cluster key";
    let path = match vmmc_node::default_key_file() {
        Ok(path) => path,
        Err(e) => return note(about, e.to_string(), "nodes encrypt with it; name one with --key-file"),
    };
    let shown = path.display();
    match std::fs::metadata(&path) {
        Err(_) => good(about, format!("{shown} will be made by the first node")),
        Ok(m) if m.uid() != rustix::process::geteuid().as_raw() => {
            bad(about, format!("{shown} belongs to user {}", m.uid()), "copy the key to a file of your own")
        }
        Ok(m) if m.mode() & 0o077 != 0 => bad(
            about,
            format!("{shown} has mode {:04o}", m.mode() & 0o7777),
            format!("others may know the key, so nodes refuse it: `chmod 600 {shown}`, or make a new one"),
        ),
        Ok(_) => good(about, format!("{shown}, mode 0600")),
    }
}

fn nodes() -> Finding {
    let names: Vec<String> =
        vmmc_host::channel::listening_nodes().into_iter().map(|(uid, name)| format!("{name} (user {uid})")).collect();
    good("running nodes", if names.is_empty() { "none".to_string() } else { names.join(", ") })
}

/// Tools that `vmmc bench` compares with.
fn tools() -> Vec<Finding> {
    let of = [
        ("ucx", Peer::Ucx, What::Latency),
        ("libfabric", Peer::Libfabric, What::Latency),
        ("mpi", Peer::Mpi, What::Latency),
        ("iceoryx2", Peer::Iceoryx2, What::Latency),
        ("sunrpc", Peer::SunRpc, What::Rpc),
        ("grpc", Peer::Grpc, What::Rpc),
    ];
    of.into_iter()
        .filter_map(|(about, peer, what)| {
            Some(match external::find(peer, what)? {
                Ok(_) => good(about, "found"),
                Err(missing) => note(about, "not found", format!("a peer in `vmmc bench`: {}", missing.how)),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_well_if_each_interface_has_one_that_marks() {
        let queues = |interface: &str, kinds: &[&str]| Queues {
            interface: interface.into(),
            kinds: kinds.iter().map(|kind| kind.to_string()).collect(),
        };
        let (marks, drops) = (queues("eth0", &["fq_codel"]), queues("eth1", &["fq_codel", "pfifo_fast"]));
        let own = marks_of(true, std::slice::from_ref(&marks), "pfifo_fast");
        assert_eq!((own.state, own.advice.as_str()), (State::Good, ""));
        assert!(
            own.found.ends_with("eth0 has fq_codel, new interfaces get pfifo_fast; those in use mark"),
            "{}",
            own.found
        );
        let one_drops = marks_of(true, &[marks, drops], "fq_codel");
        assert!(one_drops.found.contains("eth1 has fq_codel and pfifo_fast"), "{}", one_drops.found);
        assert!(one_drops.state == State::Note && one_drops.advice.contains("dev eth1 root"), "{}", one_drops.advice);
        // Where the kernel does not tell of interfaces, what new ones get is all that is known.
        assert_eq!(marks_of(true, &[], "fq_codel").state, State::Good);
        assert!(marks_of(true, &[], "pfifo_fast").advice.contains("default_qdisc=fq_codel"));
        assert!(marks_of(false, &[], "fq_codel").advice.contains("IP_TOS"));
    }

    #[test]
    fn huge_pages_are_well_only_where_exports_have_some_and_small_ones_take_no_more() {
        let all = ["always", "within_size", "advise", "never", "deny", "force"];
        for mode in all {
            let file = all.map(|one| if one == mode { format!("[{one}]") } else { one.to_string() }).join(" ") + "\n";
            let finding = huge_pages_of(&file);
            assert_eq!(finding.found, format!("shared memory: {mode}"));
            let (state, why) = match mode {
                "within_size" => (State::Good, ""),
                "always" | "force" => (State::Note, "each export, however small, takes 2 MiB: "),
                _ => (State::Note, "fewer misses in large exports: "),
            };
            assert_eq!(finding.state, state, "{mode}");
            let advised = "`echo within_size > /sys/kernel/mm/transparent_hugepage/shmem_enabled` as root";
            let advice = if why.is_empty() { String::new() } else { format!("{why}{advised}") };
            assert_eq!(finding.advice, advice, "{mode}");
        }
        for file in ["", "always never\n"] {
            let finding = huge_pages_of(file);
            assert_eq!((finding.state, finding.found.as_str()), (State::Note, "not in this kernel"));
            assert!(finding.advice.contains("CONFIG_TRANSPARENT_HUGEPAGE"));
        }
    }
}
