//! `weir replace-buffer`: a buffer on another device, a lost buffer, and a lost buffer that comes back.

use crate::common::{LoopDevice, Mounted, PATIENCE, Sandbox, can_mount, fails, succeeds, weir};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

fn replace(store: &Path) -> Command {
    let mut command = weir();
    command.arg("replace-buffer").arg(store);
    command
}

/// Writes a file and syncs it, so that it is in the buffer at least.
fn write_synced(mounted: &Mounted, name: &str) {
    let mut file = File::create(mounted.path(name)).expect("a file");
    file.write_all(name.repeat(1000).as_bytes()).and_then(|()| file.sync_all()).expect("a durable file");
}

#[track_caller]
fn assert_there(mounted: &Mounted, name: &str) {
    assert!(
        fs::read_to_string(mounted.path(name)).expect("a file") == name.repeat(1000),
        "{name} is not there"
    );
}

/// A store whose daemon was killed. One of its files is in the store, another only in the buffer.
fn with_both() -> Sandbox {
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    write_synced(&mounted, "stored");
    mounted.unmount();
    let mounted = sandbox.mount();
    write_synced(&mounted, "synced");
    mounted.kill();
    sandbox
}

fn assert_clean(store: &Path) {
    succeeds(weir().arg("check").arg(store));
}

#[test]
fn a_buffer_that_can_be_read_is_not_formatted_as_its_own_replacement() {
    if !can_mount() {
        return;
    }
    let sandbox = with_both();
    let store = sandbox.store();
    let said = fails(replace(&store).arg("--force").arg("--buffer").arg(store.join("buffer")));
    assert!(said.contains("this is the store's buffer already"), "{said}");
    let mounted = sandbox.mount();
    assert_there(&mounted, "stored");
    assert_there(&mounted, "synced");
    mounted.unmount();
}

#[test]
fn a_check_of_a_whole_store_says_that_its_buffer_can_be_replaced() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    write_synced(&mounted, "stored");
    mounted.unmount();
    let store = sandbox.store();
    fs::write(store.join("buffer"), [7; 1 << 20]).expect("space");
    let checked = weir().arg("check").arg(&store).output().expect("a process");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(checked.status.code(), Some(1), "{said}");
    assert!(said.contains("makes a new buffer, and nothing is lost"), "{said}");
    assert!(said.contains("1 finding, about the buffer alone"), "{said}");
    let replaced = succeeds(&mut replace(&store));
    assert!(String::from_utf8_lossy(&replaced.stdout).contains("nothing is lost"));
    let mounted = sandbox.mount();
    assert_there(&mounted, "stored");
    mounted.unmount();
}

#[test]
fn a_store_is_not_formatted_as_its_buffer() {
    let sandbox = Sandbox::formatted();
    let (store, link) = (sandbox.store(), sandbox.path("link"));
    fs::hard_link(store.join("store"), &link).expect("a link");
    let mut media = vec![store.join("store"), link];
    let over_it = LoopDevice::of(&store.join("store"));
    media.extend(over_it.iter().map(|device| device.0.clone()));
    for medium in media {
        let said = fails(replace(&store).args(["--force", "--accept-loss", "--buffer"]).arg(&medium));
        assert!(said.contains("the store and the buffer are the same device or file"), "{said}");
        assert_clean(&store);
    }
}

#[test]
fn a_buffer_is_replaced_by_another_size_place_and_back_without_losing_what_it_holds() {
    if !can_mount() {
        return;
    }
    let sandbox = with_both();
    let (store, elsewhere) = (sandbox.store(), sandbox.path("elsewhere"));
    succeeds(replace(&store).args(["--buffer-size", "12MiB"]));
    assert_eq!(fs::metadata(store.join("buffer")).expect("it").len(), 12 << 20);
    let mounted = sandbox.mount();
    assert_there(&mounted, "stored");
    assert_there(&mounted, "synced");
    write_synced(&mounted, "more");
    mounted.kill();
    // A crash before the new buffer took its place left this link.
    std::os::unix::fs::symlink("/gone", store.join("buffer.new")).expect("a link");
    succeeds(replace(&store).arg("--buffer").arg(&elsewhere));
    assert_eq!(
        fs::canonicalize(store.join("buffer")).expect("a link"),
        fs::canonicalize(&elsewhere).expect("it")
    );
    assert_eq!(fs::metadata(&elsewhere).expect("it").len(), 12 << 20, "as the old one");
    let mounted = sandbox.mount();
    assert_there(&mounted, "more");
    write_synced(&mounted, "last");
    mounted.kill();
    succeeds(&mut replace(&store));
    let said =
        fails(weir().args(["mount", "--buffer"]).arg(&elsewhere).arg(&store).arg(sandbox.mount_point()));
    assert!(said.contains("not a weir buffer"), "the old one is none any more: {said}");
    let mounted = sandbox.mount();
    for name in ["stored", "synced", "more", "last"] {
        assert_there(&mounted, name);
    }
    mounted.unmount();
    assert_clean(&store);
    assert_eq!(fs::read_dir(&store).expect("it").count(), 2, "nothing is left beside store and buffer");
}

#[test]
fn a_lost_buffer_is_replaced_only_by_who_accepts_the_loss_and_is_refused_when_it_comes_back() {
    if !can_mount() {
        return;
    }
    let sandbox = with_both();
    let (store, lost) = (sandbox.store(), sandbox.path("lost"));
    fs::rename(store.join("buffer"), &lost).expect("the buffer goes away");
    let said = fails(weir().arg("mount").arg(&store).arg(sandbox.mount_point()));
    assert!(said.contains("missing") && said.contains("replace-buffer --accept-loss"), "{said}");
    let said = fails(&mut replace(&store));
    assert!(said.contains("--accept-loss"), "{said}");
    assert_eq!(fs::read_dir(&store).expect("it").count(), 1, "a refusal changes nothing");

    let said = succeeds(replace(&store).arg("--accept-loss"));
    assert!(String::from_utf8_lossy(&said.stdout).contains("LOST"), "{said:?}");
    let refuse_lost = || {
        let said =
            fails(weir().args(["mount", "--buffer"]).arg(&lost).arg(&store).arg(sandbox.mount_point()));
        assert!(said.contains("since been used with another buffer"), "{said}");
    };
    refuse_lost();
    let mounted = sandbox.mount();
    assert_there(&mounted, "stored");
    assert!(!mounted.path("synced").exists(), "it was in the buffer alone");
    write_synced(&mounted, "new");
    mounted.unmount();

    refuse_lost();
    let mounted = sandbox.mount();
    assert_there(&mounted, "new");
    mounted.unmount();
    assert_clean(&store);
}

#[test]
fn what_a_lost_buffer_leaves_is_an_epoch_that_is_whole_and_that_programs_can_go_on_with() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let store = sandbox.store();
    let mounted = sandbox.mount_with(&["--epoch-every", "1"]);
    write_synced(&mounted, "before");
    let first = epoch_of_now(&mounted);
    write_synced(&mounted, "between");
    epoch_of_now(&mounted);
    let list = || {
        let listed = succeeds(weir().args(["volume", "list"]).arg(&store)).stdout;
        String::from_utf8_lossy(&listed).into_owned()
    };
    // An epoch is deleted once the next one has been taken.
    let begun = Instant::now();
    while list().contains(&first) {
        assert!(begun.elapsed() < PATIENCE, "one at a time: {}", list());
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = fails(weir().args(["volume", "clone"]).arg(mounted.dir()).arg("epoch-mine"));
    assert!(said.contains("weir takes itself"), "{said}");
    mounted.kill();
    let listed = list();
    let newest = listed.split_whitespace().rfind(|word| word.starts_with("epoch-")).expect("an epoch");
    // The next mount takes no epochs.
    let mounted = sandbox.mount_with(&["--epoch-every", "0"]);
    write_synced(&mounted, "after");
    mounted.kill();

    fs::remove_file(store.join("buffer")).expect("a buffer");
    let said = String::from_utf8_lossy(&succeeds(replace(&store).arg("--accept-loss")).stdout).into_owned();
    let restored = newest.replace("epoch-", "restored-");
    assert!(said.contains(&format!("weir mount --volume {restored}")), "{said}");
    assert!(said.contains("find DIR -newermt 20"), "{said}");
    let mounted = sandbox.mount_with(&["--volume", &restored]);
    assert_there(&mounted, "before");
    assert_there(&mounted, "between");
    assert!(!mounted.path("after").exists(), "it was in the buffer alone");
    write_synced(&mounted, "on");
    mounted.unmount();
    assert_clean(&store);
}

#[test]
fn a_store_that_can_be_mounted_after_a_kill_of_accept_loss_has_the_copy_that_is_whole() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let (dir, store) = (sandbox.store(), sandbox.store().join("store"));
    let mounted = sandbox.mount_with(&["--epoch-every", "1"]);
    write_synced(&mounted, "before");
    epoch_of_now(&mounted);
    mounted.kill();
    let without_buffer = fs::read(&store).expect("the store");
    let mut kills = 0;
    loop {
        for entry in fs::read_dir(&dir).expect("a directory") {
            fs::remove_file(entry.expect("an entry").path()).expect("a file");
        }
        fs::write(&store, &without_buffer).expect("space");
        // Kill the command at its next flush.
        let mut strace = Command::new("strace");
        let kill = format!("inject=fdatasync,fsync:signal=KILL:when={}", kills + 1);
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", &kill]);
        strace.arg(weir().get_program()).args(["replace-buffer", "--accept-loss"]).arg(&dir);
        let Ok(ended) = strace.output() else { return eprintln!("skipped: strace is not installed") };
        let mount = || weir().arg("mount").arg(&dir).arg(sandbox.mount_point()).output().expect("weir");
        if !mount().status.success() {
            assert!(!ended.status.success(), "{ended:?}");
            succeeds(replace(&dir).args(["--accept-loss", "--force"]));
            succeeds(weir().arg("mount").arg(&dir).arg(sandbox.mount_point()));
        }
        let listed = succeeds(weir().args(["volume", "list"]).arg(sandbox.mount_point())).stdout;
        succeeds(weir().arg("unmount").arg(sandbox.mount_point()));
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let copy = listed.split_whitespace().find(|word| word.starts_with("restored-"));
        let copy = copy.unwrap_or_else(|| panic!("killed at flush {}: {listed}", kills + 1));
        let mounted = sandbox.mount_with(&["--volume", copy]);
        assert_there(&mounted, "before");
        mounted.unmount();
        if ended.status.success() {
            break;
        }
        kills += 1;
    }
    assert!(kills > 5, "{kills}: the run tests little");
}

/// Waits for an epoch that has all data written so far, and returns its name.
fn epoch_of_now(mounted: &Mounted) -> String {
    let now = Instant::now();
    for _ in 0..600 {
        let epoch = mounted.status().epoch;
        match (epoch.last, epoch.age_ms) {
            (Some(last), Some(age)) if Duration::from_millis(age) < now.elapsed() => return last,
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
    panic!("no epoch: {:?}", mounted.status().epoch);
}

#[test]
fn a_damaged_buffer_is_kept_beside_the_new_one() {
    if !can_mount() {
        return;
    }
    let sandbox = with_both();
    let (store, buffer) = (sandbox.store(), sandbox.store().join("buffer"));
    let mut bytes = fs::read(&buffer).expect("the buffer");
    bytes[100] ^= 1;
    fs::write(&buffer, &bytes).expect("a damaged buffer");
    assert!(fails(&mut replace(&store)).contains("checksum"));
    assert!(fs::read(&buffer).expect("it") == bytes, "a refusal changes nothing");
    succeeds(replace(&store).arg("--accept-loss"));
    assert!(fs::read(store.join("buffer.old")).expect("the old one") == bytes);
    let mounted = sandbox.mount();
    assert_there(&mounted, "stored");
    mounted.unmount();
    // A second loss does not overwrite the kept buffer of the first loss.
    fs::write(&buffer, &bytes).expect("damaged again");
    let said = fails(replace(&store).arg("--accept-loss"));
    assert!(said.contains("buffer.old") && said.contains("move it away"), "{said}");
    assert!(fs::read(&buffer).expect("it") == bytes, "a refusal changes nothing");
    assert_eq!(fs::read_dir(&store).expect("it").count(), 3);
}

#[test]
fn an_old_copy_of_the_buffer_is_refused_and_the_media_stay_as_they_are() {
    if !can_mount() {
        return;
    }
    let sandbox = with_both();
    let (store, buffer) = (sandbox.store(), sandbox.store().join("buffer"));
    let old = fs::read(&buffer).expect("the buffer");
    let mounted = sandbox.mount();
    write_synced(&mounted, "later");
    mounted.unmount();
    let newer = fs::read(&buffer).expect("the buffer");
    fs::write(&buffer, &old).expect("a restored buffer");
    let before = fs::read(store.join("store")).expect("the store");
    let said = fails(weir().arg("mount").arg(&store).arg(sandbox.mount_point()));
    assert!(said.contains("this buffer is an older copy"), "{said}");
    assert!(fs::read(store.join("store")).expect("it") == before && fs::read(&buffer).expect("it") == old);
    fs::write(&buffer, newer).expect("the right one");
    let mounted = sandbox.mount();
    assert_there(&mounted, "later");
    mounted.unmount();
    assert_clean(&store);
}

/// Begins to replace the buffer by one of 512 MiB, and stops the process while that is formatted.
fn stop_while_formatting(store: &Path) -> KilledAtEnd {
    let replacing = replace(store).args(["--buffer-size", "512MiB"]).spawn().expect("a process");
    let replacing = KilledAtEnd(replacing);
    let begin = Instant::now();
    while !store.join("buffer.new").exists() {
        assert!(begin.elapsed() < PATIENCE, "no new buffer is made");
    }
    replacing.signal(Signal::STOP);
    replacing
}

/// A process that does not outlive its test.
struct KilledAtEnd(Child);

impl KilledAtEnd {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("a child of ours");
    }
}

impl Drop for KilledAtEnd {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn a_new_buffer_that_a_kill_left_over_is_made_anew() {
    let sandbox = Sandbox::formatted();
    let store = sandbox.store();
    drop(stop_while_formatting(&store));
    assert!(store.join("buffer.new").exists(), "it was formatted before it could be stopped");
    let said = succeeds(replace(&store).args(["--buffer-size", "96MiB"])).stdout;
    assert!(String::from_utf8_lossy(&said).contains("buffer 96 MiB"), "{said:?}");
    assert!(!store.join("buffer.new").exists());
    assert_clean(&store);
}

#[test]
fn a_new_buffer_that_the_store_names_is_not_overwritten_but_gets_its_name() {
    if !can_mount() {
        return;
    }
    let sandbox = with_both();
    let (store, [entry, new]) =
        (sandbox.store(), ["buffer", "buffer.new"].map(|name| sandbox.store().join(name)));
    let old = fs::read(&entry).expect("the buffer");
    succeeds(replace(&store).args(["--buffer-size", "96MiB"]));
    // As a crash leaves it before the last step.
    fs::rename(&entry, &new).expect("the new buffer");
    fs::write(&entry, old).expect("space");
    let said = fails(replace(&store).arg("--force"));
    assert!(said.contains("an earlier `weir replace-buffer` was cut off"), "{said}");
    let command = said.split('`').find(|part| part.starts_with("mv ")).expect("a command");
    succeeds(Command::new("sh").args(["-c", command]));
    let mounted = sandbox.mount();
    assert_there(&mounted, "synced");
    mounted.unmount();
    assert_clean(&store);
}

#[test]
fn nobody_changes_the_store_between_the_write_back_and_the_new_buffer() {
    let sandbox = Sandbox::formatted();
    let store = sandbox.store();
    let mut replacing = stop_while_formatting(&store);
    let is_formatting = store.join("buffer.new").exists();
    let mut create = weir();
    let refused = create.args(["volume", "create"]).arg(&store).arg("other").output().expect("a process");
    replacing.signal(Signal::CONT);
    assert!(replacing.0.wait().expect("a child of ours").success());
    assert!(is_formatting, "it was formatted before it could be stopped");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("in use"), "{refused:?}");
    succeeds(&mut create);
    assert_clean(&store);
}

#[test]
fn the_buffer_of_a_mounted_store_stays() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let said = fails(replace(&sandbox.store()).arg("--accept-loss"));
    assert!(said.contains("in use"), "{said}");
    assert_eq!(fs::read_dir(sandbox.store()).expect("it").count(), 2);
    mounted.unmount();
}

#[test]
fn who_goes_on_with_an_older_store_gets_a_buffer_of_the_old_size_and_hears_what_no_check_can_see() {
    if !can_mount() {
        return;
    }
    let sandbox = with_both();
    let (dir, store) = (sandbox.store(), sandbox.store().join("store"));
    let older = fs::read(&store).expect("the store");
    for name in ["later", "last"] {
        let mounted = sandbox.mount();
        write_synced(&mounted, name);
        mounted.unmount();
    }
    let newest = fs::read(&store).expect("the store");
    fs::write(&store, &older).expect("a restored store");
    let said = fails(&mut replace(&dir));
    assert!(said.contains("an older copy") && said.contains("of the same moment"), "{said}");
    let said = succeeds(replace(&dir).arg("--accept-loss"));
    assert!(String::from_utf8_lossy(&said.stdout).contains("not the contents of files"), "{said:?}");
    assert_eq!(fs::metadata(dir.join("buffer")).expect("it").len(), 8 << 20, "as the old one");
    let mounted = sandbox.mount();
    assert_there(&mounted, "stored");
    assert!(!mounted.path("last").exists(), "the older store never had it");
    mounted.unmount();
    assert_clean(&dir);
    // The newest store was found after all, and the old buffer was kept.
    fs::write(&store, newest).expect("the store");
    fs::rename(dir.join("buffer.old"), dir.join("buffer")).expect("the old buffer");
    let mounted = sandbox.mount();
    for name in ["stored", "synced", "later", "last"] {
        assert_there(&mounted, name);
    }
    mounted.unmount();
    assert_clean(&dir);
}
