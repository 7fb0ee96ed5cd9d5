//! Random calls on files of a mount. Each read and each hole is compared with a model, as `fsx` does, with
//! zeroed ranges, direct I/O, seeks, unmounts and kills in addition. `WEIR_EXERCISER=SEED` repeats a run.

use crate::common::{Mounted, Sandbox, can_mount};
use device::SeededRng;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, copy_file_range, fallocate, seek};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::{SystemTime, UNIX_EPOCH};

const PAGE: u64 = 4096;
const BYTES_MAX: u64 = 800 * PAGE;
/// Copies of fewer bytes are the kernel's.
const SHARED_COPY_BYTES_MIN: u64 = 1 << 20;

/// The expected file.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    /// Pages with data: written, or, in a file that was ever written to, zeroed in part.
    data: BTreeSet<u64>,
    is_written: bool,
}

impl Model {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let end = at as usize + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at as usize..end].copy_from_slice(bytes);
        self.data.extend(at / PAGE..(end as u64).div_ceil(PAGE));
        self.is_written = true;
    }

    /// Zeroes a range. At the end of the file, the last page is removed as a whole.
    fn zero(&mut self, at: u64, end: u64) {
        let size = self.bytes.len() as u64;
        let end = if end >= size { size.next_multiple_of(PAGE) } else { end };
        if at >= end {
            return;
        }
        let (from, to) = (at.min(size) as usize, end.min(size) as usize);
        self.bytes[from..to].fill(0);
        self.cut(at, end);
    }

    fn cut(&mut self, at: u64, end: u64) {
        if !self.is_written {
            return;
        }
        let whole = at.div_ceil(PAGE)..end / PAGE;
        self.data.retain(|page| !whole.contains(page));
        for edge in [at, end] {
            if !edge.is_multiple_of(PAGE) {
                self.data.insert(edge / PAGE);
            }
        }
    }

    fn set_len(&mut self, size: u64) {
        if size < self.bytes.len() as u64 {
            // All pages behind the new size are removed, however far away.
            self.cut(size, u64::MAX / PAGE * PAGE);
        }
        self.bytes.resize(size as usize, 0);
    }
}

struct Exerciser {
    random: SeededRng,
    model: Model,
    file: File,
    direct: File,
    seed: u64,
    step: u64,
}

impl Exerciser {
    fn open(mounted: &Mounted) -> (File, File) {
        let path = mounted.path("file");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let direct = options.clone().custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
        (options.open(&path).expect("the file"), direct.expect("the file, directly"))
    }

    /// A place, often on a page's edge.
    fn place(&mut self) -> u64 {
        let at = self.random.below(BYTES_MAX);
        if self.random.once_in(3) { at / PAGE * PAGE } else { at }
    }

    fn range(&mut self) -> (u64, u64) {
        let at = self.place();
        let limit = if self.random.once_in(3) { 30 * PAGE } else { 3000 };
        let len = 1 + self.random.below(limit.min(BYTES_MAX - at));
        let pages = len.next_multiple_of(PAGE);
        (at, if self.random.once_in(2) && at + pages <= BYTES_MAX { pages } else { len })
    }

    fn change(&mut self) {
        let (at, len) = self.range();
        let grows = self.random.once_in(2);
        let keep = if grows { FallocateFlags::empty() } else { FallocateFlags::KEEP_SIZE };
        match self.random.below(12) {
            0..5 => {
                let bytes = vec![1 + self.random.below(255) as u8; len as usize];
                let file = if self.random.once_in(3) { &self.direct } else { &self.file };
                file.write_all_at(&bytes, at).expect("a write");
                self.model.write(at, &bytes);
            }
            5 | 6 => {
                fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
                    .expect("a hole");
                self.model.zero(at, at + len);
            }
            7 | 8 => {
                fallocate(&self.file, FallocateFlags::ZERO_RANGE | keep, at, len).expect("zeros");
                self.model.zero(at, at + len);
                self.grow(grows, at + len);
            }
            9 => {
                fallocate(&self.file, keep, at, len).expect("space");
                self.grow(grows, at + len);
            }
            10 => {
                self.file.set_len(at).expect("a size");
                self.model.set_len(at);
            }
            _ => self.copy(at, len),
        }
    }

    fn grow(&mut self, grows: bool, end: u64) {
        if grows && end > self.model.bytes.len() as u64 {
            self.model.set_len(end);
        }
    }

    fn copy(&mut self, mut at: u64, mut len: u64) {
        let mut to = self.place();
        if self.random.once_in(2) {
            // Long enough to share pages.
            (at, to, len) = (at / PAGE * PAGE, to / PAGE * PAGE, BYTES_MAX);
        }
        let len = len.min(BYTES_MAX - to).min(at.abs_diff(to));
        if len == 0 || at >= self.model.bytes.len() as u64 {
            return;
        }
        let present = len.min(self.model.bytes.len() as u64 - at);
        let (mut from, mut into) = (at, to);
        let copied = copy_file_range(&self.file, Some(&mut from), &self.file, Some(&mut into), len as usize)
            .expect("a copy");
        let (end, size) = (at + copied as u64, self.model.bytes.len() as u64);
        let bytes = self.model.bytes[at as usize..end as usize].to_vec();
        let whole = (copied as u64).is_multiple_of(PAGE) || end == size && to + copied as u64 >= size;
        let is_shared = present >= SHARED_COPY_BYTES_MIN && (at | to).is_multiple_of(PAGE) && whole;
        let holes: Vec<u64> =
            (at / PAGE..end.div_ceil(PAGE)).filter(|page| !self.model.data.contains(page)).collect();
        self.model.write(to, &bytes);
        if is_shared {
            // A copy by the kernel would have written zeros in place of holes.
            let holes: BTreeSet<u64> = holes.into_iter().map(|page| page - at / PAGE + to / PAGE).collect();
            self.model.data.retain(|page| !holes.contains(page));
        }
    }

    fn check(&mut self) {
        let when = format!("seed {}, step {}", self.seed, self.step);
        let (at, len) = self.range();
        let (model, size) = (&self.model, self.model.bytes.len() as u64);
        assert_eq!(self.file.metadata().expect("metadata").len(), size, "{when}");
        // The charged blocks are an upper bound.
        let charged = self.file.metadata().expect("metadata").blocks() * 512 / PAGE;
        let needed = model.data.iter().filter(|&page| page * PAGE < size).count() as u64;
        assert!(charged >= needed && charged <= size.div_ceil(PAGE), "{when}: {charged} of {needed} pages");
        let file = if self.random.once_in(3) { &self.direct } else { &self.file };
        let mut found = vec![0; len as usize];
        let read = file.read_at(&mut found, at).expect("a read");
        let end = (at + read as u64).min(size);
        assert!(at >= size || model.bytes[at as usize..end as usize] == found[..read], "{when}: other bytes");
        let mut pages = at / PAGE..size.div_ceil(PAGE);
        let place = |page: Option<u64>| page.map(|page| at.max(page * PAGE));
        let data = place(pages.clone().find(|page| model.data.contains(page)));
        assert_eq!(
            seek(&self.file, SeekFrom::Data(at)).ok(),
            data.filter(|_| at < size),
            "{when}: data from {at}"
        );
        let hole = place(pages.find(|page| !model.data.contains(page))).or(Some(size));
        assert_eq!(
            seek(&self.file, SeekFrom::Hole(at)).ok(),
            hole.filter(|_| at < size),
            "{when}: a hole from {at}"
        );
    }
}

#[test]
fn random_calls_find_what_a_plain_model_holds_through_unmounts_and_kills() {
    if !can_mount() {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let given = std::env::var("WEIR_EXERCISER").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or(now.as_nanos() as u64);
    println!("seed {seed}");
    let sandbox = Sandbox::formatted_with(&["--size", "64MiB", "--buffer-size", "8MiB"]);
    let mut mounted = sandbox.mount_with(&["--memory", "16MiB"]);
    let (file, direct) = Exerciser::open(&mounted);
    let random = SeededRng::new(seed);
    let mut exerciser = Exerciser { random, model: Model::default(), file, direct, seed, step: 0 };
    for life in 0..6 {
        for _ in 0..800 {
            exerciser.step += 1;
            exerciser.change();
            exerciser.check();
        }
        exerciser.file.sync_all().expect("a sync");
        // The old descriptors must be closed for an unmount.
        let nothing = || File::open("/dev/null").expect("it is there");
        (exerciser.file, exerciser.direct) = (nothing(), nothing());
        if life % 2 == 0 {
            mounted.kill()
        } else {
            mounted.unmount()
        }
        mounted = sandbox.mount_with(&["--memory", "16MiB"]);
        (exerciser.file, exerciser.direct) = Exerciser::open(&mounted);
        let found = std::fs::read(mounted.path("file")).expect("a read");
        assert!(found == exerciser.model.bytes, "seed {seed}, life {life}: other bytes");
        exerciser.check();
    }
}
