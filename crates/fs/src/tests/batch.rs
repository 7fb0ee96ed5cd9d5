//! Batches across a power failure.

use super::crash_truncate::{Media, STREAM, wait};
use super::in_memory::{OWNER, SECRET};
use crate::types::{FileKind, IfExists, Ino};
use crate::{BatchChange, BatchPlace, BatchSource, Fs};
use cache::Cache;
use device::{BLOCK_BYTES, VolumeId};
use std::sync::Arc;
use store::NewVolume;

/// A new file system on new media, and a file for each name.
fn with_files<const N: usize>(names: [&str; N]) -> (Media, Arc<Cache>, Fs, [Ino; N]) {
    let media = Media::new();
    let cache = media.open().expect("sound media");
    let pages = Fs::create(&*media.clock, OWNER, SECRET).expect("a new file system");
    cache.create_volume(&NewVolume { name: "main", ..NewVolume::default() }, &pages).expect("space");
    let fs = Fs::open(cache.clone(), VolumeId::MAIN, media.clock()).expect("a file system");
    let files = names.map(|name| {
        let made =
            wait(&cache, |done| fs.make(OWNER, Ino::ROOT, name.as_bytes(), FileKind::File, 0o600, done));
        made.expect("a file").ino
    });
    wait(&cache, |done| fs.sync(done)).expect("sound media");
    (media, cache, fs, files)
}

fn after_crash(media: &Media, cache: Arc<Cache>, fs: Fs) -> (Arc<Cache>, Fs) {
    drop((fs, cache));
    media.crash();
    let cache = media.open().expect("sound media");
    let fs = Fs::open(cache.clone(), VolumeId::MAIN, media.clock()).expect("a file system");
    (cache, fs)
}

#[test]
fn a_batch_in_a_file_that_grew_past_the_log_is_kept_with_the_file() {
    let (media, cache, fs, [stream, beside]) = with_files(["stream", "beside"]);
    wait(&cache, |done| fs.write(stream, 0, vec![7; STREAM], done)).expect("space");
    let write = |ino, offset, byte| BatchChange::Write { ino, offset, bytes: vec![byte; BLOCK_BYTES] };
    let both = vec![write(stream, STREAM as u64, 8), write(beside, 0, 9)];
    wait(&cache, |done| fs.apply_batch(both, done)).expect("space");
    wait(&cache, |done| fs.sync_names(done)).expect("sound media");
    let (cache, fs) = after_crash(&media, cache, fs);
    let read =
        |ino, offset| wait(&cache, |done| fs.read(ino, offset, BLOCK_BYTES, done)).expect("it is whole");
    assert_eq!(read(beside, 0), [9; BLOCK_BYTES]);
    assert_eq!(read(stream, STREAM as u64), [8; BLOCK_BYTES]);
    assert_eq!(read(stream, 0), [7; BLOCK_BYTES]);
}

#[test]
fn a_synced_file_that_a_batch_renames_and_removes_is_gone_when_that_is_answered() {
    let (media, cache, fs, [journal, _]) = with_files(["journal", "old"]);
    fs.hold(journal).expect("it is there");
    wait(&cache, |done| fs.sync_file(journal, done)).expect("sound media");
    let name = |name: &str| (Ino::ROOT, name.as_bytes().to_vec());
    let (parent, removed) = name("old");
    let both = vec![
        BatchChange::Rename { from: name("journal"), to: name("old"), if_exists: IfExists::Replace },
        BatchChange::Unlink { parent, name: removed },
    ];
    wait(&cache, |done| fs.apply_batch(both, done)).expect("space");
    let (_cache, fs) = after_crash(&media, cache, fs);
    for name in ["journal", "old"] {
        assert!(fs.lookup(Ino::ROOT, name.as_bytes()).is_err(), "{name} is there again");
    }
}

#[test]
fn ranges_in_a_file_that_grew_past_the_log_are_kept_with_the_file() {
    for kind in 0..3 {
        let (media, cache, fs, [stream, beside]) = with_files(["stream", "beside"]);
        wait(&cache, |done| fs.write(beside, 0, vec![9; BLOCK_BYTES], done)).expect("space");
        wait(&cache, |done| fs.write(stream, 0, vec![7; STREAM], done)).expect("space");
        let (len, at) = (BLOCK_BYTES as u64, STREAM as u64);
        let from = BatchPlace { source: BatchSource::Here(beside), offset: 0 };
        let change = match kind {
            0 => BatchChange::Clone { from, len, to: stream, at },
            1 => BatchChange::Move { from: beside, offset: 0, len, to: stream, at },
            _ => BatchChange::Punch { ino: stream, offset: at - len, len },
        };
        wait(&cache, |done| fs.apply_batch(vec![change], done)).expect("space");
        wait(&cache, |done| fs.sync_names(done)).expect("sound media");
        let (cache, fs) = after_crash(&media, cache, fs);
        let read =
            |offset| wait(&cache, |done| fs.read(stream, offset, BLOCK_BYTES, done)).expect("it is whole");
        assert_eq!(read(0), [7; BLOCK_BYTES], "kind {kind}");
        let (place, byte) = if kind < 2 { (at, 9) } else { (at - len, 0) };
        assert_eq!(read(place), [byte; BLOCK_BYTES], "kind {kind}");
    }
}

/// What a batch was allowed to change by must not be gone when the change is there.
#[test]
fn compared_bytes_are_as_durable_as_the_batch() {
    let (media, cache, fs, [stream, beside]) = with_files(["stream", "beside"]);
    wait(&cache, |done| fs.write(stream, 0, vec![7; STREAM], done)).expect("space");
    wait(&cache, |done| fs.write(beside, 0, vec![7; BLOCK_BYTES], done)).expect("space");
    let len = BLOCK_BYTES as u64;
    let place = |ino, offset| BatchPlace { source: BatchSource::Here(ino), offset };
    let last = STREAM as u64 - len;
    let expect = BatchChange::ExpectEqual { one: place(stream, last), other: place(beside, 0), len };
    let write = BatchChange::Write { ino: beside, offset: 0, bytes: vec![8; BLOCK_BYTES] };
    wait(&cache, |done| fs.apply_batch(vec![expect, write], done)).expect("equal ranges");
    wait(&cache, |done| fs.sync_names(done)).expect("sound media");
    let (cache, fs) = after_crash(&media, cache, fs);
    let read =
        |ino, offset| wait(&cache, |done| fs.read(ino, offset, BLOCK_BYTES, done)).expect("it is whole");
    assert_eq!(read(beside, 0), [8; BLOCK_BYTES]);
    assert_eq!(read(stream, last), [7; BLOCK_BYTES]);
}
