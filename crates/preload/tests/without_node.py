# What a program under `vmmc exec` sees while its node is stopped, has died or was started anew.
# Usage: without_node.py STATE PROBE COMMAND-OF-VMMC PID-OF-NODE. Prints "fine".
import array, errno, fcntl, os, select, signal, socket, subprocess, sys, threading, time

state, probe, vmmc, node = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
SOON = 8.0  # far more than anything takes that does not hang


class Peer:
    """Another process, made before anything else, which does what it is told."""

    def __init__(self):
        (orders, self.orders), (self.answers, answers) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.orders)
            names = dict(globals())
            for line in os.fdopen(orders):
                try:
                    exec(line, names)
                    os.write(answers, b"+")
                except Exception as error:
                    print("peer:", line, repr(error), flush=True)
                    os.write(answers, b"-")
            os._exit(0)
        os.close(orders)
        os.close(answers)

    def start(self, code):
        os.write(self.orders, (code + "\n").encode())

    def wait(self):
        assert os.read(self.answers, 1) == b"+", "the peer failed"

    def __call__(self, code):
        self.start(code)
        self.wait()


def receive_exactly(s, count):
    got = b""
    while len(got) < count:
        part = s.recv(min(count - len(got), 65536))
        assert part, f"ended after {len(got)} bytes of {count}"
        got += part
    return got


def run(*words):
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run([vmmc, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True).stdout.decode()


def pair(name="s"):
    """A connection to the peer, who has it under this name; in rings both ways."""
    listener = socket.create_server(("127.0.0.1", 0))
    peer(f"{name} = socket.create_connection({listener.getsockname()!r})")
    ours, theirs = listener.accept()
    listener.close()
    end = time.monotonic() + 30
    wanted = f"127.0.0.1:{theirs[1]}"
    while True:
        for _ in range(20):
            ours.send(b"a")
            peer(f"assert {name}.recv(1) == b'a'; {name}.send(b'b')")
            assert ours.recv(1) == b"b"
        lines = [line for line in run("sockets", "--rate-ms", "0").splitlines() if wanted in line]
        if lines and all(" ring " in line for line in lines):
            return ours
        assert time.monotonic() < end, lines


def disturb():
    """Brings the node into the state of this run. The connections that are there stay."""
    if state == "stopped":
        os.kill(node, signal.SIGSTOP)
    elif state == "killed":
        os.kill(node, signal.SIGKILL)
    elif state == "anew":
        os.kill(node, signal.SIGKILL)
        end = time.monotonic() + 30
        while True:
            try:
                run("node", "start", "--plain", "--listen", "127.0.0.1:0")
                break
            except subprocess.CalledProcessError:
                # The last one is still ending.
                assert time.monotonic() < end
                time.sleep(0.05)
        # Both ends talk to the new one from now on.
        globals()["another"] = pair("another")
    else:
        assert state == "alive"


def hears(wait, what):
    """Something that the peer does in a moment ends a wait without an end of its own."""
    peer.start("time.sleep(0.2); " + what)
    alarm = threading.Timer(SOON, lambda: (print("hangs:", probe, what, flush=True), os._exit(1)))
    alarm.start()
    found = wait()
    alarm.cancel()
    peer.wait()
    return found


def in_epoll(connection, events=select.EPOLLIN):
    loop = select.epoll()
    loop.register(connection, events)
    return lambda: loop.poll()


def waits():
    """A poll of several descriptors and a new epoll set hear of bytes and of the end."""
    one, two = pair("one"), pair("two")
    quiet, _keep = os.pipe()
    disturb()
    for connection, name in (one, "one"), (two, "two"):
        ways = [lambda: select.select([connection, quiet], [], [])[0], in_epoll(connection)]
        for wait in ways if name == "one" else ways[::-1]:
            for _ in range(3):
                assert hears(wait, f"{name}.send(b'x')")
                assert connection.recv(10) == b"x"
        assert hears(ways[0] if name == "one" else ways[1], f"{name}.close()")
        assert connection.recv(10) == b""


def closes_all():
    """A program that closes all that it does not know of keeps its connection, and its peer hears of it."""
    connection = pair()
    peer("loop = select.epoll(); loop.register(s, select.EPOLLIN); s.setblocking(False)")
    peer("assert not loop.poll(0)")
    for _ in range(3):
        # Its bell is known here from now on.
        peer.start("assert loop.poll(8) and s.recv(9) == b'x'")
        time.sleep(0.2)
        connection.send(b"x")
        peer.wait()
    disturb()
    kept = socket.socket(fileno=fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD, 400))
    connection.close()
    last = os.sysconf("SC_OPEN_MAX")
    if probe == "closes_all":
        os.closerange(401, last)
    else:
        for fd in range(401, min(last, 1 << 16)):
            try:
                os.close(fd)
            except OSError:
                pass
    for _ in range(3):
        # At the end of its time a poll finds what nobody told it of.
        peer.start("assert loop.poll(4 * SOON), 'no event'; assert s.recv(9) == b'y'")
        time.sleep(0.2)
        begin = time.monotonic()
        kept.send(b"y")
        peer.wait()
        assert time.monotonic() - begin < 3 * SOON, "the peer did not hear of it"


def both_write():
    """Two ends that both write and then read: the kernel's buffers take that much."""
    connection = pair()
    disturb()
    count = 1_000_000 if state == "alive" else 200_000
    peer.start(f"s.sendall(b'p' * {count}); assert receive_exactly(s, {count}) == b'o' * {count}")
    for _ in range(2):
        connection.sendall(b"o" * count)
        assert receive_exactly(connection, count) == b"p" * count
        peer.wait()
        peer.start(f"s.sendall(b'p' * {count}); assert receive_exactly(s, {count}) == b'o' * {count}")
    connection.sendall(b"o" * count)
    assert receive_exactly(connection, count) == b"p" * count
    peer.wait()
    # Short messages go on as before, in order.
    for n in range(200):
        connection.sendall(b"%d" % n)
        peer(f"assert s.recv(100) == b'{n}'; s.sendall(b'{-n}')")
        assert connection.recv(100) == b"%d" % -n


def dies_unread():
    """A poll of several descriptors that waits for room hears of the death of a peer that reads nothing."""
    connection = pair()
    quiet, _keep = os.pipe()
    # Its bell is known to the peer from now on.
    select.select([quiet], [connection], [])
    disturb()
    connection.setblocking(False)
    while select.select([quiet], [connection], [], 0.5)[1]:
        try:
            while True:
                connection.send(b"x" * 65536)
        except BlockingIOError:
            pass
    waits = select.poll()
    waits.register(connection, select.POLLOUT)
    waits.register(quiet, select.POLLIN)
    threading.Timer(0.2, os.kill, (peer.pid, signal.SIGKILL)).start()
    found = dict(waits.poll(SOON * 1000))
    assert found.get(connection.fileno(), 0) & (select.POLLERR | select.POLLHUP), found


def many_sets():
    """A connection with unread bytes comes into a set for which there is no bell."""
    bells = []
    for n in range(16):
        loop = select.epoll()
        loop.register(pair(f"of{n}"), select.EPOLLIN)
        bells.append(loop)
    one, two, three = pair("one"), pair("two"), pair("three")
    disturb()
    peer("one.send(b'x'); two.send(b'x'); two.close()")
    loop = select.epoll()
    loop.register(one, select.EPOLLIN)
    assert loop.poll(SOON) == [(one.fileno(), select.EPOLLIN)] and one.recv(9) == b"x" and not loop.poll(0)
    loop.register(two, select.EPOLLIN)
    assert loop.poll(SOON) == [(two.fileno(), select.EPOLLIN)] and two.recv(9) == b"x"
    assert loop.poll(SOON) == [(two.fileno(), select.EPOLLIN)] and two.recv(9) == b""
    loop.unregister(two)
    loop.register(three, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    assert loop.poll(SOON) == [(three.fileno(), select.EPOLLOUT)]
    # The kernel tells of room too when the direction gets there, but not again and again.
    assert any(not loop.poll(0.02) for _ in range(4)), "an edge without an end"
    for connection, name in (one, "one"), (three, "three"):
        for _ in range(3):
            assert hears(loop.poll, f"{name}.send(b'y')")[0][0] == connection.fileno() and connection.recv(9) == b"y"
        assert hears(loop.poll, f"{name}.close()")[0][0] == connection.fileno() and connection.recv(9) == b""
        loop.unregister(connection)


def foreign_set():
    """A connection with unread bytes comes into a set that another process made."""
    ours, theirs = socket.socketpair()
    globals()["far"] = theirs
    second = Peer()
    second("e = select.epoll(); socket.send_fds(far, [b'-'], [e.fileno()])")
    _, fds, _, _ = socket.recv_fds(ours, 9, 1)
    loop = select.epoll.fromfd(fds[0])
    one = pair("one")
    disturb()
    peer("one.send(b'x')")
    # The peer alone can make the kernel know of it, and does so while it waits.
    peer.start("assert one.recv(9) == b'z'")
    loop.register(one, select.EPOLLIN)
    assert loop.poll(SOON) == [(one.fileno(), select.EPOLLIN)] and one.recv(9) == b"x" and not loop.poll(0)
    one.send(b"z")
    peer.wait()
    assert hears(loop.poll, "one.send(b'y')")[0][0] == one.fileno() and one.recv(9) == b"y"


def passed():
    """A descriptor that goes to another process by a message, with bytes unread both ways."""
    ours, theirs = socket.socketpair()
    globals()["far"] = theirs
    second = Peer()
    one = pair("one")
    peer("one.send(b'unread')")
    one.send(b"before")
    disturb()
    begin = time.monotonic()
    socket.send_fds(ours, [b"-"], [one.fileno()])
    one.close()
    second("_, fds, _, _ = socket.recv_fds(far, 9, 1); one = socket.socket(fileno=fds[0])")
    peer("assert one.recv(9) == b'before'")
    second("assert one.recv(9) == b'unread'")
    for _ in range(20):
        second("one.sendall(b'from second')")
        peer("assert one.recv(99) == b'from second'; one.sendall(b'from peer')")
        second("assert one.recv(99) == b'from peer'")
    peer.start("assert one.recv(9) == b''")
    time.sleep(0.1)
    second("one.close()")
    peer.wait()
    assert time.monotonic() - begin < 2 * SOON


GOES_ON = """
import socket, sys
for fd in sys.argv[1:]:
    s = socket.socket(fileno=int(fd))
    assert s.recv(9) == b'unread', 'lost'
    s.sendall(b'hello')
    assert s.recv(9) == b'answer'
    s.sendall(b'last')
    s.close()
"""


def started():
    """Another program goes on with connections, with bytes unread both ways."""
    all = [pair(f"s{n}") for n in range(6)]
    for n, s in enumerate(all):
        peer(f"s{n}.send(b'unread')")
        s.send(b"before")
    disturb()
    fds = [s.fileno() for s in all]
    begin = time.monotonic()
    program = subprocess.Popen([sys.executable, "-c", GOES_ON, *map(str, fds)], pass_fds=fds)
    for s in all:
        s.close()
    for n in range(6):
        peer(f"assert receive_exactly(s{n}, 11) == b'beforehello'; s{n}.sendall(b'answer')")
        peer(f"assert receive_exactly(s{n}, 4) == b'last' and s{n}.recv(9) == b''")
    assert program.wait() == 0
    assert time.monotonic() - begin < SOON, "each connection waited for the node"


peer = Peer()
{"closes_one_by_one": closes_all}.get(probe, globals().get(probe))()
print("fine", flush=True)
os._exit(0)
