//! FIFOs, sockets and device nodes.

use crate::common::{Sandbox, can_mount};
use crate::{crash, open_to_all};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};

#[test]
fn every_kind_can_be_made_listed_linked_renamed_and_removed_and_survives_a_crash() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    let devices = [makedev(1, 3), makedev(4095, 1_048_575)];
    let kinds = [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("char", FileType::CharacterDevice, devices[0]),
        ("block", FileType::BlockDevice, devices[1]),
        ("plain", FileType::RegularFile, 0),
    ];
    for (name, kind, device) in kinds {
        mknodat(CWD, mounted.path(name), kind, Mode::from_raw_mode(0o640), device).expect("made");
        fs::hard_link(mounted.path(name), mounted.path(&format!("{name}2"))).expect("another name");
        fs::rename(mounted.path(name), mounted.path(&format!("{name}1"))).expect("renamed");
    }
    let mounted = crash(&sandbox, mounted);
    for (name, kind, device) in kinds {
        let found = fs::symlink_metadata(mounted.path(&format!("{name}1"))).expect("it is there");
        assert_eq!(FileType::from_raw_mode(found.mode()), kind, "{name}");
        assert_eq!(
            (found.rdev(), found.nlink(), found.size(), found.mode() & 0o7777),
            (device, 2, 0, 0o640),
            "{name}"
        );
    }
    let listing = fs::read_dir(mounted.dir()).expect("a listing");
    for entry in listing.map(|entry| entry.expect("an entry")) {
        let kind = entry.file_type().expect("a kind");
        let right = match entry.file_name().to_str().expect("a name") {
            "fifo1" | "fifo2" => kind.is_fifo(),
            "socket1" | "socket2" => kind.is_socket(),
            "char1" | "char2" => kind.is_char_device(),
            "block1" | "block2" => kind.is_block_device(),
            _ => kind.is_file(),
        };
        assert!(right, "{entry:?} is a {kind:?}");
        fs::remove_file(entry.path()).expect("removed");
    }
    mounted.unmount();
}

#[test]
fn a_fifo_carries_bytes_and_a_socket_connections() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let fifo = mounted.path("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
    let writer = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::OpenOptions::new().write(true).open(fifo).expect("a reader comes").write_all(b"through")
    });
    let mut through = String::new();
    fs::File::open(&fifo).expect("a writer comes").read_to_string(&mut through).expect("bytes");
    writer.join().expect("no panic").expect("written");
    assert_eq!(through, "through");

    let listener = UnixListener::bind(mounted.path("socket")).expect("a socket");
    let mut client = UnixStream::connect(mounted.path("socket")).expect("a connection");
    client.write_all(b"hello").expect("written");
    drop(client);
    let mut heard = String::new();
    listener.accept().expect("a client").0.read_to_string(&mut heard).expect("bytes");
    assert_eq!(heard, "hello");
    drop(listener);
    let mode = fs::metadata(mounted.path("socket")).expect("it stays").permissions().mode();
    assert_eq!(FileType::from_raw_mode(mode), FileType::Socket);
    assert!(UnixStream::connect(mounted.path("socket")).is_err(), "nobody listens");
    mounted.unmount();
}
