//! Runs every program of one or two operations over a tiny name space, and some longer ones, with a power
//! cut, or one device error, at every write and flush. Most crash bugs need no more operations (*ACE* of
//! CrashMonkey, OSDI 2018).

use crate::change::ModelChange;
use crate::client::IssueTime;
use crate::main_loop::RunFailure;
use crate::model::{FsModel, ModelId, ModelName};
use crate::model_rights::{ACCESS_ACL, DEFAULT_ACL, ModelAcl};
use crate::options::SimulatorOptions;
use crate::request_generator::ClientRequest;
use crate::run_state::SimulationRun;
use crate::stack::RandomPick;
use crash_oracle::{BypassScope, SyncedBytes};
use device::SeededRng;
use fs::{FallocateMode, FileKind, IfExists, SetXattrMode, SizePolicy};
use sim_disk::DiskFaults;
use std::sync::Arc;
use store::{VolumeId, VolumeMode};

/// A step of a program. Names are paths below the root, with at most two parts.
#[derive(Debug, Clone, Copy)]
enum ProgramStep {
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
    /// Clones the content of the first file to the second.
    Share(&'static str, &'static str),
    SetXattr(&'static str, usize),
    RemoveXattr(&'static str),
    /// Sets an access list that names a user. A directory gets a default list.
    SetAcl(&'static str),
    /// Copies the volume.
    Copy,
    /// Deletes the newest copy.
    DeleteCopy,
}

/// The tree before each program, durable and in the store: three files, one of them with two names, a
/// symbolic link, and two directories.
const BEFORE: [ProgramStep; 11] = [
    ProgramStep::Make("a", FileKind::File),
    ProgramStep::Write("a", 0, 10_000),
    ProgramStep::Make("d", FileKind::Directory),
    ProgramStep::Make("d/x", FileKind::File),
    ProgramStep::Write("d/x", 0, 100),
    ProgramStep::Link("d/x", "d/z"),
    ProgramStep::Make("e", FileKind::Directory),
    ProgramStep::Make("k", FileKind::File),
    ProgramStep::Write("k", 0, 20_000),
    ProgramStep::Symlink("s"),
    ProgramStep::SetXattr("k", 300),
];

/// Every kind of operation on every kind of name: present, absent, in another directory.
const STEPS: &[ProgramStep] = &[
    ProgramStep::Make("b", FileKind::File),
    ProgramStep::Make("d/y", FileKind::File),
    ProgramStep::Make("f", FileKind::Directory),
    ProgramStep::Make("e/f", FileKind::Directory),
    ProgramStep::Write("a", 100, 50),
    ProgramStep::Write("a", 4096, 4096),
    ProgramStep::Write("a", 3000, 9000),
    ProgramStep::Write("a", 10_000, 300),
    ProgramStep::Write("a", 40_000, 10),
    ProgramStep::Write("d/x", 0, 100),
    ProgramStep::Write("b", 0, 5000),
    ProgramStep::SetSize("a", 0),
    ProgramStep::SetSize("a", 5000),
    ProgramStep::SetSize("a", 4096),
    ProgramStep::SetSize("a", 30_000),
    ProgramStep::SetMode("a"),
    ProgramStep::SetMode("d"),
    ProgramStep::SetOwner("a"),
    ProgramStep::SetTimes("a"),
    ProgramStep::Unlink("a"),
    ProgramStep::Unlink("d/x"),
    ProgramStep::Unlink("s"),
    ProgramStep::RemoveDirectory("e"),
    ProgramStep::Rename("a", "b"),
    ProgramStep::Rename("a", "d/x"),
    ProgramStep::Rename("d/x", "a"),
    ProgramStep::Rename("d/x", "d/z"),
    ProgramStep::Rename("d/x", "e/y"),
    ProgramStep::Rename("d", "e"),
    ProgramStep::Rename("d", "e/f"),
    ProgramStep::Link("a", "e/y"),
    ProgramStep::Symlink("e/s"),
    ProgramStep::Device("e/n"),
    ProgramStep::Exchange("a", "d/x"),
    ProgramStep::Exchange("d", "e"),
    ProgramStep::Exchange("a", "e"),
    ProgramStep::Allocate("a", FallocateMode::Allocate, 8000, 20_000),
    ProgramStep::Allocate("a", FallocateMode::ZeroRange, 100, 9000),
    ProgramStep::Allocate("k", FallocateMode::PunchHole, 4096, 8192),
    ProgramStep::Share("k", "a"),
    ProgramStep::Share("a", "d/x"),
    ProgramStep::SetXattr("a", 10),
    ProgramStep::SetXattr("k", 5000),
    ProgramStep::RemoveXattr("k"),
    ProgramStep::SetAcl("a"),
    ProgramStep::SetAcl("e"),
    ProgramStep::Copy,
    ProgramStep::DeleteCopy,
];

const XATTR: &[u8] = b"user.x";

/// The times at which the effects of a program are synced and written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SyncSchedule {
    /// Syncs after each step, and writes back at the end.
    SyncEach,
    /// Writes back after each step, so that the next step changes data that the store has.
    WriteBackEach,
    /// Syncs and writes back at the end.
    AllAtEnd,
}

const SCHEDULES: [SyncSchedule; 3] =
    [SyncSchedule::SyncEach, SyncSchedule::WriteBackEach, SyncSchedule::AllAtEnd];

/// A fault in a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InjectedFault {
    PowerCut,
    StoreError,
    BufferError,
}

/// The limit of fault positions in one program. No program makes this many device operations.
const TROUBLES_MAX: u64 = 500;

/// The number of programs, crashes and errors tried.
#[derive(Debug, Default)]
pub(crate) struct TriedPrograms {
    pub(crate) programs: u64,
    pub(crate) crashes: u64,
    pub(crate) errors: u64,
}

/// Runs all programs of up to `length` operations, or, past two, as many of that length as `sample` says.
pub(crate) fn exhaust(
    options: &SimulatorOptions,
    length: usize,
    sample: u64,
) -> Result<TriedPrograms, RunFailure> {
    let before = before(options).map_err(|what| fail(options, "the beginning", what))?;
    let mut tried = TriedPrograms::default();
    let mut run = |program: &[ProgramStep], schedules: &[SyncSchedule]| {
        tried.programs += 1;
        let outcome = schedules.iter().try_for_each(|&schedule| {
            tried.crashes += every_time(options, &before, program, schedule, InjectedFault::PowerCut)?;
            if options.faults {
                tried.errors += every_time(options, &before, program, schedule, InjectedFault::StoreError)?;
                tried.errors += every_time(options, &before, program, schedule, InjectedFault::BufferError)?;
            }
            Ok(())
        });
        outcome.map_err(|what| fail(options, &format!("the program {program:?}"), what))
    };
    if length > 2 {
        let mut random = SeededRng::new(options.seed);
        for _ in 0..sample {
            let step = |_| STEPS[random.below(STEPS.len() as u64) as usize];
            let program: Vec<ProgramStep> = (0..length).map(step).collect();
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

fn fail(options: &SimulatorOptions, place: &str, what: String) -> RunFailure {
    RunFailure { what: format!("seed {}: {place}: {what}", options.seed), operations: 0, hash: 0 }
}

fn before(options: &SimulatorOptions) -> Result<SimulationRun, String> {
    let mut run = SimulationRun::new(options)?;
    for step in BEFORE {
        perform(&mut run, step)?;
    }
    run.stop_and_compare()?;
    Ok(run)
}

/// Runs `program` with `trouble` after 0, 1, 2 … device operations, until the program ends before the fault.
/// Returns how often the fault hit.
fn every_time(
    options: &SimulatorOptions,
    before: &SimulationRun,
    program: &[ProgramStep],
    schedule: SyncSchedule,
    trouble: InjectedFault,
) -> Result<u64, String> {
    for times in 0..TROUBLES_MAX {
        let mut run = before.fork(options.seed.wrapping_add(times))?;
        let fault = DiskFaults { once_after: Some(times), ..DiskFaults::default() };
        match trouble {
            InjectedFault::PowerCut => run.media.power.cut_after(times),
            InjectedFault::StoreError => run.media.store.set_faults(fault),
            InjectedFault::BufferError => run.media.buffer.set_faults(fault),
        }
        let outcome = perform_all(&mut run, program, schedule);
        let came = run.media.power.is_lost() || run.media.log.errors_made_up() > 0;
        let outcome = outcome.and_then(|()| match trouble {
            _ if !came => Ok(()),
            InjectedFault::PowerCut => run.die_now(),
            InjectedFault::StoreError | InjectedFault::BufferError => run.stop_and_compare(),
        });
        outcome.map_err(|what| format!("{schedule:?}, {trouble:?} after {times}: {what}"))?;
        if !came {
            return Ok(times);
        }
    }
    Err(format!("{schedule:?} does not end within {TROUBLES_MAX} operations of the devices"))
}

/// Performs the steps, with syncs and write-backs as `schedule` says, until the power is lost.
fn perform_all(
    run: &mut SimulationRun,
    program: &[ProgramStep],
    schedule: SyncSchedule,
) -> Result<(), String> {
    for &step in program {
        perform(run, step)?;
        if schedule == SyncSchedule::SyncEach {
            run.ask(VolumeId::MAIN, 0, IssueTime::Now, ClientRequest::Sync)?;
            run.settle()?;
        }
        if schedule == SyncSchedule::WriteBackEach {
            write_all_back(run)?;
        }
        if run.media.power.is_lost() {
            return Ok(());
        }
    }
    write_all_back(run)
}

fn write_all_back(run: &mut SimulationRun) -> Result<(), String> {
    let moment = run.oracle.moment();
    let drained = run.stack().cache.drain();
    run.deliver()?;
    match drained {
        Ok(()) => run.oracle.synced(moment, SyncedBytes::All),
        Err(_) if run.media.power.is_lost() || run.media.log.errors_made_up() > 0 => {}
        Err(error) => return Err(format!("the drain fails: {error}")),
    }
    Ok(())
}

fn perform(run: &mut SimulationRun, step: ProgramStep) -> Result<(), String> {
    match step {
        ProgramStep::Copy => return run.copy(VolumeId::MAIN, VolumeMode::Writable),
        ProgramStep::DeleteCopy => return run.delete_newest(),
        _ => {}
    }
    // A step that needs a name which an earlier step removed is skipped.
    let bypasses = run.stack().bypass_scope();
    if let Some(change) = change(run.oracle.now(VolumeId::MAIN), step, bypasses) {
        run.ask(VolumeId::MAIN, 0, IssueTime::Now, ClientRequest::Change(change))?;
        run.settle()?;
    }
    Ok(())
}

fn place(model: &FsModel, path: &str) -> Option<(ModelId, ModelName)> {
    match path.split_once('/') {
        None => Some((ModelId::ROOT, path.into())),
        Some((directory, name)) => {
            let parent = model.lookup(ModelId::ROOT, directory.as_bytes()).ok()?;
            model.get(parent).is_directory().then(|| (parent, name.into()))
        }
    }
}

fn change(model: &FsModel, step: ProgramStep, bypasses: BypassScope) -> Option<ModelChange> {
    let inode = |path| place(model, path).and_then(|(parent, name)| model.lookup(parent, &name).ok());
    let file = |path| inode(path).filter(|&id| model.get(id).body.kind() == FileKind::File);
    Some(match step {
        ProgramStep::Make(path, kind) => {
            let (parent, name) = place(model, path)?;
            ModelChange::Make { parent, name, kind, mode: 0o700 }
        }
        ProgramStep::Write(path, offset, len) => {
            let bytes = Arc::new((0..len).map(|at| 1 + (at % 251) as u8).collect());
            ModelChange::Write { file: file(path)?, offset, bytes, bypasses }
        }
        ProgramStep::SetSize(path, size) => ModelChange::SetSize { file: file(path)?, size },
        ProgramStep::SetMode(path) => ModelChange::SetMode { inode: inode(path)?, mode: 0o4751 },
        ProgramStep::SetOwner(path) => {
            ModelChange::SetOwner { inode: inode(path)?, uid: Some(1001), gid: Some(101) }
        }
        ProgramStep::SetTimes(path) => {
            ModelChange::SetTimes { inode: inode(path)?, accessed: Some(1_000_000_007), modified: None }
        }
        ProgramStep::Unlink(path) => {
            let (parent, name) = place(model, path)?;
            ModelChange::Unlink { parent, name }
        }
        ProgramStep::RemoveDirectory(path) => {
            inode(path).filter(|&id| model.get(id).is_directory())?;
            let (parent, name) = place(model, path)?;
            ModelChange::RemoveDirectory { parent, name }
        }
        ProgramStep::Rename(from, to) => ModelChange::Rename {
            from: place(model, from)?,
            to: place(model, to)?,
            if_exists: IfExists::Replace,
        },
        ProgramStep::Link(from, to) => {
            let (parent, name) = place(model, to)?;
            ModelChange::Link { file: file(from)?, parent, name }
        }
        ProgramStep::Device(path) => {
            let (parent, name) = place(model, path)?;
            ModelChange::MakeDevice { parent, name, kind: FileKind::BlockDevice, number: 259, mode: 0o600 }
        }
        ProgramStep::Exchange(one, other) => {
            ModelChange::Exchange { one: place(model, one)?, other: place(model, other)? }
        }
        ProgramStep::Allocate(path, what, offset, len) => {
            ModelChange::Allocate { file: file(path)?, what, offset, len, size: SizePolicy::Grow }
        }
        ProgramStep::Share(from, to) => {
            ModelChange::Copy { from: file(from)?, offset: 0, len: 1 << 20, to: file(to)?, at: 0 }
        }
        ProgramStep::SetXattr(path, len) => {
            let value = Arc::new((0..len).map(|at| 1 + (at % 241) as u8).collect());
            ModelChange::SetXattr { inode: inode(path)?, name: XATTR.to_vec(), value, how: SetXattrMode::Any }
        }
        ProgramStep::RemoveXattr(path) => {
            ModelChange::RemoveXattr { inode: inode(path)?, name: XATTR.to_vec() }
        }
        ProgramStep::SetAcl(path) => {
            let inode = inode(path)?;
            let name = if model.get(inode).is_directory() { DEFAULT_ACL } else { ACCESS_ACL };
            let value = Arc::new(ModelAcl::new(0o640, 6, Some(1002)).value());
            ModelChange::SetXattr { inode, name: name.to_vec(), value, how: SetXattrMode::Any }
        }
        ProgramStep::Symlink(path) => {
            let (parent, name) = place(model, path)?;
            ModelChange::Symlink { parent, name, target: b"../a".to_vec() }
        }
        ProgramStep::Copy | ProgramStep::DeleteCopy => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_of_one_operation_survives_every_power_cut_and_every_error() {
        let options = SimulatorOptions { faults: true, ..SimulatorOptions::for_test(1) };
        let TriedPrograms { programs, crashes, errors } =
            exhaust(&options, 1, 0).expect("no promise is broken");
        assert_eq!(programs, STEPS.len() as u64);
        assert!(
            crashes > 15 * programs,
            "{crashes} crashes in {programs} programs: too few to mean anything"
        );
        assert!(errors > 15 * programs, "{errors} errors in {programs} programs: too few to mean anything");
    }
}
