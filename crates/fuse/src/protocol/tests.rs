//! Requests and replies as bytes. Numbers are little-endian here, as on every machine that the tests run on.

use super::request::opcode;
use super::*;
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}

fn header(opcode: u32) -> RequestHeader {
    RequestHeader { opcode, ..RequestHeader::new_zeroed() }
}

type Golden = (u32, &'static str, FuseOp<'static>);

/// Bodies of requests, each of which needs its last byte.
fn golden() -> Vec<(u32, Vec<u8>, FuseOp<'static>)> {
    let all = golden_on_names().into_iter().chain(golden_on_inodes());
    all.map(|(opcode, body, op)| (opcode, hex(body), op)).collect()
}

fn golden_on_names() -> Vec<Golden> {
    vec![
        (opcode::LOOKUP, "66 6f 00", FuseOp::Lookup { name: b"fo" }),
        (opcode::SYMLINK, "6c 00 2f 78 00", FuseOp::Symlink { name: b"l", target: b"/x" }),
        (
            opcode::MKNOD,
            "b0210000 03010000 12000000 00000000 6e 00",
            FuseOp::Mknod { name: b"n", mode: 0o20660, device: 0x103, umask: 0o22 },
        ),
        (opcode::MKDIR, "ff010000 3f000000 64 00", FuseOp::Mkdir { name: b"d", mode: 0o777, umask: 0o77 }),
        (opcode::UNLINK, "ff 00", FuseOp::Unlink { name: b"\xff" }),
        (opcode::RMDIR, "64 00", FuseOp::Rmdir { name: b"d" }),
        (
            opcode::RENAME,
            "0900000000000000 61 00 62 00",
            FuseOp::Rename { name: b"a", new_parent: 9, new_name: b"b", flags: 0 },
        ),
        (
            opcode::RENAME2,
            "0900000000000000 ffffffff 00000000 61 00 62 00",
            FuseOp::Rename { name: b"a", new_parent: 9, new_name: b"b", flags: u32::MAX },
        ),
        (opcode::LINK, "0900000000000000 61 00", FuseOp::Link { of: 9, name: b"a" }),
        (
            opcode::SETXATTR,
            "02000000 01000000 75 00 7a 7a",
            FuseOp::Setxattr { name: b"u", value: b"zz", flags: 1 },
        ),
        (opcode::GETXATTR, "ffffffff 00000000 75 00", FuseOp::Getxattr { name: b"u", size: u32::MAX }),
        (opcode::REMOVEXATTR, "75 00", FuseOp::Removexattr { name: b"u" }),
        (
            opcode::CREATE,
            "c2800000 b6810000 12000000 00000000 63 00",
            FuseOp::Create { name: b"c", mode: 0o100666, umask: 0o22 },
        ),
    ]
}

fn golden_on_inodes() -> Vec<Golden> {
    let setattr = SetattrIn {
        valid: SetattrIn::ACCESSED
            | SetattrIn::MODIFIED
            | SetattrIn::MODIFIED_NOW
            | SetattrIn::KILLS_PRIVILEGES,
        handle: 3,
        size: u64::MAX,
        accessed: i64::MIN,
        modified: -1,
        changed: i64::MAX,
        accessed_nanos: 999_999_999,
        modified_nanos: 5,
        mode: 0o100644,
        uid: 1000,
        gid: u32::MAX,
        ..SetattrIn::default()
    };
    let copy = "0100000000000000 0010000000000000 0700000000000000 0200000000000000 0020000000000000
                ffffffffffffffff 0000000000000000";
    let copied = |count| FuseOp::CopyFileRange { offset: 4096, to: 7, to_offset: 8192, len: u64::MAX, count };
    let read = "0300000000000000 0000000000000080 00001000 02000000 0000000000000000 00800000 00000000";
    vec![
        (opcode::FORGET, "feffffffffffffff", FuseOp::Forget { lookups: u64::MAX - 1 }),
        (
            opcode::SETATTR,
            "b0090000 00000000 0300000000000000 ffffffffffffffff 0000000000000000
             0000000000000080 ffffffffffffffff ffffffffffffff7f ffc99a3b 05000000 00000000
             a4810000 00000000 e8030000 ffffffff 00000000",
            FuseOp::Setattr(SetattrIn { valid: 0x9b0, ..setattr }),
        ),
        (opcode::OPEN, "02800000 00000000", FuseOp::Open { flags: 0x8002 }),
        (opcode::READ, read, FuseOp::Read { offset: 1 << 63, size: 1 << 20, flags: IS_DIRECT_IO }),
        (opcode::READDIR, read, FuseOp::Readdir { offset: 1 << 63, size: 1 << 20 }),
        (opcode::READDIRPLUS, read, FuseOp::Readdirplus { offset: 1 << 63, size: 1 << 20 }),
        (
            opcode::WRITE,
            "0020000000000000 ffffffffffffff7f 03000000 04000000 0000000000000000 02101000 00000000 616200",
            FuseOp::Write {
                handle: 8192,
                offset: u64::MAX >> 1,
                data: b"ab\0",
                flags: 4,
                open_flags: 0x101002,
            },
        ),
        (opcode::LISTXATTR, "00000100 00000000", FuseOp::Listxattr { size: 65536 }),
        (
            opcode::FALLOCATE,
            "0000000000000000 0100000000000000 ffffffffffffff7f 03000080 00000000",
            FuseOp::Fallocate { offset: 1, len: u64::MAX >> 1, mode: i32::MIN + 3 },
        ),
        (
            opcode::LSEEK,
            "0000000000000000 ffffffffffffffff 03000000 00000000",
            FuseOp::Lseek { offset: -1, whence: 3 },
        ),
        (opcode::COPY_FILE_RANGE, copy, copied(CopyCount::Bits32)),
        (opcode::COPY_FILE_RANGE_64, copy, copied(CopyCount::Bits64)),
    ]
}

#[test]
fn a_request_is_read_as_it_was_written() {
    for (opcode, body, expected) in golden() {
        assert_eq!(FuseOp::decode(&header(opcode), &body), Ok(expected));
    }
    let header = "2b000000 10000000 0600000000000000 0700000000000000 e8030000 e9030000 2a000000 00000000";
    let request = [hex(header), b"abc".to_vec()].concat();
    let expected = RequestHeader {
        len: 43,
        opcode: opcode::WRITE,
        unique: 6,
        node: 7,
        uid: 1000,
        gid: 1001,
        pid: 42,
        extensions: 0,
    };
    assert_eq!(RequestHeader::split(&request), Some((expected, &b"abc"[..])));
    assert_eq!(expected.as_bytes(), hex(header));
}

#[test]
fn forgotten_inodes_are_read_one_by_one() {
    let body = hex("02000000 00000000 0500000000000000 0100000000000000 ffffffffffffffff ffffffffffffffff");
    match FuseOp::decode(&header(opcode::BATCH_FORGET), &body) {
        Ok(FuseOp::BatchForget(nodes)) => {
            assert_eq!(nodes.nodes().collect::<Vec<_>>(), [(5, 1), (u64::MAX, u64::MAX)]);
        }
        other => panic!("{other:?}"),
    }
    for len in 0..body.len() {
        assert_eq!(FuseOp::decode(&header(opcode::BATCH_FORGET), &body[..len]), Err(Errno::IO), "{len}");
    }
    let many = hex("ffffffff 00000000 0500000000000000 0100000000000000");
    assert_eq!(FuseOp::decode(&header(opcode::BATCH_FORGET), &many), Err(Errno::IO));
}

#[test]
fn a_request_that_ends_too_early_is_an_error_at_every_length() {
    for (opcode, body, _) in golden() {
        for len in 0..body.len() {
            let cut = FuseOp::decode(&header(opcode), &body[..len]);
            assert_eq!(cut, Err(Errno::IO), "{len} bytes of operation {opcode}");
        }
    }
    let whole = header(opcode::GETATTR);
    for len in 0..whole.as_bytes().len() {
        assert_eq!(RequestHeader::split(&whole.as_bytes()[..len]), None, "{len}");
    }
}

#[test]
fn an_operation_that_weir_does_not_have_is_told_so_whatever_its_body() {
    // Locks, FUSE_ACCESS, FUSE_FLUSH, FUSE_INTERRUPT, FUSE_IOCTL, FUSE_TMPFILE, FUSE_STATX, and unassigned
    // numbers.
    for opcode in [0, 7, 25, 31, 32, 33, 34, 36, 37, 39, 40, 48, 50, 51, 52, 54, 4096, u32::MAX] {
        for body in [&[][..], &[0; 300], &[0xff; 300]] {
            assert_eq!(FuseOp::decode(&header(opcode), body), Err(Errno::NOSYS), "{opcode}");
        }
    }
}

#[test]
fn names_are_not_empty() {
    assert_eq!(FuseOp::decode(&header(opcode::LOOKUP), b"\0"), Err(Errno::IO));
    assert_eq!(FuseOp::decode(&header(opcode::RENAME), &[0; 100]), Err(Errno::IO));
}

#[test]
fn times_are_taken_as_the_flags_say() {
    let asked = |valid| SetattrIn { valid, accessed: -1, accessed_nanos: 5, ..SetattrIn::default() };
    assert_eq!(asked(0).accessed(), None);
    assert_eq!(asked(SetattrIn::ACCESSED_NOW).accessed(), None, "only with the flag for any time");
    assert_eq!(asked(SetattrIn::ACCESSED).accessed(), Some(SetTimeIn::To(-1, 5)));
    assert_eq!(asked(SetattrIn::ACCESSED | SetattrIn::ACCESSED_NOW).accessed(), Some(SetTimeIn::Now));
}

#[test]
fn a_reply_is_the_bytes_that_the_kernel_reads() {
    let attributes = WireAttributes {
        node: 0x11,
        size: 0x22,
        blocks: 0x33,
        accessed: -2,
        modified: 0x44,
        changed: i64::MIN,
        accessed_nanos: 0x55,
        modified_nanos: 0x66,
        changed_nanos: 0x77,
        mode: 0o100644,
        links: 0x88,
        uid: 0x99,
        gid: 0xaa,
        device: 0xbb,
        block_bytes: 4096,
        flags: 0,
    };
    let attributes_hex = "1100000000000000 2200000000000000 3300000000000000 feffffffffffffff 4400000000000000
        0000000000000080 55000000 66000000 77000000 a4810000 88000000 99000000 aa000000 bb000000 00100000 00000000";
    assert_eq!(attributes.as_bytes(), hex(attributes_hex));
    let entry = EntryReply {
        node: 0x11,
        generation: 0xcc,
        name_valid_seconds: 1,
        attributes_valid_seconds: 2,
        name_valid_nanos: 3,
        attributes_valid_nanos: 4,
        attributes,
    };
    let entry_hex = format!(
        "1100000000000000 cc00000000000000 0100000000000000 0200000000000000 03000000 04000000 {attributes_hex}"
    );
    assert_eq!(entry.as_bytes(), hex(&entry_hex));
    let create =
        CreateReply { entry, open: OpenReply { handle: 5, flags: OpenReply::KEEP_CACHE, backing: 0 } };
    assert_eq!(create.as_bytes(), hex(&format!("{entry_hex} 0500000000000000 02000000 00000000")));
    let attr = AttrReply { valid_seconds: 6, valid_nanos: 7, padding: 0, attributes };
    assert_eq!(attr.as_bytes(), hex(&format!("0600000000000000 07000000 00000000 {attributes_hex}")));
    let statfs = StatfsReply {
        blocks: 1,
        blocks_free: 2,
        blocks_available: 3,
        inodes: 4,
        inodes_free: 5,
        block_bytes: 6,
        name_bytes_max: 7,
        fragment_bytes: 8,
        ..StatfsReply::default()
    };
    let expected = hex("0100000000000000 0200000000000000 0300000000000000 0400000000000000 0500000000000000
        06000000 07000000 08000000 00000000 000000000000000000000000000000000000000000000000");
    assert_eq!(statfs.as_bytes(), expected);
    assert_eq!(WriteReply { bytes: 9, padding: 0 }.as_bytes(), hex("09000000 00000000"));
    assert_eq!(XattrSizeReply { bytes: 9, padding: 0 }.as_bytes(), hex("09000000 00000000"));
    assert_eq!(CopyReply { bytes: 1 << 32 }.as_bytes(), hex("0000000001000000"));
    assert_eq!(LseekReply { offset: 1 << 40 }.as_bytes(), hex("0000000000010000"));
    let header = ReplyHeader { len: 24, error: -2, unique: 0x1234 };
    assert_eq!(header.as_bytes(), hex("18000000 feffffff 3412000000000000"));
}

#[test]
fn a_listing_takes_entries_until_it_is_full_and_aligns_each() {
    let mut listing = ListingReply::new(32 + 32);
    assert!(listing.add(0xaabb, 1, libc::S_IFDIR, b"hello"));
    assert!(listing.add(0xccdd, 2, libc::S_IFREG | 0o644, b"world.rs"));
    assert!(!listing.add(1, 3, libc::S_IFREG, b"x"));
    let expected = hex("bbaa000000000000 0100000000000000 05000000 04000000 68656c6c6f 000000
         ddcc000000000000 0200000000000000 08000000 08000000 776f726c642e7273");
    assert_eq!(listing.bytes(), expected);
    let entry = EntryReply { node: 7, ..EntryReply::default() };
    let mut plus = ListingReply::new(160);
    assert!(plus.add_with(&entry, 1, b"12345678"));
    assert!(!plus.add_with(&entry, 2, b"x"));
    assert_eq!(plus.bytes()[..128], *entry.as_bytes());
    assert_eq!(
        plus.bytes()[128..],
        hex("0700000000000000 0100000000000000 08000000 00000000 3132333435363738")
    );
    assert!(!ListingReply::new(0).add(1, 1, 0, b"x"));
}
