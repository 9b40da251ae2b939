//! Hosts and the hub between them, and a daemon on each.
//!
//! Invariant: a thread that enters a namespace stays there until it ends.

use super::*;

/// The namespaces, joined by a bridge in the hub.
pub(crate) struct Wire {
    pub(crate) tag: String,
    pub(crate) folder: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Wire {
    /// None, with the reason printed, where it cannot be. One at a time: each takes all there is of
    /// the machine.
    pub(crate) fn new() -> Option<Wire> {
        static TURN: Mutex<()> = Mutex::new(());
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !can_be_others() {
            return None;
        }
        let turn = TURN.lock().unwrap_or_else(|failed| failed.into_inner());
        let tag = format!("vh{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(&tag);
        std::fs::create_dir_all(&folder).unwrap();
        let wire = Wire { tag, folder, _turn: turn };
        wire.make().map_err(|why| println!("SKIP a hostile peer in a network namespace: {why}")).ok().map(|()| wire)
    }

    pub(crate) fn namespace(&self, host: usize) -> String {
        format!("{}-{host}", self.tag)
    }

    pub(crate) fn make(&self) -> Result<(), String> {
        let hub = self.namespace(HUB);
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "hub", "type", "bridge"])?;
        ip(&["-n", &hub, "addr", "add", &format!("{}/16", address(HUB).ip()), "dev", "hub"])?;
        ip(&["-n", &hub, "link", "set", "hub", "up"])?;
        ip(&["-n", &hub, "link", "set", "lo", "up"])?;
        for host in [NEAR, FAR] {
            let (inner, port) = (self.namespace(host), format!("port{host}"));
            ip(&["netns", "add", &inner])?;
            ip(&["-n", &inner, "link", "add", "eth0", "type", "veth", "peer", "name", &port, "netns", &hub])?;
            ip(&["-n", &hub, "link", "set", &port, "master", "hub", "up"])?;
            ip(&["-n", &inner, "addr", "add", &format!("{}/16", address(host).ip()), "dev", "eth0"])?;
            ip(&["-n", &inner, "link", "set", "eth0", "up"])?;
            ip(&["-n", &inner, "link", "set", "lo", "up"])?;
            // So that there is a way to addresses of elsewhere; it ends in the hub.
            ip(&["-n", &inner, "route", "add", "default", "via", &address(HUB).ip().to_string()])?;
        }
        Ok(())
    }

    /// Moves the calling thread to a host, for good.
    pub(crate) fn enter(&self, host: usize) {
        let space = std::fs::File::open(format!("/run/netns/{}", self.namespace(host))).unwrap();
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Runs this on a host.
    pub(crate) fn on<T: Send>(&self, host: usize, run: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter(host);
                run()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub(crate) fn key(&self, key: Option<u8>) -> KeySource {
        let Some(byte) = key else { return KeySource::Plain };
        let path = self.folder.join(format!("key-{byte:x}"));
        std::fs::write(&path, format!("{byte:02x}").repeat(32)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        KeySource::File(path)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for host in [HUB, NEAR, FAR] {
            let _ = ip(&["netns", "del", &self.namespace(host)]);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A daemon of root's on a host.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) host: usize,
    pub(crate) daemon: Watched,
}

impl Node {
    pub(crate) fn start(wire: &Wire, host: usize, at: SocketAddrV4, key: Option<u8>) -> Node {
        let name = format!("{}-{}-{}", wire.tag, host, at.port());
        let mut config = NodeConfig::new(&name).listen(at.into()).key(wire.key(key));
        config.plain_trust_users = key.is_none();
        config.log_file = Some(wire.folder.join(format!("{name}.log")));
        config.log_level = Some(LogLevel::Debug);
        let daemon = wire.on(host, || Watched::start(VMMCD, config.to_args(), None));
        let node = Node { name, host, daemon };
        raw::wait(&nap, || node.try_connect(wire, 0));
        node
    }

    pub(crate) fn try_connect(&self, wire: &Wire, uid: u32) -> Option<Channel> {
        wire.on(self.host, || {
            become_user(uid);
            Channel::try_connect(&node_socket_name(0, &self.name)).ok()
        })
    }

    /// A process of this user, which the calling thread is.
    pub(crate) fn attach(&self, channel: Channel) -> Raw {
        Raw::over(channel, Rc::new(nap))
    }
}

/// Between two polls.
pub(crate) fn nap() {
    std::thread::sleep(Duration::from_micros(100));
}
