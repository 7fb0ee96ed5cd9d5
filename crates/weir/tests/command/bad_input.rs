//! Wrong input of the user: one clear message with the next step, a non-zero exit, and no changed byte.

use crate::common::{
    self, NOBODY, Sandbox, TmpfsMount, assert_says, can_mount, failing_after, fails, is_mounted, succeeds,
    weir,
};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use test_support::DirectoryContents;

/// Mounts the sandbox's store. The mount must fail with a message that contains `part`, and change no byte.
#[track_caller]
fn mount_fails(sandbox: &Sandbox, part: &str) {
    if !can_mount() {
        return;
    }
    let before = DirectoryContents::below(&sandbox.store());
    let said = fails(weir().arg("mount").arg(sandbox.store()).arg(sandbox.mount_point()));
    before.assert_unchanged(&sandbox.store());
    assert!(!is_mounted(&sandbox.mount_point()));
    assert_says(&said, part);
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).expect("the file is there");
    file.write_all_at(bytes, at).expect("space for it");
}

fn cut(path: &Path, bytes: u64) {
    OpenOptions::new()
        .write(true)
        .open(path)
        .expect("the file is there")
        .set_len(bytes)
        .expect("a new length");
}

#[test]
fn a_directory_without_a_store_is_refused() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.store()).expect("a directory");
    mount_fails(&sandbox, "there is no store here");
}

#[test]
fn zeros_are_not_a_store() {
    let sandbox = Sandbox::formatted();
    let store = sandbox.store().join("store");
    cut(&store, 0);
    cut(&store, 40 << 20);
    mount_fails(&sandbox, "not a weir store");
}

#[test]
fn an_empty_file_is_not_a_store() {
    let sandbox = Sandbox::formatted();
    cut(&sandbox.store().join("store"), 0);
    mount_fails(&sandbox, "store");
}

#[test]
fn a_truncated_store_is_refused() {
    let sandbox = Sandbox::formatted();
    cut(&sandbox.store().join("store"), 16 << 20);
    mount_fails(&sandbox, "cut off");
}

#[test]
fn a_store_with_a_corrupted_superblock_is_refused() {
    let sandbox = Sandbox::formatted();
    overwrite(&sandbox.store().join("store"), 40, &[0xff; 8]);
    mount_fails(&sandbox, "damaged");
    mount_fails(&sandbox, "weir check --repair");
    let check =
        |options: &[&str]| weir().arg("check").args(options).arg(sandbox.store()).output().expect("runs");
    assert_eq!(check(&[]).status.code(), Some(1));
    let repaired = check(&["--repair"]);
    assert_says(&String::from_utf8_lossy(&repaired.stderr), "the superblock, from its copy in block");
    assert!(repaired.status.success() && check(&[]).status.success(), "{repaired:?}");
}

#[test]
fn a_superblock_without_a_good_copy_is_not_repaired() {
    let (sandbox, other) = (Sandbox::formatted(), Sandbox::formatted());
    let store = sandbox.store().join("store");
    let last =
        fs::read(&store).expect("the store").chunks(4096).rposition(|block| block.starts_with(b"weir.sup"));
    let last = last.expect("a copy") as u64 * 4096;
    overwrite(&store, 0, &[0; 4096]);
    for (copy, part) in [
        (vec![0; 4096], "there is no copy"),
        (fs::read(other.store().join("store")).expect("another store")[..4096].to_vec(), "is of store"),
    ] {
        overwrite(&store, last, &copy);
        let before = DirectoryContents::below(&sandbox.store());
        let output = weir().args(["check", "--repair"]).arg(sandbox.store()).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_says(&said, part);
        assert_says(&said, "  help: ");
        before.assert_unchanged(&sandbox.store());
    }
}

#[test]
fn a_damaged_copy_of_the_superblock_is_found_by_check_and_repaired() {
    let sandbox = Sandbox::formatted();
    let store = sandbox.store().join("store");
    let blocks = fs::read(&store).expect("the store");
    let last = blocks.chunks(4096).rposition(|block| block.starts_with(b"weir.sup")).expect("a copy");
    overwrite(&store, last as u64 * 4096 + 40, &[0xff; 8]);
    let check =
        |options: &[&str]| weir().arg("check").args(options).arg(sandbox.store()).output().expect("runs");
    let found = check(&[]);
    assert_eq!(found.status.code(), Some(1));
    assert_says(&String::from_utf8_lossy(&found.stdout), &format!("block {last}: the superblock's copy"));
    assert_says(&String::from_utf8_lossy(&found.stdout), "check --repair");
    succeeds(weir().args(["check", "--repair"]).arg(sandbox.store()));
    assert!(fs::read(&store).expect("it")[last * 4096..][..4096] == blocks[..4096]);
}

/// The checksum of a block that holds it at `at`, over all other bytes.
fn without_its_place(block: &[u8], at: usize) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block[..at]), &block[at + 4..])
}

/// The checksum of a block that holds it at `at`, with zeros in that place.
fn with_zeros_in_its_place(block: &[u8], at: usize) -> u32 {
    crc32c::crc32c(&[&block[..at], &[0; 4], &block[at + 4..]].concat())
}

/// The fields of a medium that hold its format version.
struct Versioned {
    name: &'static str,
    version_at: usize,
    checksum_at: usize,
    checksum: fn(&[u8], usize) -> u32,
}

const STORE: Versioned =
    Versioned { name: "store", version_at: 8, checksum_at: 12, checksum: with_zeros_in_its_place };
const BUFFER: Versioned =
    Versioned { name: "buffer", version_at: 12, checksum_at: 8, checksum: without_its_place };

/// Changes the medium's format version, with a correct checksum, as another version of weir would.
fn make_version(directory: &Path, medium: &Versioned, version: u8) {
    let Versioned { name, version_at, checksum_at, checksum } = *medium;
    let path = &directory.join(name);
    let mut block = fs::read(path).expect("the medium")[..4096].to_vec();
    assert_eq!(block[version_at..version_at + 4], 2u32.to_le_bytes(), "the version is elsewhere");
    let carried = block[checksum_at..checksum_at + 4].to_vec();
    assert_eq!(carried, checksum(&block, checksum_at).to_le_bytes(), "the checksum is elsewhere");
    block[version_at] = version;
    let sum = checksum(&block, checksum_at).to_le_bytes();
    block[checksum_at..checksum_at + 4].copy_from_slice(&sum);
    overwrite(path, 0, &block);
}

#[test]
fn a_store_of_a_newer_version_is_refused() {
    let sandbox = Sandbox::formatted();
    make_version(&sandbox.store(), &STORE, 3);
    mount_fails(&sandbox, "format version 3 is newer");
}

#[test]
fn a_buffer_of_a_newer_version_is_refused() {
    let sandbox = Sandbox::formatted();
    make_version(&sandbox.store(), &BUFFER, 3);
    mount_fails(&sandbox, "format 3 is newer");
}

#[test]
fn a_store_and_a_buffer_of_weir_0_1_are_refused_with_the_way_out_and_left_as_they_are() {
    for media in [&[STORE, BUFFER][..], &[STORE], &[BUFFER]] {
        let sandbox = Sandbox::formatted();
        media.iter().for_each(|medium| make_version(&sandbox.store(), medium, 1));
        mount_fails(&sandbox, "format 1, which weir 0.1 made");
        mount_fails(&sandbox, "mount it");
        mount_fails(&sandbox, "rsync");
        let before = DirectoryContents::below(&sandbox.store());
        for (options, code) in [(&["check"][..], 1), (&["check", "--repair"], 2), (&["format"], 1)] {
            if options[0] == "format" && media.len() == 1 && media[0].name == "buffer" {
                continue;
            }
            let output = weir().args(options).arg(sandbox.store()).output().expect("runs");
            let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said)).concat();
            assert_eq!(output.status.code(), Some(code), "{options:?}: {said}");
            assert_says(&said, "weir 0.1");
            before.assert_unchanged(&sandbox.store());
        }
        let said = fails(weir().arg("replace-buffer").arg(sandbox.store()));
        assert_says(&said, "weir 0.1");
        before.assert_unchanged(&sandbox.store());
    }
}

#[test]
fn a_missing_buffer_is_refused() {
    let sandbox = Sandbox::formatted();
    fs::remove_file(sandbox.store().join("buffer")).expect("removed");
    mount_fails(&sandbox, "the buffer is missing");
}

#[test]
fn a_truncated_buffer_is_refused() {
    let sandbox = Sandbox::formatted();
    cut(&sandbox.store().join("buffer"), 4 << 20);
    mount_fails(&sandbox, "restore the missing end");
}

#[test]
fn a_buffer_with_a_corrupted_superblock_is_refused() {
    let sandbox = Sandbox::formatted();
    overwrite(&sandbox.store().join("buffer"), 40, &[0xff; 8]);
    mount_fails(&sandbox, "checksum");
}

#[test]
fn the_buffer_of_another_store_is_refused() {
    let (sandbox, other) = (Sandbox::formatted(), Sandbox::formatted());
    fs::copy(other.store().join("buffer"), sandbox.store().join("buffer")).expect("copied");
    mount_fails(&sandbox, "the buffer of store");
}

#[test]
fn a_missing_mount_point_is_refused() {
    let sandbox = Sandbox::formatted();
    fs::remove_dir(sandbox.mount_point()).expect("removed");
    let before = DirectoryContents::below(&sandbox.store());
    let said = fails(weir().arg("mount").arg(sandbox.store()).arg(sandbox.mount_point()));
    assert_says(&said, "no such directory");
    before.assert_unchanged(&sandbox.store());
}

#[test]
fn a_mount_point_that_is_a_file_is_refused() {
    let sandbox = Sandbox::formatted();
    fs::remove_dir(sandbox.mount_point()).expect("removed");
    File::create(sandbox.mount_point()).expect("a file");
    let before = DirectoryContents::below(&sandbox.store());
    let said = fails(weir().arg("mount").arg(sandbox.store()).arg(sandbox.mount_point()));
    assert_says(&said, "not a directory");
    before.assert_unchanged(&sandbox.store());
}

#[test]
fn a_mount_point_that_is_not_empty_is_refused() {
    let sandbox = Sandbox::formatted();
    File::create(sandbox.mount_point().join("precious")).expect("a file");
    mount_fails(&sandbox, "not empty");
    assert!(sandbox.mount_point().join("precious").exists());
}

#[test]
fn the_store_itself_is_no_mount_point() {
    let sandbox = Sandbox::formatted();
    let before = DirectoryContents::below(&sandbox.store());
    let said = fails(weir().arg("mount").arg(sandbox.store()).arg(sandbox.store()));
    assert_says(&said, "not empty");
    before.assert_unchanged(&sandbox.store());
}

#[test]
fn a_store_that_is_mounted_is_refused_and_a_busy_mount_point_too() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let second = sandbox.path("second");
    fs::create_dir(&second).expect("a directory");
    assert_says(
        &fails(weir().arg("mount").arg(sandbox.store()).arg(&second)),
        "volume main is mounted already",
    );
    assert_says(&fails(weir().arg("mount").arg(sandbox.store()).arg(mounted.dir())), "mount point already");
    assert_says(&fails(weir().args(["format", "--force"]).arg(sandbox.store())), "in use");
    fs::write(mounted.path("file"), b"still works").expect("the first mount is unharmed");
    mounted.unmount();
}

#[test]
fn media_on_weirs_own_mount_are_refused() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let said = fails(weir().arg("format").args(common::SMALL).arg(mounted.path("inner")));
    assert_says(&said, "lies on weir's own mount");
    assert!(!mounted.path("inner").exists());

    let copy = mounted.path("copy");
    fs::create_dir(&copy).expect("a directory");
    fs::write(copy.join("store"), b"anything").expect("a file");
    fs::write(copy.join("buffer"), b"anything").expect("a file");
    let second = sandbox.path("second");
    fs::create_dir(&second).expect("a directory");
    let before = DirectoryContents::below(&copy);
    assert_says(&fails(weir().arg("mount").arg(&copy).arg(&second)), "lies on weir's own mount");
    before.assert_unchanged(&copy);
    mounted.unmount();
}

#[test]
fn without_permission_nothing_is_touched() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let Some(program) = sandbox.command_for_all() else { return };
    for name in ["store", "buffer"] {
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(sandbox.store().join(name), private).expect("they are ours");
    }
    let before = DirectoryContents::below(&sandbox.store());
    let nobody = || {
        let mut command = Command::new(&program);
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    fails(nobody().arg("mount").arg(sandbox.store()).arg(sandbox.mount_point()));
    fails(nobody().args(["format", "--force"]).arg(sandbox.store()));
    fails(nobody().arg("format").arg(sandbox.path("new")));
    before.assert_unchanged(&sandbox.store());
}

#[test]
fn a_device_that_returns_errors_is_reported_and_left_alone() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let before = DirectoryContents::below(&sandbox.store());
    // The daemon runs in this shell. Its messages go through a pipe, to which the limit does not apply.
    let mut mount = failing_after(0);
    let said = fails(mount.args(["mount", "--foreground"]).arg(sandbox.store()).arg(sandbox.mount_point()));
    assert_says(&said, "File too large");
    before.assert_unchanged(&sandbox.store());
}

#[test]
fn a_format_that_fails_halfway_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    fails(failing_after(1024).arg("format").args(common::SMALL).arg(sandbox.store()));
    assert!(!sandbox.store().exists(), "a half-made store was left behind");
}

#[test]
fn a_full_device_is_reported_and_nothing_is_left_there() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let small = TmpfsMount::new(sandbox.path("mnt"), "4m");
    fails(weir().args(["format", common::VOLATILE]).args(common::SMALL).arg(small.0.join("media")));
    assert_eq!(fs::read_dir(&small.0).expect("a listing").count(), 0);
}

#[test]
fn format_refuses_what_is_not_blank_by_name() {
    let sandbox = Sandbox::formatted();
    let before = DirectoryContents::below(&sandbox.store());
    let said = fails(weir().arg("format").arg(sandbox.store()));
    assert_says(&said, "not blank: it holds a weir store");
    assert_says(&said, "`weir check` examines a store");
    before.assert_unchanged(&sandbox.store());

    let image = sandbox.path("image");
    File::create(&image).expect("a file").set_len(40 << 20).expect("space");
    overwrite(&image, 0x438, &[0x53, 0xef]);
    let before = DirectoryContents::below(&image);
    let said = fails(weir().arg("format").arg("--buffer").arg(sandbox.path("b")).arg(&image));
    assert_says(&said, "ext4");
    before.assert_unchanged(&image);
    assert!(!sandbox.path("b").exists());
}

#[test]
fn format_over_an_older_store_needs_force_and_makes_a_new_one() {
    let sandbox = Sandbox::formatted();
    let before = DirectoryContents::below(&sandbox.store());
    succeeds(weir().args(["format", "--force"]).arg(sandbox.store()));
    assert!(before != DirectoryContents::below(&sandbox.store()), "the same store again");
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn sizes_that_make_no_sense_are_refused_before_anything_is_made() {
    let sandbox = Sandbox::new();
    for options in [
        ["--size", "4096"],
        ["--size", "67108865"],
        ["--buffer-size", "1MiB"],
        ["--segment-size", "1000"],
        ["--segment-size", "256KiB"],
        ["--segment-size", "129MiB"],
        ["--segment-size", "8GiB"],
    ] {
        fails(weir().arg("format").args(options).arg(sandbox.store()));
        assert!(!sandbox.store().exists(), "{options:?} made something");
    }
    let output = weir().args(["format", "--size", "many"]).arg(sandbox.store()).output().expect("runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(!sandbox.store().exists());

    let sandbox = Sandbox::formatted();
    let before = DirectoryContents::below(&sandbox.store());
    for options in [
        ["--memory", "1MiB"],
        ["--dirty", "2GiB"],
        ["--dirty", "1KiB"],
        ["--deltas", "2GiB"],
        ["--deltas", "1KiB"],
    ] {
        fails(weir().arg("mount").args(options).arg(sandbox.store()).arg(sandbox.mount_point()));
    }
    before.assert_unchanged(&sandbox.store());
}

#[test]
fn check_tells_findings_from_what_it_could_not_check() {
    let sandbox = Sandbox::formatted();
    let before = DirectoryContents::below(&sandbox.store());
    let check = |sandbox: &Sandbox| {
        let output = weir().args(["check", "--json"]).arg(sandbox.store()).output().expect("runs");
        (output.status.code(), output.stdout)
    };
    let (code, report) = check(&sandbox);
    assert_eq!(code, Some(0));
    let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
    assert!(report["checked"].as_array().is_some_and(|checked| !checked.is_empty()));
    before.assert_unchanged(&sandbox.store());

    overwrite(&sandbox.store().join("buffer"), 40, &[0xff; 8]);
    let before = DirectoryContents::below(&sandbox.store());
    assert_eq!(check(&sandbox).0, Some(1));
    before.assert_unchanged(&sandbox.store());
    fs::remove_file(sandbox.store().join("buffer")).expect("removed");
    assert_eq!(check(&sandbox).0, Some(2));
}

#[test]
fn commands_on_a_directory_that_is_not_mounted_say_so() {
    let sandbox = Sandbox::new();
    for command in ["status", "sync", "unmount"] {
        assert_says(&fails(weir().arg(command).arg(sandbox.mount_point())), "no weir store is mounted here");
    }
}

#[test]
fn a_reader_that_goes_away_ends_it_without_a_word() {
    let sandbox = Sandbox::formatted();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = weir().arg("check").arg(sandbox.store()).stdout(writer).output().expect("weir");
    assert_eq!((String::from_utf8_lossy(&output.stderr).as_ref(), output.status.code()), ("", Some(141)));
}

#[test]
fn a_program_that_cannot_run_has_the_exit_codes_of_a_shell() {
    let said_and_code = |program: &str| {
        let output = weir().args(["class", "background", "--", program]).output().expect("weir starts");
        (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
    };
    for (program, code, help) in [
        ("no-such-program", 127, "give the program's path"),
        ("/nothing/here", 127, "give the program's path"),
        ("/etc/passwd", 126, "check that it is a program"),
        ("/", 126, "check that it is a program"),
    ] {
        let (said, found) = said_and_code(program);
        assert_eq!(found, Some(code), "{program}: {said}");
        assert_says(&said, &format!("error: {program}: "));
        assert_says(&said, &format!("  help: {help}"));
    }
}
