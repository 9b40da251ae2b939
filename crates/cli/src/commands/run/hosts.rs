//! Where ranks go: the file of hosts, and how ranks are spread over nodes.
//!
//! Invariant: ranks are counted through the nodes in the order of the file; every rank has a place
//! or the command ends before anything is started.

use crate::failure::Failure;
use std::path::Path;
use vmmc_job::Place;

/// A node that may get ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Host {
    /// `address:port` or name; none: the launcher's own node.
    pub(super) node: Option<String>,
    /// Most ranks; none: an equal share.
    pub(super) slots: Option<u32>,
}

/// Reads a file of hosts.
pub(super) fn read(file: &Path) -> Result<Vec<Host>, Failure> {
    let text = std::fs::read_to_string(file).map_err(|e| Failure::Usage(format!("{}: {e}", file.display())))?;
    let lines =
        text.lines().enumerate().map(|(number, line)| (number + 1, line.split('#').next().unwrap_or("").trim()));
    let hosts: Result<Vec<Host>, Failure> = lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(number, line)| {
            parse(line).map_err(|why| Failure::Usage(format!("{}, line {number}: {why}", file.display())))
        })
        .collect();
    let hosts = hosts?;
    if hosts.is_empty() {
        return Err(Failure::Usage(format!("{} names no host; write one ADDR:PORT on a line", file.display())));
    }
    Ok(hosts)
}

fn parse(line: &str) -> Result<Host, String> {
    let mut words = line.split_ascii_whitespace();
    let node = words.next().filter(|word| *word != "local").map(str::to_string);
    let mut host = Host { node, slots: None };
    for word in words {
        let slots = word.strip_prefix("slots=").and_then(|n| n.parse().ok()).filter(|n| *n > 0);
        host.slots = Some(slots.ok_or_else(|| format!("{word:?} is not understood; write slots=N"))?);
    }
    Ok(host)
}

/// Spreads ranks over hosts.
pub(super) fn places(hosts: &[Host], ranks: Option<u32>) -> Result<Vec<Place>, Failure> {
    let slots: Option<u32> = hosts.iter().map(|host| host.slots).sum();
    let ranks = ranks.or(slots).unwrap_or(hosts.len() as u32);
    let counts = match slots {
        Some(slots) if slots < ranks => {
            return Err(Failure::Usage(format!(
                "{ranks} ranks do not fit the {slots} slots of the hosts; add slots, or start fewer"
            )));
        }
        Some(_) => fill(hosts, ranks),
        None => share(hosts.len() as u32, ranks),
    };
    let place = |(host, ranks): (&Host, u32)| Place { node: host.node.clone(), ranks };
    Ok(hosts.iter().zip(counts).map(place).filter(|place| place.ranks > 0).collect())
}

/// One host after the other.
fn fill(hosts: &[Host], mut ranks: u32) -> Vec<u32> {
    let take = |host: &Host| {
        let taken = ranks.min(host.slots.unwrap_or(0));
        ranks -= taken;
        taken
    };
    hosts.iter().map(take).collect()
}

/// Equal shares, the first ones one larger.
fn share(hosts: u32, ranks: u32) -> Vec<u32> {
    (0..hosts).map(|host| ranks / hosts + u32::from(host < ranks % hosts)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(node: &str, slots: Option<u32>) -> Host {
        Host { node: Some(node.into()), slots }
    }

    #[test]
    fn a_line_names_a_host_and_its_slots() {
        assert_eq!(parse("10.0.0.2:4791 slots=4"), Ok(host("10.0.0.2:4791", Some(4))));
        assert_eq!(parse("local"), Ok(Host::default()));
        assert!(parse("a slots=0").is_err() && parse("a cores=4").is_err());
    }

    #[test]
    fn ranks_are_shared_or_fill_slots_in_order() {
        let shared = places(&[host("a", None), host("b", None)], Some(5)).unwrap();
        assert_eq!(shared.iter().map(|p| p.ranks).collect::<Vec<_>>(), [3, 2]);
        let filled = places(&[host("a", Some(2)), host("b", Some(4))], Some(3)).unwrap();
        assert_eq!(filled.iter().map(|p| p.ranks).collect::<Vec<_>>(), [2, 1]);
        let all = places(&[host("a", Some(2)), host("b", Some(4))], None).unwrap();
        assert_eq!(all.iter().map(|p| p.ranks).sum::<u32>(), 6);
        assert!(places(&[host("a", Some(2))], Some(3)).is_err());
        assert_eq!(places(&[host("a", None), host("b", None)], Some(1)).unwrap().len(), 1);
    }
}
