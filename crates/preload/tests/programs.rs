//! Real programs, unchanged, with and without `vmmc exec` at either end: the same results in all
//! four combinations.
//!
//! Invariant: a test compares what programs print or transfer, never how fast. Source: the list of
//! programs in docs/exec.md.

mod common;

use common::{By, PAIRS, World, built, finish, have, port, text};

/// Lines of a program's report that say how many calls were left to the kernel.
fn kernel_calls(report: &str) -> u64 {
    let lines = report.lines().filter(|line| line.starts_with("vmmc:") && line.contains("not upgraded"));
    lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

#[test]
fn a_redis_client_gets_the_same_answers() {
    if !have("redis-server", "redis-server") || !have("redis-cli", "redis-tools") {
        return;
    }
    let world = World::new();
    for (server_by, client_by) in PAIRS {
        let number = port();
        let at = number.to_string();
        let folder = world.folder.to_str().expect("ASCII");
        let _server = world.server(server_by, &["redis-server", "--port", &at, "--save", "", "--dir", folder], number);
        let cli = |words: &[&str]| world.run(client_by, &[&["redis-cli", "-p", &at], words].concat());
        let script = "for i = 1, 2000 do redis.call('set', 'k' .. i, string.rep(i, 50)) end return 'done'";
        assert_eq!(cli(&["eval", script, "0"]), "done\n");
        assert_eq!(cli(&["-r", "300", "get", "k77"]), format!("{}\n", "77".repeat(50)).repeat(300));
        // A save forks while connections are open; they go on.
        assert_eq!(cli(&["bgsave"]), "Background saving started\n");
        assert_eq!(cli(&["dbsize"]), "2000\n");
        let big = cli(&["eval", "return string.rep('x', 3000000)", "0"]);
        assert_eq!(big.trim_end().len(), 3_000_000);
    }
}

#[test]
fn a_redis_benchmark_runs_and_uses_rings() {
    if !have("redis-benchmark", "redis-tools") || !have("redis-server", "redis-server") {
        return;
    }
    let world = World::new();
    for (server_by, client_by) in PAIRS {
        let number = port();
        let at = number.to_string();
        let _server = world.server(server_by, &["redis-server", "--port", &at, "--save", ""], number);
        for more in [&["-c", "1", "-n", "2000"][..], &["-c", "50", "-n", "20000"], &["-P", "16", "-n", "20000"]] {
            let words = [&["redis-benchmark", "-p", &at, "-t", "set,get", "--csv"][..], more].concat();
            let printed = if client_by == By::Exec {
                let output = finish(world.verbose(&words));
                let report = String::from_utf8_lossy(&output.stderr).into_owned();
                let requests: u64 = 2 * more[more.len() - 1].parse::<u64>().expect("a number");
                if server_by == By::Exec && more[0] == "-c" {
                    let calls = kernel_calls(&report);
                    assert!(calls < requests, "{calls} calls of {requests} requests stayed in the kernel: {report}");
                }
                text(&output)
            } else {
                world.run(client_by, &words)
            };
            assert_eq!(printed.lines().filter(|l| l.starts_with("\"GET\"") || l.starts_with("\"SET\"")).count(), 2);
        }
    }
}

#[test]
fn nginx_serves_the_same_files() {
    if !have("nginx", "nginx-light") || !have("curl", "curl") || !have("wrk", "wrk") {
        return;
    }
    let world = World::new();
    let root = world.folder.join("www");
    std::fs::create_dir_all(&root).expect("writable");
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(root.join("large"), &large).expect("writable");
    std::fs::write(root.join("small"), &large[..1024]).expect("writable");
    for (server_by, client_by) in PAIRS {
        let number = port();
        let config = nginx_config(&world, number);
        let _server = world.server(server_by, &["nginx", "-c", &config], number);
        let page = |name: &str| format!("http://127.0.0.1:{number}/{name}");
        let both = [page("large"), page("small"), page("large")];
        let target = world.folder.join("got");
        for _ in 0..3 {
            let to = target.to_str().expect("ASCII");
            world.run(client_by, &["sh", "-c", &format!("curl -sS {} > {to}", both.join(" "))]);
            let got = std::fs::read(&target).expect("curl wrote it");
            assert!(got == [&large[..], &large[..1024], &large].concat(), "{server_by:?} {client_by:?}: other bytes");
        }
        let printed = world.run(client_by, &["wrk", "-c", "20", "-t", "2", "-d", "1", &page("small")]);
        assert!(!printed.contains("Socket errors") && !printed.contains("Non-2xx"), "{printed}");
    }
}

fn nginx_config(world: &World, port: u16) -> String {
    let folder = world.folder.display();
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {folder}/{name};"))
        .concat();
    let text = format!(
        "{user} worker_processes 2; daemon off; pid {folder}/pid; error_log {folder}/error.log;
        events {{ worker_connections 512; }}
        http {{ access_log off; sendfile on; keepalive_requests 1000000; {temporary}
        server {{ listen 127.0.0.1:{port} backlog=512; root {folder}/www; }} }}"
    );
    let path = world.folder.join("nginx.conf");
    std::fs::write(&path, text).expect("writable");
    path.to_str().expect("ASCII").to_string()
}

#[test]
fn iperf3_moves_bytes_both_ways() {
    if !have("iperf3", "iperf3") {
        return;
    }
    let world = World::new();
    for (server_by, client_by) in PAIRS {
        for reverse in [false, true] {
            let number = port();
            let at = number.to_string();
            let _server = world.server(server_by, &["iperf3", "-s", "-p", &at], number);
            let mut words = vec!["iperf3", "-c", "127.0.0.1", "-p", &at, "-n", "200M", "--json"];
            words.extend(reverse.then_some("-R"));
            let printed = world.run(client_by, &words);
            let bytes = printed.lines().rfind(|line| line.contains("\"bytes\"")).unwrap_or_default();
            let bytes: u64 = bytes.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
            assert!(bytes >= 100 << 20, "{server_by:?} {client_by:?}: {printed}");
        }
    }
}

#[test]
fn memcached_answers_a_text_client() {
    if !have("memcached", "memcached") || !have("python3", "python3") {
        return;
    }
    const CLIENT: &str = r"
import socket, sys
c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); f = c.makefile('rwb')
for i in range(300):
    v = str(i).encode() * (1 + i % 700)
    f.write(b'set k%d 0 0 %d\r\n%s\r\n' % (i, len(v), v)); f.flush()
    assert f.readline() == b'STORED\r\n'
    f.write(b'get k%d\r\n' % i); f.flush()
    assert f.readline().startswith(b'VALUE') and f.readline() == v + b'\r\n' and f.readline() == b'END\r\n'
print('fine')
";
    let world = World::new();
    for (server_by, client_by) in PAIRS {
        let number = port();
        let at = number.to_string();
        let words = ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", &at, "-U", "0"];
        let _server = world.server(server_by, &words, number);
        assert_eq!(world.run(client_by, &["python3", "-c", CLIENT, &at]), "fine\n");
    }
}

#[test]
fn curl_speaks_tls() {
    if !have("openssl", "openssl") || !have("curl", "curl") {
        return;
    }
    let world = World::new();
    let file = |name: &str| world.folder.join(name).to_str().expect("ASCII").to_string();
    let (key, certificate) = (file("key.pem"), file("cert.pem"));
    let subject = ["-subj", "/CN=localhost", "-days", "2", "-keyout", &key, "-out", &certificate];
    world.run(By::Itself, &[&["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes"][..], &subject].concat());
    let large: Vec<u8> = (0..2_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(file("large"), &large).expect("writable");
    for (server_by, client_by) in PAIRS {
        let number = port();
        let at = number.to_string();
        let serve = format!(
            "cd {} && exec openssl s_server -quiet -WWW -accept {at} -key key.pem -cert cert.pem",
            world.folder.display()
        );
        let _server = world.server(server_by, &["sh", "-c", &serve], number);
        let got = file("got");
        world.run(client_by, &["curl", "-sSk", "-o", &got, &format!("https://localhost:{at}/large")]);
        assert!(std::fs::read(&got).expect("curl wrote it") == large, "{server_by:?} {client_by:?}: other bytes");
    }
}

#[test]
fn connections_that_do_everything_lose_no_byte() {
    let world = World::new();
    let stress = built().join("examples/stress");
    let stress = stress.to_str().expect("ASCII");
    for (server_by, client_by) in PAIRS {
        let number = port();
        let at = number.to_string();
        let _server = world.server(server_by, &[stress, "serve", &at], number);
        for more in [&["7", "300"][..], &["8", "100", "fork"], &["9", "100", "pass"], &["10", "100", "pass-long"]] {
            let printed = world.run(client_by, &[&[stress, "drive", &at][..], more].concat());
            let count = format!("{} connections", more[1]);
            assert!(printed.contains(&count) && printed.contains(" 0 failed"), "{printed}");
        }
        let log = std::fs::read_to_string(world.folder.join("server.log")).unwrap_or_default();
        // The connection that looks whether the server listens sends nothing.
        let complaints: Vec<&str> = log.lines().filter(|l| l.starts_with("server:") && !l.contains("seed:")).collect();
        assert!(complaints.is_empty(), "{server_by:?} {client_by:?}: {complaints:?}");
    }
}

#[test]
fn an_event_loop_sees_no_event_that_is_not_its_own() {
    if !have("python3", "python3") {
        return;
    }
    // What is added for connections to a program's epoll set stays there when they have gone, and a
    // thread may sleep in the set before the first one comes.
    const LOOP: &str = r#"
import os, select, socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
def pair():
    one = socket.create_connection(listener.getsockname())
    return one, listener.accept()[0]
loop = select.epoll()
one, two = pair()
loop.register(one, select.EPOLLIN)
two.send(b"1")
assert loop.poll(10) == [(one.fileno(), select.EPOLLIN)]
loop.unregister(one)
one.close()
bells = 0
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        if os.readlink("/proc/self/fd/%d" % fd) == "anon_inode:[eventfd]":
            os.write(fd, (1).to_bytes(8, "little"))
            bells += 1
    except OSError:
        pass
late = loop.poll(0)
assert bells and late == [], late

loop = select.epoll()
other, end = os.pipe()
loop.register(other, select.EPOLLIN)
found = []
sleeper = threading.Thread(target=lambda: found.extend(loop.poll(20)))
sleeper.start()
time.sleep(0.3)
one, two = pair()
loop.register(one, select.EPOLLIN)
two.send(b"1")
sleeper.join()
assert found == [(one.fileno(), select.EPOLLIN)], found
print("fine")
"#;
    let world = World::new();
    for by in [By::Exec, By::Itself] {
        // Without a bell there is nothing to ring.
        let text = if by == By::Exec { LOOP.to_string() } else { LOOP.replace("bells and ", "") };
        assert_eq!(world.run(by, &["python3", "-c", &text]), "fine\n");
    }
}
