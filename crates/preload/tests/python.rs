//! CPython's own tests of its network modules, with and without `vmmc exec`: the same result for
//! each of them.
//!
//! Invariant: no test may pass without and fail with. Tests that need what this machine lacks are
//! skipped by CPython itself, in both runs.

mod common;

use common::{AT_ONCE, By, World, finish, finish_within, have, skip, text};
use std::collections::BTreeMap;
use std::time::Duration;

/// Modules that end in seconds, whole.
const QUICK_MODULES: &[&str] =
    &["test_selectors", "test_httplib", "test_socketserver", "test_poll", "test_select", "test_epoll"];

/// Of the others what uses connected stream sockets and takes seconds.
const CLASSES: &[&str] = &[
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
    "test.test_asyncio.test_streams",
    "test.test_asyncio.test_server",
    "test.test_asyncio.test_sock_lowlevel",
    "test.test_asyncio.test_buffered_proto",
    "test.test_ssl.SimpleBackgroundTests",
];

/// Modules that take longer, whole: compared when this variable is set.
const ALL_VARIABLE: &str = "VMMC_TEST_CPYTHON";
const SLOW_MODULES: &[&str] = &["test_socket", "test_ssl", "test_asyncio", "test_multiprocessing_fork"];

/// Tests that are not compared: module, name, and why.
const EXCLUDED: &[(&str, &str, &str)] = &[(
    "test_socket",
    "test.test_socket.ThreadedVSOCKSocketStreamTest.testStream",
    "it waits for ever on a virtual machine whose host connects no VSOCK addresses",
)];

/// Longest run of a module.
const MODULES_PATIENCE: Duration = Duration::from_secs(1800);
/// After so many seconds CPython's runner says where a module hangs, and ends: of the module, not
/// of a test, so it must suffice for the longest one on a busy machine.
const MODULE_SECONDS: &str = "1500";

/// Name and result of each test; none if the runner did not come to its end.
fn results(world: &World, by: By, words: &[&str]) -> Option<BTreeMap<String, String>> {
    let mut command = world.command(by, words);
    command.current_dir(&world.folder);
    let output = finish_within(MODULES_PATIENCE, command);
    // One runner prints on standard error, the other one on standard output.
    let said = format!("{}\n{}", text(&output), String::from_utf8_lossy(&output.stderr));
    let mut all = BTreeMap::new();
    let mut name = String::new();
    for line in said.lines() {
        // A description, and what the test prints, may lie between the name and its result.
        if let Some((head, _)) = line.split_once(" (test.") {
            name = format!("{head} {}", line.split(['(', ')']).nth(1).unwrap_or_default());
        }
        let result = line.rsplit_once("... ").map_or(line, |(_, result)| result).split(' ').next().unwrap_or_default();
        if ["ok", "skipped", "FAIL", "ERROR", "expected"].contains(&result.trim_end_matches(':')) && !name.is_empty() {
            all.entry(name.clone()).or_insert_with(|| result.to_string());
        }
    }
    let ended = said.contains("\nRan ");
    if !ended {
        println!("{by:?}: {said}");
    }
    ended.then_some(all)
}

/// No test is worse with than without.
fn compare(world: &World, words: &[&str], least: usize) {
    let Some(without) = results(world, By::Itself, words) else {
        return skip("these tests do not end on this machine without us either; what they printed is above");
    };
    assert!(without.len() > least, "only {} tests were found", without.len());
    for by in [By::Exec, AT_ONCE] {
        let with = results(world, by, words).expect("the tests end, as they do without");
        let worse: Vec<_> = without
            .iter()
            .filter(|(name, result)| matches!(result.as_str(), "ok" | "skipped") && with.get(*name) != Some(result))
            .map(|(name, result)| format!("{name}: {result} without, {:?} with", with.get(name)))
            .collect();
        println!("{by:?}: {} tests of CPython compared", without.len());
        assert!(worse.is_empty(), "{by:?}: {worse:#?}");
    }
}

/// The Pythons of this machine that bring their own tests: the one in the search path and, if it is
/// another one, the distribution's.
fn pythons(world: &World) -> Vec<&'static str> {
    let mut found: Vec<(&str, String)> = Vec::new();
    for python in ["python3", "/usr/bin/python3"] {
        if !has_module(world, python, "test_socket") {
            println!(
                "SKIP {python}: it, or its own tests, are not installed; `apt-get install libpython3.11-testsuite` brings Debian's"
            );
            continue;
        }
        let who = "import os, sys; print(os.path.realpath(sys.executable), sys.version)";
        let who = world.run(By::Itself, &[python, "-c", who]);
        if found.iter().all(|(_, known)| *known != who) {
            println!("{python}: {}", who.trim_end());
            found.push((python, who));
        }
    }
    found.into_iter().map(|(python, _)| python).collect()
}

fn has_module(world: &World, python: &str, module: &str) -> bool {
    let import = format!("import importlib.util as u, sys; sys.exit(u.find_spec('test.{module}') is None)");
    world.command(By::Itself, &[python, "-c", &import]).output().is_ok_and(|output| output.status.success())
}

fn compare_modules(world: &World, python: &str, modules: &[&str]) {
    for module in modules {
        if !has_module(world, python, module) {
            println!("SKIP {module}: this Python does not bring it");
            continue;
        }
        println!("{module}");
        let mut words = vec![python, "-m", "test", "-u", "network", "--timeout", MODULE_SECONDS];
        let excluded: Vec<_> = EXCLUDED.iter().filter(|(of, ..)| of == module).collect();
        for (_, name, why) in &excluded {
            println!("SKIP {name}: {why}");
            words.extend(["-i", name]);
        }
        words.extend(["-v", module]);
        compare(world, &words, 5);
        println!("{} tests excluded", excluded.len());
    }
}

#[test]
fn cpython_tests_end_the_same() {
    let world = World::new();
    for python in pythons(&world) {
        let (present, missing): (Vec<&str>, Vec<&str>) = CLASSES.iter().partition(|test| {
            let module = test.trim_start_matches("test.").split('.').next().unwrap_or_default();
            has_module(&world, python, module)
        });
        missing.iter().for_each(|test| println!("SKIP {test}: this Python does not bring it"));
        compare(&world, &[&[python, "-m", "unittest", "-v"][..], &present].concat(), 150);
    }
}

#[test]
fn quick_modules_of_cpython_end_the_same() {
    let world = World::new();
    pythons(&world).iter().for_each(|python| compare_modules(&world, python, QUICK_MODULES));
}

#[test]
fn slow_modules_of_cpython_end_the_same() {
    if std::env::var_os(ALL_VARIABLE).is_none() {
        return skip(&format!("these modules take some ten minutes; {ALL_VARIABLE}=1 asks for them"));
    }
    let world = World::new();
    pythons(&world).iter().for_each(|python| compare_modules(&world, python, SLOW_MODULES));
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

/// What several scripts begin with: an exact receive, and turns of two ends until their connection
/// is in the ring, however busy the machine and its node are.
const EXACTLY: &str = r"
import ctypes, os, socket, time
def exactly(c, n):
    got = b''
    while len(got) < n:
        piece = c.recv(n - len(got))
        if not piece: raise EOFError(got)
        got += piece
    return got
def upgraded(c):
    # Room of the ring to the peer is only lent where that ring is in use.
    library, room = ctypes.CDLL(None), ctypes.c_void_p()
    if not hasattr(library, 'vmmc_sockets_reserve_v1'): return True
    library.vmmc_sockets_reserve_v1.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
    lent = library.vmmc_sockets_reserve_v1(c.fileno(), 1, ctypes.byref(room)) > 0
    if lent: library.vmmc_sockets_commit_v1(c.fileno(), ctypes.c_size_t(0))
    return lent
def answer_turns(c):
    while exactly(c, 5) != b'ready': c.sendall(b'ready' if upgraded(c) else b'hello')
def take_turns(c):
    until, more = time.monotonic() + 20, 100
    while more:
        c.sendall(b'hello')
        if exactly(c, 5) == b'ready' and upgraded(c): more -= 1
        assert time.monotonic() < until, 'not upgraded'
    c.sendall(b'ready')
";

/// Both ends of connections that another program goes on with; the words are how it is started.
const HANDED_ON: &str = r"
import ctypes, os, socket, sys, threading
SELF = sys.argv[1]
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
    elif how == 'system':
        assert os.system(' '.join(words(fd))) == 0
    elif how == 'popen':
        library = ctypes.CDLL(None)
        library.popen.restype = ctypes.c_void_p
        library.pclose.argtypes = [ctypes.c_void_p]
        stream = library.popen(' '.join(words(fd)).encode(), b'r')
        c.close()
        assert library.pclose(stream) == 0
    c.close()
def server(listener, how):
    c = listener.accept()[0]
    answer_turns(c)
    # Unread, and in the ring, when the other program starts.
    c.recv(11, socket.MSG_PEEK | socket.MSG_WAITALL)
    start(how, c)
for how in ['exec', 'failing', 'spawn', 'vfork', 'system', 'popen']:
    listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(1)
    thread = threading.Thread(target=server, args=(listener, how)); thread.start()
    c = socket.create_connection(listener.getsockname())
    c.settimeout(30)
    take_turns(c)
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
    std::fs::write(&script, [EXACTLY, HANDED_ON].concat()).expect("the folder can be written");
    let script = script.to_str().expect("ASCII");
    assert_eq!(world.run(By::Itself, &["python3", script, "both", script]), "fine\n");
    let output = finish(world.verbose(&["python3", script, "both", script]));
    assert_eq!(common::text(&output), "fine\n", "{}", String::from_utf8_lossy(&output.stderr));
    let report = String::from_utf8_lossy(&output.stderr);
    // The first program, and five others that it started, one of which could not be; and their
    // shells.
    let upgraded = report.lines().filter(|line| line.ends_with("connections upgraded")).count();
    assert!(upgraded >= 5, "the other programs used no ring: {report}");
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

/// A connection goes to a program that does not know of rings while bytes that nobody has read lie
/// in one; that program reads them, and answers.
const UNREAD: &str = r#"
import array, fcntl, hashlib, os, select, socket, sys, termios, time
def go_on(c, n):
    c.sendall(hashlib.sha256(exactly(c, n)).digest())
    while True:
        got = c.recv(1000)
        if not got: break
        c.sendall(got)
SELF, SCRIPT, STATIC = sys.argv[1:4]
if SELF == 'child':
    go_on(socket.socket(fileno=int(sys.argv[4])), int(sys.argv[5]))
    sys.exit(0)
if SELF == 'receiver':
    way = socket.socket(fileno=int(sys.argv[4]))
    fds = socket.recv_fds(way, 1, 1)[1]
    go_on(socket.socket(fileno=fds[0]), int(sys.argv[5]))
    sys.exit(0)
words = lambda role, fd, n: [sys.executable, SCRIPT, role, SCRIPT, STATIC, str(fd), str(n)]
def unread(c):
    word = array.array('i', [0]); fcntl.ioctl(c.fileno(), termios.FIONREAD, word); return word[0]
def server(listener, how, n):
    c = listener.accept()[0]
    answer_turns(c)
    while unread(c) < n: time.sleep(0.001)
    os.set_inheritable(c.fileno(), True)
    # Without the environment the library is not loaded.
    if how == 'exec': os.execve(sys.executable, words('child', c.fileno(), n), {})
    elif how == 'static': os.execve(STATIC, [STATIC, str(c.fileno())], dict(os.environ))
    elif how == 'spawn': os.waitpid(os.posix_spawn(sys.executable, words('child', c.fileno(), n), {}), 0)
    elif how == 'system':
        # A shell of ours, whose program is none.
        import shlex; os.system('env -i ' + shlex.join(words('child', c.fileno(), n)))
    elif how == 'pass':
        here, there = socket.socketpair(); os.set_inheritable(there.fileno(), True); os.set_inheritable(c.fileno(), False)
        pid = os.posix_spawn(sys.executable, words('receiver', there.fileno(), n), {})
        socket.send_fds(here, [b'x'], [c.fileno()]); c.close(); os.waitpid(pid, 0)
    elif how == 'stdin':
        os.dup2(c.fileno(), 0); os.dup2(c.fileno(), 1)
        os.execve(STATIC, [STATIC, '0'], dict(os.environ))
    os._exit(0)
def client(at, how, n, wait):
    c = socket.create_connection(at); c.settimeout(None)
    take_turns(c)
    data = bytes(i * 7 % 251 for i in range(n))
    c.sendall(data)
    expected = data if how in ('static', 'stdin') else hashlib.sha256(data).digest()
    if wait == 'busy': time.sleep(0.5)
    if wait == 'epoll':
        s = select.epoll(); s.register(c, select.EPOLLIN); assert s.poll(30), 'nothing came'
    assert exactly(c, len(expected)) == expected, (how, n, wait)
    for n in range(1, 50): c.sendall(b'z' * n); assert exactly(c, n) == b'z' * n
    c.shutdown(socket.SHUT_WR)
    assert c.recv(1) == b''
for how in ['exec', 'static', 'stdin', 'spawn', 'system', 'pass']:
    if how in ('static', 'stdin') and STATIC == 'none': continue
    for n, wait in [(11, 'recv'), (60000, 'recv'), (30000, 'epoll'), (5000, 'busy')]:
        listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(1)
        pid = os.fork()
        if pid == 0:
            try: server(listener, how, n)
            finally: os._exit(1)
        client(listener.getsockname(), how, n, wait)
        assert os.waitpid(pid, 0)[1] == 0, how
print('fine')
"#;

/// Sends back what comes; linked statically, so nothing can be loaded into it.
const STATIC: &str = r"
#include <stdlib.h>
#include <unistd.h>
int main(int c, char **v) {
    char buffer[4096]; int fd = c > 1 ? atoi(v[1]) : 0;
    for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;)
        for (ssize_t at = 0, some; at < n; at += some) if ((some = write(fd, buffer + at, n - at)) <= 0) return 1;
    return 0;
}
";

#[test]
fn unread_bytes_follow_a_connection_to_a_program_that_is_not_ours() {
    if !have("python3", "python3") {
        return;
    }
    let world = World::new();
    let path = |name: &str| world.folder.join(name).to_str().expect("ASCII").to_string();
    let (script, source, program) = (path("unread.py"), path("static.c"), path("static"));
    std::fs::write(&script, [EXACTLY, UNREAD].concat()).expect("the folder can be written");
    std::fs::write(&source, STATIC).expect("the folder can be written");
    let compiled = have("cc", "gcc")
        && world
            .command(By::Itself, &["cc", "-O1", "-static", "-o", &program, &source])
            .output()
            .is_ok_and(|output| output.status.success());
    if !compiled {
        println!("SKIP of this test the statically linked program: cc -static does not work here");
    }
    let words = ["python3", &*script, "both", &*script, if compiled { &*program } else { "none" }];
    assert_eq!(world.run(By::Itself, &words), "fine\n");
    let output = finish(world.verbose(&words));
    let report = String::from_utf8_lossy(&output.stderr);
    assert_eq!(common::text(&output), "fine\n", "{report}");
    assert!(report.contains("connections upgraded"), "{report}");
}

/// A connection goes to a program that does not know of rings while the peer is stopped, for longer
/// than that program's start waits: it may have been told of a ring, and not have followed. In the
/// end both have all bytes.
const STOPPED: &str = r"
import os, signal, socket, sys, time
FIRST, SECOND, LAST = b'first', bytes(i * 7 % 251 for i in range(3000)), bytes(i * 11 % 253 for i in range(2000))
def peer(at, turns, ended):
    c = socket.create_connection(at); c.settimeout(30)
    for _ in range(turns): c.sendall(b'hello'); exactly(c, 5)
    c.sendall(LAST)
    assert exactly(c, len(FIRST)) == FIRST
    assert exactly(c, len(SECOND)) == SECOND
    if ended:
        assert c.recv(1) == b''
        c.sendall(FIRST); c.shutdown(socket.SHUT_WR)
        return
    assert exactly(c, len(LAST)) == LAST
    for n in range(1, 50): c.sendall(b'z' * n); assert exactly(c, n) == b'z' * n
    c.shutdown(socket.SHUT_WR)
    assert c.recv(1) == b''
def hand_over(turns, ended):
    listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(1)
    pid = os.fork()
    if pid == 0:
        status = 1
        try: peer(listener.getsockname(), turns, ended); status = 0
        finally: os._exit(status)
    c = listener.accept()[0]
    for _ in range(turns): c.sendall(exactly(c, 5))
    while len(c.recv(len(LAST), socket.MSG_PEEK)) < len(LAST): time.sleep(0.001)
    os.kill(pid, signal.SIGSTOP); os.waitpid(pid, os.WUNTRACED)
    c.sendall(FIRST); c.sendall(SECOND)
    if ended: c.shutdown(socket.SHUT_WR)
    here, there = os.pipe()
    # Without the environment the library is not loaded.
    out = there if ended else c.fileno()
    child = os.posix_spawnp('cat', ['cat'], {}, file_actions=[(os.POSIX_SPAWN_DUP2, c.fileno(), 0), (os.POSIX_SPAWN_DUP2, out, 1)])
    c.close(); os.close(there)
    os.kill(pid, signal.SIGCONT)
    with open(here, 'rb') as said: assert said.read() == (LAST + FIRST if ended else b''), (turns, ended)
    assert os.waitpid(pid, 0)[1] == 0 and os.waitpid(child, 0)[1] == 0, (turns, ended)
for turns in range(*map(int, sys.argv[1:])):
    for ended in (False, True): hand_over(turns, ended)
print('fine')
";

#[test]
fn a_peer_that_is_stopped_loses_no_byte_of_a_connection_that_goes_to_a_program_that_is_not_ours() {
    if !have("python3", "python3") {
        return;
    }
    let world = World::new();
    let script = [EXACTLY, STOPPED].concat();
    // So many turns before, with connections that are upgraded at once, and after a while.
    for (by, turns) in [(By::Offered("at-once"), ["0", "4"]), (By::Exec, ["16", "19"])] {
        assert_eq!(world.run(by, &["python3", "-c", &script, turns[0], turns[1]]), "fine\n");
    }
}

/// What is done rarely, with an upgraded connection: the output is the kernel's own.
const RARE: &str = r"
import array, fcntl, os, select, socket, threading, time
SIOCATMARK = 0x8905
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
    let script = [EXACTLY, RARE].concat();
    let without = world.run(By::Itself, &["python3", "-c", &script]);
    assert!(without.ends_with("nested True True True\n"), "{without}");
    assert_eq!(world.run(By::Exec, &["python3", "-c", &script]), without);
}

/// Which of a pipe, written first, and two connections, the second one written before the first, an
/// event loop hears of first.
const ORDER: &str = r#"
import os, select, socket, time
def pair():
    listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(1)
    here = socket.create_connection(listener.getsockname()); there = listener.accept()[0]
    for _ in range(200):
        here.sendall(b'x'); there.recv(1); there.sendall(b'y'); here.recv(1)
    return here, there
reading, writing = os.pipe()
(here1, there1), (here2, there2) = pair(), pair()
names = {there1.fileno(): 'one', there2.fileno(): 'two', reading: 'pipe'}
loop = select.epoll()
for fd in names: loop.register(fd, select.EPOLLIN)
for _ in range(200):
    os.write(writing, b'p'); here2.sendall(b'2'); here1.sendall(b'1')
    # A loop that asks again at once is told of rings alone, for some time.
    time.sleep(0.001)
    heard = []
    while len(heard) < 3:
        for fd, _ in loop.poll():
            os.read(fd, 1); heard.append(names[fd])
    print(*heard)
"#;

#[test]
fn a_set_gives_connections_in_rings_and_everything_else_first_in_turns() {
    if !have("python3", "python3") {
        return;
    }
    let heard = World::new().run(AT_ONCE, &["python3", "-c", ORDER]);
    // Those in rings stand together, among each other in no order that they came in.
    let rings = heard.lines().filter(|line| line.ends_with("pipe")).count();
    let kernel = heard.lines().filter(|line| line.starts_with("pipe")).count();
    assert!(rings + kernel >= 190, "{heard}");
    assert!(rings >= 50 && kernel >= 50, "not in turns: rings first {rings} times, the kernel {kernel} times");
}
