use crate::call::{Call, call};
use crate::common::{Mounted, PATIENCE, Sandbox, can_mount, next_tick, succeeds};
use crate::space::{create, layout};
use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const SIGBUS: i32 = 7;

fn times(path: &Path) -> [(i64, i64); 2] {
    let found = fs::metadata(path).expect("metadata");
    [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())]
}

#[test]
fn what_is_stored_into_a_shared_mapping_is_seen_at_once_and_durable_after_msync() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--commit-interval", "3600000"]);
    let path = mounted.path("file");
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    file.write_all_at(&[b'.'; 10_000], 0).expect("a write");
    let before = times(&path);
    next_tick();
    let mut storer = call(&["map", "{}", "10000", "4090", "over two pages", "shared", "sync"], &path);
    storer.expect("stored");
    let expected = |bytes: &[u8]| &bytes[4090..4104] == b"over two pages" && bytes.len() == 10_000;
    assert!(expected(&fs::read(&path).expect("a read")));
    // POSIX: both times are set between the store and the end of msync.
    let after = times(&path);
    assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
    // A write is seen in the mapping and the other way round.
    let mut other = call(&["map", "{}", "10000", "0", "second", "shared", "none"], &path);
    other.expect("stored");
    let mut bytes = [0; 6];
    file.read_exact_at(&mut bytes, 0).expect("a read");
    assert_eq!(&bytes, b"second", "not yet synced, and seen already");
    mounted.kill();
    let mounted = sandbox.mount();
    assert!(expected(&fs::read(mounted.path("file")).expect("a read")), "synced, and lost");
}

#[test]
fn what_is_stored_into_a_private_mapping_stays_there() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = mounted.path("file");
    fs::write(&path, [b'.'; 10_000]).expect("a file");
    let before = times(&path);
    next_tick();
    let mut storer = call(&["map", "{}", "10000", "5000", "private", "private", "sync"], &path);
    storer.expect("stored");
    assert_eq!(fs::read(&path).expect("a read"), [b'.'; 10_000]);
    assert!(storer.end().success());
    assert_eq!(times(&path), before);
    mounted.unmount();
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("file")).expect("a read"), [b'.'; 10_000]);
}

#[test]
fn a_mapping_outlives_its_descriptor_and_what_it_holds_is_written_back_with_the_unmount() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), [b'.'; 10_000]).expect("a file");
    let mut storer =
        call(&["map", "{}", "10000", "9990", "at its end", "shared", "none"], &mounted.path("file"));
    storer.expect("stored");
    // The program has closed the file already. A killed program never calls msync.
    storer.kill();
    mounted.unmount();
    let mounted = sandbox.mount();
    assert_eq!(&fs::read(mounted.path("file")).expect("a read")[9990..], b"at its end");
}

#[test]
fn a_page_past_the_end_of_the_file_is_no_memory() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = mounted.path("file");
    fs::write(&path, [9; 5000]).expect("a file");
    let mut within = call(&["touch", "{}", "20000", "4999"], &path);
    assert_eq!(within.expect("byte"), 9);
    let mut rest = call(&["touch", "{}", "20000", "8191"], &path);
    assert_eq!(rest.expect("byte"), 0, "the rest of the last page is zeros");
    let mut behind = call(&["touch", "{}", "20000", "8192"], &path);
    assert_eq!(behind.end().signal(), Some(SIGBUS));
    // Truncate the file under a mapping, and extend it again: the cut bytes do not come back.
    let file = fs::File::options().write(true).open(&path).expect("the file");
    file.set_len(100).expect("shorter");
    file.set_len(5000).expect("longer");
    let mut cut = call(&["touch", "{}", "20000", "4999"], &path);
    assert_eq!(cut.expect("byte"), 0);
}

const LEN: u64 = 1 << 20;

/// A file without data, and a program that has stored over several of its pages and waits.
fn stored(mounted: &Mounted, name: &str, is_allocated: bool) -> (File, Call, Vec<u8>) {
    let path = mounted.path(name);
    let file = create(&path);
    if is_allocated {
        fallocate(&file, FallocateFlags::empty(), 0, LEN).expect("space")
    } else {
        file.set_len(LEN).expect("a size")
    }
    let text = "over several pages ".repeat(1000);
    let mut storer = call(&["map", "{}", &LEN.to_string(), "300000", &text, "shared", "none"], &path);
    storer.expect("stored");
    let mut expected = vec![0; LEN as usize];
    expected[300_000..300_000 + text.len()].copy_from_slice(text.as_bytes());
    (file, storer, expected)
}

#[test]
fn copies_that_leave_out_holes_have_what_a_mapping_holds() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    for is_allocated in [true, false] {
        for tool in ["cp", "cp --sparse=always", "tar -S"] {
            let (_file, _storer, expected) = stored(&mounted, "file", is_allocated);
            let copy = sandbox.path("copy");
            let (tar, _) = (sandbox.path("tar"), fs::remove_file(&copy));
            match tool {
                "tar -S" => {
                    succeeds(
                        Command::new("tar").arg("-C").arg(mounted.dir()).arg("-Scf").arg(&tar).arg("file"),
                    );
                    let bytes = succeeds(Command::new("tar").arg("-xOf").arg(&tar)).stdout;
                    fs::write(&copy, bytes).expect("a file");
                }
                cp => {
                    let mut words = cp.split(' ');
                    let mut command = Command::new(words.next().expect("a program"));
                    succeeds(command.args(words).arg(mounted.path("file")).arg(&copy));
                }
            }
            assert!(fs::read(&copy).expect("a copy") == expected, "{tool}, allocated: {is_allocated}");
        }
    }
}

/// The kernel drops pages that it cannot write back, if weir tells it to.
#[test]
fn a_copy_from_a_full_store_takes_nothing_from_a_mapping() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size", "64MiB", "--buffer-size", "16MiB"]);
    let mounted = sandbox.mount();
    let filler = create(&mounted.path("filler"));
    let (_file, _storer, expected) = stored(&mounted, "file", false);
    for bytes in [1 << 16, 4096] {
        let mut at = filler.metadata().expect("metadata").len();
        while filler.write_all_at(&vec![7; bytes], at).is_ok() {
            at += bytes as u64;
        }
    }
    let copy = sandbox.path("copy");
    succeeds(Command::new("cp").arg(mounted.path("file")).arg(&copy));
    assert!(fs::read(&copy).expect("a copy") == expected);
    assert!(fs::read(mounted.path("file")).expect("a read") == expected, "the mapping has it still");
}

#[test]
fn a_seek_finds_what_a_mapping_holds_and_holes_around_it() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let pages = [(299_008, 319_488)];
    let (file, _storer, _) = stored(&mounted, "file", true);
    assert_eq!(layout(&file), pages);
    // The hole first.
    let (file, _storer, _) = stored(&mounted, "another", false);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(300_000)), Ok(319_488));
    assert_eq!(layout(&file), pages);
    // A mapping over data has no holes and loses no bytes.
    let mut storer =
        call(&["map", "{}", "1048576", "300000", "again", "shared", "none"], &mounted.path("file"));
    storer.expect("stored");
    assert_eq!(layout(&File::open(mounted.path("file")).expect("it")), pages);
    assert_eq!(&fs::read(mounted.path("file")).expect("a read")[300_000..300_005], b"again");
}

#[test]
fn holes_are_found_while_writers_wait_for_space() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size", "64MiB", "--buffer-size", "8MiB"]);
    let mounted = sandbox.mount_with(&["--memory", "16MiB", "--data", "journal"]);
    let (file, _storer, _) = stored(&mounted, "file", true);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let writer = create(&mounted.path(&format!("writer {number}")));
            let is_over = &is_over;
            scope.spawn(move || {
                let pages = (0..2000).cycle().map(|page| page * 7 % 2000);
                for page in pages.take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    writer.write_all_at(&[7; 4096], page * 4096).expect("a write");
                }
            });
        }
        let begun = Instant::now();
        let has_waited = || mounted.status().counters.admissions_parked > 0;
        let mut layouts: Vec<_> = (0..300).map(|_| layout(&file)).collect();
        while !has_waited() && begun.elapsed() < PATIENCE {
            layouts.push(layout(&file));
        }
        is_over.store(true, Ordering::Relaxed);
        let wrong = layouts.iter().find(|found| **found != [(299_008, 319_488)]);
        assert_eq!(wrong, None);
    });
    let waited = mounted.status().counters.admissions_parked;
    assert!(waited > 0, "no writer had to wait");
}

#[test]
fn a_range_that_is_copied_has_what_a_mapping_of_its_source_holds() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let (file, _storer, expected) = stored(&mounted, "file", true);
    let copy = create(&mounted.path("copy"));
    let mut at = 0;
    while at < LEN {
        let (mut from, mut to) = (at, at);
        at += copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), (LEN - at) as usize)
            .expect("a copy") as u64;
    }
    assert!(fs::read(mounted.path("copy")).expect("a read") == expected);
}

#[test]
fn seeks_in_files_that_programs_store_into_all_the_time_are_answered() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let churning = |number: usize| {
        let path = mounted.path(&number.to_string());
        let file = create(&path);
        fallocate(&file, FallocateFlags::empty(), 0, LEN).expect("space");
        let mut storer = call(&["churn", "{}", &LEN.to_string()], &path);
        storer.expect("stored");
        (path, storer)
    };
    let churning: Vec<_> = (0..6).map(churning).collect();
    std::thread::scope(|scope| {
        for (path, _) in churning.iter().chain(&churning) {
            scope.spawn(move || {
                let file = File::open(path).expect("it");
                (0..20).for_each(|_| assert_eq!(layout(&file), [(0, LEN)]));
            });
        }
    });
    for (path, mut storer) in churning {
        assert!(storer.end().success());
        let bytes = fs::read(path).expect("a read");
        assert!(bytes.chunks(4096).all(|page| page[0] != 0));
    }
    mounted.unmount();
}

/// The kernel drops its pages before such a write, and not after it.
#[test]
fn a_page_that_is_read_while_it_is_written_around_the_kernel_s_cache_does_not_stay_old() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = mounted.path("file");
    for (times, depth) in [("5000", "1"), ("200", "32")] {
        let mut overtaking = call(&["overtake", "{}", times, depth], &path);
        assert_eq!(overtaking.expect("old"), 0);
        assert!(overtaking.end().success());
    }
}

/// Each of these writes holds one of the kernel's places for requests until its pages are dropped, and the
/// reads that hold the pages need places, too.
#[test]
fn more_writes_around_the_kernel_s_cache_than_it_has_places_for_all_end() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let mut overtaking = call(&["overtake", "{}", "100", "400"], &mounted.path("file"));
    overtaking.expect("old");
    assert!(overtaking.end().success());
}
