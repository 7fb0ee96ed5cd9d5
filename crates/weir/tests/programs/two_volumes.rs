//! Two mounted volumes of one store, each with a database. A program inserts each row into the first, and then
//! into the second. After a kill, one prefix of that order is there.

use crate::kills::{have, kills, random};
use crate::sqlite::{Writer, has_rows, query};
use crate::weir::Weir;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The rows of a database. They are numbered in the order of their insertion.
fn count_rows(database: &Path, when: &str) -> u64 {
    if !has_rows(database) {
        return 0;
    }
    assert_eq!(query(database, "PRAGMA integrity_check"), "ok", "{when}");
    let [count, last] = ["SELECT count(*) FROM rows", "SELECT ifnull(max(n) + 1, 0) FROM rows"]
        .map(|sql| query(database, sql).parse().expect("a number"));
    assert_eq!(count, last, "{when}: a row is missing among others");
    count
}

/// `promised`: whether an acknowledged row must be there.
fn is_one_prefix_after_kills(options: &'static [&'static str], synchronous: &str, promised: bool) {
    if !have(&["sqlite3", "stdbuf"].map(Path::new)) {
        return;
    }
    let (seed, mut random) = random();
    let Some(mut weir) = Weir::start_with("1GiB", "16MiB", options) else { return };
    weir.create_volume("other");
    fs::create_dir(weir.beside("other")).expect("a mount point");
    let databases = [weir.path(), weir.mount_beside("other")].map(|mounted| {
        // SQLite that begins after the kill must not find the directory below the mount.
        let dir = mounted.join("dir");
        fs::create_dir(&dir).and_then(|()| fs::File::open(&dir)?.sync_all()).expect("a directory");
        dir.join("rows.db")
    });
    let (mut rows, mut kill) = ([0; 2], 0);
    // Where programs start slowly, the first lives are too short for a row.
    while kill < kills() || rows[1] == 0 && kill < 10 * kills() {
        kill += 1;
        let [first, second] = &databases;
        let alive = Duration::from_millis(50 + random.below(600));
        let acknowledged = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut writers = [first, second].map(|at| Writer::start(at, "WAL", synchronous));
                let [mut in_first, mut in_second] = rows;
                loop {
                    // The first volume has one row more if the kill came between the two.
                    if in_first == in_second {
                        if !writers[0].insert(in_first) {
                            break;
                        }
                        in_first += 1;
                    }
                    if !writers[1].insert(in_second) {
                        break;
                    }
                    in_second += 1;
                }
                [in_first, in_second]
            });
            std::thread::sleep(alive);
            weir.kill();
            writer.join().expect("the writer does not panic")
        });
        weir.mount();
        weir.mount_beside("other");
        let when = format!("seed {seed}, after kill {kill}");
        rows = [first, second].map(|database| count_rows(database, &when));
        assert!(rows[0] == rows[1] || rows[0] == rows[1] + 1, "{when}: {rows:?} rows");
        let all = |volume: usize| rows[volume] >= acknowledged[volume];
        assert!(!promised || (all(0) && all(1)), "{when}: {rows:?} of {acknowledged:?} rows");
    }
    assert!(rows[1] > 0, "hardly a row was written between the kills");
    weir.unmount_beside("other");
    weir.unmount_and_check();
}

#[test]
fn synced_rows_of_two_volumes_survive_kills() {
    is_one_prefix_after_kills(&[], "FULL", true);
}

#[test]
fn unsynced_rows_of_two_volumes_are_one_prefix_after_kills() {
    is_one_prefix_after_kills(&["--data", "journal"], "OFF", false);
}
