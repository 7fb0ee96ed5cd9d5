//! Several changes as one.

use crate::common::Sandbox;
use crate::files::{errno, open};
use rustix::io::Errno;
use std::path::Path;
use weir_library::{OFlags, Weir};

const CREATE: OFlags = OFlags::CREATE.union(OFlags::RDWR);

fn content(weir: &Weir, path: &str) -> Vec<u8> {
    let file = weir.open(path, OFlags::RDONLY, 0).unwrap();
    let mut bytes = vec![0; file.metadata().unwrap().size as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

#[test]
fn all_changes_of_a_batch_are_there_after_it_and_none_before() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    let [one, two, old] = ["one", "two", "old"].map(|name| weir.open(name, CREATE, 0o644).unwrap());
    old.write(b"old").unwrap();
    let mut batch = weir.batch();
    batch.write_at(&one, b"1", 0).unwrap().write_at(&two, &[2; 9000], 4095).unwrap();
    batch.write_at(&one, b"11", 1).unwrap();
    batch.rename("two", "three").unwrap().remove_file("old").unwrap();
    assert_eq!((content(&weir, "one"), content(&weir, "two").len()), (vec![], 0));
    batch.apply().unwrap();
    assert_eq!(content(&weir, "one"), b"111");
    assert_eq!(content(&weir, "three"), [vec![0; 4095], vec![2; 9000]].concat());
    assert_eq!(errno(weir.metadata("two")), Errno::NOENT);
    assert_eq!(errno(weir.metadata("old")), Errno::NOENT);
    let mut left = [0; 3];
    old.read_at(&mut left, 0).unwrap();
    assert_eq!(&left, b"old", "an open file lives without a name");
    weir.batch().apply().unwrap();
}

#[test]
fn a_batch_that_fails_or_is_dropped_changes_nothing() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    let file = weir.open("file", CREATE, 0o644).unwrap();
    file.write(b"before").unwrap();
    weir.open("gone", CREATE, 0o644).unwrap();
    let mut batch = weir.batch();
    batch.write_at(&file, b"after!!", 0).unwrap().rename("file", "moved").unwrap();
    batch.remove_file("gone").unwrap();
    weir.remove_file("gone").unwrap();
    assert_eq!(errno(batch.apply()), Errno::NOENT, "another removed it meanwhile");
    drop(weir.batch().write_at(&file, b"after", 0));
    assert_eq!(content(&weir, "file"), b"before");
    assert_eq!(errno(weir.metadata("moved")), Errno::NOENT);
}

#[test]
fn a_file_made_meanwhile_is_not_taken_for_one_of_the_batch() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    let file = weir.open("old", CREATE, 0o644).unwrap();
    let number = file.ino();
    let mut batch = weir.batch();
    batch.write_at(&file, b"of the batch", 0).unwrap();
    drop(file);
    weir.remove_file("old").unwrap();
    let others: Vec<_> = (0..4).map(|at| weir.open(format!("new {at}"), CREATE, 0o644).unwrap()).collect();
    batch.apply().unwrap();
    assert!(others.iter().all(|other| other.ino() != number && other.metadata().unwrap().size == 0));
    let again = weir.open("again", CREATE, 0o644).unwrap();
    assert_eq!(again.ino(), number, "after the batch its number is free");

    weir.create_dir("left", 0o755).unwrap();
    weir.open("left/x", CREATE, 0o644).unwrap();
    let mut batch = weir.batch();
    batch.remove_file("left/x").unwrap();
    weir.remove_file("left/x").unwrap();
    weir.remove_directory("left").unwrap();
    weir.create_dir("other", 0o755).unwrap();
    weir.open("other/x", CREATE, 0o644).unwrap();
    assert_eq!(errno(batch.apply()), Errno::NOENT);
    assert!(weir.metadata("other/x").is_ok());
}

#[test]
fn what_cannot_be_in_a_batch_is_refused() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    let file = weir.open("file", CREATE, 0o644).unwrap();
    let reader = weir.open("file", OFlags::RDONLY, 0).unwrap();
    assert_eq!(errno(weir.batch().write_at(&reader, b"x", 0).map(drop)), Errno::BADF);
    assert_eq!(errno(weir.batch().rename("nothing", "x").map(drop)), Errno::NOENT);
    assert_eq!(errno(weir.batch().remove_file(Path::new("/")).map(drop)), Errno::ISDIR);
    let other = Sandbox::formatted();
    let stranger = open(&other);
    assert_eq!(errno(stranger.batch().write_at(&file, b"x", 0).map(drop)), Errno::XDEV);
    for (writes, bytes, offset) in [(65, 1, 0), (2, (512 << 10) + 1, 0), (1, 1, u64::MAX)] {
        let mut batch = weir.batch();
        for _ in 0..writes {
            batch.write_at(&file, &vec![1; bytes], offset).unwrap();
        }
        assert_eq!(errno(batch.apply()), Errno::FBIG, "{writes} writes of {bytes} bytes at {offset}");
    }
    let mut most = weir.batch();
    for number in 0..64 {
        most.write_at(&file, &[7; 4 << 10], number * 20_000).unwrap();
    }
    most.apply().unwrap();
    assert_eq!(file.metadata().unwrap().size, 63 * 20_000 + (4 << 10));
}
