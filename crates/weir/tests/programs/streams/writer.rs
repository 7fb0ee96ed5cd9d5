//! A program that streams files, and keeps a history of its steps.

use crate::streams::content::{KEPT_MAX, Version, fill, patch};
use crate::streams::files::WriterFiles;
use crate::streams::history::{History, Name, Tick, What};
use crash_oracle::{BypassScope, PAGE_BYTES};
use device::SeededRng;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PAGE: u64 = PAGE_BYTES as u64;
/// The kernel's largest request: 1 MiB.
const CHUNK_PAGES_MAX: u64 = 256;

/// The state that all threads share.
#[derive(Default)]
pub(super) struct World {
    clock: AtomicU64,
    /// Whether the daemon is about to be killed. From then on any call may fail.
    pub is_killed: AtomicBool,
}

impl World {
    pub(super) fn tick(&self) -> Tick {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// The sizes of a writer's files and streams.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// The most pages of a file.
    pub pages_max: u64,
    /// Bytes after which a stream bypasses the buffer; `None` if none does.
    pub bypass_after: Option<u64>,
}

/// The speed of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// As fast as possible: most of the written pages are in the store.
    Fast,
    /// So slowly that the store has few of the newest pages, while other writers' syncs make the record of
    /// these writes durable.
    Slow,
}

/// Bytes with the alignment that `O_DIRECT` needs.
struct Aligned(Vec<u8>);

impl Aligned {
    fn bytes(&mut self, len: usize) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(PAGE_BYTES);
        &mut self.0[start..start + len]
    }
}

/// A thread that writes into its own directory.
pub(super) struct Writer {
    pub dir: PathBuf,
    pub history: History,
    shape: Shape,
    pace: Pace,
    random: SeededRng,
    next_file: u32,
    next_number: u32,
    /// For each file, the end of its last write and the sequential bytes before that, as weir counts them.
    streams: BTreeMap<u32, (u64, u64)>,
    chunk: Aligned,
}

/// Copies of fewer bytes are the kernel's, which promises less.
const SHARED_COPY_BYTES_MIN: u64 = 1 << 20;

fn share(source: &File, target: &File, bytes: u64) -> io::Result<()> {
    let copied = rustix::fs::copy_file_range(source, None, target, None, bytes as usize)?;
    assert_eq!(copied as u64, bytes, "a copy is one operation");
    Ok(())
}

/// Copies a file while no other thread copies.
///
/// A kernel with a newer copy request (6.18) tries that request first. If several threads are refused it at
/// the same time, all but one take the old request for refused, too, and no later copy on this mount shares
/// blocks.
pub(super) fn copy_once(dir: &std::path::Path) {
    let [one, other] = ["one", "other"].map(|name| dir.join(name));
    fs::write(&one, vec![7; SHARED_COPY_BYTES_MIN as usize]).expect("a file");
    let files = File::open(one).and_then(|one| Ok((one, File::create(other)?)));
    let (one, other) = files.expect("both files");
    share(&one, &other, SHARED_COPY_BYTES_MIN).expect("a copy");
}

/// An open file.
struct Open {
    file: u32,
    handle: File,
    was_synced: bool,
}

impl Writer {
    pub(super) fn new(which: u32, dir: PathBuf, shape: Shape, seed: u64) -> Writer {
        Writer {
            dir,
            history: History::default(),
            shape,
            pace: Pace::Fast,
            random: SeededRng::new(seed ^ u64::from(which) << 32),
            next_file: which << 24,
            next_number: 1,
            streams: BTreeMap::new(),
            chunk: Aligned(vec![0; (CHUNK_PAGES_MAX as usize + 1) * PAGE_BYTES]),
        }
    }

    pub(super) fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// Starts a new history after a crash, with the state `baseline`.
    pub(super) fn begin_anew(&mut self, baseline: WriterFiles) {
        self.streams.clear();
        self.history = History::new(baseline);
    }

    /// Works until the daemon is dead.
    pub(super) fn live(&mut self, world: &World) {
        loop {
            if let Err(error) = self.step(world) {
                assert!(
                    world.is_killed.load(Ordering::SeqCst),
                    "{}: {error}: {:?}",
                    self.dir.display(),
                    self.history.ops.last()
                );
                return;
            }
        }
    }

    fn names(&self) -> [Option<u32>; 2] {
        self.history.now.names
    }

    fn size(&self, file: u32) -> u64 {
        self.history.now.files[&file].size
    }

    /// Runs a step, and notes its begin and end.
    fn op<T>(&mut self, world: &World, what: What, does: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.history.begin(what, world.tick());
        let done = does()?;
        self.history.end(world.tick());
        Ok(done)
    }

    fn step(&mut self, world: &World) -> io::Result<()> {
        let [new, data] = self.names();
        match (self.random.below(10), new, data) {
            (0..=1, Some(_), _) => self.replace(world),
            (_, Some(file), _) => {
                let open = self.open(file, Name::New)?;
                if self.random.once_in(2) {
                    return self.remove(world, Name::New, Some(&open));
                }
                self.rewrite(world, open)
            }
            (0..=3, None, Some(file)) => {
                let open = self.open(file, Name::Data)?;
                self.rewrite(world, open)
            }
            (4, None, Some(file)) => {
                let open = self.open(file, Name::Data)?;
                self.truncate(world, &open)
            }
            (5, None, Some(_)) => self.remove(world, Name::Data, None),
            (6, None, Some(file)) => self.copy(world, file),
            _ => self.make(world),
        }
    }

    fn open(&mut self, file: u32, name: Name) -> io::Result<Open> {
        let handle = self.options().open(self.dir.join(name.text()))?;
        Ok(Open { file, handle, was_synced: false })
    }

    fn options(&mut self) -> OpenOptions {
        let mut options = File::options();
        options.read(true).write(true);
        if self.random.once_in(3) {
            options.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
        }
        options
    }

    /// A new file, mostly renamed over the old one.
    fn make(&mut self, world: &World) -> io::Result<()> {
        self.next_file += 1;
        let (file, name) = (self.next_file, Name::New);
        let (path, mut options) = (self.dir.join(name.text()), self.options());
        let handle = self.op(world, What::Create { file, name }, || options.create_new(true).open(path))?;
        let mut open = Open { file, handle, was_synced: false };
        let pages = self.pages();
        if !self.stream(world, &mut open, 0, pages)? {
            return Ok(());
        }
        if self.random.once_in(2) {
            self.sync(world, &mut open)?;
        }
        match self.random.below(8) {
            0 => self.remove_open(world, &open),
            2.. if self.is_new(file) => self.replace(world),
            _ => Ok(()),
        }
    }

    fn is_new(&self, file: u32) -> bool {
        self.names()[Name::New as usize] == Some(file)
    }

    /// Lets a new file share all pages of the old one.
    fn copy(&mut self, world: &World, from: u32) -> io::Result<()> {
        self.next_file += 1;
        let (to, name, size) = (self.next_file, Name::New, self.size(from));
        let source = File::open(self.dir.join(Name::Data.text()))?;
        let path = self.dir.join(name.text());
        let target = self.op(world, What::Create { file: to, name }, || File::create_new(path))?;
        if size < SHARED_COPY_BYTES_MIN {
            return Ok(());
        }
        self.op(world, What::Copy { from, to }, || share(&source, &target, size))?;
        if self.random.once_in(2) { self.replace(world) } else { Ok(()) }
    }

    fn pages(&mut self) -> u64 {
        match self.random.below(4) {
            0 => 1 + self.random.below(64),
            _ if self.pace == Pace::Slow => 64 + self.random.below(400),
            1..=2 => self.shape.pages_max / 16 + self.random.below(self.shape.pages_max / 4),
            _ => self.shape.pages_max / 4 + self.random.below(self.shape.pages_max * 3 / 4),
        }
    }

    /// Writes the existing pages again, and mostly continues behind them.
    fn rewrite(&mut self, world: &World, mut open: Open) -> io::Result<()> {
        let end = self.size(open.file).div_ceil(PAGE);
        let from = match self.random.below(3) {
            0 => 0,
            1 => self.random.below(end + 1),
            _ => end,
        };
        let pages = self.pages().min(self.shape.pages_max.saturating_sub(from)).max(1);
        if self.stream(world, &mut open, from, pages)? && self.random.once_in(2) {
            self.sync(world, &mut open)?;
        }
        Ok(())
    }

    /// Writes whole pages in order, sometimes with other operations between them. Returns `false` if the file
    /// has lost its name meanwhile.
    fn stream(&mut self, world: &World, open: &mut Open, from: u64, pages: u64) -> io::Result<bool> {
        let chunk = match self.random.below(8) {
            _ if self.pace == Pace::Slow => 1 + self.random.below(24),
            0 => 1 + self.random.below(CHUNK_PAGES_MAX),
            1..=3 => 32,
            _ => CHUNK_PAGES_MAX,
        };
        let (mut at, end, rare) = (from, from + pages, self.rare(chunk));
        while at < end {
            let pages = chunk.min(end - at);
            if self.pace == Pace::Slow {
                std::thread::sleep(Duration::from_millis(self.random.below(30)));
            }
            self.write(world, open, at, pages)?;
            at += pages;
            if !self.random.once_in(rare) {
                continue;
            }
            match self.random.below(7) {
                0 => self.sync(world, open)?,
                1 => self.patch(world, open)?,
                2 => {
                    self.truncate(world, open)?;
                    at = self.size(open.file).div_ceil(PAGE);
                }
                5 => self.punch(world, open)?,
                3 if self.is_new(open.file) => self.replace(world)?,
                4 if self.random.once_in(2) => {
                    self.remove_open(world, open)?;
                    // Writes to a file without a name are tested, too.
                    let more = 1 + self.random.below(8);
                    (0..more).try_for_each(|more| self.write(world, open, at + more * pages, pages))?;
                    return Ok(false);
                }
                _ => {}
            }
        }
        Ok(true)
    }

    /// The number of chunks, of size `chunk`, between two other operations.
    fn rare(&self, chunk: u64) -> u64 {
        match self.pace {
            Pace::Fast => 16 * CHUNK_PAGES_MAX / chunk,
            Pace::Slow => 12,
        }
    }

    fn write(&mut self, world: &World, open: &Open, page: u64, pages: u64) -> io::Result<()> {
        let (file, number) = (open.file, self.number());
        let bypasses = self.bypasses(file, page, pages);
        let mut chunk = std::mem::replace(&mut self.chunk, Aligned(Vec::new()));
        let bytes = chunk.bytes((pages * PAGE) as usize);
        for (page, bytes) in (page..).zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
            fill(Version { file, number }, page, bytes);
        }
        let what = What::Write { file, page, pages, number, bypasses };
        let written = self.op(world, what, || match open.handle.write_at(bytes, page * PAGE)? {
            all if all == bytes.len() => Ok(()),
            part => Err(io::Error::other(format!("{part} bytes of {}", bytes.len()))),
        });
        self.chunk = chunk;
        written
    }

    fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number
    }

    /// Whether a write may bypass the log, by the rules of the cache's `StreamDetector`.
    fn bypasses(&mut self, file: u32, page: u64, pages: u64) -> bool {
        let Some(after) = self.shape.bypass_after else { return false };
        let (offset, len) = (page * PAGE, pages * PAGE);
        let next = offset + len;
        let in_order = match self.streams.get(&file) {
            Some(&(known, bytes)) if known == offset => bytes + len,
            // weir takes this write for a retry of one that had to wait.
            Some(&(known, bytes)) if known == next && bytes >= len => bytes,
            _ => len,
        };
        self.streams.insert(file, (next, in_order));
        in_order > after && BypassScope::WritesOfWholePages.bypassing(offset, len, self.size(file)).is_some()
    }

    fn sync(&mut self, world: &World, open: &mut Open) -> io::Result<()> {
        let only_data = self.random.once_in(2);
        let (file, handle) = (open.file, &open.handle);
        self.op(
            world,
            What::Sync { file },
            || if only_data { handle.sync_data() } else { handle.sync_all() },
        )?;
        open.was_synced = true;
        Ok(())
    }

    /// Writes a part of a page, without `O_DIRECT`, which requires whole sectors.
    fn patch(&mut self, world: &World, open: &Open) -> io::Result<()> {
        let pages = self.size(open.file) / PAGE;
        if pages == 0 {
            return Ok(());
        }
        // Mostly near the end, which the store does not have yet.
        let page = if self.random.once_in(3) { self.random.below(pages) } else { pages - 1 };
        let (file, number) = (open.file, self.number());
        let (at, bytes) = patch(Version { file, number }, page);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open.handle));
        let handle = File::options().write(true).open(path)?;
        self.op(world, What::Patch { file, page, number }, || {
            handle.write_all_at(&bytes, page * PAGE + at as u64)
        })
    }

    /// Punches a hole into the newest pages.
    fn punch(&mut self, world: &World, open: &Open) -> io::Result<()> {
        let end = self.size(open.file) / PAGE;
        let pages = (1 + self.random.below(300)).min(end);
        let page = end - pages;
        let pages = pages.div_ceil(1 + self.random.below(4));
        if pages == 0 {
            return Ok(());
        }
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        self.op(world, What::Punch { file: open.file, page, pages }, || {
            Ok(rustix::fs::fallocate(&open.handle, flags, page * PAGE, pages * PAGE)?)
        })
    }

    /// Truncates the file: mostly to a smaller size, sometimes within a page, and sometimes to a larger size.
    fn truncate(&mut self, world: &World, open: &Open) -> io::Result<()> {
        let pages = self.size(open.file).div_ceil(PAGE);
        let near_end = pages.saturating_sub(1 + self.random.below(40));
        let page = match self.random.below(8) {
            0 => self.random.below(pages + 1),
            1 => (pages + self.random.below(100)).min(self.shape.pages_max),
            _ => near_end,
        };
        let part =
            if self.random.once_in(2) && page < pages { 8 + self.random.below(KEPT_MAX - 8) } else { 0 };
        let size = page * PAGE + part;
        if page + 1 == pages && size > self.size(open.file) {
            // The file ends in this page already.
            return Ok(());
        }
        self.op(world, What::Truncate { file: open.file, size }, || open.handle.set_len(size))
    }

    fn replace(&mut self, world: &World) -> io::Result<()> {
        let file = self.names()[Name::New as usize].expect("there is a new one");
        let [from, to] = [Name::New, Name::Data].map(|name| self.dir.join(name.text()));
        self.op(world, What::Replace { file }, || fs::rename(from, to))
    }

    fn remove_open(&mut self, world: &World, open: &Open) -> io::Result<()> {
        self.remove(world, if self.is_new(open.file) { Name::New } else { Name::Data }, Some(open))
    }

    /// Removes a name. If the file was synced and is still open, its removal is durable.
    fn remove(&mut self, world: &World, name: Name, open: Option<&Open>) -> io::Result<()> {
        let is_durable = open.is_some_and(|open| open.was_synced);
        let path = self.dir.join(name.text());
        self.op(world, What::Remove { name, is_durable }, || fs::remove_file(path))
    }
}
