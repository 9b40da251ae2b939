//! Servers and runtimes that bring processes, threads or event loops of their own: a database, two
//! language runtimes, a remote shell, a parallel program.
//!
//! Invariant: a test compares what programs print or transfer, never how fast; and each runs with
//! and without `vmmc exec` at either end.

mod common;

use common::{By, PAIRS, PATIENCE, World, finish, have, port, skip, text};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Debian keeps the programs of a database server in a folder for each version.
fn postgres_folder() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    versions.flatten().map(|entry| entry.path().join("bin")).filter(|folder| folder.join("initdb").exists()).max()
}

#[test]
fn postgres_answers_pgbench() {
    let Some(folder) = postgres_folder() else {
        return skip("PostgreSQL is not installed; `apt-get install postgresql` brings it");
    };
    // It refuses to run as root.
    let root = rustix::process::geteuid().is_root();
    if root && !have("setpriv", "util-linux") {
        return;
    }
    let world = if root { World::of_user("postgres") } else { World::new() };
    let program = |name: &str| folder.join(name).to_str().expect("ASCII").to_string();
    let data = world.folder.join("data");
    let data = data.to_str().expect("ASCII");
    world.run(By::Itself, &[&program("initdb"), "--no-sync", "-A", "trust", "-U", "tester", "-D", data]);
    for (server_by, client_by) in PAIRS {
        let number = port();
        let at = number.to_string();
        let settings = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"];
        let postgres = program("postgres");
        let server = [&[&*postgres, "-D", data, "-p", &at][..], &settings].concat();
        let _server = world.server(server_by, &server, number);
        let who = ["-h", "127.0.0.1", "-p", &at, "-U", "tester"];
        // It listens before it has looked through its log, and refuses whoever comes before it has.
        let is_ready = || world.command(By::Itself, &[&[&*program("pg_isready"), "-q"][..], &who].concat()).status();
        let end = Instant::now() + PATIENCE;
        while !is_ready().expect("it starts").success() {
            assert!(Instant::now() < end, "{server_by:?}: the database starts for ever");
            std::thread::sleep(Duration::from_millis(10));
        }
        let bench =
            |more: &[&str]| world.run(client_by, &[&[&*program("pgbench")][..], &who, more, &["postgres"]].concat());
        bench(&["-i", "-q", "-s", "1"]);
        for more in
            [&["-S", "-c", "2", "-t", "300"][..], &["-c", "3", "-j", "3", "-t", "30"], &["-S", "-C", "-t", "20"]]
        {
            let printed = bench(&[&["-n"][..], more].concat());
            assert!(printed.contains("number of failed transactions: 0"), "{server_by:?} {client_by:?}: {printed}");
        }
        let large = "select sum(length(v)) from (select repeat(n::text, 1000) v from generate_series(1, 1000) n) t; \
                     select repeat('x', 2000000)";
        let printed =
            world.run(client_by, &[&[&*program("psql"), "-qAt", "-c", large][..], &who, &["postgres"]].concat());
        assert_eq!(printed, format!("2893000\n{}\n", "x".repeat(2_000_000)), "{server_by:?} {client_by:?}");
    }
}

#[test]
fn node_js_serves_and_asks() {
    if !have("node", "nodejs") {
        return;
    }
    const SERVER: &str = r"
const http = require('http'), net = require('net');
http.createServer((q, a) => { let n = 0; q.on('data', d => n += d.length); q.on('end', () => a.end('got ' + n + ' ' + 'y'.repeat(n))); })
    .listen(+process.argv[2], '127.0.0.1', () => net.createServer(c => c.pipe(c)).listen(+process.argv[3], '127.0.0.1'));
";
    const CLIENT: &str = r"
const http = require('http'), net = require('net'), crypto = require('crypto');
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
const ask = n => new Promise((ok, no) => {
    const q = http.request({ port: +process.argv[2], host: '127.0.0.1', method: 'POST', agent }, a => {
        let s = ''; a.on('data', d => s += d); a.on('end', () => ok(s === 'got ' + n + ' ' + 'y'.repeat(n))); });
    q.on('error', no); q.end('x'.repeat(n)); });
const echo = () => new Promise((ok, no) => {
    const data = crypto.randomBytes(5000000), back = [];
    const c = net.connect(+process.argv[3], '127.0.0.1', () => c.end(data));
    c.on('error', no); c.on('data', d => back.push(d)); c.on('end', () => ok(Buffer.concat(back).equals(data))); });
(async () => {
    const all = [];
    for (let i = 0; i < 400; i++) all.push(ask(i * 37 % 9000));
    const asked = await Promise.all(all);
    for (let i = 0; i < 200; i++) asked.push(await ask(i));
    asked.push(await ask(3000000));
    const echoed = await Promise.all([echo(), echo()]);
    console.log(asked.filter(x => x).length, echoed.join());
    agent.destroy();
})();
";
    let world = World::new();
    let (server, client) = (write(&world.folder, "server.js", SERVER), write(&world.folder, "client.js", CLIENT));
    for (server_by, client_by) in PAIRS {
        let (web, echo) = (port(), port());
        let (web, at) = (web.to_string(), echo.to_string());
        let _server = world.server(server_by, &["node", &server, &web, &at], echo);
        assert_eq!(
            world.run(client_by, &["node", &client, &web, &at]),
            "601 true,true\n",
            "{server_by:?} {client_by:?}"
        );
    }
}

fn write(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).expect("the folder can be written");
    path.to_str().expect("ASCII").to_string()
}

#[test]
fn a_java_machine_serves_and_asks() {
    if !have("java", "default-jre-headless") || !have("javac", "default-jdk-headless") {
        return;
    }
    // A selector with non-blocking channels on one side, threads with blocking streams on the
    // other.
    const PROGRAM: &str = r#"
import java.io.*; import java.net.*; import java.nio.*; import java.nio.channels.*; import java.util.*;
public class Echo {
    public static void main(String[] a) throws Exception {
        int port = Integer.parseInt(a[1]);
        if (a[0].equals("serve")) serve(port); else System.out.println(ask(port));
    }
    static void serve(int port) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress("127.0.0.1", port)); listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); ) {
                SelectionKey key = keys.next(); keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel c = listener.accept(); c.configureBlocking(false);
                    c.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(1 << 16)); continue;
                }
                SocketChannel c = (SocketChannel) key.channel(); ByteBuffer b = (ByteBuffer) key.attachment();
                try {
                    if (key.isReadable() && c.read(b) < 0) { c.close(); continue; }
                    b.flip(); c.write(b); b.compact();
                    key.interestOps((b.hasRemaining() ? SelectionKey.OP_READ : 0) | (b.position() > 0 ? SelectionKey.OP_WRITE : 0));
                } catch (IOException e) { c.close(); }
            }
        }
    }
    static long ask(int port) throws Exception {
        List<Thread> threads = new ArrayList<>(); long[] right = new long[3];
        for (int t = 0; t < 3; t++) { final int me = t; Thread thread = new Thread(() -> {
            try (Socket s = new Socket("127.0.0.1", port)) {
                DataInputStream in = new DataInputStream(s.getInputStream()); OutputStream out = s.getOutputStream();
                Random dice = new Random(me); byte[] sent = new byte[20000], got = new byte[20000];
                for (int i = 0; i < 500; i++) {
                    int n = 1 + dice.nextInt(i % 50 == 0 ? 20000 : 200); dice.nextBytes(sent);
                    out.write(sent, 0, n); in.readFully(got, 0, n);
                    if (Arrays.equals(Arrays.copyOf(sent, n), Arrays.copyOf(got, n))) right[me]++;
                }
            } catch (IOException e) { e.printStackTrace(); } });
            thread.start(); threads.add(thread); }
        for (Thread thread : threads) thread.join();
        return right[0] + right[1] + right[2];
    }
}
"#;
    let world = World::new();
    write(&world.folder, "Echo.java", PROGRAM);
    let folder = world.folder.to_str().expect("ASCII");
    world.run(By::Itself, &["javac", "-d", folder, &format!("{folder}/Echo.java")]);
    for (server_by, client_by) in PAIRS {
        let number = port();
        let at = number.to_string();
        let java = ["java", "-XX:TieredStopAtLevel=1", "-cp", folder, "Echo"];
        let _server = world.server(server_by, &[&java[..], &["serve", &at]].concat(), number);
        let printed = world.run(client_by, &[&java[..], &["ask", &at]].concat());
        assert_eq!(printed, "1500\n", "{server_by:?} {client_by:?}");
    }
}

#[test]
fn a_remote_shell_carries_files() {
    if !have("sshd", "openssh-server") || !have("ssh", "openssh-client") {
        return;
    }
    if rustix::process::geteuid().is_root()
        && !Path::new("/run/sshd").exists()
        && std::fs::create_dir("/run/sshd").is_err()
    {
        return skip("sshd needs the folder /run/sshd, which cannot be made here");
    }
    let world = World::new();
    let file = |name: &str| world.folder.join(name).to_str().expect("ASCII").to_string();
    for key in ["host", "user"] {
        world.run(By::Itself, &["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &file(key)]);
    }
    std::fs::copy(file("user.pub"), file("authorized")).expect("the folder can be written");
    let large: Vec<u8> = (0..4_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(file("large"), &large).expect("the folder can be written");
    let sshd = ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|p| Path::new(p).exists());
    let Some(sshd) = sshd else { return skip("sshd is not in its usual place") };
    for (server_by, client_by) in PAIRS {
        let number = port();
        let at = number.to_string();
        let (host, authorized) =
            (format!("HostKey={}", file("host")), format!("AuthorizedKeysFile={}", file("authorized")));
        let mut server = vec![sshd, "-D", "-e", "-f", "/dev/null", "-p", &at, "-o", "ListenAddress=127.0.0.1"];
        for option in [&*host, &authorized, "StrictModes=no", "UsePAM=no", "PidFile=none"] {
            server.extend(["-o", option]);
        }
        let _server = world.server(server_by, &server, number);
        let user = file("user");
        let mut client = vec!["ssh", "-p", &at, "-i", &user, "-F", "/dev/null", "-o", "IdentitiesOnly=yes"];
        client.extend(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]);
        client.push("127.0.0.1");
        let (from, to) = (file("large"), file("got"));
        assert_eq!(world.run(client_by, &[&client[..], &["echo", "here;", "seq", "3"]].concat()), "here\n1\n2\n3\n");
        // There and back through the same connection.
        let words = client.iter().map(|w| format!("'{w}'")).collect::<Vec<_>>().join(" ");
        world.run(client_by, &["sh", "-c", &format!("{words} cat < {from} > {to}")]);
        assert!(std::fs::read(&to).expect("cat wrote it") == large, "{server_by:?} {client_by:?}: other bytes");
    }
}

#[test]
fn mpi_ranks_play_ping_pong_over_tcp() {
    if !have("mpirun", "openmpi-bin") || !have("mpicc", "libopenmpi-dev") {
        return;
    }
    // Distributions have the compiler's wrapper in one package and the headers in another.
    let header = std::process::Command::new("mpicc").args(["-E", "-x", "c", "-include", "mpi.h", "/dev/null"]).output();
    if !header.is_ok_and(|output| output.status.success()) {
        return skip("mpi.h is not installed; `apt-get install libopenmpi-dev` brings it");
    }
    const PROGRAM: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int c, char **v) {
    int me, wrong = 0; MPI_Init(&c, &v); MPI_Comm_rank(MPI_COMM_WORLD, &me);
    int most = 1 << 20; unsigned char *to = malloc(most), *from = malloc(most);
    for (int size = 1; size <= most; size *= 4)
        for (int i = 0; i < 60; i++) {
            for (int k = 0; k < size; k += 97) to[k] = (unsigned char)(k + i + size);
            if (me == 0) {
                MPI_Send(to, size, MPI_BYTE, 1, i, MPI_COMM_WORLD);
                MPI_Recv(from, size, MPI_BYTE, 1, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                for (int k = 0; k < size; k += 97) wrong += from[k] != to[k];
            } else {
                MPI_Recv(from, size, MPI_BYTE, 0, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(from, size, MPI_BYTE, 0, i, MPI_COMM_WORLD);
            }
        }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) printf("%d wrong\n", wrong);
    MPI_Finalize();
    return 0;
}
"#;
    let world = World::new();
    let (source, binary) = (write(&world.folder, "ping.c", PROGRAM), world.folder.join("ping"));
    let binary = binary.to_str().expect("ASCII");
    world.run(By::Itself, &["mpicc", "-O2", "-o", binary, &source]);
    let root: &[&str] = if rustix::process::geteuid().is_root() { &["--allow-run-as-root"] } else { &[] };
    let options = ["--oversubscribe", "-np", "2", "--mca", "btl", "tcp,self", "--mca", "pml", "ob1"];
    let nearby = ["--mca", "btl_tcp_if_include", "lo", "--mca", "plm", "isolated"];
    for by in [By::Exec, By::Itself] {
        let words = [&["mpirun"][..], root, &options, &nearby, &[binary]].concat();
        let output = finish(world.command(by, &words));
        assert!(output.status.success(), "{by:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(text(&output), "0 wrong\n", "{by:?}");
    }
}

#[test]
fn a_c_program_fills_in_and_looks_at_bytes_where_they_lie() {
    if !have("cc", "gcc") {
        return;
    }
    const PROGRAM: &str = r#"
#include "vmmc_sockets.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
enum { TOTAL = 4 << 20 };
static long lent;
static void put(int fd, const char *from, size_t n) {
    while (n > 0) {
        void *room; ssize_t some = vmmc_sockets_reserve(fd, n, &room);
        if (some > 0) { memcpy(room, from, some); if (vmmc_sockets_commit(fd, some)) abort(); lent += some; }
        else if (errno == ENOTSUP) some = send(fd, from, n, 0);
        if (some <= 0) { perror("put"); exit(1); }
        from += some; n -= some;
    }
}
static size_t get(int fd, char *into, size_t most) {
    const void *bytes; ssize_t some = vmmc_sockets_peek(fd, &bytes);
    if (some > 0) {
        if ((size_t)some > most) some = most;
        memcpy(into, bytes, some); if (vmmc_sockets_consume(fd, some)) abort();
        lent += some;
    } else if (some < 0 && errno == ENOTSUP) some = recv(fd, into, most, 0);
    if (some < 0) { perror("get"); exit(1); }
    return some;
}
int main(int c, char **v) {
    static char to[70000], from[70000];
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(v[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1; (void)c;
    if (!strcmp(v[1], "serve")) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        bind(fd, (void *)&at, sizeof at); listen(fd, 5);
        for (int peer; (peer = accept(fd, 0, 0)) >= 0; close(peer))
            for (size_t n; (n = get(peer, from, sizeof from)) > 0;) put(peer, from, n);
    }
    if (connect(fd, (void *)&at, sizeof at)) { perror("connect"); return 1; }
    /* The connection moves while it is in use: who expects that goes on until it has, and a good
     * while after. */
    long most = !strcmp(v[3], "lent") ? 256L * TOTAL : TOTAL;
    for (long done = 0, size = 1; done < most && lent <= TOTAL; done += size, size = size * 3 % 69999 + 1) {
        for (long i = 0; i < size; i++) to[i] = (char)((done + i) * 31 >> 4);
        put(fd, to, size);
        for (long got = 0; got < size;) got += get(fd, from + got, size - got);
        if (memcmp(to, from, size)) { printf("wrong bytes\n"); return 1; }
    }
    printf("%s\n", lent > TOTAL ? "lent" : lent ? "some" : "copied");
    return 0;
}
"#;
    let world = World::new();
    let (source, binary) = (write(&world.folder, "pointers.c", PROGRAM), world.folder.join("pointers"));
    let binary = binary.to_str().expect("ASCII");
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let strict = ["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
    world.run(By::Itself, &[&["cc", "-O1", include][..], &strict, &["-o", binary, &source]].concat());
    for (server_by, client_by) in PAIRS {
        let number = port();
        let at = number.to_string();
        let _server = world.server(server_by, &[binary, "serve", &at], number);
        let both = server_by != By::Itself && client_by != By::Itself;
        let expected = if both { "lent" } else { "copied" };
        let printed = world.run(client_by, &[binary, "echo", &at, expected]);
        assert_eq!(printed.trim_end(), expected, "{server_by:?} {client_by:?}");
    }
}
