//! Operations of several threads beside one.

use std::io;
use std::sync::Barrier;
use std::time::Instant;

use device::SeededRng;
use weir_library::{OFlags, Weir, WeirFile};

use super::super::quantile::{RoundSpread, median};
use super::super::report::{ReportCell, ReportTable};
use super::super::workload::PAGE_BYTES;
use super::{DenseArgs, FILE_PAGES, stamp};

#[derive(Debug, Clone, Copy)]
enum ThreadOperation {
    LookUp,
    Read(usize),
    Overwrite(usize),
}

/// Operations, and the least ratio of the rate of several threads to the rate of one.
const OPERATIONS: [(&str, ThreadOperation, f64); 5] = [
    ("stat of a path of three names", ThreadOperation::LookUp, 1.5),
    ("read 512 B", ThreadOperation::Read(512), 1.5),
    ("read 4 KiB", ThreadOperation::Read(4096), 1.5),
    ("overwrite 512 B", ThreadOperation::Overwrite(512), 1.0),
    ("overwrite 4 KiB", ThreadOperation::Overwrite(4096), 1.0),
];

/// A thread's own file.
struct ThreadFile {
    path: String,
    file: WeirFile,
}

/// Measures each operation by one thread, and by `args.threads` together.
pub(super) fn measure(args: &DenseArgs, weir: &Weir) -> io::Result<ReportTable> {
    weir.create_dir("threads", 0o755)?;
    let files = (0..args.threads).map(|number| lay_out(weir, number)).collect::<io::Result<Vec<_>>>()?;
    let several = format!("{} threads", args.threads);
    let mut table = ReportTable::default();
    for (name, operation, target) in OPERATIONS {
        let (mut one, mut all) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            one.push(turn(weir, &files[..1], operation, args.operations)?);
            all.push(turn(weir, &files, operation, args.operations)?);
        }
        let scaling: Vec<f64> = one.iter().zip(&all).map(|(one, all)| all / one).collect();
        let scaling = RoundSpread::of(&scaling);
        table.row([
            ("operation", "operation", name.into()),
            ("one_thread", "1 thread", median(&one).into()),
            ("several_threads", &several, median(&all).into()),
            ("scaling", "scaling (quartiles)", ReportCell::from(scaling)),
            ("target", "target", target.into()),
            ("met", "verdict", ReportCell::verdict(scaling.median >= target)),
        ]);
    }
    Ok(table)
}

/// Makes a thread's directory, and a file in it without holes.
fn lay_out(weir: &Weir, number: u8) -> io::Result<ThreadFile> {
    weir.create_dir(format!("threads/{number}"), 0o755)?;
    let path = format!("threads/{number}/file");
    let file = weir.open(&path, OFlags::CREATE | OFlags::RDWR, 0o644)?;
    let page = [0x5a; PAGE_BYTES as usize];
    for number in 0..FILE_PAGES {
        file.write_at(&page, number * PAGE_BYTES)?;
    }
    Ok(ThreadFile { path, file })
}

/// Operations per second of one thread for each of `files`, all at once.
fn turn(weir: &Weir, files: &[ThreadFile], operation: ThreadOperation, count: u32) -> io::Result<f64> {
    let barrier = Barrier::new(files.len());
    let work = |own: &ThreadFile| -> io::Result<f64> {
        let mut random = SeededRng::new(own.file.ino().0);
        let mut bytes = [0x5a; PAGE_BYTES as usize];
        barrier.wait();
        let begun = Instant::now();
        for number in 0..u64::from(count) {
            operate(weir, own, operation, number, &mut bytes, &mut random)?;
        }
        Ok(f64::from(count) / begun.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = files.iter().map(|own| scope.spawn(|| work(own))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client does not panic")).sum()
    })
}

fn operate(
    weir: &Weir,
    own: &ThreadFile,
    operation: ThreadOperation,
    number: u64,
    bytes: &mut [u8],
    random: &mut SeededRng,
) -> io::Result<()> {
    let offset = random.below(FILE_PAGES) * PAGE_BYTES;
    match operation {
        ThreadOperation::LookUp => weir.metadata(&own.path).map(drop),
        ThreadOperation::Read(len) => own.file.read_at(&mut bytes[..len], offset).map(drop),
        ThreadOperation::Overwrite(len) => {
            stamp(&mut bytes[..len], number);
            own.file.write_at(&bytes[..len], offset).map(drop)
        }
    }
}
