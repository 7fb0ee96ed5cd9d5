//! `weir mount --on-lost-buffer restore`.

use crate::common::{
    LoopDevice, Mounted, PATIENCE, Sandbox, TmpfsMount, can_mount, fails, in_mount_namespace, is_mounted,
    status_of, succeeds, weir,
};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RESTORE: [&str; 4] = ["--on-lost-buffer", "restore", "--lost-buffer-wait", "0"];

fn write_synced(mounted: &Mounted, name: &str) {
    let mut file = File::create(mounted.path(name)).expect("a file");
    file.write_all(name.repeat(1000).as_bytes()).and_then(|()| file.sync_all()).expect("a durable file");
}

#[track_caller]
fn wait_while(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns when an epoch has everything.
fn wait_for_epoch(mounted: &Mounted) {
    wait_while("no epoch", || mounted.status().epoch.behind_ms != Some(0));
}

/// A store whose daemon was killed. The file `before` is in an epoch, and `after` perhaps only in the buffer.
fn with_epoch() -> Sandbox {
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--epoch-every", "1"]);
    write_synced(&mounted, "before");
    wait_for_epoch(&mounted);
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
    let said = says(weir().args(["mount", "--buffer"]).arg(&lost).args(RESTORE).arg(&store).arg(dir));
    assert!(said.contains("correct `--buffer`"), "{said}");
    assert_eq!(fs::read_to_string(dir.join("new")).expect("a file"), "new");
    succeeds(weir().arg("unmount").arg(dir));
    let said = fails(weir().args(["mount", "--buffer"]).arg(&lost).arg(&store).arg(dir));
    assert!(said.contains("since been used with another buffer"), "{said}");
    let mounted = sandbox.mount_with(&["--epoch-every", "1"]);
    assert_eq!(fs::read_to_string(dir.join("new")).expect("a file"), "new");
    wait_for_epoch(&mounted);
    let begun = Instant::now();
    while volumes(&store).iter().filter(|name| name.starts_with("epoch-")).count() > 1 {
        assert!(begun.elapsed() < PATIENCE, "the epoch of the damaged state is needed no more");
    }
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
    let output = mount(&sandbox).arg("--read-only").output().expect("weir");
    assert_eq!(output.status.code(), Some(2), "it can write nothing");
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

#[test]
fn a_buffer_that_comes_while_the_new_one_is_formatted_is_used() {
    if !can_mount() {
        return;
    }
    for new_buffer in [None, Some("buffer")] {
        let sandbox = with_epoch();
        let (dir, buffer, lost) = (sandbox.store(), sandbox.store().join("buffer"), sandbox.path("lost"));
        fs::rename(&buffer, &lost).expect("the buffer goes away");
        let mut strace = Command::new("strace");
        let slowly = "inject=fdatasync,fsync:delay_enter=300000";
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", slowly]);
        strace.arg(weir().get_program()).args(["mount", "--foreground"]).args(RESTORE);
        strace.args(new_buffer.map(|name| format!("--new-buffer={}", dir.join(name).display())));
        strace.arg(&dir).arg(sandbox.mount_point()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut slow) = strace.spawn() else { return eprintln!("skipped: strace is not installed") };
        let begun = Instant::now();
        while !dir.join(new_buffer.unwrap_or("buffer.new")).exists() {
            if slow.try_wait().expect("a child").is_some() {
                return eprintln!("skipped: strace cannot trace here");
            }
            assert!(begun.elapsed() < PATIENCE, "no new buffer is made");
        }
        fs::rename(&lost, &buffer).expect("the buffer comes back");
        while !weir().arg("status").arg(sandbox.mount_point()).output().expect("weir").status.success() {
            assert!(begun.elapsed() < PATIENCE, "no mount");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(sandbox.mount_point().join("after").exists(), "nothing was lost");
        succeeds(weir().arg("unmount").arg(sandbox.mount_point()));
        assert!(slow.wait().expect("a child").success());
        assert!(!dir.join("buffer.new").exists());
        assert_eq!(volumes_damaged(&dir), Vec::<String>::new());
    }
}

#[test]
fn a_mount_that_is_ended_while_it_waits_for_the_buffer_restores_nothing() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let (buffer, lost) = (sandbox.store().join("buffer"), sandbox.path("lost"));
    fs::rename(&buffer, &lost).expect("the buffer goes away");
    let mut waiting = weir();
    waiting.args(["mount", "--on-lost-buffer", "restore", "--lost-buffer-wait", "60"]);
    let waiting = waiting.arg(sandbox.store()).arg(sandbox.mount_point()).stderr(Stdio::piped());
    let mut waiting = waiting.spawn().expect("weir starts");
    let mut said = BufReader::new(waiting.stderr.take().expect("it is piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert!(line.contains("waiting for it"), "{line}");
    waiting.kill().and_then(|()| waiting.wait()).expect("a child of ours");
    // Ends with the process in the background.
    said.read_to_string(&mut line).expect("text");
    assert!(line.contains("the command was ended while it waited"), "{line}");
    assert!(!buffer.exists());
    fs::rename(&lost, &buffer).expect("the buffer comes back");
    succeeds(&mut mount(&sandbox));
    assert!(sandbox.mount_point().join("after").exists(), "nothing was lost");
    succeeds(weir().arg("unmount").arg(sandbox.mount_point()));
}

#[test]
fn an_empty_file_in_the_place_of_the_buffer_is_no_lost_buffer() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let (buffer, lost) = (sandbox.store().join("buffer"), sandbox.path("lost"));
    fs::rename(&buffer, &lost).expect("the buffer goes away");
    // Where the buffer's own mount was.
    File::create(&buffer).expect("a file");
    let said = fails(&mut mount(&sandbox));
    assert!(said.contains("perhaps the buffer is not mounted there"), "{said}");
    fs::rename(&lost, &buffer).expect("the buffer comes back");
    succeeds(&mut mount(&sandbox));
    assert!(sandbox.mount_point().join("after").exists(), "nothing was lost");
    succeeds(weir().arg("unmount").arg(sandbox.mount_point()));
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

fn says(command: &mut Command) -> String {
    String::from_utf8_lossy(&succeeds(command).stderr).into_owned()
}

#[test]
fn a_store_that_was_closed_cleanly_loses_nothing() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let dir = sandbox.mount_point();
    let mounted = sandbox.mount_with(&["--epoch-every", "0"]);
    write_synced(&mounted, "first");
    mounted.unmount();
    succeeds(weir().args(["volume", "create"]).arg(sandbox.store()).arg("other"));
    // A command that fails, or repairs, leaves it as it is.
    fails(weir().args(["volume", "create"]).arg(sandbox.store()).arg("other"));
    succeeds(weir().args(["check", "--repair"]).arg(sandbox.store()));
    fs::remove_file(sandbox.store().join("buffer")).expect("a buffer");
    let said = fails(weir().arg("mount").arg(sandbox.store()).arg(&dir));
    assert!(said.contains("nothing is lost: the store has every change"), "{said}");
    let said = says(&mut mount(&sandbox));
    assert!(said.contains("Nothing is lost"), "{said}");
    assert!(dir.join("first").exists());
    assert_eq!(volumes(&sandbox.store()), ["main", "other"]);
    // SIGTERM, while a program has a file open, is a clean end, too.
    let open = File::create(dir.join("second")).expect("a file");
    let pid = status_of(&dir).pid;
    let terminate = || succeeds(Command::new("kill").arg(pid.to_string()));
    terminate();
    // Equal signals that wait are one.
    wait_while("the mount stays", || is_mounted(&dir));
    terminate();
    wait_while("it does not end", || Path::new(&format!("/proc/{pid}")).exists());
    drop(open);
    fs::remove_file(sandbox.store().join("buffer")).expect("a buffer");
    let said = String::from_utf8_lossy(&succeeds(weir().arg("replace-buffer").arg(sandbox.store())).stdout)
        .into_owned();
    assert!(said.contains("nothing is lost"), "{said}");
    let mounted = sandbox.mount();
    assert!(mounted.path("second").exists());
    // From the first change on it is not complete, and no command makes it so.
    mounted.kill();
    succeeds(weir().args(["volume", "create"]).arg(sandbox.store()).arg("third"));
    fs::remove_file(sandbox.store().join("buffer")).expect("a buffer");
    let said = fails(weir().arg("replace-buffer").arg(sandbox.store()));
    assert!(said.contains("--accept-loss"), "{said}");
}

#[test]
fn a_second_loss_before_the_next_epoch_goes_on_from_the_same() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let (store, dir) = (sandbox.store(), sandbox.mount_point());
    for round in 1..=2 {
        fs::remove_file(store.join("buffer")).expect("a buffer");
        succeeds(&mut mount(&sandbox));
        assert!(dir.join("before").exists() && !dir.join("after").exists());
        fs::write(dir.join("after"), "changed").expect("space");
        kill_daemon(&dir);
        let damaged = volumes_damaged(&store);
        assert_eq!(damaged.len(), round, "{damaged:?}");
    }
    succeeds(weir().arg("unmount").arg(&dir));
}

/// Kills the daemon of a mount, and returns when it is gone.
fn kill_daemon(dir: &Path) {
    let pid = status_of(dir).pid;
    succeeds(Command::new("kill").args(["-s", "KILL", &pid.to_string()]));
    let begun = Instant::now();
    while Path::new(&format!("/proc/{pid}")).exists() {
        assert!(begun.elapsed() < PATIENCE, "a killed process");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn volumes_damaged(store: &Path) -> Vec<String> {
    volumes(store).into_iter().filter(|name| name.contains("-damaged-")).collect()
}

#[test]
fn a_volume_without_an_epoch_loses_its_name_where_others_are_restored() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let long = "x".repeat(127);
    for name in ["other", &long] {
        succeeds(weir().args(["volume", "create"]).arg(sandbox.store()).arg(name));
    }
    let said =
        fails(weir().args(["volume", "create"]).arg(sandbox.store()).arg("a-damaged-2026-11-28T01:02:03Z"));
    assert!(said.contains("names with -damaged- are for volumes whose buffer was lost"), "{said}");
    fs::remove_file(sandbox.store().join("buffer")).expect("a buffer");
    let said = says(&mut mount(&sandbox));
    assert!(said.contains("volume other has no epoch to go on from"), "{said}");
    succeeds(weir().arg("unmount").arg(sandbox.mount_point()));
    let there = volumes(&sandbox.store());
    assert!(there.iter().any(|name| name.starts_with("other-damaged-")), "{there:?}");
    assert!(there.contains(&"main".to_owned()) && !there.contains(&"other".to_owned()), "{there:?}");
    assert_eq!(volumes_damaged(&sandbox.store()).len(), 3, "{there:?}");
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn a_damaged_state_that_somebody_goes_on_with_is_refused_at_a_second_loss() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let (store, dir) = (sandbox.store(), sandbox.mount_point());
    fs::remove_file(store.join("buffer")).expect("a buffer");
    succeeds(&mut mount(&sandbox));
    succeeds(weir().arg("unmount").arg(&dir));
    let [damaged] = &volumes_damaged(&store)[..] else { panic!("not one damaged state") };
    succeeds(weir().args(["volume", "delete"]).arg(&store).arg("main"));
    let mounted = sandbox.mount_with(&["--volume", damaged, "--epoch-every", "0"]);
    write_synced(&mounted, "later");
    mounted.kill();
    fs::remove_file(store.join("buffer")).expect("a buffer");
    let said = fails(mount(&sandbox).args(["--volume", damaged]));
    assert!(said.contains("has no epoch to go on from"), "{said}");
    assert!(!store.join("buffer").exists(), "a refusal changes nothing");
}

#[test]
fn a_wrong_buffer_in_the_command_does_not_make_the_right_one_lost() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let dir = sandbox.mount_point();
    let mut wrong = mount(&sandbox);
    let said = says(wrong.args(["--buffer", "/dev/no-such-device"]));
    assert!(said.contains("correct `--buffer`"), "{said}");
    assert!(dir.join("after").exists(), "nothing was lost");
    succeeds(weir().arg("unmount").arg(&dir));
    assert_eq!(volumes_damaged(&sandbox.store()), Vec::<String>::new());
}

#[test]
fn a_buffer_that_may_be_the_lost_one_is_not_replaced() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let buffer = sandbox.store().join("buffer");
    let sound = fs::read(&buffer).expect("the buffer");
    let (mut of_no_kind, mut with_wrong_checksum) = (sound.clone(), sound.clone());
    of_no_kind[..16].fill(0x77);
    with_wrong_checksum[100] ^= 1;
    for damaged in [&of_no_kind[..], &with_wrong_checksum, &sound[..4096]] {
        fs::write(&buffer, damaged).expect("space");
        // The search begins where the command names no buffer at all.
        for command in [&mut mount(&sandbox), mount(&sandbox).args(["--buffer", "/dev/no-such-device"])] {
            let said = fails(command);
            assert!(said.contains(&format!("error: {}: ", buffer.display())), "{said}");
            assert!(fs::read(&buffer).expect("the buffer") == damaged, "a refusal changes nothing");
            assert_eq!(fs::read_dir(sandbox.store()).expect("it").count(), 2);
        }
    }
    // Nor is one that cannot be looked at, or whose file system may not be mounted.
    fs::remove_file(&buffer).expect("a buffer");
    // The directory of the store is no exception for what is mounted below it.
    let elsewhere = sandbox.store().join("not-mounted");
    fs::create_dir(&elsewhere).expect("a directory");
    fs::write(elsewhere.join("buffer"), &sound).expect("space");
    std::os::unix::fs::symlink(elsewhere.join("buffer"), &buffer).expect("a link");
    sandbox.mount_with(&["--epoch-every", "0"]).kill();
    fs::rename(&elsewhere, sandbox.path("unmounted")).expect("it goes");
    let said = fails(&mut mount(&sandbox));
    assert!(said.contains("perhaps its file system is not mounted"), "{said}");
    std::os::unix::fs::symlink(&elsewhere, &elsewhere).expect("a link to itself");
    let said = fails(mount(&sandbox).args(["--buffer", "/dev/no-such-device"]));
    assert!(said.contains("this may be the buffer"), "{said}");
    fs::remove_file(&elsewhere).expect("a link");
    fs::rename(sandbox.path("unmounted"), &elsewhere).expect("it comes");
    succeeds(&mut mount(&sandbox));
    assert!(sandbox.path("mnt/after").exists(), "nothing was lost");
    succeeds(weir().arg("unmount").arg(sandbox.mount_point()));
}

#[test]
fn a_device_that_comes_back_blank_is_the_new_buffer_and_one_with_other_data_is_not() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let Some(device) = LoopDevice::over(&sandbox.path("image")) else { return };
    let (store, dir) = (sandbox.store(), sandbox.mount_point());
    succeeds(weir().args(["format", "--size", "64MiB", "--buffer"]).arg(&device.0).arg(&store));
    let lose = |content: &[u8]| {
        let mounted = sandbox.mount_with(&["--epoch-every", "1"]);
        write_synced(&mounted, "file");
        wait_for_epoch(&mounted);
        mounted.kill();
        let mut blank = vec![0; 1 << 20];
        blank[..content.len()].copy_from_slice(content);
        let mut disk = File::options().write(true).open(&device.0).expect("the device");
        disk.write_all(&blank).and_then(|()| disk.sync_all()).expect("a disk");
    };
    lose(b"");
    // A device with unknown data may be the buffer. The kernel's list, as this mount sees it, has only the device of this test.
    let list = sandbox.path("devices");
    let entry = list.join(device.0.file_name().expect("a name"));
    fs::create_dir_all(&entry).expect("a directory");
    fs::write(entry.join("size"), "65536").expect("space");
    let script = r#"mount --bind "$LIST" /sys/class/block; "$@"; "$1" unmount "$DIR""#;
    let mut restored = in_mount_namespace(script);
    restored.arg("sh").env("LIST", &list).env("DIR", &dir);
    restored.arg(weir().get_program()).args(mount(&sandbox).get_args());
    let said = says(&mut restored);
    assert!(said.contains(&format!("a new one is at {}", device.0.display())), "{said}");
    // A loop device with something else may be over another file now.
    lose(b"XFSB");
    let said = fails(&mut mount(&sandbox));
    assert!(
        said.contains(&format!("{}: this may be the buffer: it was over a file", device.0.display())),
        "{said}"
    );
    let mut head = [0; 4];
    std::io::Read::read_exact(&mut File::open(&device.0).expect("it"), &mut head).expect("bytes");
    assert_eq!(&head, b"XFSB", "other data is not touched");
    assert_eq!(volumes_damaged(&store).len(), 1);
}

#[test]
fn a_new_buffer_goes_where_it_was_asked_for() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let (entry, place) = (sandbox.store().join("buffer"), sandbox.path("elsewhere"));
    fs::remove_file(&entry).expect("a buffer");
    fs::write(&place, "a letter").expect("space");
    let said = fails(mount(&sandbox).arg("--new-buffer").arg(&place));
    assert!(said.contains("it has data of an unknown kind"), "{said}");
    fs::create_dir(sandbox.path("memory")).expect("a directory");
    let memory = TmpfsMount::new(sandbox.path("memory"), "64M");
    let said = fails(mount(&sandbox).arg("--new-buffer").arg(memory.0.join("buffer")));
    assert!(said.contains("loses synced data when the power fails"), "{said}");
    // A file that a crash left without its length.
    fs::write(&place, "").expect("space");
    for options in [["--memory", "1MiB"], ["--volume", "other"]] {
        fails(mount(&sandbox).args(options).arg("--new-buffer").arg(&place));
        assert_eq!(fs::metadata(&place).expect("a file").len(), 0, "{options:?}: a refusal changes nothing");
    }
    std::os::unix::fs::symlink("/nowhere/at/all", sandbox.path("dangling")).expect("a link");
    for nowhere in [sandbox.path("dangling"), "/dev/no-such-device".into()] {
        let said = fails(mount(&sandbox).arg("--volatile-buffer").arg("--new-buffer").arg(&nowhere));
        assert!(said.contains("does not exist") || said.contains("there is no store here"), "{said}");
        assert!(!nowhere.exists(), "{said}");
    }
    succeeds(mount(&sandbox).arg("--new-buffer").arg(&place));
    succeeds(weir().arg("unmount").arg(sandbox.mount_point()));
    assert_eq!(fs::read_link(&entry).expect("a link"), place);
    sandbox.mount().unmount();
    // The place may be the entry itself.
    fs::remove_file(&entry).expect("a link");
    fs::remove_file(&place).expect("a buffer");
    let said = fails(mount(&sandbox).arg("--new-buffer").arg(&entry));
    assert!(said.contains("perhaps its file system is not mounted"), "{said}");
    succeeds(weir().arg("replace-buffer").arg(sandbox.store()));
    sandbox.mount().unmount();
    fs::remove_file(&entry).expect("a buffer");
    succeeds(mount(&sandbox).arg("--new-buffer").arg(&entry));
    succeeds(weir().arg("unmount").arg(sandbox.mount_point()));
    assert!(fs::symlink_metadata(&entry).expect("a buffer").is_file());
}

#[test]
fn two_mounts_at_once_restore_the_store_once() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let second = sandbox.path("second");
    fs::create_dir(&second).expect("a mount point");
    fs::remove_file(sandbox.store().join("buffer")).expect("a buffer");
    let mut one = mount(&sandbox).spawn().expect("weir");
    let mut two = weir();
    let mut two = two.arg("mount").args(RESTORE).arg(sandbox.store()).arg(&second).spawn().expect("weir");
    let outcomes = [one.wait().expect("weir").success(), two.wait().expect("weir").success()];
    // Both want the same volume: one gets it.
    assert_eq!(outcomes.iter().filter(|&&mounted| mounted).count(), 1, "{outcomes:?}");
    for dir in [sandbox.mount_point(), second] {
        let _ = weir().arg("unmount").arg(dir).output();
    }
    assert_eq!(volumes_damaged(&sandbox.store()).len(), 1);
}

/// Files in the store's directory that are not weir's are never replaced.
#[test]
fn other_data_in_the_way_of_the_new_buffer_is_kept() {
    if !can_mount() {
        return;
    }
    let sandbox = with_epoch();
    let store = sandbox.store();
    let xfs = [&b"XFSB"[..], &[7; 9000]].concat();
    fs::write(store.join("buffer"), &xfs).expect("space");
    assert!(fails(&mut mount(&sandbox)).contains("not blank: it holds an XFS file system"));
    assert!(fs::read(store.join("buffer")).expect("a file") == xfs);
    fs::remove_file(store.join("buffer")).expect("a file");
    for (content, why) in [(&xfs[..], "not blank"), (&[7; 9000], "data of an unknown kind")] {
        fs::write(store.join("buffer.new"), content).expect("space");
        for command in [&mut mount(&sandbox), mount(&sandbox).arg("--new-buffer").arg(sandbox.path("other"))]
        {
            let said = fails(command);
            assert!(said.contains(why), "{said}");
            assert!(fs::read(store.join("buffer.new")).expect("a file") == content);
        }
    }
    assert!(!sandbox.path("other").exists());
    fs::remove_file(store.join("buffer.new")).expect("a file");
    std::os::unix::fs::symlink("/nowhere/at/all", store.join("buffer.new")).expect("a link");
    succeeds(&mut mount(&sandbox));
    succeeds(weir().arg("unmount").arg(sandbox.mount_point()));
}
