//! A mount as a service: what it tells the service manager, and its unit.

use crate::common::{PATIENCE, Sandbox, can_mount, status_of, weir};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The next messages until one has this line.
fn hear(socket: &UnixDatagram, line: &str) -> Vec<String> {
    let mut heard = Vec::new();
    let mut message = [0; 4096];
    loop {
        let length = socket.recv(&mut message).unwrap_or_else(|_| panic!("no {line} in {heard:?}"));
        heard.extend(String::from_utf8_lossy(&message[..length]).lines().map(str::to_owned));
        if heard.iter().any(|heard| heard == line) {
            return heard;
        }
    }
}

fn start(sandbox: &Sandbox, address: &Path) -> Child {
    let mut mount = weir();
    mount.args(["mount", "--foreground"]).arg(sandbox.store()).arg(sandbox.mount_point());
    mount.env("NOTIFY_SOCKET", address).env("WATCHDOG_USEC", "400000").stderr(Stdio::null());
    mount.spawn().expect("weir starts")
}

#[test]
fn a_service_says_that_it_is_ready_that_it_lives_and_that_it_ends() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let address = sandbox.path("notify");
    let socket = UnixDatagram::bind(&address).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    let mut daemon = start(&sandbox, &address);
    hear(&socket, "READY=1");
    std::fs::write(sandbox.path("mnt/file"), "ready means usable").expect("space");
    hear(&socket, "WATCHDOG=1");
    hear(&socket, "WATCHDOG=1");
    // One that does not run gives no signs of life.
    let pid = status_of(&sandbox.mount_point()).pid.to_string();
    let signal = |name: &str| {
        assert!(Command::new("kill").args(["-s", name, &pid]).status().expect("kill").success());
    };
    signal("STOP");
    socket.set_read_timeout(Some(std::time::Duration::from_secs(2))).expect("a time");
    while socket.recv(&mut [0; 4096]).is_ok() {}
    socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    signal("CONT");
    hear(&socket, "WATCHDOG=1");
    signal("TERM");
    let last = hear(&socket, "STOPPING=1");
    let status = format!("STATUS=writing everything back to {}", sandbox.store().display());
    assert!(last.contains(&status), "{last:?}");
    assert!(daemon.wait().expect("weir").success());
}

/// systemd reads the unit, where it is installed, and says what it would not understand.
#[test]
fn the_unit_is_one_of_systemd() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/weir@.service");
    let text = std::fs::read_to_string(&unit).expect("the unit");
    assert!(text.contains("Type=notify") && text.contains("WatchdogSec="), "{text}");
    let sandbox = Sandbox::new();
    // The program need not be installed.
    let copy = sandbox.path("weir@.service");
    std::fs::write(&copy, text.replace("/usr/bin/weir", env!("CARGO_BIN_EXE_weir"))).expect("space");
    let Ok(output) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output() else {
        return eprintln!("skipped: systemd is not installed");
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("weir")).collect();
    assert!(ours.is_empty(), "{said}");
}
