//! The program of the small experiments: threads that read, each from its own file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use device::SeededRng;

use super::super::error::BenchError;

const READ_BYTES: usize = 4096;

/// Arguments of the reading program.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    directory: PathBuf,
    #[arg(long)]
    threads: u32,
    /// Reads of each thread.
    #[arg(long)]
    reads: u64,
    #[arg(long, value_enum)]
    how: ReadPattern,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The pages that a thread reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ReadPattern {
    /// Random pages.
    Random,
    /// Random pages, but first the first thread reads its whole file.
    ScanFirst,
    /// Pages in order, with a request for each.
    Sequential,
}

impl ReadPattern {
    pub(super) fn name(self) -> &'static str {
        match self {
            ReadPattern::Random => "random",
            ReadPattern::ScanFirst => "scan-first",
            ReadPattern::Sequential => "sequential",
        }
    }
}

/// The file of a thread.
pub(super) fn file(directory: &Path, thread: u32) -> PathBuf {
    directory.join(format!("file-{thread}"))
}

/// Runs the threads to their end.
pub(crate) fn run_load(args: &LoadArgs) -> Result<(), BenchError> {
    let read = |thread: u32| {
        let path = file(&args.directory, thread);
        reader(args, thread, &path).map_err(|error| BenchError::io("cannot read", &path, error))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads).map(|thread| scope.spawn(move || read(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a reader does not panic"))
    })
}

fn reader(args: &LoadArgs, thread: u32, path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let pages = file.metadata()?.len() / READ_BYTES as u64;
    let mut page = [0; READ_BYTES];
    if args.how == ReadPattern::Sequential {
        // Read-ahead would fetch hundreds of pages with one request, and the order of threads would hardly
        // matter.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
        (0..args.reads.min(pages)).try_for_each(|_| file.read_exact(&mut page))?;
        return Ok(());
    }
    if args.how == ReadPattern::ScanFirst && thread == 0 {
        while file.read(&mut page)? > 0 {}
    }
    let mut random = SeededRng::new(args.seed + u64::from(thread));
    (0..args.reads).try_for_each(|_| file.read_exact_at(&mut page, random.below(pages) * READ_BYTES as u64))
}
