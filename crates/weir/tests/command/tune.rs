//! `weir tune`: settings of a mounted store, changed while programs use it.

use crate::common::{Mounted, Sandbox, assert_says, can_mount, fails, succeeds, weir};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const STREAM_BYTES: usize = 8 << 20;

/// Writes a file sequentially. Returns whether some of its pages bypassed the buffer.
fn bypasses(mounted: &Mounted, name: &str) -> bool {
    let pages = || mounted.status().counters.pages_bypassed;
    let before = pages();
    fs::write(mounted.path(name), vec![7; STREAM_BYTES]).expect("a file");
    pages() > before
}

#[test]
fn a_changed_data_mode_counts_at_once_and_after_a_crash_and_is_kept() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--data", "journal"]);
    assert!(!bypasses(&mounted, "strict"));
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--data", "ordered"]));
    assert!(bypasses(&mounted, "streams"));
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--data", "journal"]));
    mounted.kill();
    let mounted = sandbox.mount();
    assert_eq!(mounted.status().settings.data, "journal");
    let content = fs::read(mounted.path("streams")).expect("durable since the mode was changed");
    assert!(content == vec![7; STREAM_BYTES]);
    assert!(!bypasses(&mounted, "strict again"));
    mounted.unmount();
    let mounted = sandbox.mount_with(&["--data", "ordered"]);
    assert!(bypasses(&mounted, "streams again"));
    mounted.unmount();
    let mounted = sandbox.mount();
    assert_eq!(mounted.status().settings.data, "ordered");
    mounted.unmount();
    let mounted = sandbox.mount_with(&["--read-only"]);
    assert_says(&fails(weir().arg("tune").arg(mounted.dir()).args(["--data", "journal"])), "read-only");
    mounted.unmount();
}

#[test]
fn old_words_are_refused_with_the_new_ones() {
    let refused = |arguments: &[&str], says: &str| {
        let output = weir().args(arguments).output().expect("the command starts");
        assert_eq!(output.status.code(), Some(2));
        assert_says(&String::from_utf8_lossy(&output.stderr), says);
    };
    refused(&["order", "/mnt/demo", "strict"], "weir tune DIR --data");
    refused(&["mount", "--order", "strict", "/store", "/mnt/demo"], "--data journal");
    refused(&["mount", "--direct-after", "0", "/store", "/mnt/demo"], "--bypass-after SIZE");
}

/// Whether a count is as expected in one of ten tries: on a busy machine pages may have been stored before they
/// are synced, or be logged because the store is slow.
fn is_sometimes(expected: u64, mut count: impl FnMut() -> u64) -> bool {
    (0..10).any(|_| count() == expected)
}

/// Overwrites a file with whole pages and syncs it, as the task `name`. Returns how many of the pages the sync
/// logged.
fn logged_for(mounted: &Mounted, name: &str) -> u64 {
    let logged = || mounted.status().counters.pages_logged_late;
    let before = logged();
    let path = mounted.path(name);
    let write = move || {
        let file = fs::File::create(path).expect("a file");
        // Until the daemon has read this thread's name.
        for _ in 0..60 {
            file.write_all_at(&[7; 64 << 10], 0).expect("space");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        file.sync_all().expect("a store that works");
        let done = logged();
        file.write_all_at(&[8; 64 << 10], 0).expect("space");
        file.sync_all().expect("a store that works");
        logged() - done
    };
    assert!(before <= logged());
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(name.into()).spawn_scoped(scope, write);
        thread.expect("a thread").join().expect("no panic")
    })
}

#[test]
fn a_policy_decides_whose_syncs_are_logged_and_changes_at_once() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let rules = sandbox.rules_file("background thread=scribe\n");
    let mounted = sandbox.mount_with(&["--policy", "critical", "--rules", &rules]);
    assert_eq!(mounted.status().settings.policy.as_deref(), Some("critical"));
    let shown = || {
        let output = succeeds(weir().args(["rules", "show"]).arg(mounted.dir()));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(shown().starts_with("policy critical\n"));
    assert_says(&shown(), "   3        0  background thread=scribe\n");
    assert!(is_sometimes(0, || logged_for(&mounted, "scribe")), "its sync waits for the store");
    // On a busy machine the thread may be forgotten before the command asks.
    let is_counted = || {
        logged_for(&mounted, "scribe");
        shown().contains("   3        1  background thread=scribe\n")
    };
    assert!((0..20).any(|_| is_counted()), "{}", shown());
    assert!(is_sometimes(16, || logged_for(&mounted, "other")));
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--policy", "sync"]));
    assert!(is_sometimes(16, || logged_for(&mounted, "scribe")), "everybody is critical");
    let bypassed = || mounted.status().counters.pages_bypassed;
    let before = bypassed();
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--policy", "all"]));
    assert_eq!(logged_for(&mounted, "scribe"), 0, "they were logged at once");
    assert_eq!(bypassed(), before);
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--rules", &rules]));
    assert_eq!(mounted.status().settings.policy.as_deref(), Some("critical"));
    assert!(is_sometimes(0, || logged_for(&mounted, "scribe")));
    assert!(bypassed() > before);
    fs::write(mounted.path("unsynced"), [7; 64 << 10]).expect("a file");
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--policy", "none"]));
    let status = mounted.status();
    assert_eq!(status.settings.policy, None);
    assert_eq!(status.lsns.applied, status.lsns.durable);
    let before = bypassed();
    assert_eq!(logged_for(&mounted, "scribe"), 0);
    assert_eq!(bypassed(), before, "single pages do not bypass the buffer");
    assert!(bypasses(&mounted, "stream"));
    mounted.unmount();
}

#[test]
fn a_rule_beyond_its_share_is_background() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let rules = sandbox.rules_file("critical share=10%\n");
    let mounted = sandbox.mount_with(&["--policy", "critical", "--rules", &rules]);
    let share = || mounted.status().rule_shares.remove(0);
    assert_eq!((share().rule.as_str(), share().is_beyond), ("critical share=10%", false));
    assert!(is_sometimes(16, || logged_for(&mounted, "within its share")));
    // Parts of pages are always logged.
    let file = fs::File::create(mounted.path("parts")).expect("a file");
    (0..4096).for_each(|page| file.write_all_at(&[7; 1024], page * 4096).expect("space"));
    let beyond = share();
    assert!(beyond.is_beyond, "{beyond:?}");
    let said = succeeds(weir().arg("status").arg(mounted.dir())).stdout;
    assert_says(&String::from_utf8_lossy(&said), "of 10%: critical share=10%");
    assert!(is_sometimes(0, || logged_for(&mounted, "beyond its share")));
    // Writing the pages back lets their bytes go.
    succeeds(weir().args(["volume", "clone"]).arg(mounted.dir()).arg("stored"));
    let let_go = || {
        file.write_all_at(&[8], 0).expect("space");
        file.sync_all().expect("a store that works");
        std::thread::sleep(std::time::Duration::from_millis(100));
        !share().is_beyond
    };
    assert!((0..100).any(|_| let_go()), "{:?}", share());
    drop(file);
    mounted.unmount();
}

#[test]
fn a_program_is_what_weir_class_says() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--policy", "critical"]);
    let logged_for = |class: &str| {
        let logged = || mounted.status().counters.pages_logged_late;
        let before = logged();
        // The first command lasts until the daemon has read the shell's environment.
        let script = "for i in 1 2 3 4; do echo > a; sleep 0.1; done; exec dd if=/dev/zero of=b bs=64k count=1 conv=fsync";
        succeeds(weir().args(["class", class, "--", "sh", "-c", script]).current_dir(mounted.dir()));
        logged() - before
    };
    assert!(is_sometimes(16, || logged_for("critical")));
    assert!(is_sometimes(0, || logged_for("background")));
    mounted.unmount();
}

/// A shell that runs commands in a mount.
struct Shell(Child);

impl Shell {
    fn tagged_critical(mounted: &Mounted) -> Shell {
        let mut shell = Command::new("sh");
        shell.env("WEIR_TAG", "critical");
        shell.current_dir(mounted.dir()).stdin(Stdio::piped()).stdout(Stdio::piped());
        Shell(shell.spawn().expect("sh starts"))
    }

    fn run(&mut self, script: &str) {
        writeln!(self.0.stdin.as_mut().expect("a pipe"), "{script}; echo").expect("it runs");
        let mut done = [0];
        self.0.stdout.as_mut().expect("a pipe").read_exact(&mut done).expect("it runs");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn a_running_process_and_its_children_are_what_weir_class_says() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--policy", "critical"]);
    let mut shell = Shell::tagged_critical(&mounted);
    let pid = shell.0.id().to_string();
    let mut logged_for = |class: &str, dir: &[&Path]| {
        // Other mounts of this machine may be those of tests that kill daemons.
        let told = weir().args(["class", class, "--pid", &pid]).args(dir).output().expect("weir starts");
        assert!(dir.is_empty() || told.status.success(), "{told:?}");
        let logged = || mounted.status().counters.pages_logged_late;
        let before = logged();
        // The child writes until the daemon has read about it.
        let script = "for i in 1 2 3 4; do echo > a; sleep 0.1; done; exec dd if=/dev/zero of=b bs=64k count=1 conv=fsync";
        shell.run(&format!("sh -c '{script}'"));
        logged() - before
    };
    let dir = [mounted.dir()];
    assert!(is_sometimes(0, || logged_for("background", &dir)));
    assert!(is_sometimes(16, || logged_for("none", &dir)));
    assert!(is_sometimes(0, || logged_for("background", &[])));
    assert!(is_sometimes(16, || logged_for("critical", &dir)));
    assert_says(
        &fails(weir().args(["class", "background", "--pid", "4000000000"]).args(dir)),
        "4000000000: there is no such process",
    );
    drop(shell);
    mounted.unmount();
}

#[test]
fn status_shows_the_policy_and_its_rules() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let rules = sandbox.rules_file("critical  title=a\nbackground\n");
    let mounted = sandbox.mount_with(&["--rules", &rules]);
    let shown =
        || String::from_utf8(succeeds(weir().arg("status").arg(mounted.dir())).stdout).expect("UTF-8");
    assert_says(&shown(), "  policy     critical, 2 rules; data ordered\n");
    assert!(!shown().contains("  lending "), "the policy does not lend");
    assert_eq!(mounted.status().settings.rules, ["critical title=a", "background"]);
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--policy", "none", "--data", "journal"]));
    assert_says(&shown(), "  policy     none; data journal\n");
    assert!(mounted.status().settings.rules.is_empty());
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--policy", "critical+process"]));
    assert_says(
        &shown(),
        "  lending    0 loans to background programs that critical ones waited for, 0 now; 0 looks\n",
    );
    mounted.unmount();
}

#[test]
fn a_policy_for_a_missing_file_is_warned_of() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let said = || {
        let output = succeeds(weir().arg("tune").arg(mounted.dir()).args(["--policy", "file=/a/wal"]));
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    assert_says(&said(), "warning: --policy file=/a/wal: the mount has no such file yet\n");
    fs::create_dir_all(mounted.path("a/wal")).expect("a directory");
    assert_eq!(said(), "");
    mounted.unmount();
}

#[test]
fn a_class_that_does_not_count_yet_is_warned_of() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let pid = std::process::id().to_string();
    let said = |class: &str| {
        let output = succeeds(weir().args(["class", class, "--pid", &pid]).arg(mounted.dir()));
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    assert_says(&said("background"), "warning: classes do not count yet");
    assert_eq!(said("none"), "");
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--policy", "critical"]));
    assert_eq!(said("critical"), "");
    assert_eq!(said("none"), "");
    let wrong = weir().args(["class", "background", "--pid", "-1"]).output().expect("weir starts");
    assert_eq!(wrong.status.code(), Some(2));
    assert_says(&String::from_utf8_lossy(&wrong.stderr), "-1 is not in 1..=4294967295");
    mounted.unmount();
}

#[test]
fn a_thread_is_what_it_says_from_its_next_request_on() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let set_class = |class: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(mounted.dir(), "user.weir.class", class.as_bytes(), flags).expect("set");
    };
    let logged_after = |class: Option<&str>| {
        let logged = || mounted.status().counters.pages_logged_late;
        let before = logged();
        let file = fs::File::create(mounted.path("file")).expect("a file");
        class.into_iter().for_each(set_class);
        file.write_all_at(&[7; 64 << 10], 0).expect("space");
        file.sync_all().expect("a store that works");
        logged() - before
    };
    set_class("background");
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--policy", "critical"]));
    assert!(is_sometimes(0, || logged_after(None)), "the class was set before the policy");
    assert!(is_sometimes(16, || logged_after(Some("critical"))));
    assert!(is_sometimes(0, || logged_after(Some("background"))));
    assert!(is_sometimes(16, || logged_after(Some(""))));
    mounted.unmount();
}

#[test]
fn a_policy_of_one_directory_follows_its_files_wherever_they_move() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::create_dir_all(mounted.path("db/wal")).expect("directories");
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--policy", "file=/db/wal"]));
    let bypassed = || mounted.status().counters.pages_bypassed;
    let bypassed_for = |name: &str| {
        let before = bypassed();
        let file = fs::File::options().create(true).write(true).truncate(false).open(mounted.path(name));
        let file = file.expect("a file");
        file.write_all_at(&[7; 64 << 10], 0).expect("space");
        file.sync_all().expect("a store that works");
        bypassed() - before
    };
    assert!(is_sometimes(0, || bypassed_for("db/wal/1")) && is_sometimes(16, || bypassed_for("db/2")));
    fs::rename(mounted.path("db/wal/1"), mounted.path("db/1")).expect("a rename");
    fs::rename(mounted.path("db/2"), mounted.path("db/wal/2")).expect("a rename");
    assert!(is_sometimes(16, || bypassed_for("db/1")) && is_sometimes(0, || bypassed_for("db/wal/2")));
    mounted.unmount();
}

#[test]
fn latencies_are_shown_by_class_while_rules_are_in_force() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let rules = sandbox.rules_file("background file=/background\n");
    let mounted = sandbox.mount();
    let write = |name: &str| fs::write(mounted.path(name), [7; 8192]).expect("space");
    write("background");
    assert!(mounted.status().latency_by_class.is_empty(), "no rules are in force");
    succeeds(weir().arg("tune").arg(mounted.dir()).arg("--rules").arg(&rules));
    (0..3).for_each(|_| write("background"));
    write("critical");
    let status = mounted.status();
    let by_class = &status.latency_by_class["write"];
    assert_eq!((by_class.critical.count, by_class.background.count), (1, 3));
    assert!(by_class.background.max_us >= by_class.background.p50_us && by_class.background.p50_us > 0.0);
    assert_eq!(status.latency["write"].count, 5);
    let shown = succeeds(weir().arg("status").arg(mounted.dir()));
    assert_says(&String::from_utf8_lossy(&shown.stdout), "\n    background          3 ");
    mounted.unmount();
}

#[test]
fn a_policy_and_rules_that_do_not_fit_are_refused() {
    let sandbox = Sandbox::formatted();
    let rules = sandbox.rules_file("background titel=x\n");
    for (options, says) in [
        (&["--policy", "sync", "--rules", &rules][..], "follows no rules"),
        (&["--policy", "critical", "--rules", &rules], "rules: line 1: expected"),
    ] {
        let refused = fails(weir().arg("mount").args(options).arg(sandbox.store()).arg(sandbox.path("mnt")));
        assert_says(&refused, says);
    }
}
