//! `weir why`: the requests that wait, and the causes.

use crate::common::{Mounted, assert_says, can_mount, fails, succeeds, weir};
use crate::mounts::Faulty;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Writes of half a page: more than the buffer holds.
const WRITES: u64 = 6000;

fn why(mounted: &Mounted, arguments: &[&str]) -> String {
    let output = succeeds(weir().arg("why").arg(mounted.dir()).args(arguments));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Has a write wait for space in the buffer, because the store takes nothing. Returns what is shown meanwhile.
fn wait_for_buffer(faulty: &Faulty, mounted: &Mounted, file: &File) -> String {
    let begun = Instant::now();
    faulty.media.store.set([None, Some(Errno::IO), None]);
    let until_it_waits = || {
        while !mounted.waits().waiting.iter().any(|wait| wait.waits_for == "buffer-space") {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", mounted.waits());
            std::thread::sleep(Duration::from_millis(5));
        }
        why(mounted, &[])
    };
    std::thread::scope(|scope| {
        let observer = scope.spawn(|| {
            let shown = std::panic::catch_unwind(until_it_waits);
            faulty.mend();
            shown
        });
        (0..WRITES).for_each(|page| file.write_all_at(&[7; 2048], page << 12).expect("space"));
        observer.join().expect("mended").expect("a write has waited")
    })
}

#[test]
fn a_writer_that_waits_for_the_buffer_is_shown() {
    if !can_mount() {
        return;
    }
    let faulty = Faulty::new();
    let mounted = faulty.mount();
    assert_says(&why(&mounted, &[]), "nothing has waited");
    let path = mounted.path("file");
    let file = File::create(&path).expect("a file");
    let while_it_waits = wait_for_buffer(&faulty, &mounted, &file);
    assert_says(&while_it_waits, "space in the buffer");
    let shown = why(&mounted, &[]);
    assert_says(&shown, &format!("for space in the buffer, file {}\n", path.display()));
    assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    let report = mounted.waits();
    let wait = report.ended.iter().find(|wait| wait.waits_for == "buffer-space").expect("it has waited");
    assert_eq!((wait.request.as_str(), wait.class.as_str(), &wait.rule), ("write", "critical", &None));
    assert!(wait.waited_ms >= 1.0 && wait.title.is_some() && wait.inode.is_some());
    assert!(report.ended.len() <= 256);
    let longest = report.longest.iter().find(|wait| wait.waits_for == "buffer-space").expect("it has waited");
    assert!(longest.waited_ms >= wait.waited_ms && longest.title.is_some());
    let totals =
        report.totals.iter().find(|totals| totals.waits_for == "buffer-space").expect("it has waited");
    assert!(totals.count >= 1 && totals.longest_ms == longest.waited_ms);
    assert!(!shown.contains("critical"), "no class counts: {shown}");
    succeeds(weir().arg("tune").arg(mounted.dir()).args(["--policy", "critical"]));
    assert_says(&why(&mounted, &[]), "critical, by none of the rules in force\n");
    assert_eq!(mounted.waits().policy.as_deref(), Some("critical"));
    let of_process = |id: u32| why(&mounted, &["--pid", &id.to_string()]);
    assert_says(&of_process(std::process::id()), "space in the buffer");
    let parent = rustix::process::getppid().expect("this process has a parent").as_raw_pid();
    assert_says(&of_process(parent as u32), "space in the buffer");
    let mut child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
    assert_says(&of_process(child.id()), "nothing waits");
    child.kill().and_then(|()| child.wait()).expect("a child of ours");
    let other = mounted.path("other");
    File::create(&other).expect("a file");
    let of_file = |path| String::from_utf8(succeeds(weir().arg("why").arg(path)).stdout).expect("UTF-8");
    assert_says(&of_file(&path), "space in the buffer");
    assert_says(&of_file(&other), "nothing waits");
    assert_says(&of_file(&other), "the last 256 waits of a millisecond and more were elsewhere");
    let said = fails(weir().arg("why").arg(mounted.path("nothing")));
    assert_says(&said, "nothing: no such file");
    assert_says(&said, &format!("`weir why {}` shows", mounted.dir().display()));
    assert_says(&fails(weir().arg("why").arg("/proc")), "/proc");
    drop(file);
    mounted.unmount();
}
