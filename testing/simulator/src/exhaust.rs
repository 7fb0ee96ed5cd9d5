//! Every program of one or two operations over a tiny name space, and some of three, with a power cut, or one error of
//! a device, at every write and flush: most bugs that crashes show need no more (*ACE* of CrashMonkey, OSDI 2018).

use crate::change::Change;
use crate::client::When;
use crate::model::{Id, Model, Name};
use crate::options::Options;
use crate::oracle::Synced;
use crate::rights::{ACCESS_ACL, Acl, DEFAULT_ACL};
use crate::run::Run;
use crate::stack::Pick;
use crate::turns::Failure;
use crate::workload::Request;
use device::SeededRng;
use fs::{FallocateMode, FileKind, IfExists, SetXattrMode, SizePolicy};
use sim_disk::DiskFaults;
use std::sync::Arc;
use store::VolumeMode;

/// What a program may do. Names are paths below the root, at most two long.
#[derive(Debug, Clone, Copy)]
enum Step {
    Make(&'static str, FileKind),
    Write(&'static str, u64, usize),
    SetSize(&'static str, u64),
    SetMode(&'static str),
    SetOwner(&'static str),
    SetTimes(&'static str),
    Unlink(&'static str),
    RemoveDirectory(&'static str),
    Rename(&'static str, &'static str),
    Link(&'static str, &'static str),
    Symlink(&'static str),
    Device(&'static str),
    Exchange(&'static str, &'static str),
    Allocate(&'static str, FallocateMode, u64, u64),
    /// The second gets the pages of the first.
    Share(&'static str, &'static str),
    SetXattr(&'static str, usize),
    RemoveXattr(&'static str),
    /// An access list that names somebody; on a directory, a default list.
    SetAcl(&'static str),
    /// A copy of the volume.
    Copy,
    /// The newest copy goes.
    DeleteCopy,
}

/// What is there before each program, durable and in the store: three files, one of them with two names, a symbolic link, and
/// two directories.
const BEFORE: [Step; 11] = [
    Step::Make("a", FileKind::File),
    Step::Write("a", 0, 10_000),
    Step::Make("d", FileKind::Directory),
    Step::Make("d/x", FileKind::File),
    Step::Write("d/x", 0, 100),
    Step::Link("d/x", "d/z"),
    Step::Make("e", FileKind::Directory),
    Step::Make("k", FileKind::File),
    Step::Write("k", 0, 20_000),
    Step::Symlink("s"),
    Step::SetXattr("k", 300),
];

/// Every kind of operation on every kind of name: there, not there, in another directory.
const STEPS: &[Step] = &[
    Step::Make("b", FileKind::File),
    Step::Make("d/y", FileKind::File),
    Step::Make("f", FileKind::Directory),
    Step::Make("e/f", FileKind::Directory),
    Step::Write("a", 100, 50),
    Step::Write("a", 4096, 4096),
    Step::Write("a", 3000, 9000),
    Step::Write("a", 10_000, 300),
    Step::Write("a", 40_000, 10),
    Step::Write("d/x", 0, 100),
    Step::Write("b", 0, 5000),
    Step::SetSize("a", 0),
    Step::SetSize("a", 5000),
    Step::SetSize("a", 4096),
    Step::SetSize("a", 30_000),
    Step::SetMode("a"),
    Step::SetMode("d"),
    Step::SetOwner("a"),
    Step::SetTimes("a"),
    Step::Unlink("a"),
    Step::Unlink("d/x"),
    Step::Unlink("s"),
    Step::RemoveDirectory("e"),
    Step::Rename("a", "b"),
    Step::Rename("a", "d/x"),
    Step::Rename("d/x", "a"),
    Step::Rename("d/x", "d/z"),
    Step::Rename("d/x", "e/y"),
    Step::Rename("d", "e"),
    Step::Rename("d", "e/f"),
    Step::Link("a", "e/y"),
    Step::Symlink("e/s"),
    Step::Device("e/n"),
    Step::Exchange("a", "d/x"),
    Step::Exchange("d", "e"),
    Step::Exchange("a", "e"),
    Step::Allocate("a", FallocateMode::Allocate, 8000, 20_000),
    Step::Allocate("a", FallocateMode::ZeroRange, 100, 9000),
    Step::Allocate("k", FallocateMode::PunchHole, 4096, 8192),
    Step::Share("k", "a"),
    Step::Share("a", "d/x"),
    Step::SetXattr("a", 10),
    Step::SetXattr("k", 5000),
    Step::RemoveXattr("k"),
    Step::SetAcl("a"),
    Step::SetAcl("e"),
    Step::Copy,
    Step::DeleteCopy,
];

const XATTR: &[u8] = b"user.x";

/// When what a program did becomes durable, and when it is written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Schedule {
    /// Durable after each step; stored at the end.
    SyncEach,
    /// Stored after each step, so that the next one changes what the store has.
    WriteBackEach,
    /// Durable and stored at the end.
    AllAtEnd,
}

const SCHEDULES: [Schedule; 3] = [Schedule::SyncEach, Schedule::WriteBackEach, Schedule::AllAtEnd];

/// What goes wrong in a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Injected {
    PowerCut,
    StoreError,
    BufferError,
}

/// Faults tried in one program: more operations of devices than any of them makes.
const TROUBLES_MAX: u64 = 500;

/// What was tried.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    pub(crate) programs: u64,
    pub(crate) crashes: u64,
    pub(crate) errors: u64,
}

/// Runs all programs of up to `length` operations, or, past two, as many of that length as `sample` says.
pub(crate) fn exhaust(options: &Options, length: usize, sample: u64) -> Result<Tried, Failure> {
    let before = before(options).map_err(|what| fail(options, "the beginning", what))?;
    let mut tried = Tried::default();
    let mut run = |program: &[Step], schedules: &[Schedule]| {
        tried.programs += 1;
        let outcome = schedules.iter().try_for_each(|&schedule| {
            tried.crashes += every_time(options, &before, program, schedule, Injected::PowerCut)?;
            if options.faults {
                tried.errors += every_time(options, &before, program, schedule, Injected::StoreError)?;
                tried.errors += every_time(options, &before, program, schedule, Injected::BufferError)?;
            }
            Ok(())
        });
        outcome.map_err(|what| fail(options, &format!("the program {program:?}"), what))
    };
    if length > 2 {
        let mut random = SeededRng::new(options.seed);
        for _ in 0..sample {
            let step = |_| STEPS[random.below(STEPS.len() as u64) as usize];
            let program: Vec<Step> = (0..length).map(step).collect();
            run(&program, &[random.pick(&SCHEDULES)])?;
        }
        return Ok(tried);
    }
    for first in STEPS {
        run(&[*first], &SCHEDULES)?;
        for second in STEPS.iter().filter(|_| length > 1) {
            run(&[*first, *second], &SCHEDULES)?;
        }
    }
    Ok(tried)
}

fn fail(options: &Options, place: &str, what: String) -> Failure {
    Failure { what: format!("seed {}: {place}: {what}", options.seed), operations: 0, hash: 0 }
}

fn before(options: &Options) -> Result<Run, String> {
    let mut run = Run::new(options)?;
    for step in BEFORE {
        perform(&mut run, step)?;
    }
    run.stop_and_compare()?;
    Ok(run)
}

/// Runs `program` with `trouble` after 0, 1, 2 … operations of the devices, until none comes any more. Returns how often
/// it came.
fn every_time(
    options: &Options,
    before: &Run,
    program: &[Step],
    schedule: Schedule,
    trouble: Injected,
) -> Result<u64, String> {
    for times in 0..TROUBLES_MAX {
        let mut run = before.fork(options.seed.wrapping_add(times))?;
        let fault = DiskFaults { once_after: Some(times), ..DiskFaults::default() };
        match trouble {
            Injected::PowerCut => run.media.power.cut_after(times),
            Injected::StoreError => run.media.store.set_faults(fault),
            Injected::BufferError => run.media.buffer.set_faults(fault),
        }
        let outcome = perform_all(&mut run, program, schedule);
        let came = run.media.power.is_lost() || run.media.log.errors_made_up() > 0;
        let outcome = outcome.and_then(|()| match trouble {
            _ if !came => Ok(()),
            Injected::PowerCut => run.die_now(),
            Injected::StoreError | Injected::BufferError => run.stop_and_compare(),
        });
        outcome.map_err(|what| format!("{schedule:?}, {trouble:?} after {times}: {what}"))?;
        if !came {
            return Ok(times);
        }
    }
    Err(format!("{schedule:?} does not end within {TROUBLES_MAX} operations of the devices"))
}

/// Each step, syncs and write-backs as `schedule` says, until the power is lost.
fn perform_all(run: &mut Run, program: &[Step], schedule: Schedule) -> Result<(), String> {
    for &step in program {
        perform(run, step)?;
        if schedule == Schedule::SyncEach {
            run.ask(0, When::Now, Request::Sync)?;
            run.settle()?;
        }
        if schedule == Schedule::WriteBackEach {
            write_all_back(run)?;
        }
        if run.media.power.is_lost() {
            return Ok(());
        }
    }
    write_all_back(run)
}

fn write_all_back(run: &mut Run) -> Result<(), String> {
    let moment = run.oracle.moment();
    let drained = run.stack().cache.drain();
    run.deliver()?;
    match drained {
        Ok(()) => run.oracle.synced(moment, Synced::All),
        Err(_) if run.media.power.is_lost() || run.media.log.errors_made_up() > 0 => {}
        Err(error) => return Err(format!("the drain fails: {error}")),
    }
    Ok(())
}

fn perform(run: &mut Run, step: Step) -> Result<(), String> {
    match step {
        Step::Copy => return run.copy_mounted(VolumeMode::Writable),
        Step::DeleteCopy => return run.delete_newest(),
        _ => {}
    }
    // What needs a name that an earlier step took away means nothing.
    let is_bypassing = run.stack().cache.bypass_after() < u64::MAX;
    if let Some(change) = change(&run.oracle.now, step, is_bypassing) {
        run.ask(0, When::Now, Request::Change(change))?;
        run.settle()?;
    }
    Ok(())
}

fn place(model: &Model, path: &str) -> Option<(Id, Name)> {
    match path.split_once('/') {
        None => Some((Id::ROOT, path.into())),
        Some((directory, name)) => {
            let parent = model.lookup(Id::ROOT, directory.as_bytes()).ok()?;
            model.get(parent).is_directory().then(|| (parent, name.into()))
        }
    }
}

fn change(model: &Model, step: Step, is_bypassing: bool) -> Option<Change> {
    let inode = |path| place(model, path).and_then(|(parent, name)| model.lookup(parent, &name).ok());
    let file = |path| inode(path).filter(|&id| model.get(id).body.kind() == FileKind::File);
    Some(match step {
        Step::Make(path, kind) => {
            let (parent, name) = place(model, path)?;
            Change::Make { parent, name, kind, mode: 0o700 }
        }
        Step::Write(path, offset, len) => {
            let bytes = Arc::new((0..len).map(|at| 1 + (at % 251) as u8).collect());
            Change::Write { file: file(path)?, offset, bytes, bypasses: is_bypassing }
        }
        Step::SetSize(path, size) => Change::SetSize { file: file(path)?, size },
        Step::SetMode(path) => Change::SetMode { inode: inode(path)?, mode: 0o4751 },
        Step::SetOwner(path) => Change::SetOwner { inode: inode(path)?, uid: Some(1001), gid: Some(101) },
        Step::SetTimes(path) => {
            Change::SetTimes { inode: inode(path)?, accessed: Some(1_000_000_007), modified: None }
        }
        Step::Unlink(path) => {
            let (parent, name) = place(model, path)?;
            Change::Unlink { parent, name }
        }
        Step::RemoveDirectory(path) => {
            inode(path).filter(|&id| model.get(id).is_directory())?;
            let (parent, name) = place(model, path)?;
            Change::RemoveDirectory { parent, name }
        }
        Step::Rename(from, to) => {
            Change::Rename { from: place(model, from)?, to: place(model, to)?, if_exists: IfExists::Replace }
        }
        Step::Link(from, to) => {
            let (parent, name) = place(model, to)?;
            Change::Link { file: file(from)?, parent, name }
        }
        Step::Device(path) => {
            let (parent, name) = place(model, path)?;
            Change::MakeDevice { parent, name, kind: FileKind::BlockDevice, number: 259, mode: 0o600 }
        }
        Step::Exchange(one, other) => {
            Change::Exchange { one: place(model, one)?, other: place(model, other)? }
        }
        Step::Allocate(path, what, offset, len) => {
            Change::Allocate { file: file(path)?, what, offset, len, size: SizePolicy::Grow }
        }
        Step::Share(from, to) => {
            Change::Copy { from: file(from)?, offset: 0, len: 1 << 20, to: file(to)?, at: 0 }
        }
        Step::SetXattr(path, len) => {
            let value = Arc::new((0..len).map(|at| 1 + (at % 241) as u8).collect());
            Change::SetXattr { inode: inode(path)?, name: XATTR.to_vec(), value, how: SetXattrMode::Any }
        }
        Step::RemoveXattr(path) => Change::RemoveXattr { inode: inode(path)?, name: XATTR.to_vec() },
        Step::SetAcl(path) => {
            let inode = inode(path)?;
            let name = if model.get(inode).is_directory() { DEFAULT_ACL } else { ACCESS_ACL };
            let value = Arc::new(Acl::new(0o640, 6, Some(1002)).value());
            Change::SetXattr { inode, name: name.to_vec(), value, how: SetXattrMode::Any }
        }
        Step::Symlink(path) => {
            let (parent, name) = place(model, path)?;
            Change::Symlink { parent, name, target: b"../a".to_vec() }
        }
        Step::Copy | Step::DeleteCopy => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_of_one_operation_survives_every_power_cut_and_every_error() {
        let options = Options { faults: true, ..Options::for_test(1) };
        let Tried { programs, crashes, errors } = exhaust(&options, 1, 0).expect("no promise is broken");
        assert_eq!(programs, STEPS.len() as u64);
        assert!(
            crashes > 15 * programs,
            "{crashes} crashes in {programs} programs: too few to mean anything"
        );
        assert!(errors > 15 * programs, "{errors} errors in {programs} programs: too few to mean anything");
    }
}
