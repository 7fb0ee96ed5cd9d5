use super::*;
use crate::descriptor_stream::DescriptorStream;
use rustix::fs::fcntl_get_seals;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

/// The request that the daemon of a test received.
struct ReceivedRequest {
    /// Null if nothing was sent.
    request: Value,
    files: Vec<File>,
}

/// A client, and a daemon that answers one request with `reply`.
fn client_of_daemon(reply: &'static str) -> (ControlClient, JoinHandle<ReceivedRequest>) {
    let (client, server) = UnixStream::pair().expect("sockets");
    let answer = move || {
        let mut server = BufReader::new(DescriptorStream::new(server));
        let mut line = String::new();
        server.read_line(&mut line).expect("a line");
        let files = server.get_mut().take_descriptors().into_iter().map(File::from).collect();
        // Fails if the client is gone without a request.
        let _ = server.get_mut().write_all(format!("{reply}\n").as_bytes());
        ReceivedRequest { request: serde_json::from_str(&line).unwrap_or_default(), files }
    };
    let daemon = std::thread::spawn(answer);
    (ControlClient::over(client, "/mnt".into(), 0, None), daemon)
}

/// What becomes of a vector that the daemon answers with `reply`.
fn outcome_of(reply: &'static str) -> Result<VectorOutcome, ClientError> {
    let file = tempfile::tempfile().expect("a file");
    let mut vector = RangeVector::new();
    vector.delete(&file, 0, 4096);
    client_of_daemon(reply).0.change_ranges(&vector)
}

/// The error for a vector that must not be sent.
fn refusal_of(vector: &RangeVector<'_>) -> ClientError {
    let (mut client, daemon) = client_of_daemon("{}");
    let error = client.change_ranges(vector).expect_err("a vector over a limit");
    drop(client);
    assert_eq!(daemon.join().expect("a daemon").request, Value::Null);
    assert!(error.help().is_some());
    error
}

#[test]
fn a_vector_is_sent_with_each_file_once_and_the_bytes_last() {
    let one = tempfile::tempfile().expect("a file");
    let other = tempfile::tempfile().expect("a file");
    let mut vector = RangeVector::new();
    vector
        .write(&one, 10, b"first")
        .clone_range((&other, 4096), (&one, 8192), 4096)
        .move_range((&one, 0), (&other, 16384), 8192)
        .delete(&other, 1, 2)
        .expect_equal((&one, 3), (&other, 4), 5)
        .write(&other, 7, b", second");
    let (mut client, daemon) = client_of_daemon(r#"{"outcome":"changed"}"#);
    assert_eq!(client.change_ranges(&vector).expect("a reply"), VectorOutcome::Changed);
    let ReceivedRequest { request, files } = daemon.join().expect("a daemon");
    let expected = json!({
        "operation": "change_ranges",
        "ranges": [
            { "write": { "to": { "file": 0, "offset": 10 }, "len": 5 } },
            { "clone": { "from": { "file": 1, "offset": 4096 }, "to": { "file": 0, "offset": 8192 }, "len": 4096 } },
            { "move": { "from": { "file": 0, "offset": 0 }, "to": { "file": 1, "offset": 16384 }, "len": 8192 } },
            { "delete": { "at": { "file": 1, "offset": 1 }, "len": 2 } },
            { "expect_equal": { "one": { "file": 0, "offset": 3 }, "other": { "file": 1, "offset": 4 }, "len": 5 } },
            { "write": { "to": { "file": 1, "offset": 7 }, "len": 8 } },
        ],
    });
    assert_eq!(request, expected);
    let changes: Vec<RangeChange> = serde_json::from_value(request["ranges"].clone()).expect("ranges");
    assert_eq!(changes, vector.changes);
    let inode = |file: &File| file.metadata().expect("a file").ino();
    let [sent_one, sent_other, mut memfd] = files.try_into().expect("three files");
    assert_eq!([inode(&sent_one), inode(&sent_other)], [inode(&one), inode(&other)]);
    let mut written = String::new();
    memfd.read_to_string(&mut written).expect("a memfd");
    assert_eq!(written, "first, second");
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    assert!(fcntl_get_seals(&memfd).expect("a memfd").contains(seals));
}

#[test]
fn a_vector_without_writes_is_sent_without_a_memfd() {
    let file = tempfile::tempfile().expect("a file");
    let mut vector = RangeVector::new();
    vector.delete(&file, 0, 4096);
    let (mut client, daemon) = client_of_daemon(r#"{"outcome":"changed"}"#);
    client.change_ranges(&vector).expect("a reply");
    assert_eq!(daemon.join().expect("a daemon").files.len(), 1);
}

#[test]
fn an_empty_vector_is_not_sent() {
    let (mut client, daemon) = client_of_daemon("{}");
    assert_eq!(client.change_ranges(&RangeVector::new()).expect("no request"), VectorOutcome::Changed);
    drop(client);
    assert_eq!(daemon.join().expect("a daemon").request, Value::Null);
}

#[test]
fn each_reply_is_understood() {
    let differs = outcome_of(r#"{"outcome":"differs","range":3}"#);
    assert_eq!(differs.expect("a reply"), VectorOutcome::Differs { range: 3 });
    let busy = outcome_of(r#"{"outcome":"busy"}"#).expect_err("busy");
    assert!(matches!(busy, ClientError::Busy { .. }), "{busy}");
    assert_eq!(busy.to_string(), "/mnt: memory is so short that ranges to be compared were dropped");
    assert_eq!(busy.help().as_deref(), Some("try again"));
    let refused = outcome_of(r#"{"error":"is full","help":"free some space"}"#).expect_err("refused");
    assert_eq!(refused.to_string(), "/mnt: the daemon says: is full");
    assert_eq!(refused.help().as_deref(), Some("free some space"));
    let unknown = outcome_of(r#"{"outcome":"odd"}"#).expect_err("no outcome");
    assert!(matches!(unknown, ClientError::NoAnswer { .. }), "{unknown}");
}

#[test]
fn the_largest_vector_is_sent() {
    let files: Vec<File> = (0..2 * RANGES_MAX).map(|_| tempfile::tempfile().expect("a file")).collect();
    let mut vector = RangeVector::new();
    let (last, others) = files.split_last().expect("files");
    for pair in others.chunks_exact(2) {
        vector.expect_equal((&pair[0], u64::MAX), (&pair[1], u64::MAX), BYTES_MAX / RANGES_MAX as u64);
    }
    vector.write(last, u64::MAX, &vec![7; BYTES_MAX as usize]);
    let (mut client, daemon) = client_of_daemon(r#"{"outcome":"changed"}"#);
    assert_eq!(client.change_ranges(&vector).expect("a reply"), VectorOutcome::Changed);
    let ReceivedRequest { request, files } = daemon.join().expect("a daemon");
    assert_eq!(request["ranges"].as_array().map(Vec::len), Some(RANGES_MAX));
    assert_eq!(files.len(), 2 * RANGES_MAX);
    // The daemon reads lines of 256 KiB.
    assert!(request.to_string().len() < 1 << 14);
}

#[test]
fn a_vector_over_a_limit_is_refused_before_anything_is_sent() {
    let file = tempfile::tempfile().expect("a file");
    let mut many = RangeVector::new();
    for number in 0..=RANGES_MAX as u64 {
        many.delete(&file, number * 8192, 4096);
    }
    let many = refusal_of(&many);
    assert_eq!(many.to_string(), "a vector of 65 ranges: at most 64 can be changed together");
    let mut long = RangeVector::new();
    long.write(&file, 0, &vec![0; BYTES_MAX as usize]).write(&file, BYTES_MAX, &[0]);
    let long = refusal_of(&long);
    assert_eq!(
        long.to_string(),
        "a vector that writes 1048577 bytes: at most 1048576 can be written together"
    );
    let mut compared = RangeVector::new();
    compared.expect_equal((&file, 0), (&file, 1), u64::MAX).expect_equal((&file, 0), (&file, 1), 1);
    let compared = refusal_of(&compared);
    assert!(matches!(compared, ClientError::TooManyBytesCompared { bytes: u64::MAX }), "{compared}");
}
