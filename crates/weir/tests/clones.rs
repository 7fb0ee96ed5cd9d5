//! A volume with many copies, which are deleted in random order while it is written to, its store is cleaned,
//! and the daemon is killed with -9. Small by default; `make clones` has 1,000 copies of 4 GiB.
//!
//! Every page holds the number of its write, and all its other bytes follow from that number, like those of a
//! hash. One thread writes, so each copy, and the volume itself after a kill, must be the state after some
//! prefix of the writes.

mod common;

use common::{Mounted, Sandbox, can_mount, space_of, succeeds, weir};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_status::StatusReport;

const PAGE_BYTES: usize = 4096;
/// Writes between two syncs.
const SYNC_EVERY: usize = 64;
/// Writes that come with each copy, so that every copy differs.
const WRITES_PER_COPY: usize = 48;
/// Overwritten pages that a short check of a volume reads.
const LOOK_PAGES: usize = 3000;
/// Pages that are read at once; files are whole runs of them.
const RUN_PAGES: u32 = 256;
/// Copies that are read from the first byte to the last.
const READ_WHOLE: usize = 2;
/// Copies made without concurrent writes.
const IDLE_COPIES: usize = 10;
/// The time without progress that counts as a hang, on a slow disk.
const PATIENCE: Duration = Duration::from_secs(600);

/// The sizes of a run.
#[derive(Clone, Copy)]
struct Size {
    files: usize,
    file_pages: usize,
    copies: usize,
}

impl Size {
    /// 30 copies of 32 MiB, or what `WEIR_CLONES_BYTES` and `WEIR_CLONES_COUNT` say.
    fn asked_for() -> Size {
        let number = |name, default| match std::env::var(name) {
            Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value}")),
            Err(_) => default,
        };
        let (bytes, files) = (number("WEIR_CLONES_BYTES", 32 << 20), 4);
        let size = Size {
            files,
            file_pages: (bytes / PAGE_BYTES / files).next_multiple_of(RUN_PAGES as usize),
            copies: number("WEIR_CLONES_COUNT", 30),
        };
        assert!(size.file_pages >= 1024 && size.copies > IDLE_COPIES, "too small to say anything");
        size
    }

    fn pages(self) -> usize {
        self.files * self.file_pages
    }

    fn bytes(self) -> usize {
        self.pages() * PAGE_BYTES
    }

    /// Space for the volume, for the pages that only copies hold, and for nearly as many new pages while
    /// copies still hold the old ones. The test writes more than that in total, so the cleaner has work.
    fn store_bytes(self) -> usize {
        // Each write to a copy's source takes a page and a leaf of the map.
        let apart = self.copies * (2 * WRITES_PER_COPY + 4) * PAGE_BYTES;
        self.bytes() / 4 * 9 + apart + (24 << 20)
    }

    fn buffer_bytes(self) -> usize {
        (self.bytes() / 16).clamp(8 << 20, 256 << 20)
    }

    /// Overwrites while copies are deleted.
    fn overwrites(self) -> usize {
        self.pages() * 2
    }

    /// Copies that are deleted between two kills.
    fn kill_every(self) -> usize {
        (self.copies / 20).max(8)
    }
}

#[test]
fn copies_are_deleted_in_random_order_under_writes_cleaning_and_kills() {
    if can_mount() {
        go(Size::asked_for());
    }
}

/// All writes in order: a page, and the unique number of the write.
#[derive(Default)]
struct Journal {
    writes: Mutex<Vec<(u32, u64)>>,
    /// Writes that completed.
    answered: AtomicUsize,
    /// Writes that a sync covers.
    synced: AtomicUsize,
    /// The number of writes that are allowed. After that many the writer waits.
    allowed: AtomicUsize,
    stop: AtomicBool,
    /// Writes that were refused, since the store was full.
    refused: AtomicUsize,
}

type Writer = JoinHandle<Result<(), Error>>;

/// A copy, and the numbers of writes whose state it may be.
struct Copy {
    name: String,
    moments: Range<usize>,
}

struct World {
    begun: Instant,
    size: Size,
    sandbox: Sandbox,
    journal: Arc<Journal>,
    copies: Vec<Copy>,
    random: u64,
    numbers: u64,
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Fills a page with the content of write `number`. No part of the content repeats.
fn fill(page: u32, number: u64, into: &mut [u8]) {
    let seed = mix(u64::from(page) << 32 ^ number);
    for (at, word) in (0u64..).zip(into.chunks_exact_mut(8)) {
        let value =
            if at == 0 { number } else { mix(seed.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15))) };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The number of the write that a page comes from. Fails for a torn page.
#[track_caller]
fn number_of(page: u32, bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let mut expected = vec![0; bytes.len()];
    fill(page, number, &mut expected);
    assert!(bytes == expected, "page {page}, of write {number} by its first bytes, is not what was written");
    number
}

fn files(size: Size, dir: &Path) -> Vec<File> {
    let open = |number| OpenOptions::new().read(true).write(true).open(dir.join(format!("file{number}")));
    let look = |number| File::open(dir.join(format!("file{number}")));
    (0..size.files).map(|number| open(number).or_else(|_| look(number)).expect("the file")).collect()
}

fn place(size: Size, page: u32) -> (usize, u64) {
    let page = page as usize;
    (page / size.file_pages, (page % size.file_pages * PAGE_BYTES) as u64)
}

/// Writes to random pages until it is stopped, or until an error, which it returns.
fn write(size: Size, files: &[File], journal: &Journal, mut random: u64, first: u64) -> Result<(), Error> {
    let (mut made, mut bytes) = (0, vec![0; PAGE_BYTES]);
    while !journal.stop.load(Ordering::Acquire) {
        if made == journal.allowed.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        random = mix(random.wrapping_add(0x9e37_79b9_7f4a_7c15));
        let (page, number) = ((random % size.pages() as u64) as u32, first + made as u64);
        let (file, offset) = place(size, page);
        fill(page, number, &mut bytes);
        journal.writes.lock().expect("the journal").push((page, number));
        if let Err(error) = files[file].write_all_at(&bytes, offset) {
            if error.kind() != ErrorKind::StorageFull {
                return Err(error);
            }
            journal.writes.lock().expect("the journal").pop();
            journal.refused.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        made += 1;
        let answered = journal.answered.fetch_add(1, Ordering::AcqRel) + 1;
        // A sync of one file makes all that was answered before durable: the buffer keeps one order.
        if made % SYNC_EVERY == 0 {
            files[file].sync_all()?;
            journal.synced.store(answered, Ordering::Release);
        }
    }
    Ok(())
}

impl World {
    fn new(size: Size) -> World {
        let (store, buffer) = (size.store_bytes().to_string(), size.buffer_bytes().to_string());
        let sandbox = Sandbox::formatted_with(&["--size", &store, "--buffer-size", &buffer]);
        let journal = Arc::default();
        World { begun: Instant::now(), size, sandbox, journal, copies: Vec::new(), random: 7, numbers: 1 }
    }

    /// A mount with a short dirty age, so that all data is stored in the end.
    fn mount(&self) -> Mounted {
        self.sandbox.mount_with(&["--dirty-age", "2"])
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.random) % limit as u64) as usize
    }

    /// Writes every page, as write 0.
    fn write_all(&self, dir: &Path) {
        let mut bytes = vec![0; 256 * PAGE_BYTES];
        for number in 0..self.size.files {
            let file = File::create(dir.join(format!("file{number}"))).expect("a file");
            for first in (0..self.size.file_pages).step_by(256) {
                let page = number * self.size.file_pages + first;
                for (page, bytes) in (page as u32..).zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
                    fill(page, 0, bytes);
                }
                file.write_all_at(&bytes, (first * PAGE_BYTES) as u64).expect("space");
            }
            file.sync_all().expect("a sync");
        }
    }

    fn writer(&mut self, mounted: &Mounted) -> Writer {
        let (size, files, journal) = (self.size, files(self.size, mounted.dir()), self.journal.clone());
        let (random, first) = (self.below(usize::MAX) as u64, self.numbers);
        self.numbers += 1 << 40;
        journal.stop.store(false, Ordering::Release);
        journal.allowed.store(0, Ordering::Release);
        std::thread::spawn(move || write(size, &files, &journal, random, first))
    }

    /// Makes a copy while the writer continues. Returns the duration that the daemon reports.
    fn copy(&mut self, mounted: &Mounted, mode: &[&str]) -> u64 {
        let name = format!("copy{}", self.copies.len());
        let least = self.journal.answered.load(Ordering::Acquire);
        let output = succeeds(weir().args(["volume", "clone"]).args(mode).arg(mounted.dir()).arg(&name));
        let most = self.journal.writes.lock().expect("the journal").len();
        self.copies.push(Copy { name, moments: least..most });
        let said = String::from_utf8(output.stdout).expect("text");
        let took = said.split(' ').rev().nth(1).and_then(|ms| ms.parse().ok());
        took.unwrap_or_else(|| panic!("no time in {said:?}"))
    }

    /// Asserts that the volume below `dir` is the state after a number of writes in `moments`, and returns
    /// that number. Reads all pages of these writes, and some or all other pages.
    fn check(&mut self, dir: &Path, moments: Range<usize>, whole: bool) -> usize {
        let (files, mut bytes) = (files(self.size, dir), vec![0; RUN_PAGES as usize * PAGE_BYTES]);
        let journal = self.journal.clone();
        let writes = journal.writes.lock().expect("the journal");
        let mut pages: Vec<u32> = writes[moments.start..moments.end].iter().map(|&(page, _)| page).collect();
        if whole {
            pages.extend(0..self.size.pages() as u32);
        } else {
            let (count, before) = (self.size.pages(), moments.start);
            pages.extend((0..LOOK_PAGES.min(before)).map(|_| writes[self.below(before)].0));
            pages.extend((0..LOOK_PAGES / 10).map(|_| self.below(count) as u32));
        }
        pages.sort();
        pages.dedup();
        let mut found = BTreeMap::new();
        // Adjacent pages are read at once.
        for run in pages.chunk_by(|page, next| page + 1 == *next && next % RUN_PAGES != 0) {
            let (file, offset) = place(self.size, run[0]);
            let bytes = &mut bytes[..run.len() * PAGE_BYTES];
            files[file].read_exact_at(bytes, offset).expect("a read");
            let numbers = run.iter().zip(bytes.chunks_exact(PAGE_BYTES));
            found.extend(numbers.map(|(&page, bytes)| (page, number_of(page, bytes))));
        }
        let index = |number: u64| match number {
            0 => 0,
            _ => {
                1 + writes
                    .binary_search_by_key(&number, |&(_, number)| number)
                    .expect("a write that is not lost")
            }
        };
        let newest = found.values().map(|&number| index(number)).max().expect("pages").max(moments.start);
        assert!(newest <= moments.end, "a write that was made later is there");
        let mut expected: BTreeMap<u32, u64> = BTreeMap::new();
        expected.extend(writes[..newest].iter().copied().filter(|(page, _)| found.contains_key(page)));
        for (page, number) in found {
            assert_eq!(
                number,
                expected.get(&page).copied().unwrap_or(0),
                "page {page}, after {newest} writes"
            );
        }
        newest
    }

    /// After a kill, checks that the volume is the state after a prefix of the writes. Forgets all later
    /// writes.
    fn adopt(&mut self, mounted: &Mounted) {
        let (synced, made) = (
            self.journal.synced.load(Ordering::Acquire),
            self.journal.writes.lock().expect("the journal").len(),
        );
        let kept = self.check(mounted.dir(), synced..made, false);
        self.journal.writes.lock().expect("the journal").truncate(kept);
        for Copy { name, moments } in &mut self.copies {
            assert!(
                moments.start <= kept,
                "{name} has {}, the volume it was made of only {kept}",
                moments.start
            );
            moments.end = moments.end.min(kept);
        }
        self.journal.answered.store(kept, Ordering::Release);
        self.journal.synced.store(kept, Ordering::Release);
    }

    fn check_copy(&mut self, which: usize, options: &[&str], whole: bool) {
        let Copy { name, moments } = &self.copies[which];
        let (name, moments) = (name.clone(), moments.clone());
        let mounted = self.sandbox.mount_with(&[&["--volume", &name], options].concat());
        self.check(mounted.dir(), moments, whole);
        mounted.unmount();
    }

    /// Deletes some copies in random order while the writer continues, and kills the daemon at any moment,
    /// sometimes before their space is freed.
    fn delete_some(&mut self) -> u64 {
        let mounted = self.mount();
        self.adopt(&mounted);
        let writer = self.writer(&mounted);
        self.journal.allowed.store(usize::MAX, Ordering::Release);
        for _ in 0..self.size.kill_every().min(self.copies.len()) {
            let which = self.below(self.copies.len());
            let gone = self.copies.swap_remove(which);
            succeeds(weir().args(["volume", "delete"]).arg(mounted.dir()).arg(gone.name));
        }
        if self.copies.is_empty() || self.below(4) > 0 {
            let part = self.size.overwrites() / self.size.copies;
            let wanted = part * (self.size.copies - self.copies.len()) + self.below(part);
            self.wait_for_writes(&mounted, wanted, &writer);
        }
        let cleaned = mounted.status().counters.store.pages_cleaned;
        println!(
            "{} copies left, {} writes, {cleaned} pages cleaned, {:.1} s",
            self.copies.len(),
            self.journal.answered.load(Ordering::Acquire),
            self.begun.elapsed().as_secs_f64()
        );
        assert!(!writer.is_finished(), "the writer ended: {:?}", writer.join());
        mounted.kill();
        // The writer gets an error from the dead mount, and ends.
        writer.join().expect("no panic").expect_err("nobody told it to stop");
        cleaned
    }

    /// Waits until `wanted` writes have completed in all.
    fn wait_for_writes(&self, mounted: &Mounted, wanted: usize, writer: &Writer) {
        let (mut seen, mut since) = (0, Instant::now());
        while seen < wanted && !writer.is_finished() {
            let now = self.journal.answered.load(Ordering::Acquire);
            if now > seen {
                (seen, since) = (now, Instant::now());
            }
            let refused = self.journal.refused.load(Ordering::Relaxed);
            let stands = since.elapsed() > PATIENCE;
            assert!(!stands, "{seen} writes of {wanted}, {refused} refused: {:#?}", mounted.status());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn wait(mounted: &Mounted, what: &str, done: impl Fn(&StatusReport) -> bool) {
    let begun = Instant::now();
    while !done(&mounted.status()) {
        assert!(begun.elapsed() < PATIENCE, "{what} is never done");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn quantiles(mut times: Vec<u64>) -> String {
    times.sort();
    format!("{} to {} ms, {} in the middle", times[0], times[times.len() - 1], times[times.len() / 2])
}

fn go(size: Size) {
    let mut world = World::new(size);
    let mounted = world.mount();
    world.write_all(mounted.dir());
    wait(&mounted, "being written back", |status| status.dirty.pages == 0);
    let before = space_of(mounted.dir(), &["--exact"]).data_bytes.expect("counted");
    println!("{} bytes, written back after {:.1} s", size.bytes(), world.begun.elapsed().as_secs_f64());
    make_copies(&mut world, mounted);
    println!("{} copies after {:.1} s", size.copies, world.begun.elapsed().as_secs_f64());

    let (mut cleaned, mut kills) = (0, 1);
    while !world.copies.is_empty() {
        cleaned += world.delete_some();
        kills += 1;
        if !world.copies.is_empty() {
            let which = world.below(world.copies.len());
            let options = if world.below(2) == 0 { &["--read-only"][..] } else { &[] };
            world.check_copy(which, options, kills <= READ_WHOLE + 1);
        }
    }
    let mounted = world.mount();
    world.adopt(&mounted);
    let made = world.journal.answered.load(Ordering::Acquire);
    world.check(mounted.dir(), made..made, true);
    println!("all read after {:.1} s", world.begun.elapsed().as_secs_f64());
    wait(&mounted, "freeing", |status| !status.space.freeing);
    wait(&mounted, "being written back", |status| status.dirty.pages == 0);
    let after = space_of(mounted.dir(), &["--exact"]);
    assert_eq!(after.data_bytes, Some(before), "space is lost: {after:#?}");
    assert_eq!(after.dying_bytes, Some(0), "{after:#?}");
    assert_eq!(after.by_volume.as_ref().map(Vec::len), Some(1), "{after:#?}");
    mounted.unmount();
    succeeds(weir().arg("check").arg(world.sandbox.store()));
    println!(
        "{} copies deleted, {kills} kills, {made} writes kept, {} refused, {cleaned} pages cleaned; {before} bytes of data \
         before and after; check clean; {:.1} s",
        size.copies,
        world.journal.refused.load(Ordering::Relaxed),
        world.begun.elapsed().as_secs_f64()
    );
    assert!(cleaned > 0, "nothing was cleaned: the store is too large to test it");
}

/// Makes some copies without writes and the others under writes, and then kills the daemon.
fn make_copies(world: &mut World, mounted: Mounted) {
    let idle: Vec<u64> = (0..IDLE_COPIES).map(|_| world.copy(&mounted, &[])).collect();
    println!("a copy while nobody writes: {}", quantiles(idle));
    let writer = world.writer(&mounted);
    let mut busy = Vec::new();
    while world.copies.len() < world.size.copies {
        world.journal.allowed.fetch_add(WRITES_PER_COPY, Ordering::AcqRel);
        let mode = if world.below(3) == 0 { &["--read-only"][..] } else { &[] };
        busy.push(world.copy(&mounted, mode));
    }
    println!("a copy under writes: {}", quantiles(busy));
    mounted.kill();
    world.journal.stop.store(true, Ordering::Release);
    let _ = writer.join().expect("no panic");
}
