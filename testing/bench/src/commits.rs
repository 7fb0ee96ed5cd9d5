//! `weir-bench commits`: scattered pages of a file that are changed together, by a journal or by a vector.
//!
//! A program that replaces pages in place needs all of them or none after a crash. Without vectors, it keeps a journal of its
//! own. All ways change pages of one file on one mount, in turns.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use client::{ControlClient, RANGES_MAX, RangeVector, VectorOutcome, WeirMount};
use device::SeededRng;
use weir_status::CountersReport;

use super::cleanup;
use super::counters::mount;
use super::error::BenchError;
use super::program::{check_machine, run};
use super::quantile::{RoundSpread, median};
use super::report::{BenchReport, ReportCell, ReportTable};
use super::run_args::TurnArgs;
use super::slow_device::{ComparedDevice, DeviceSpec, SlowDevice, work_directory};
use super::system::{weir_on, weir_status};
use super::workload::{PAGE_BYTES, shuffled};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes that name a page in the journal.
const POSITION_BYTES: usize = 8;
/// The longest wait until the store has the moves of a turn.
const MOVED_WITHIN: Duration = Duration::from_secs(300);
/// The time between two looks at what the store has.
const STATUS_INTERVAL: Duration = Duration::from_millis(20);

/// Options of `weir-bench commits`.
#[derive(Debug, Args)]
pub(super) struct CommitsArgs {
    /// Bytes that a commit changes, in KiB
    #[arg(long, value_name = "KIB", value_delimiter = ',', default_values_t = [4, 16, 64, 256, 1024, 4096], value_parser = whole_pages)]
    sizes: Vec<u64>,
    /// Bytes of each range that a commit changes, in KiB; a smaller commit is one range
    #[arg(long, value_name = "KIB", default_value_t = 4, value_parser = whole_pages)]
    range: u64,
    /// Commits of each way in a round
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    commits: u32,
    /// Size of the file, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    file: u64,
    /// Modelled devices of the store
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ComparedDevice::Cloud, ComparedDevice::Ssd])]
    models: Vec<ComparedDevice>,
    #[command(flatten)]
    turns: TurnArgs,
}

fn whole_pages(text: &str) -> Result<u64, String> {
    let kib: u64 = text.parse().map_err(|_| "write a whole number".to_owned())?;
    let fits = kib.is_power_of_two() && (PAGE_BYTES / KIB..=8192).contains(&kib);
    if fits { Ok(kib) } else { Err("write a power of two from 4 to 8192".to_owned()) }
}

/// A way to change ranges together, durably.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommitWay {
    /// The program's own journal, synced before and after the pages are written home.
    Journal,
    /// A vector of writes.
    Writes,
    /// Writes to a scratch file, and a vector that moves them home.
    Moves,
}

const WAYS: [CommitWay; 3] = [CommitWay::Journal, CommitWay::Writes, CommitWay::Moves];

impl CommitWay {
    fn name(self) -> &'static str {
        match self {
            CommitWay::Journal => "journal",
            CommitWay::Writes => "vector of writes",
            CommitWay::Moves => "scratch, vector of moves",
        }
    }

    /// Whether one commit can change `change`.
    fn takes(self, change: ChangeSize) -> bool {
        let ranges = (change.bytes / change.range_bytes).max(1);
        match self {
            CommitWay::Journal => true,
            CommitWay::Writes => ranges <= RANGES_MAX as u64 && change.bytes <= client::BYTES_MAX,
            CommitWay::Moves => ranges <= RANGES_MAX as u64,
        }
    }
}

/// The bytes that each commit changes. Both are powers of two.
#[derive(Debug, Clone, Copy)]
struct ChangeSize {
    bytes: u64,
    range_bytes: u64,
}

/// One commit: ranges of the file, and their new bytes.
struct PageChange {
    /// Where each range begins.
    offsets: Vec<u64>,
    range_bytes: usize,
    /// The positions, filled up to whole pages, and behind them the new bytes of all ranges.
    journal: Vec<u8>,
}

impl PageChange {
    /// Bytes of the journal before the new bytes.
    fn head_bytes(ranges: usize) -> usize {
        (ranges * POSITION_BYTES).next_multiple_of(PAGE_BYTES as usize)
    }

    /// The new bytes of all ranges.
    fn bytes(&self) -> &[u8] {
        &self.journal[PageChange::head_bytes(self.offsets.len())..]
    }

    /// Each range's start with its new bytes.
    fn ranges(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.offsets.iter().copied().zip(self.bytes().chunks(self.range_bytes))
    }
}

/// The file whose pages are changed, and what each page must hold.
struct HomeFile {
    file: File,
    path: PathBuf,
    /// The seed of each page's bytes.
    seeds: Vec<u64>,
    random: SeededRng,
}

impl HomeFile {
    /// Makes the file.
    fn lay_out(path: &Path, pages: u64) -> Result<HomeFile, BenchError> {
        let mut random = SeededRng::new(67);
        let seeds: Vec<u64> = (0..pages).map(|_| random.next_u64()).collect();
        let write = || -> std::io::Result<File> {
            let file = File::options().read(true).write(true).create_new(true).open(path)?;
            let pages_at_once = (MIB / PAGE_BYTES) as usize;
            for (seeds, at) in seeds.chunks(pages_at_once).zip((0..).step_by(MIB as usize)) {
                let bytes: Vec<u8> = seeds.iter().flat_map(|&seed| page_of(seed)).collect();
                file.write_all_at(&bytes, at)?;
            }
            file.sync_all()?;
            Ok(file)
        };
        let file = write().map_err(|error| BenchError::io("cannot lay out", path, error))?;
        Ok(HomeFile { file, path: path.to_path_buf(), seeds, random })
    }

    /// Draws commits of new bytes at random places. No range is in two of them, while the file has more.
    fn draw(&mut self, commits: u32, size: ChangeSize) -> Vec<PageChange> {
        let range_bytes = size.range_bytes.min(size.bytes);
        let ranges = (size.bytes / range_bytes) as usize;
        let file_bytes = self.seeds.len() as u64 * PAGE_BYTES;
        let mut left = Vec::new();
        let mut changes = Vec::new();
        for _ in 0..commits {
            if left.len() < ranges {
                left = shuffled(file_bytes / range_bytes, &mut self.random);
            }
            let offsets = left.split_off(left.len() - ranges);
            let offsets: Vec<u64> = offsets.into_iter().map(|range| range * range_bytes).collect();
            changes.push(self.change(offsets, range_bytes));
        }
        changes
    }

    /// A commit of new bytes, which the file must hold from now on.
    fn change(&mut self, offsets: Vec<u64>, range_bytes: u64) -> PageChange {
        let mut journal: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
        journal.resize(PageChange::head_bytes(offsets.len()), 0);
        for offset in &offsets {
            for page in offset / PAGE_BYTES..(offset + range_bytes) / PAGE_BYTES {
                let seed = self.random.next_u64();
                self.seeds[page as usize] = seed;
                journal.extend(page_of(seed));
            }
        }
        PageChange { offsets, range_bytes: range_bytes as usize, journal }
    }

    /// Fails if a page does not hold its last bytes.
    fn ensure_is_as_expected(&self) -> Result<(), BenchError> {
        let mut chunk = vec![0; MIB as usize];
        let pages_at_once = chunk.len() / PAGE_BYTES as usize;
        for (index, seeds) in self.seeds.chunks(pages_at_once).enumerate() {
            let bytes = &mut chunk[..seeds.len() * PAGE_BYTES as usize];
            self.file
                .read_exact_at(bytes, index as u64 * MIB)
                .map_err(|error| BenchError::io("cannot read", &self.path, error))?;
            let mut pages = bytes.chunks(PAGE_BYTES as usize).zip(seeds);
            if let Some(wrong) = pages.position(|(page, &seed)| page != page_of(seed)) {
                let page = index * pages_at_once + wrong;
                return Err(BenchError::WrongPage { path: self.path.clone(), page });
            }
        }
        Ok(())
    }
}

/// The bytes of a page: random ones, of this seed.
fn page_of(seed: u64) -> [u8; PAGE_BYTES as usize] {
    let mut random = SeededRng::new(seed);
    let mut page = [0; PAGE_BYTES as usize];
    for word in page.chunks_mut(8) {
        word.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    page
}

/// Writes the journal, and then the ranges. Each sync is needed: the first one before a page is overwritten, the second one
/// before the next commit overwrites the journal.
fn commit_by_journal(home: &File, journal: &File, change: &PageChange) -> std::io::Result<()> {
    journal.write_all_at(&change.journal, 0)?;
    journal.sync_data()?;
    for (offset, bytes) in change.ranges() {
        home.write_all_at(bytes, offset)?;
    }
    home.sync_data()
}

fn commit_by_writes(daemon: &mut ControlClient, home: &File, change: &PageChange) -> Result<(), BenchError> {
    let mut vector = RangeVector::new();
    for (offset, bytes) in change.ranges() {
        vector.write(home, offset, bytes);
    }
    send(daemon, &vector)
}

/// Writes all bytes to the scratch file, which no sync makes durable, and moves them home.
fn commit_by_moves(
    daemon: &mut ControlClient,
    home: &File,
    scratch: &File,
    change: &PageChange,
) -> Result<(), BenchError> {
    scratch
        .write_all_at(change.bytes(), 0)
        .map_err(|error| BenchError::io("cannot write", "the scratch file", error))?;
    let mut vector = RangeVector::new();
    let mut from = 0;
    for (offset, bytes) in change.ranges() {
        let len = bytes.len() as u64;
        vector.move_range((scratch, from), (home, offset), len);
        from += len;
    }
    send(daemon, &vector)
}

fn send(daemon: &mut ControlClient, vector: &RangeVector<'_>) -> Result<(), BenchError> {
    let outcome = daemon.change_ranges(vector).map_err(|source| BenchError::Client { source })?;
    assert_eq!(outcome, VectorOutcome::Changed, "nothing is compared");
    Ok(())
}

/// A mounted store with the files of all ways.
struct CommitBench {
    mount_point: PathBuf,
    home: HomeFile,
    journal: File,
    scratch: File,
    daemon: ControlClient,
}

/// One way's figures of one round.
struct TurnFigures {
    /// The median commit.
    commit_ms: f64,
    commits_per_s: f64,
    /// Counts for each commit, up to the moment when the store has all moves.
    buffer_flushes: f64,
    buffer_kib: f64,
    store_flushes: f64,
    store_blocks: f64,
}

impl CommitBench {
    fn set_up(mount_point: PathBuf, pages: u64) -> Result<CommitBench, BenchError> {
        let home = HomeFile::lay_out(&mount_point.join("home"), pages)?;
        let create = |name: &str| {
            let path = mount_point.join(name);
            let file = File::options().read(true).write(true).create_new(true).open(&path);
            file.map_err(|error| BenchError::io("cannot create", path, error))
        };
        let (journal, scratch) = (create("journal")?, create("scratch")?);
        let daemon = WeirMount::of_file(&home.file).and_then(|mount| mount.connect());
        let daemon = daemon.map_err(|source| BenchError::Client { source })?;
        Ok(CommitBench { mount_point, home, journal, scratch, daemon })
    }

    fn turn(&mut self, way: CommitWay, commits: u32, size: ChangeSize) -> Result<TurnFigures, BenchError> {
        let changes = self.home.draw(commits, size);
        rustix::fs::syncfs(&self.home.file)
            .map_err(|errno| BenchError::io("cannot sync", &self.mount_point, errno.into()))?;
        let before = weir_status(&self.mount_point)?.counters;
        let mut commit_ms = Vec::new();
        for change in &changes {
            let begun = Instant::now();
            cleanup::uninterrupted(|| self.commit(way, change))?;
            commit_ms.push(begun.elapsed().as_secs_f64() * 1000.0);
        }
        let after = self.status_once_moved()?;
        self.home.ensure_is_as_expected()?;
        let each =
            |of: fn(&CountersReport) -> u64| (of(&after) - of(&before)) as f64 / f64::from(commits.max(1));
        Ok(TurnFigures {
            commit_ms: median(&commit_ms),
            commits_per_s: f64::from(commits) * 1000.0 / commit_ms.iter().sum::<f64>(),
            buffer_flushes: each(|now| now.buffer_flushes),
            buffer_kib: each(|now| now.buffer_bytes_written) / KIB as f64,
            store_flushes: each(|now| now.store.flushes),
            store_blocks: each(|now| now.store.blocks_written),
        })
    }

    /// Waits until the store has all moves, so that no turn works for the one before. Returns the counters of that moment.
    fn status_once_moved(&self) -> Result<CountersReport, BenchError> {
        let begun = Instant::now();
        loop {
            let status = weir_status(&self.mount_point)?;
            match status.dirty.clones {
                0 => return Ok(status.counters),
                clones if begun.elapsed() > MOVED_WITHIN => {
                    let what = "a store with all moves".to_owned();
                    return Err(BenchError::Late { what, says: format!("{clones} are not stored") });
                }
                _ => thread::sleep(STATUS_INTERVAL),
            }
        }
    }

    fn commit(&mut self, way: CommitWay, change: &PageChange) -> Result<(), BenchError> {
        let home = &self.home.file;
        match way {
            CommitWay::Journal => commit_by_journal(home, &self.journal, change)
                .map_err(|error| BenchError::io("cannot write", &self.home.path, error)),
            CommitWay::Writes => commit_by_writes(&mut self.daemon, home, change),
            CommitWay::Moves => commit_by_moves(&mut self.daemon, home, &self.scratch, change),
        }
    }
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &CommitsArgs) -> Result<(), BenchError> {
    check_machine()?;
    cleanup::install()?;
    let (root, _files) = work_directory(args.turns.on.as_deref())?;
    let mut report = BenchReport::new("commits");
    report.fact("rounds", args.turns.rounds);
    report.fact("commits", args.commits);
    report.fact("file_bytes", args.file * MIB);
    report.fact("range_bytes", args.range * KIB);
    for &model in &args.models {
        measure(args, model, &root, &mut report)?;
    }
    report.print(args.turns.json);
    Ok(())
}

/// Measures all ways on one modelled device, size by size, in turns.
fn measure(
    args: &CommitsArgs,
    model: ComparedDevice,
    root: &Path,
    report: &mut BenchReport,
) -> Result<(), BenchError> {
    let file_bytes = args.file * MIB;
    let at = |place: &str| root.join(format!("{}.{place}", model.name()));
    let spec = DeviceSpec { device: model.device(), bytes: file_bytes * 8 + (2 << 30), processors: None };
    let device = SlowDevice::up(&spec, &at("device"))?;
    let (buffer, mount_point) = (at("buffer"), at("mount"));
    fs::create_dir(&mount_point).map_err(|error| BenchError::io("cannot create", &mount_point, error))?;
    let beside = format!("--buffer={}", buffer.display());
    let mut format = weir_on(&buffer, "format");
    cleanup::uninterrupted(|| run(format.arg(device.path()).arg(beside)))?;
    let settings = [format!("--memory={}", file_bytes * 2 + 256 * MIB), "--epoch-every=0".to_owned()];
    let mounted = mount(device.path(), &mount_point, &settings)?;
    let mut bench = CommitBench::set_up(mount_point, file_bytes / PAGE_BYTES)?;

    let mut found: Vec<_> = args.sizes.iter().map(|_| WAYS.map(|_| Vec::new())).collect();
    for round in 0..args.turns.rounds {
        eprintln!("commits: {}, round {} of {}", model.name(), round + 1, args.turns.rounds);
        for (&kib, of_size) in args.sizes.iter().zip(&mut found) {
            let size = ChangeSize { bytes: kib * KIB, range_bytes: args.range * KIB };
            let mut turns: Vec<_> = WAYS.iter().zip(of_size).collect();
            turns.rotate_left(usize::from(round) % WAYS.len());
            for (&way, figures) in turns {
                if way.takes(size) {
                    figures.push(bench.turn(way, args.commits, size)?);
                }
            }
        }
    }
    drop(bench);
    drop(mounted);
    report.line(format!(
        "\nCommits of ranges of {} KiB at random places of a file of {} MiB, store on {} ({}), buffer in a file of the \
         directory; {} commits a round, medians of {} rounds (smallest–largest; of ratios the quartiles)",
        args.range,
        args.file,
        model.name(),
        model.device().text(),
        args.commits,
        args.turns.rounds
    ));
    let mut table = ReportTable::default();
    for (&kib, of_size) in args.sizes.iter().zip(&found) {
        for (way, figures) in WAYS.iter().zip(of_size) {
            row(&mut table, kib, *way, figures, &of_size[0]);
        }
    }
    report.table(&model.name(), &table);
    Ok(())
}

/// Adds the row of one way, beside the journal in the same rounds.
fn row(table: &mut ReportTable, kib: u64, way: CommitWay, figures: &[TurnFigures], journal: &[TurnFigures]) {
    let rounds = |of: fn(&TurnFigures) -> f64| -> Vec<f64> { figures.iter().map(of).collect() };
    let ratios: Vec<f64> =
        journal.iter().zip(figures).map(|(journal, other)| journal.commit_ms / other.commit_ms).collect();
    let is_measured = !ratios.is_empty();
    table.row([
        ("kib", "KiB", kib.into()),
        ("way", "changed by", way.name().into()),
        ("commit_ms", "ms a commit", range_or_none(&rounds(|turn| turn.commit_ms))),
        ("commits_per_s", "commits/s", ReportCell::rounds(&rounds(|turn| turn.commits_per_s))),
        ("times", "times as fast as the journal", is_measured.then(|| RoundSpread::of(&ratios)).into()),
        ("buffer_flushes", "buffer flushes", ReportCell::rounds(&rounds(|turn| turn.buffer_flushes))),
        ("buffer_kib", "buffer KiB", ReportCell::rounds(&rounds(|turn| turn.buffer_kib))),
        ("store_flushes", "store flushes", ReportCell::rounds(&rounds(|turn| turn.store_flushes))),
        ("store_blocks", "store blocks", ReportCell::rounds(&rounds(|turn| turn.store_blocks))),
    ]);
}

/// The median with its range; `-` if nothing was measured.
fn range_or_none(rounds: &[f64]) -> ReportCell {
    if rounds.is_empty() { ReportCell::rounds(rounds) } else { ReportCell::median_and_range(rounds) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: CommitsArgs,
    }

    fn home(directory: &Path) -> HomeFile {
        HomeFile::lay_out(&directory.join("home"), 64).expect("layout")
    }

    fn journal(directory: &Path) -> File {
        File::options().read(true).write(true).create_new(true).open(directory.join("journal")).expect("new")
    }

    #[test]
    fn sizes_are_whole_pages() {
        let line = Line::try_parse_from(["commits", "--sizes", "4,64", "--models", "ssd"]).expect("valid");
        assert_eq!(line.args.sizes, [4, 64]);
        assert_eq!(line.args.models, [ComparedDevice::Ssd]);
        for wrong in ["6", "12", "0", "16384", "x"] {
            assert!(Line::try_parse_from(["commits", "--sizes", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_vector_takes_what_its_limits_allow() {
        let takes = |bytes, range_bytes| WAYS.map(|way| way.takes(ChangeSize { bytes, range_bytes }));
        assert_eq!(takes(256 * KIB, PAGE_BYTES), [true, true, true]);
        assert_eq!(takes(260 * KIB, PAGE_BYTES), [true, false, false]);
        assert_eq!(takes(MIB, 64 * KIB), [true, true, true]);
        assert_eq!(takes(4 * MIB, 64 * KIB), [true, false, true]);
    }

    #[test]
    fn commits_change_distinct_pages() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let changes = home(directory.path()).draw(4, ChangeSize { bytes: 64 * KIB, range_bytes: PAGE_BYTES });
        let mut offsets: Vec<u64> = changes.iter().flat_map(|change| change.offsets.clone()).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, (0..64).map(|page| page * PAGE_BYTES).collect::<Vec<_>>());
    }

    #[test]
    fn a_commit_by_journal_changes_the_file_and_a_missing_one_is_found() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (mut home, journal) = (home(directory.path()), journal(directory.path()));
        home.ensure_is_as_expected().expect("as laid out");
        let changes = home.draw(2, ChangeSize { bytes: 16 * KIB, range_bytes: 8 * KIB });
        commit_by_journal(&home.file, &journal, &changes[0]).expect("a commit");
        let error = home.ensure_is_as_expected().expect_err("the second commit is missing");
        assert!(matches!(error, BenchError::WrongPage { .. }), "{error}");
        commit_by_journal(&home.file, &journal, &changes[1]).expect("a commit");
        home.ensure_is_as_expected().expect("both commits are there");
    }
}
