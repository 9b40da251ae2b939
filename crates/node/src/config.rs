//! What a node is told at its start, and the same as command-line options.
//!
//! Invariant: `NodeConfig::from_args(config.to_args())` gives the configuration again, except for a
//! key given as bytes, which never appears on a command line.

use crate::limits::{LINGER_SECONDS_MAX, PEER_TIMEOUT_DEFAULT, PEER_TIMEOUT_MIN, PINNED_PAGES_MAX, SERVED_USERS_MAX};
use crate::log::LogLevel;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use vmmc_nic::{Ciphers, CongestionControl, Ecn};
use vmmc_utlb::CacheShape;
use vmmc_utlb::limits::{ENTRIES_MAX, PREFETCH_MAX, WAYS_MAX};

/// Name of the node that a user gets without asking for one.
pub const DEFAULT_NODE: &str = "default";

/// Where the cluster key comes from. Nodes of one cluster have the same key; it authenticates them
/// and encrypts what they send each other.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum KeySource {
    /// The user's key file, [`default_key_file`](crate::default_key_file); made on first use.
    #[default]
    Default,
    /// This file; made on first use.
    File(PathBuf),
    /// These bytes (tests and programs that keep keys elsewhere).
    Given([u8; 32]),
    /// No key: packets are neither encrypted nor authenticated. For trusted wires only.
    Plain,
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeySource::Default => f.write_str("Default"),
            KeySource::File(path) => write!(f, "File({})", path.display()),
            KeySource::Given(_) => f.write_str("Given(..)"),
            KeySource::Plain => f.write_str("Plain"),
        }
    }
}

/// Which users of the machine a node serves. Its own user and root are always served.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Serve {
    /// A node that root runs serves everybody. A node of another user serves nobody else.
    #[default]
    ByOwner,
    /// Nobody else, no matter which user runs it.
    Own,
    /// Everybody.
    Any,
    /// These users too.
    Users(Vec<u32>),
}

impl Serve {
    /// Whether a node of user `owner` serves user `uid`.
    pub fn allows(&self, owner: u32, uid: u32) -> bool {
        uid == owner
            || uid == 0
            || match self {
                Serve::ByOwner => owner == 0,
                Serve::Own => false,
                Serve::Any => true,
                Serve::Users(users) => users.contains(&uid),
            }
    }
}

impl std::fmt::Display for Serve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Serve::ByOwner => f.write_str("by-owner"),
            Serve::Own => f.write_str("own"),
            Serve::Any => f.write_str("any"),
            Serve::Users(users) => f.write_str(&users.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

impl std::str::FromStr for Serve {
    type Err = String;

    fn from_str(text: &str) -> Result<Serve, String> {
        match text {
            "by-owner" => return Ok(Serve::ByOwner),
            "own" => return Ok(Serve::Own),
            "any" => return Ok(Serve::Any),
            _ => {}
        }
        let users: Result<Vec<u32>, _> = text.split(',').map(|user| user.trim().parse()).collect();
        let users = users.map_err(|_| "give any, own, or user ids such as 1001,1002".to_string())?;
        if users.len() > SERVED_USERS_MAX {
            return Err(format!("give at most {SERVED_USERS_MAX} users, or any"));
        }
        Ok(Serve::Users(users))
    }
}

/// The node's cache of translations of pinned memory. [UTLB §3.2]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtlbConfig {
    /// Entries, ways, and whether indices are offset by process.
    pub cache: CacheShape,
    /// Entries of a process's table that one miss reads, 1 to
    /// [`PREFETCH_MAX`](vmmc_utlb::limits::PREFETCH_MAX).
    pub prefetch: u32,
    /// Second-level tables of a process, each for 2 MiB of addresses, that stay in memory; the
    /// others go to a file without a name. None: all stay.
    pub tables_max: Option<usize>,
}

impl Default for UtlbConfig {
    /// As shipped in the paper: 8 Ki entries, direct-mapped, with offset; one entry read at a miss.
    fn default() -> UtlbConfig {
        UtlbConfig { cache: CacheShape::PAPER, prefetch: 1, tables_max: None }
    }
}

/// Settings of a node, daemon or embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Name: 1 to 63 letters, digits, `.`, `_`, `-`; unique among the user's nodes on this machine.
    /// Processes of the machine look for it.
    pub name: String,
    /// Name that other nodes know this one by, unique in the cluster. None: see
    /// [`cluster_name`](Self::cluster_name).
    pub known_as: Option<String>,
    /// UDP addresses to listen on; port 0 lets the kernel choose. Empty: a port that the kernel
    /// chooses on all IPv4 addresses, so that the node can call others.
    pub listen: Vec<SocketAddr>,
    /// Peers known from the start; several addresses of one peer are several paths to it.
    pub peers: Vec<Vec<SocketAddr>>,
    /// The cluster key.
    pub key: KeySource,
    /// Which users of the machine may use the node.
    pub serve: Serve,
    /// A daemon ends when no process has been attached for this long. None: it stays.
    pub linger: Option<Duration>,
    /// A peer that owes an answer for this long is dead.
    pub peer_timeout: Duration,
    /// Pages of their own memory that all processes together may have pinned; none: a quarter of
    /// the machine's memory.
    pub pinned_pages_max: Option<u64>,
    /// The cache of translations.
    pub utlb: UtlbConfig,
    /// Whether a daemon takes SIGTERM and SIGINT of its process as the order to end cleanly.
    pub handle_signals: bool,
    /// Whether a daemon leaves the terminal of the process that started it.
    pub detach: bool,
    /// How much a daemon writes down; none: [`LogLevel::Info`].
    pub log_level: Option<LogLevel>,
    /// The file that it writes to. None: a daemon in the background takes
    /// [`default_log_file`](crate::default_log_file), one in the foreground standard error or the
    /// journal, and one that is a thread of some program none.
    pub log_file: Option<PathBuf>,
    /// The program `vmmc`, with which a daemon starts supervisors of jobs; none: it starts no
    /// processes for anybody. An embedded node never does.
    pub launcher: Option<PathBuf>,
    /// Whether a daemon in plain mode starts processes for other nodes too. Then everybody who can
    /// send it packets can have it start processes as its user.
    pub plain_run: bool,
    /// What packets may be sealed with, if there is a key. Both ends must agree.
    pub ciphers: Ciphers,
    /// How it decides what may be under way to another node, and how fast that goes out.
    pub congestion: CongestionControl,
    /// Whether it asks queues on the way to mark its packets, and what it does about marks.
    pub ecn: Ecn,
    /// In plain mode: whether other nodes are believed whose process asks. Then everybody who can
    /// send packets here is any user; else other nodes may only import what is exported to anyone.
    pub plain_trust_users: bool,
    /// Where a daemon shows its counters to Prometheus (`http://ADDR/metrics`), to everybody who
    /// can connect. None: nowhere.
    pub metrics: Option<SocketAddr>,
    /// Daemons with a key: whether stream sockets of programs under `vmmc exec` are upgraded when
    /// the other end is on another node that does so too.
    pub sockets_between: bool,
    /// Embedded: whether a thread of the node, the background poller, serves peers while no caller
    /// waits. It sleeps while there is nothing to do and while callers step the node.
    pub poller: bool,
}

impl Default for NodeConfig {
    fn default() -> Self {
        NodeConfig::new(DEFAULT_NODE)
    }
}

impl NodeConfig {
    /// The node of this name with default settings.
    pub fn new(name: &str) -> NodeConfig {
        NodeConfig {
            name: name.to_string(),
            known_as: None,
            listen: Vec::new(),
            peers: Vec::new(),
            key: KeySource::Default,
            serve: Serve::ByOwner,
            linger: None,
            peer_timeout: PEER_TIMEOUT_DEFAULT,
            pinned_pages_max: None,
            utlb: UtlbConfig::default(),
            handle_signals: false,
            detach: false,
            log_level: None,
            log_file: None,
            launcher: None,
            plain_run: false,
            plain_trust_users: false,
            ciphers: Ciphers::Any,
            congestion: CongestionControl::default(),
            ecn: Ecn::default(),
            metrics: None,
            sockets_between: true,
            poller: true,
        }
    }

    /// Is known to other nodes by this name.
    #[must_use]
    pub fn known_as(mut self, name: &str) -> NodeConfig {
        self.known_as = Some(name.to_string());
        self
    }

    /// The name that other nodes know this one by: what was given, else the node's own name; and
    /// since every machine may have a node called [`DEFAULT_NODE`], that of the machine for such a
    /// one.
    pub fn cluster_name(&self) -> String {
        match &self.known_as {
            Some(name) => name.clone(),
            None if self.name == DEFAULT_NODE => crate::host_name::host_name(),
            None => self.name.clone(),
        }
    }

    /// Also listens on this address.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> NodeConfig {
        self.listen.push(address);
        self
    }

    /// Also knows this peer.
    #[must_use]
    pub fn peer(mut self, addresses: &[SocketAddr]) -> NodeConfig {
        self.peers.push(addresses.to_vec());
        self
    }

    /// Takes the key from there.
    #[must_use]
    pub fn key(mut self, key: KeySource) -> NodeConfig {
        self.key = key;
        self
    }

    /// Believes other nodes, in plain mode too, whose process asks: for wires and machines where
    /// everybody who can send packets may be any user.
    #[must_use]
    pub fn plain_trust_users(mut self) -> NodeConfig {
        self.plain_trust_users = true;
        self
    }

    /// What its processes may pin together, pages.
    pub(crate) fn pinned_pages(&self) -> usize {
        let pages = self.pinned_pages_max.and_then(|pages| usize::try_from(pages).ok());
        pages.unwrap_or_else(crate::station::pinned_pages_default)
    }

    /// The options of `vmmc node run` and `vmmcd`: `--name N`, `--as N`, `--listen A`, `--peer
    /// A[,A]`, `--key-file F`, `--plain`, `--serve WHOM`, `--linger-s N`, `--peer-timeout-ms N`,
    /// `--pinned-pages N`, `--utlb-entries N`, `--utlb-ways N`, `--utlb-no-offset`,
    /// `--utlb-prefetch N`, `--utlb-tables N`, `--detach`, `--log-level LEVEL`, `--log-file FILE`,
    /// `--launcher FILE`, `--no-run`, `--plain-run`, `--plain-trust-users`, `--cipher C`,
    /// `--congestion C`, `--ecn E`, `--metrics A`, `--no-sockets-between`.
    pub fn from_args(args: impl IntoIterator<Item = String>) -> Result<NodeConfig, BadOption> {
        let mut config = NodeConfig { handle_signals: true, ..NodeConfig::default() };
        let mut args = args.into_iter();
        let UtlbConfig { cache, .. } = config.utlb;
        let (mut entries, mut ways, mut offset) = (cache.entries(), cache.ways(), cache.offset());
        while let Some(option) = args.next() {
            let mut value = || {
                // No name, address or file begins like an option, so one that does is the next
                // option.
                let value = args.next().filter(|value| !value.starts_with("--"));
                value.ok_or_else(|| BadOption::NoValue { option: option.clone() })
            };
            match option.as_str() {
                "--name" => config.name = value()?,
                "--as" => config.known_as = Some(value()?),
                "--listen" => config.listen.push(address(&option, &value()?)?),
                "--peer" => config.peers.push(addresses(&option, &value()?)?),
                "--key-file" => config.key = KeySource::File(PathBuf::from(value()?)),
                "--plain" => config.key = KeySource::Plain,
                "--serve" => {
                    let value = value()?;
                    config.serve = value.parse().map_err(|wanted| BadOption::BadValue {
                        option: option.clone(),
                        value,
                        wanted,
                    })?;
                }
                "--linger-s" => {
                    config.linger = Some(Duration::from_secs(number(&option, &value()?, 0, LINGER_SECONDS_MAX)?))
                }
                "--peer-timeout-ms" => {
                    let (least, most) = (PEER_TIMEOUT_MIN.as_millis() as u64, 1000 * LINGER_SECONDS_MAX);
                    config.peer_timeout = Duration::from_millis(number(&option, &value()?, least, most)?);
                }
                "--pinned-pages" => config.pinned_pages_max = Some(number(&option, &value()?, 1, PINNED_PAGES_MAX)?),
                "--utlb-entries" => entries = number(&option, &value()?, 1, ENTRIES_MAX as u64)? as usize,
                "--utlb-ways" => ways = number(&option, &value()?, 1, WAYS_MAX as u64)? as usize,
                "--utlb-no-offset" => offset = false,
                "--utlb-prefetch" => {
                    config.utlb.prefetch = number(&option, &value()?, 1, u64::from(PREFETCH_MAX))? as u32;
                }
                "--utlb-tables" => {
                    config.utlb.tables_max = Some(number(&option, &value()?, 1, PINNED_PAGES_MAX)? as usize);
                }
                "--detach" => config.detach = true,
                "--log-level" => {
                    let text = value()?;
                    let level = text.parse().map_err(|_| BadOption::BadValue {
                        option: option.clone(),
                        value: text,
                        wanted: "give off, error, warn, info or debug".into(),
                    });
                    config.log_level = Some(level?);
                }
                "--log-file" => config.log_file = Some(PathBuf::from(value()?)),
                "--launcher" => config.launcher = Some(PathBuf::from(value()?)),
                "--metrics" => config.metrics = Some(address(&option, &value()?)?),
                "--no-run" => config.launcher = None,
                "--plain-run" => config.plain_run = true,
                "--cipher" => {
                    let given = value()?;
                    config.ciphers = given.parse().map_err(|_| BadOption::BadValue {
                        option: option.clone(),
                        value: given,
                        wanted: "give aegis-128l, aes-256-gcm or any".into(),
                    })?;
                }
                "--congestion" => {
                    let given = value()?;
                    config.congestion = given.parse().map_err(|_| BadOption::BadValue {
                        option: option.clone(),
                        value: given,
                        wanted: "give bbr or cubic".into(),
                    })?;
                }
                "--ecn" => {
                    let given = value()?;
                    config.ecn = given.parse().map_err(|_| BadOption::BadValue {
                        option: option.clone(),
                        value: given,
                        wanted: "give off, classic or l4s".into(),
                    })?;
                }
                "--plain-trust-users" => config.plain_trust_users = true,
                "--no-sockets-between" => config.sockets_between = false,
                _ => return Err(BadOption::Unknown { option }),
            }
        }
        config.utlb.cache = CacheShape::new(entries, ways, offset)?;
        Ok(config)
    }

    /// The options that give this configuration.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec!["--name".to_string(), self.name.clone()];
        let mut push = |option: &str, value: String| args.extend([option.to_string(), value]);
        if let Some(name) = &self.known_as {
            push("--as", name.clone());
        }
        self.listen.iter().for_each(|a| push("--listen", a.to_string()));
        for peer in &self.peers {
            push("--peer", peer.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(","));
        }
        if let KeySource::File(path) = &self.key {
            push("--key-file", path.display().to_string());
        }
        if self.serve != Serve::ByOwner {
            push("--serve", self.serve.to_string());
        }
        if let Some(level) = self.log_level {
            push("--log-level", level.name().to_string());
        }
        if let Some(path) = &self.log_file {
            push("--log-file", path.display().to_string());
        }
        if let Some(program) = &self.launcher {
            push("--launcher", program.display().to_string());
        }
        if let Some(address) = &self.metrics {
            push("--metrics", address.to_string());
        }
        if let Some(linger) = self.linger {
            push("--linger-s", linger.as_secs().to_string());
        }
        push("--peer-timeout-ms", self.peer_timeout.as_millis().to_string());
        if let Some(pages) = self.pinned_pages_max {
            args.extend(["--pinned-pages".to_string(), pages.to_string()]);
        }
        let UtlbConfig { cache, prefetch, tables_max } = self.utlb;
        for (option, value, default) in [
            ("--utlb-entries", cache.entries(), CacheShape::PAPER.entries()),
            ("--utlb-ways", cache.ways(), CacheShape::PAPER.ways()),
            ("--utlb-prefetch", prefetch as usize, 1),
        ] {
            if value != default {
                args.extend([option.to_string(), value.to_string()]);
            }
        }
        if let Some(tables) = tables_max {
            args.extend(["--utlb-tables".to_string(), tables.to_string()]);
        }
        args.extend((!cache.offset()).then(|| "--utlb-no-offset".to_string()));
        args.extend((self.key == KeySource::Plain).then(|| "--plain".to_string()));
        args.extend(self.detach.then(|| "--detach".to_string()));
        args.extend(self.launcher.is_none().then(|| "--no-run".to_string()));
        args.extend(self.plain_run.then(|| "--plain-run".to_string()));
        if self.ciphers != Ciphers::Any {
            args.extend(["--cipher".to_string(), self.ciphers.to_string()]);
        }
        if self.congestion != CongestionControl::default() {
            args.extend(["--congestion".to_string(), self.congestion.to_string()]);
        }
        if self.ecn != Ecn::default() {
            args.extend(["--ecn".to_string(), self.ecn.to_string()]);
        }
        args.extend(self.plain_trust_users.then(|| "--plain-trust-users".to_string()));
        args.extend((!self.sockets_between).then(|| "--no-sockets-between".to_string()));
        args
    }
}

/// An option that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOption {
    /// Not an option of ours.
    #[error(
        "unknown option {option:?}; there are --name, --as, --listen, --peer, --key-file, --plain, --serve, --linger-s, --peer-timeout-ms, --pinned-pages, --utlb-entries, --utlb-ways, --utlb-no-offset, --utlb-prefetch, --utlb-tables, --detach, --log-level, --log-file, --launcher, --no-run, --plain-run, --plain-trust-users, --cipher, --congestion, --ecn, --metrics, --no-sockets-between"
    )]
    Unknown {
        /// What was given.
        option: String,
    },
    /// No cache of translations can have these entries and ways.
    #[error("--utlb-entries, --utlb-ways: {0}")]
    Cache(#[from] vmmc_utlb::ShapeError),
    /// Its value is missing.
    #[error("{option} needs a value")]
    NoValue {
        /// Which.
        option: String,
    },
    /// Its value makes no sense.
    #[error("{option} {value:?}: {wanted}")]
    BadValue {
        /// Which.
        option: String,
        /// What was given.
        value: String,
        /// What it takes.
        wanted: String,
    },
}

fn address(option: &str, value: &str) -> Result<SocketAddr, BadOption> {
    value.parse().map_err(|_| BadOption::BadValue {
        option: option.into(),
        value: value.into(),
        wanted: "give an address and a port, such as 192.168.0.7:4000 or [::1]:4000".into(),
    })
}

fn addresses(option: &str, value: &str) -> Result<Vec<SocketAddr>, BadOption> {
    value.split(',').map(|one| address(option, one.trim())).collect()
}

fn number(option: &str, value: &str, least: u64, most: u64) -> Result<u64, BadOption> {
    value.parse().ok().filter(|n| (least..=most).contains(n)).ok_or_else(|| BadOption::BadValue {
        option: option.into(),
        value: value.into(),
        wanted: format!("give a number from {least} to {most}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_command_line() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut config = NodeConfig::new("a").listen(address(1)).peer(&[address(2), address(3)]).key(KeySource::Plain);
        config.linger = Some(Duration::from_secs(9));
        config.handle_signals = true;
        config.pinned_pages_max = Some(77);
        config.known_as = Some("alpha".into());
        (config.log_level, config.log_file) = (Some(LogLevel::Warn), Some("/tmp/log".into()));
        config.sockets_between = false;
        config.plain_trust_users = true;
        config.ciphers = Ciphers::Only(vmmc_nic::Cipher::Aes256Gcm);
        config.congestion = CongestionControl::Cubic;
        config.ecn = Ecn::L4s;
        config.serve = Serve::Users(vec![1001, 1002]);
        config.utlb = UtlbConfig {
            cache: CacheShape::new(1024, 4, false).expect("powers of two"),
            prefetch: 16,
            tables_max: Some(3),
        };
        assert_eq!(NodeConfig::from_args(config.to_args()), Ok(config));
    }

    #[test]
    fn a_node_serves_its_own_user_and_root_and_whom_it_is_told() {
        let (root, owner, other) = (0, 1000, 1001);
        for (serve, of_user, of_root) in [
            (Serve::ByOwner, false, true),
            (Serve::Own, false, false),
            (Serve::Any, true, true),
            (Serve::Users(vec![other]), true, true),
            (Serve::Users(vec![1002]), false, false),
        ] {
            assert!(serve.allows(owner, owner) && serve.allows(owner, root) && serve.allows(root, root));
            assert_eq!((serve.allows(owner, other), serve.allows(root, other)), (of_user, of_root), "{serve}");
            assert_eq!(serve.to_string().parse(), Ok(serve));
        }
    }

    #[test]
    fn a_node_without_a_name_of_its_own_is_known_by_that_of_its_host() {
        assert_eq!(NodeConfig::default().cluster_name(), crate::host_name::host_name());
        assert_eq!(NodeConfig::new("a").cluster_name(), "a");
        assert_eq!(NodeConfig::default().known_as("b").cluster_name(), "b");
    }

    #[test]
    fn options_without_sense_are_named() {
        let parse = |args: &[&str]| NodeConfig::from_args(args.iter().map(|a| a.to_string())).unwrap_err();
        assert_eq!(parse(&["--nmae", "x"]), BadOption::Unknown { option: "--nmae".into() });
        assert_eq!(parse(&["--name"]), BadOption::NoValue { option: "--name".into() });
        assert_eq!(parse(&["--name", "--plain"]), BadOption::NoValue { option: "--name".into() });
        assert!(parse(&["--listen", "localhost"]).to_string().contains("an address and a port"));
        assert!(parse(&["--utlb-entries", "1000"]).to_string().contains("a power of two"));
        assert!(parse(&["--utlb-prefetch", "513"]).to_string().contains("a number from 1 to 512"));
        assert!(parse(&["--serve", "alice"]).to_string().contains("user ids such as"));
        assert!(parse(&["--linger-s", "-1"]).to_string().contains("a number from 0"));
    }
}
