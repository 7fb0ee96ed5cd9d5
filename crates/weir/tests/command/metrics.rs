//! `weir metrics`.

use crate::common::{PATIENCE, Sandbox, assert_says, can_mount, fails, succeeds, weir};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The names of the metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// The value of a metric of the mount on `dir`.
fn value(text: &str, name: &str, dir: &Path) -> f64 {
    let mount = format!("mount=\"{}\"", dir.display());
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")) && line.contains(&mount));
    let line = line.unwrap_or_else(|| panic!("no {name} of {mount} in {text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

fn document(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(path).expect("it is there")
}

#[test]
fn metrics_show_a_mount_its_health_and_what_it_did() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let dir = sandbox.mount_point();
    let read = || String::from_utf8(succeeds(weir().arg("metrics")).stdout).expect("UTF-8");
    let before = read();
    std::fs::write(mounted.path("file"), vec![1; 1 << 20]).expect("space");
    let file = std::fs::File::open(mounted.path("file")).expect("it is there");
    file.sync_all().expect("a sync");
    let after = read();
    assert_eq!(value(&after, "weir_up", &dir), 1.0);
    assert!(after.contains("health=\"ok\""), "{after}");
    let grew = |name| value(&after, name, &dir) - value(&before, name, &dir);
    assert!(grew("weir_syncs_total") >= 1.0);
    assert!(grew("weir_buffer_written_bytes_total") >= f64::from(1 << 20));
    assert!(grew("weir_request_seconds_count") >= 1.0);

    let documented: BTreeSet<String> = document("docs/metrics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split('`').next())
        .map(str::to_owned)
        .collect();
    assert_eq!(names(&after), documented, "docs/metrics.md names every metric");
    let rules = document("packaging/prometheus/weir.rules.yml");
    let words = rules.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_' && letter != '.');
    for word in words.filter(|word| word.starts_with("weir_") && !word.contains('.')) {
        assert!(documented.contains(word), "{word} of the alerts is no metric");
    }

    let file = sandbox.path("weir.prom");
    succeeds(weir().args(["metrics", "--textfile"]).arg(&file));
    assert!(std::fs::read_to_string(&file).expect("it").contains("weir_up"));
    assert_says(&fails(weir().args(["metrics", "--textfile", "/nowhere/weir.prom"])), "/nowhere/weir.prom");

    let pid = mounted.status().pid.to_string();
    succeeds(Command::new("kill").args(["-s", "KILL", &pid]));
    let begun = Instant::now();
    let dead = loop {
        let text = read();
        if value(&text, "weir_up", &dir) == 0.0 {
            break text;
        }
        assert!(begun.elapsed() < PATIENCE, "a killed daemon is up");
    };
    let of_it =
        dead.lines().find(|line| line.starts_with("weir_health") && line.contains(&*dir.to_string_lossy()));
    assert!(of_it.is_some_and(|line| line.contains("health=\"dead\"")), "{dead}");
}

fn get(address: SocketAddr) -> Option<String> {
    let mut server = TcpStream::connect(address).ok()?;
    server.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    server.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn metrics_are_served_to_this_machine_only() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let listen = |address: &str| {
        let mut command = weir();
        command.args(["metrics", "--listen", address]);
        command
    };
    assert_says(&fails(&mut listen(&address.to_string())), "choose a free port");
    assert_says(&fails(&mut listen("0.0.0.0:9765")), "other machines can reach this address");
    drop(taken);
    let mut server = listen(&address.to_string()).stderr(Stdio::null()).spawn().expect("weir");
    let begun = Instant::now();
    let answer = loop {
        match get(address) {
            Some(answer) => break answer,
            None => assert!(begun.elapsed() < PATIENCE, "no answer"),
        }
    };
    assert!(
        answer.starts_with("HTTP/1.1 200 OK") && answer.contains("text/plain; version=0.0.4"),
        "{answer}"
    );
    assert!(Command::new("kill").arg(server.id().to_string()).status().expect("kill").success());
    let _ = server.wait();
}

/// A user may choose the name of a directory. It must not be able to add lines.
#[test]
fn names_with_quotes_and_newlines_stay_in_their_labels() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let dir = sandbox.path("a\"b\\c\nweir_fake{a=\"");
    std::fs::create_dir(&dir).expect("a directory");
    succeeds(weir().arg("mount").arg(sandbox.store()).arg(&dir));
    let text = String::from_utf8(succeeds(weir().arg("metrics")).stdout).expect("UTF-8");
    succeeds(weir().arg("unmount").arg(&dir));
    assert!(text.contains(r#"a\"b\\c\nweir_fake{a=\""#), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("weir_fake")), "{text}");
}
