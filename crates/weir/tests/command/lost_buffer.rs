//! `weir mount --on-lost-buffer restore`.

use crate::common::{Mounted, PATIENCE, Sandbox, can_mount, fails, status_of, succeeds, weir};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RESTORE: [&str; 4] = ["--on-lost-buffer", "restore", "--lost-buffer-wait", "0"];

fn write_synced(mounted: &Mounted, name: &str) {
    let mut file = File::create(mounted.path(name)).expect("a file");
    file.write_all(name.repeat(1000).as_bytes()).and_then(|()| file.sync_all()).expect("a durable file");
}

/// A store whose daemon was killed. The file `before` is in an epoch, and `after` perhaps only in the buffer.
fn with_epoch() -> Sandbox {
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--epoch-every", "1"]);
    write_synced(&mounted, "before");
    let written = Instant::now();
    loop {
        let epoch = mounted.status().epoch;
        let age = epoch.last.and(epoch.age_ms).map(Duration::from_millis);
        if age.is_some_and(|age| age < written.elapsed()) {
            break;
        }
        assert!(written.elapsed() < PATIENCE, "no epoch");
        std::thread::sleep(Duration::from_millis(50));
    }
    mounted.kill();
    // The next mount takes no epochs.
    let mounted = sandbox.mount_with(&["--epoch-every", "0"]);
    write_synced(&mounted, "after");
    mounted.kill();
    sandbox
}

fn volumes(store: &Path) -> Vec<String> {
    let listed = succeeds(weir().args(["volume", "list", "--json"]).arg(store)).stdout;
    let listed: serde_json::Value = serde_json::from_slice(&listed).expect("JSON");
    let name = |one: &serde_json::Value| one["name"].as_str().expect("a name").to_owned();
    listed.as_array().expect("a list").iter().map(name).collect()
}

fn mount(sandbox: &Sandbox) -> Command {
    let mut command = weir();
    command.arg("mount").args(RESTORE).arg(sandbox.store()).arg(sandbox.mount_point());
    command
}

#[test]
fn a_mount_comes_back_by_itself_from_the_newest_epoch() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let (store, lost) = (sandbox.store(), sandbox.path("lost"));
    fs::rename(store.join("buffer"), &lost).expect("the buffer goes away");
    let said = fails(weir().arg("mount").arg(&store).arg(sandbox.mount_point()));
    assert!(said.contains("the buffer is missing"), "{said}");
    assert_eq!(fs::read_dir(&store).expect("it").count(), 1, "a refusal changes nothing");

    let said = succeeds(&mut mount(&sandbox)).stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("the buffer is lost") && said.contains("volume main is as of 20"), "{said}");
    let dir = &sandbox.mount_point();
    assert_eq!(fs::read_to_string(dir.join("before")).expect("a file"), "before".repeat(1000));
    assert!(!dir.join("after").exists(), "it was not in the epoch");
    let status = String::from_utf8_lossy(&succeeds(weir().arg("status").arg(dir)).stdout).into_owned();
    assert!(status.contains("RESTORED   after its buffer was lost"), "{status}");
    fs::write(dir.join("new"), "new").expect("space");
    succeeds(weir().arg("unmount").arg(dir));
    let names = volumes(&store);
    let damaged = names.iter().find(|name| name.starts_with("main-damaged-20")).expect("the damaged state");
    succeeds(weir().arg("check").arg(&store));

    // The lost buffer comes back, and is refused. The new one is used as any other.
    let said = fails(weir().args(["mount", "--buffer"]).arg(&lost).args(RESTORE).arg(&store).arg(dir));
    assert!(said.contains("since been used with another buffer"), "{said}");
    succeeds(&mut mount(&sandbox));
    assert_eq!(fs::read_to_string(dir.join("new")).expect("a file"), "new");
    succeeds(weir().args(["volume", "delete"]).arg(dir).arg(damaged));
    let status = String::from_utf8_lossy(&succeeds(weir().arg("status").arg(dir)).stdout).into_owned();
    assert!(!status.contains("RESTORED"), "{status}");
    succeeds(weir().arg("unmount").arg(dir));
    succeeds(weir().arg("check").arg(&store));
}

#[test]
fn a_volume_without_an_epoch_and_a_mount_that_may_not_write_are_refused() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--epoch-every", "0"]);
    write_synced(&mounted, "file");
    mounted.kill();
    fs::remove_file(sandbox.store().join("buffer")).expect("a buffer");
    let said = fails(&mut mount(&sandbox));
    assert!(said.contains("volume main has no epoch to go on from"), "{said}");
    assert!(fails(mount(&sandbox).arg("--read-only")).contains("the buffer is missing"));
    assert_eq!(fs::read_dir(sandbox.store()).expect("it").count(), 1, "a refusal changes nothing");
    assert!(fails(mount(&sandbox).args(["--volume", "other"])).contains("there is no volume other"));
}

#[test]
fn a_buffer_that_comes_in_time_is_used() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let (buffer, lost) = (sandbox.store().join("buffer"), sandbox.path("lost"));
    fs::rename(&buffer, &lost).expect("the buffer goes away");
    let mut late = weir();
    late.args(["mount", "--on-lost-buffer", "restore", "--lost-buffer-wait", "60"]);
    let mut late = late.arg(sandbox.store()).arg(sandbox.mount_point()).spawn().expect("weir starts");
    std::thread::sleep(Duration::from_millis(1500));
    fs::rename(&lost, &buffer).expect("the buffer comes back");
    assert!(late.wait().expect("weir").success());
    assert!(sandbox.mount_point().join("after").exists(), "nothing was lost");
    succeeds(weir().arg("unmount").arg(sandbox.mount_point()));
    assert!(!volumes(&sandbox.store()).iter().any(|name| name.contains("damaged")));
}

/// Kills the mount at each flush of the restoration: the next one restores what is left to restore.
#[test]
fn a_restoration_that_was_cut_off_anywhere_is_ended_by_the_next_mount() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let (dir, store) = (sandbox.store(), sandbox.store().join("store"));
    let without_buffer = fs::read(&store).expect("the store");
    let mut kills = 0;
    loop {
        for entry in fs::read_dir(&dir).expect("a directory") {
            fs::remove_file(entry.expect("an entry").path()).expect("a file");
        }
        fs::write(&store, &without_buffer).expect("space");
        let mut strace = Command::new("strace");
        let kill = format!("inject=fdatasync,fsync:signal=KILL:when={}", kills + 1);
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", &kill]);
        strace.arg(weir().get_program()).args(["mount", "--foreground"]).args(RESTORE);
        strace.arg(&dir).arg(sandbox.mount_point()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut first) = strace.spawn() else { return eprintln!("skipped: strace is not installed") };
        let begun = Instant::now();
        let is_ready =
            || weir().arg("status").arg(sandbox.mount_point()).output().expect("weir").status.success();
        let was_killed = loop {
            if first.try_wait().expect("a child").is_some() {
                break true;
            }
            if is_ready() {
                break false;
            }
            assert!(begun.elapsed() < PATIENCE, "neither killed nor ready");
            std::thread::sleep(Duration::from_millis(20));
        };
        if !was_killed {
            // Another thread's first flush would kill it, too: the next mount is the one that is looked at.
            let pid = status_of(&sandbox.mount_point()).pid.to_string();
            assert!(Command::new("kill").args(["-s", "KILL", &pid]).status().expect("kill").success());
        }
        let _ = first.wait();
        succeeds(&mut mount(&sandbox));
        let before = fs::read_to_string(sandbox.mount_point().join("before"));
        assert_eq!(before.expect("a file"), "before".repeat(1000), "killed at flush {}", kills + 1);
        assert!(!sandbox.mount_point().join("after").exists(), "killed at flush {}", kills + 1);
        succeeds(weir().arg("unmount").arg(sandbox.mount_point()));
        succeeds(weir().arg("check").arg(&dir));
        let damaged = volumes(&dir).iter().filter(|name| name.contains("damaged")).count();
        assert_eq!(damaged, 1, "killed at flush {}: {:?}", kills + 1, volumes(&dir));
        if !was_killed {
            break;
        }
        kills += 1;
    }
    assert!(kills > 5, "{kills}: the run tests little");
}
