//! Locks. The kernel itself keeps them, because a mount is the only front end to its files. The tests use
//! processes, as programs do.

use crate::call::call;
use crate::common::{Mounted, Sandbox, can_mount};
use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn file(mounted: &Mounted) -> PathBuf {
    let path = mounted.path("file");
    std::fs::write(&path, [7; 1000]).expect("a file");
    path
}

#[test]
fn posix_locks_exclude_by_range_and_kind_and_name_their_holder() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = file(&mounted);
    let mut holder = call(&["lock", "{}", "posix", "100", "100", "write", "try"], &path);
    holder.expect("held");
    for (start, len, kind, busy) in [
        ("199", "1", "read", true),
        ("0", "0", "write", true),
        ("200", "0", "write", false),
        ("0", "100", "write", false),
    ] {
        let mut other = call(&["lock", "{}", "posix", start, len, kind, "try"], &path);
        let (word, pid) = other.says();
        let expected = if busy { ("busy", i64::from(holder.pid())) } else { ("held", 0) };
        assert_eq!((word.as_str(), pid), expected, "{start}+{len} {kind}");
    }
    assert!(holder.end().success());
    let mut readers: Vec<_> =
        (0..3).map(|_| call(&["lock", "{}", "posix", "0", "0", "read", "try"], &path)).collect();
    readers.iter_mut().for_each(|reader| assert_eq!(reader.expect("held"), 0));
    let mut writer = call(&["lock", "{}", "posix", "5", "1", "write", "try"], &path);
    writer.expect("busy");
}

#[test]
fn a_lock_goes_with_its_holder_however_that_dies_and_who_waits_gets_it() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = file(&mounted);
    for kind in ["posix", "ofd"] {
        let mut holder = call(&["lock", "{}", kind, "0", "0", "write", "try"], &path);
        holder.expect("held");
        // Three processes wait. Each is killed while it holds the lock, and only then the next one gets the
        // lock.
        let holding = AtomicU32::new(1);
        std::thread::scope(|scope| {
            let wait = || {
                let mut waiting = call(&["lock", "{}", kind, "10", "5", "write", "wait"], &path);
                waiting.expect("held");
                assert_eq!(holding.fetch_add(1, Ordering::SeqCst), 0, "{kind}: two hold it");
                std::thread::sleep(Duration::from_millis(20));
                holding.fetch_sub(1, Ordering::SeqCst);
                waiting.kill();
            };
            let waiting: Vec<_> = (0..3).map(|_| scope.spawn(wait)).collect();
            std::thread::sleep(Duration::from_millis(100));
            // The daemon serves requests while other processes wait for locks.
            assert_eq!(std::fs::read(&path).expect("a read"), [7; 1000]);
            holding.fetch_sub(1, Ordering::SeqCst);
            holder.kill();
            waiting.into_iter().for_each(|thread| thread.join().expect("it got the lock"));
        });
    }
}

#[test]
fn flock_excludes_other_openers_and_goes_with_the_last_descriptor() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = file(&mounted);
    let open = || File::open(&path).expect("the file");
    let (one, other) = (open(), open());
    one.lock_shared().expect("shared");
    other.try_lock_shared().expect("shared by two");
    assert!(matches!(open().try_lock(), Err(TryLockError::WouldBlock)));
    one.unlock().expect("unlocked");
    // Upgraded in place.
    other.try_lock().expect("alone now");
    assert!(matches!(one.try_lock_shared(), Err(TryLockError::WouldBlock)));
    // A descriptor that was duplicated is the same opener.
    let twin = other.try_clone().expect("a twin");
    twin.try_lock().expect("the same opener");
    drop(other);
    assert!(matches!(one.try_lock(), Err(TryLockError::WouldBlock)), "the twin still holds it");
    drop(twin);
    one.try_lock().expect("free");
    // Both names of a file lead to the same lock.
    std::fs::hard_link(&path, mounted.path("other name")).expect("a link");
    let by_other_name = File::open(mounted.path("other name")).expect("the file");
    assert!(matches!(by_other_name.try_lock(), Err(TryLockError::WouldBlock)));
}

#[test]
fn a_thousand_locks_of_a_client_that_is_killed_are_gone() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let paths: Vec<PathBuf> = (0..20).map(|at| mounted.path(&format!("file{at}"))).collect();
    paths.iter().for_each(|path| std::fs::write(path, [7; 100]).expect("a file"));
    let mut holders: Vec<_> = paths
        .iter()
        .flat_map(|path| (0..5).map(move |at| (path, at)))
        .map(|(path, at)| {
            let start = (at * 10).to_string();
            let mut holder = call(&["lock", "{}", "posix", &start, "10", "write", "try"], path);
            holder.expect("held");
            holder
        })
        .collect();
    holders.iter_mut().for_each(|holder| holder.kill());
    for path in &paths {
        let mut all = call(&["lock", "{}", "posix", "0", "0", "write", "try"], path);
        all.expect("held");
        assert!(all.end().success());
    }
    mounted.unmount();
}
