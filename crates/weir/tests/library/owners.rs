//! One process has a store, and may die at any moment.

use crate::common::{Sandbox, assert_says, fails, weir};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use weir_library::{OFlags, Weir, WeirOptions};

/// Names the store to the child of [`what_was_synced_outlives_the_death_of_its_program`].
const STORE_VARIABLE: &str = "WEIR_TESTS_CHILD_STORE";
const RECORD_BYTES: usize = 700;
const KILLS: u32 = 20;

#[test]
fn a_store_belongs_to_one_process_and_errors_name_it() {
    let sandbox = Sandbox::formatted();
    let opened = Weir::open(&sandbox.store(), &WeirOptions::default()).unwrap();
    let own = format!("in use by process {}", std::process::id());
    let second = Weir::open(&sandbox.store(), &WeirOptions::default()).expect_err("it is open");
    assert_says(&second.to_string(), &own);
    assert_says(&fails(weir().arg("mount").args([sandbox.store(), sandbox.mount_point()])), &own);
    let other = WeirOptions { volume: "absent".into(), ..WeirOptions::default() };
    drop(opened);
    let none = Weir::open(&sandbox.store(), &other).expect_err("there is no such volume");
    assert_says(&none.to_string(), "there is no volume absent");
    assert_says(&none.help().unwrap(), "there are: main");
    let nothing = Weir::open(&sandbox.path("nothing"), &WeirOptions::default()).expect_err("no store");
    assert_says(&nothing.help().unwrap(), "its file system is mounted: `findmnt`");
}

#[test]
fn what_was_synced_outlives_the_death_of_its_program() {
    if let Some(store) = std::env::var_os(STORE_VARIABLE) {
        return append_until_killed(store.as_ref());
    }
    let sandbox = Sandbox::formatted();
    let mut records = 0;
    for round in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["owners::what_was_synced_outlives_the_death_of_its_program", "--exact", "--nocapture"])
            .env(STORE_VARIABLE, sandbox.store())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let synced = BufReader::new(child.stdout.take().unwrap()).lines();
        let synced = synced.filter_map(|line| line.unwrap().strip_prefix("synced ")?.parse::<u64>().ok());
        let last = synced.take(5 + round as usize * 7 % 40).last().expect("it syncs");
        child.kill().unwrap();
        child.wait().unwrap();
        let weir = Weir::open(&sandbox.store(), &WeirOptions::default()).unwrap();
        let found = records_in(&weir);
        assert!(found >= last, "{found} records, but {last} were synced");
        assert!(found > records, "it went on");
        records = found;
        // Every second time without closing: then the store recovers again.
        if round % 2 == 0 {
            weir.close().unwrap();
        }
    }
}

#[test]
fn the_removal_of_a_synced_file_outlives_its_program() {
    if let Some(store) = std::env::var_os(STORE_VARIABLE) {
        let weir = Weir::open(store.as_ref(), &WeirOptions::default()).unwrap();
        let journal = weir.open("/journal", OFlags::CREATE | OFlags::WRONLY, 0o600).unwrap();
        journal.write(b"undo").unwrap();
        journal.sync_data().unwrap();
        drop(journal);
        weir.remove_file("/journal").unwrap();
        std::process::abort();
    }
    let sandbox = Sandbox::formatted();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["owners::the_removal_of_a_synced_file_outlives_its_program", "--exact"])
        .env(STORE_VARIABLE, sandbox.store())
        .output()
        .unwrap();
    assert!(!child.status.success(), "it aborts: {child:?}");
    let weir = Weir::open(&sandbox.store(), &WeirOptions::default()).unwrap();
    let found = weir.metadata("/journal").expect_err("it was removed");
    assert_eq!(found.kind(), std::io::ErrorKind::NotFound);
}

/// Appends records, syncs each, and says so.
fn append_until_killed(store: &Path) {
    let weir = Weir::open(store, &WeirOptions::default()).unwrap();
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND;
    let file = weir.open("/records", flags, 0o600).unwrap();
    for number in records_in(&weir).. {
        file.write(&[number as u8; RECORD_BYTES]).unwrap();
        file.sync_data().unwrap();
        println!("synced {}", number + 1);
    }
}

/// The number of whole records, each of which has the right bytes.
fn records_in(weir: &Weir) -> u64 {
    let Ok(file) = weir.open("/records", OFlags::RDONLY, 0) else { return 0 };
    let mut bytes = vec![0; file.metadata().unwrap().size as usize];
    file.read(&mut bytes).unwrap();
    assert_eq!(bytes.len() % RECORD_BYTES, 0, "half a record");
    for (number, record) in bytes.chunks(RECORD_BYTES).enumerate() {
        assert!(record.iter().all(|&byte| byte == number as u8), "record {number}");
    }
    (bytes.len() / RECORD_BYTES) as u64
}
