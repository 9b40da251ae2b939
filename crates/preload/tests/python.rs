//! CPython's own tests of its network modules, with and without `vmmc exec`: the same result for each of them.
//!
//! Invariant: no test may pass without and fail with. Tests that need what this machine lacks are skipped by CPython itself, in both runs.

mod common;

use common::{By, World, finish, have, skip};
use std::collections::BTreeMap;

/// Modules and classes that use connected stream sockets and together take seconds, not minutes.
const TESTS: &[&str] = &[
    "test.test_socket.BasicTCPTest",
    "test.test_socket.BasicTCPTest2",
    "test.test_socket.NonBlockingTCPTests",
    "test.test_socket.FileObjectClassTestCase",
    "test.test_socket.UnbufferedFileObjectClassTestCase",
    "test.test_socket.LineBufferedFileObjectClassTestCase",
    "test.test_socket.SmallBufferedFileObjectClassTestCase",
    "test.test_socket.SendmsgTCPTest",
    "test.test_socket.RecvmsgTCPTest",
    "test.test_socket.RecvmsgIntoTCPTest",
    "test.test_socket.BufferIOTest",
    "test.test_socket.TCPTimeoutTest",
    "test.test_socket.TCPCloserTest",
    "test.test_socket.NetworkConnectionBehaviourTest",
    "test.test_socket.ContextManagersTest",
    "test.test_socket.InheritanceTest",
    "test.test_socket.NonblockConstantTest",
    "test.test_socket.SendfileUsingSendTest",
    "test.test_socket.SendfileUsingSendfileTest",
    "test.test_selectors",
    "test.test_socketserver",
    "test.test_httplib",
    "test.test_poll",
    "test.test_select",
];

/// Name and result of each test.
fn results(world: &World, by: By) -> BTreeMap<String, String> {
    let mut command = world.command(by, &[&["python3", "-m", "unittest", "-v"], TESTS].concat());
    command.current_dir(&world.folder);
    let output = finish(command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut all = BTreeMap::new();
    let mut name = String::new();
    for line in said.lines() {
        // A description may lie between the name and its result.
        if let Some((head, _)) = line.split_once(" (test.") {
            name = format!("{head} {}", line.split(['(', ')']).nth(1).unwrap_or_default());
        }
        if let Some((_, result)) = line.rsplit_once("... ") {
            all.insert(name.clone(), result.split(' ').next().unwrap_or_default().to_string());
        }
    }
    assert!(said.contains("\nRan "), "{by:?}: {said}");
    all
}

#[test]
fn cpython_tests_end_the_same() {
    if !have("python3", "python3") {
        return;
    }
    let world = World::new();
    let present = world.command(By::Itself, &["python3", "-c", "import test.test_socket"]).output();
    if !present.is_ok_and(|output| output.status.success()) {
        return skip("CPython's own tests are not installed; `apt-get install libpython3-testsuite` brings them");
    }
    let (without, with) = (results(&world, By::Itself), results(&world, By::Exec));
    assert!(without.len() > 150, "only {} tests were found", without.len());
    let worse: Vec<_> = without
        .iter()
        .filter(|(name, result)| matches!(result.as_str(), "ok" | "skipped") && with.get(*name) != Some(result))
        .map(|(name, result)| format!("{name}: {result} without, {:?} with", with.get(name)))
        .collect();
    println!("{} tests of CPython compared", without.len());
    assert!(worse.is_empty(), "{worse:#?}");
}

#[test]
fn more_threads_than_bells_wait_with_timeouts() {
    if !have("python3", "python3") {
        return;
    }
    const SCRIPT: &str = r"
import select, socket, threading
listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(100)
failed = []
def both(c, wait):
    # Sockets with timeouts wait in poll; the others for two descriptors at a time.
    if wait == 'timeout': c.settimeout(20)
    else: other = socket.socketpair()
    def receive(n):
        got = b''
        while len(got) < n:
            if wait == 'select' and not select.select([c, other[0]], [], [], 20)[0]: raise TimeoutError('select')
            piece = c.recv(n - len(got))
            if not piece: raise EOFError()
            got += piece
        return got
    return receive
def serve(c, wait):
    try:
        receive = both(c, wait)
        for n in range(1, 150): c.sendall(receive(n))
    except Exception as e: failed.append(('server', wait, repr(e)))
def ask(wait):
    try:
        c = socket.create_connection(listener.getsockname()); c.sendall(wait[:1].encode()); receive = both(c, wait)
        for n in range(1, 150):
            c.sendall(b'x' * n)
            assert receive(n) == b'x' * n
    except Exception as e: failed.append(('client', wait, repr(e)))
clients = [threading.Thread(target=ask, args=(w,)) for w in ['timeout', 'select'] * 15]
for t in clients: t.start()
servers = []
for _ in clients:
    c = listener.accept()[0]
    servers.append(threading.Thread(target=serve, args=(c, {b't': 'timeout', b's': 'select'}[c.recv(1)])))
    servers[-1].start()
for t in clients + servers: t.join()
print(failed or 'fine')
";
    let world = World::new();
    assert_eq!(world.run(By::Exec, &["python3", "-c", SCRIPT]), "fine\n");
}

/// Both ends of connections that another program goes on with; the words are how it is started.
const HANDED_ON: &str = r"
import os, socket, sys, threading
SELF = sys.argv[1]
# Enough for an upgrade, also on a busy machine.
TURNS = 500
def exactly(c, n):
    got = b''
    while len(got) < n:
        piece = c.recv(n - len(got))
        if not piece: raise EOFError(got)
        got += piece
    return got
def go_on(c):
    assert exactly(c, 11) == b'from before', 'lost'
    c.sendall(b'found')
    while True:
        got = c.recv(1000)
        if not got: break
        c.sendall(got)
if SELF == 'child':
    go_on(socket.socket(fileno=int(sys.argv[2])))
    sys.exit(0)
words = lambda fd: [sys.executable, sys.argv[2], 'child', str(fd)]
def start(how, c):
    fd = c.fileno()
    os.set_inheritable(fd, True)
    if how == 'exec' or how == 'failing':
        if os.fork() == 0:
            if how == 'failing':
                try: os.execv('/no/such/program', ['x'])
                except OSError: go_on(c)
                os._exit(0)
            os.execv(sys.executable, words(fd))
    elif how == 'spawn':
        os.posix_spawn(sys.executable, words(fd), os.environ)
    elif how == 'vfork':
        import subprocess
        subprocess.Popen(words(fd), close_fds=False)
    c.close()
def server(listener, how):
    c = listener.accept()[0]
    for _ in range(TURNS): c.sendall(exactly(c, 5))
    # Unread, and in the ring, when the other program starts.
    c.recv(11, socket.MSG_PEEK | socket.MSG_WAITALL)
    start(how, c)
for how in ['exec', 'failing', 'spawn', 'vfork']:
    listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(1)
    thread = threading.Thread(target=server, args=(listener, how)); thread.start()
    c = socket.create_connection(listener.getsockname())
    c.settimeout(30)
    for _ in range(TURNS):
        c.sendall(b'hello'); exactly(c, 5)
    c.sendall(b'from before')
    assert exactly(c, 5) == b'found', how
    for n in range(1, 100):
        c.sendall(b'y' * n); assert exactly(c, n) == b'y' * n, how
    c.shutdown(socket.SHUT_WR)
    assert c.recv(1) == b'', how
    thread.join(); c.close()
print('fine')
";

#[test]
fn connections_survive_exec_and_spawn() {
    if !have("python3", "python3") {
        return;
    }
    let world = World::new();
    let script = world.folder.join("handed_on.py");
    std::fs::write(&script, HANDED_ON).expect("the folder can be written");
    let script = script.to_str().expect("ASCII");
    assert_eq!(world.run(By::Itself, &["python3", script, "both", script]), "fine\n");
    let output = finish(world.verbose(&["python3", script, "both", script]));
    assert_eq!(common::text(&output), "fine\n", "{}", String::from_utf8_lossy(&output.stderr));
    let report = String::from_utf8_lossy(&output.stderr);
    // The first program, and three others that it started: the fourth could not be.
    let upgraded = report.lines().filter(|line| line.ends_with("connections upgraded")).count();
    assert!(upgraded >= 3, "the other programs used no ring: {report}");
}

#[test]
fn connections_of_a_program_that_is_not_ours_go_back_to_the_kernel() {
    if !have("python3", "python3") {
        return;
    }
    const SCRIPT: &str = r#"
import os, socket, sys, threading
child = """
import socket, sys
c = socket.socket(fileno=int(sys.argv[1]))
while True:
    got = c.recv(1000)
    if not got: break
    c.sendall(got)
"""
def server(listener):
    c = listener.accept()[0]
    for _ in range(60): c.sendall(c.recv(5, socket.MSG_WAITALL))
    os.set_inheritable(c.fileno(), True)
    # Without the environment the library is not loaded.
    os.posix_spawn(sys.executable, [sys.executable, '-c', child, str(c.fileno())], {})
    c.close()
listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(1)
thread = threading.Thread(target=server, args=(listener,)); thread.start()
c = socket.create_connection(listener.getsockname())
c.settimeout(30)
for n in [5] * 60 + list(range(1, 100)):
    c.sendall(b'z' * n)
    got = b''
    while len(got) < n: got += c.recv(n - len(got))
c.shutdown(socket.SHUT_WR)
assert c.recv(1) == b''
thread.join()
print('fine')
"#;
    let world = World::new();
    assert_eq!(world.run(By::Itself, &["python3", "-c", SCRIPT]), "fine\n");
    let output = finish(world.verbose(&["python3", "-c", SCRIPT]));
    let report = String::from_utf8_lossy(&output.stderr);
    assert_eq!(common::text(&output), "fine\n", "{report}");
    assert!(report.contains("inherited by another program"), "{report}");
}

/// What is done rarely, with an upgraded connection: the output is the kernel's own.
const RARE: &str = r"
import array, fcntl, os, select, socket, threading, time
SIOCATMARK = 0x8905
def exactly(c, n):
    got = b''
    while len(got) < n:
        piece = c.recv(n - len(got))
        if not piece: raise EOFError(got)
        got += piece
    return got
def pair():
    listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(1)
    a = socket.create_connection(listener.getsockname()); b = listener.accept()[0]
    for c in (a, b): c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(300):
        a.sendall(b'hello'); exactly(b, 5); b.sendall(b'hello'); exactly(a, 5)
    return a, b
def at_mark(c):
    word = array.array('i', [0]); fcntl.ioctl(c.fileno(), SIOCATMARK, word); return word[0]
def urgent(inline):
    a, b = pair()
    if inline: b.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    a.sendall(b'abc'); a.send(b'X', socket.MSG_OOB); a.sendall(b'def')
    wait = select.poll(); wait.register(b, select.POLLPRI)
    print('urgent', inline, bool(wait.poll(20000)[0][1] & select.POLLPRI), at_mark(b))
    print(b.recv(3), at_mark(b))
    if not inline: print(b.recv(1, socket.MSG_OOB))
    print(exactly(b, 4 if inline else 3), at_mark(b))
    b.sendall(b'back'); print(exactly(a, 4))
def exclusive():
    a, b = pair()
    sets = [select.epoll(), select.epoll()]
    for s in sets: s.register(b, select.EPOLLIN | select.EPOLLEXCLUSIVE)
    for n in range(5):
        a.sendall(b'one'); heard = []
        def wait(s): heard.extend(s.poll(1))
        threads = [threading.Thread(target=wait, args=(s,)) for s in sets]
        for t in threads: t.start()
        for t in threads: t.join()
        print('exclusive', len(heard) >= 1, {e for _, e in heard}, exactly(b, 3))
    try: sets[0].modify(b, select.EPOLLIN); print('modified')
    except OSError as e: print('refused', e.errno)
def nested(unread, edge):
    a, b = pair()
    inner, outer = select.epoll(), select.epoll()
    inner.register(b, select.EPOLLIN | (select.EPOLLET if edge else 0))
    if unread: a.sendall(b'early'); time.sleep(0.05)
    outer.register(inner, select.EPOLLIN)
    for n in range(20):
        if n or not unread: threading.Timer(0.002, a.sendall, (b'later',)).start()
        got = b''
        while len(got) < 5:
            events = outer.poll(10)
            if not events: raise TimeoutError(('nested', unread, edge, n, got))
            for fd, _ in inner.poll(0):
                assert fd == b.fileno()
                # Level-triggered ones are told again about what is left.
                while True:
                    try: got += b.recv(2 if not edge else 100, socket.MSG_DONTWAIT)
                    except BlockingIOError: break
                    if not edge: break
        assert got in (b'early', b'later'), got
    wait = select.poll(); wait.register(inner, select.POLLIN)
    print('nested', unread, edge, wait.poll(0) == [] or inner.poll(0) == [])
urgent(False); urgent(True); exclusive()
for unread in (False, True):
    for edge in (False, True): nested(unread, edge)
";

#[test]
fn urgent_data_exclusive_and_nested_sets_are_as_without() {
    if !have("python3", "python3") {
        return;
    }
    let world = World::new();
    let without = world.run(By::Itself, &["python3", "-c", RARE]);
    assert!(without.ends_with("nested True True True\n"), "{without}");
    assert_eq!(world.run(By::Exec, &["python3", "-c", RARE]), without);
}
