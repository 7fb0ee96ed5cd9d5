//! `weir check`: checks every promise of the on-disk formats, and changes nothing unless `--repair` is given.
//!
//! The check opens the whole stack as a mount does, but over media that keep writes in memory. So it sees the
//! state that the next mount would recover, with the buffer's records applied.
//!
//! A signal ends the check at any moment. A repair ends as after a SIGKILL: the store recovers at its next use.

use crate::byte_size::ByteSize;
use crate::cli::CheckArgs;
use crate::error::WeirError;
use crate::json_schema::JsonSchema;
use crate::replace_buffer::may_have_newer_changes;
use block::block_volume_size;
use cache::{Cache, CacheError, CacheSettings, RecoveredBuffer};
use device::{BLOCK_BYTES, Device, Incarnation, OverlayDevice};
use fs::Fs;
use host::{CountingDevice, DiskAccess, IoCounters, ReadBusyTime, SystemClock, shell_quoted};
use progress::{LongWork, OnInterrupt, WorkAmount, WorkUnit};
use serde_json::json;
use stack::{StackError, StoreMedia, open_medium, store_of};
use std::borrow::Cow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{Store, SuperblockRepair, VolumeId};

/// Findings that are listed. A broken disk can cause millions, which nobody reads.
const FINDINGS_MAX: usize = 1000;

/// The findings so far, which an interrupted check prints, too.
#[derive(Default)]
struct SharedFindings(Mutex<CheckFindings>);

impl SharedFindings {
    fn lock(&self) -> MutexGuard<'_, CheckFindings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parts that were checked, the parts that were skipped, and the findings.
#[derive(Default)]
struct CheckFindings {
    checked: Vec<String>,
    skipped: Vec<String>,
    found: Vec<String>,
    count: u64,
    /// Next steps for particular findings.
    help: Vec<String>,
    /// Whether a finding is about a buffer that the store does not need.
    of_unneeded_buffer: bool,
}

impl CheckFindings {
    fn add(&mut self, what: String) {
        self.count += 1;
        if self.found.len() < FINDINGS_MAX {
            self.found.push(what);
        }
    }

    fn add_error(&mut self, what: String, help: Option<Cow<'static, str>>) {
        self.add(what);
        if let Some(help) = help.map(Cow::into_owned).filter(|help| !self.help.contains(help)) {
            self.help.push(help);
        }
    }
}

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, WeirError> {
    let findings = Arc::new(SharedFindings::default());
    check(args, &findings).map_err(|error| WeirError::CannotCheck { source: Box::new(error) })?;
    let findings = findings.lock();
    if args.json {
        println!("{:#}", to_json(&findings))
    } else {
        print(&findings)
    }
    Ok(ExitCode::from(u8::from(findings.count > 0)))
}

/// The progress of reading a store. The total is known once the store is open.
struct StoreReading {
    counters: Arc<IoCounters>,
    blocks_expected: AtomicU64,
}

impl StoreReading {
    /// Counts the reads of `disk` from now on.
    fn of(disk: impl Device + 'static) -> (Arc<dyn Device>, Arc<StoreReading>) {
        let (disk, counters) = CountingDevice::wrap(Arc::new(disk), &Arc::new(ReadBusyTime::default()));
        (disk, Arc::new(StoreReading { counters, blocks_expected: AtomicU64::new(0) }))
    }

    /// A check reads each live block about once.
    fn expect(&self, store: &Store) {
        self.blocks_expected.store(store.space().now().live, Ordering::Relaxed);
    }

    fn amount(&self) -> WorkAmount {
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let expected = self.blocks_expected.load(Ordering::Relaxed);
        WorkAmount {
            unit: WorkUnit::Bytes,
            done: bytes(self.counters.reads.snapshot().blocks),
            total: Some(bytes(expected)).filter(|&total| total > 0),
        }
    }

    /// Shows the progress of `what`, and ends the process after a signal with the text of `interrupted`.
    fn show(
        self: &Arc<StoreReading>,
        what: String,
        interrupted: impl FnOnce(&WorkAmount) -> String + Send + 'static,
    ) -> LongWork {
        let reading = self.clone();
        LongWork::start(what, move || reading.amount(), OnInterrupt::Exit(Box::new(interrupted)))
    }
}

/// Prints the findings of an interrupted check, and returns the last line.
fn interrupted_check(amount: &WorkAmount, findings: &SharedFindings, args: &InterruptedCheck) -> String {
    let findings = findings.lock();
    if !args.json {
        findings.found.iter().for_each(|what| println!("FOUND        {what}"));
    }
    let found = match findings.count {
        0 => "no damage so far".to_owned(),
        count => format!("{count} finding(s) so far"),
    };
    let changed =
        if args.repaired { "the repair before it is complete" } else { "the check changed nothing" };
    format!("{amount} were read, {found}; {changed}. Run it again: a check begins anew")
}

/// What matters if a check is interrupted.
#[derive(Clone, Copy)]
struct InterruptedCheck {
    json: bool,
    repaired: bool,
}

fn to_json(findings: &CheckFindings) -> serde_json::Value {
    JsonSchema::CHECK.add_to(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "checked": findings.checked,
        "not_checked": findings.skipped,
        "findings": findings.found,
        "findings_count": findings.count,
        "help": findings.help,
    }))
}

fn print(findings: &CheckFindings) {
    findings.checked.iter().for_each(|what| println!("checked      {what}"));
    findings.skipped.iter().for_each(|what| println!("not checked  {what}"));
    findings.found.iter().for_each(|what| println!("FOUND        {what}"));
    findings.help.iter().for_each(|what| println!("help         {what}"));
    match findings.count {
        0 => println!("clean"),
        1 if findings.of_unneeded_buffer => println!("1 finding, about the buffer alone"),
        count => println!("{count} finding(s): copy the files that can still be read, and restore the rest"),
    }
}

fn check(args: &CheckArgs, findings: &Arc<SharedFindings>) -> Result<(), WeirError> {
    if args.repair {
        mend_superblocks(&args.path)?;
    }
    let media = StoreMedia::find(&args.path, args.buffer.as_deref())?;
    if args.repair {
        match repair(&media) {
            Err(WeirError::Stack(StackError::Store { source, .. })) if source.is_damaged_node() => {
                findings.lock().add_error(format!("not repaired: {source}"), source.help());
            }
            outcome => outcome?,
        }
    }
    let (store_disk, buffer_disk) = media.open(DiskAccess::Read)?;
    let (store_disk, reading) = StoreReading::of(OverlayDevice::new(store_disk));
    let of_interrupt = findings.clone();
    // The only finding so far is that the repair was refused.
    let repaired = args.repair && findings.lock().count == 0;
    let how = InterruptedCheck { json: args.json, repaired };
    let _work = reading.show(format!("checking {}", args.path.display()), move |amount| {
        interrupted_check(amount, &of_interrupt, &how)
    });
    let rest = ["the buffer's log", "the metadata of the file system"];
    let store = match Store::open(store_disk) {
        Ok(store) => Arc::new(store),
        Err(error) => {
            let mut findings = findings.lock();
            findings.add_error(error.to_string(), error.help());
            findings.skipped.push("the store's map and data".into());
            findings.skipped.extend(rest.map(String::from));
            return Ok(());
        }
    };
    reading.expect(&store);
    store.maintenance().check(&mut |finding| findings.lock().add(finding.to_string()));
    findings
        .lock()
        .checked
        .push("the store: superblocks, roots, log, map, reference counts, every block of data".into());
    match open_cache(&store, Arc::new(OverlayDevice::new(buffer_disk))) {
        Ok(cache) => {
            let waiting = cache.status().counters.replayed;
            let log = format!("the buffer's log: {waiting} transactions, all of this store");
            findings.lock().checked.push(log);
            check_volumes(&store, &Arc::new(cache), findings);
        }
        Err(error) => {
            let (source, path) = (error.clone(), media.buffer);
            let wrong = StackError::Cache { path, source };
            // A mistake in the command line, not a problem of the store.
            if args.buffer.is_some() && wrong.is_of_another_buffer() {
                return Err(WeirError::not_its_buffer(&wrong));
            }
            let mut findings = findings.lock();
            findings.of_unneeded_buffer = !store.needs_buffer() && !may_have_newer_changes(&error);
            let help = if findings.of_unneeded_buffer {
                let store = shell_quoted(&args.path);
                Some(format!("the store has every change: `weir replace-buffer {store}` makes a new buffer, and nothing is lost").into())
            } else {
                error.help()
            };
            findings.add_error(error.to_string(), help);
            findings.skipped.push(rest[1].into());
        }
    }
    Ok(())
}

/// Repairs both superblocks. Nothing else can be checked without a readable superblock.
fn mend_superblocks(path: &Path) -> Result<(), WeirError> {
    let disk = open_medium(&store_of(path)?, DiskAccess::Write)?;
    let mended = Store::repair_superblocks(&disk);
    match mended.map_err(|source| StackError::Store { path: path.into(), source })? {
        SuperblockRepair::Neither => {}
        SuperblockRepair::First(from) => {
            tracing::info!("repaired  the superblock, from its copy in block {from}")
        }
        SuperblockRepair::Copy(at) => tracing::info!("repaired  the superblock's copy in block {at}"),
    }
    Ok(())
}

/// Corrects the store's counts, and prints each wrong count. The check that follows finds the remaining
/// problems.
fn repair(media: &StoreMedia) -> Result<(), WeirError> {
    let failed = |source| StackError::Store { path: media.name.clone(), source };
    let (store_disk, buffer_disk) = media.open(DiskAccess::Write)?;
    let (store_disk, reading) = StoreReading::of(store_disk);
    let _work = reading.show(format!("repairing {}", media.name.display()), |amount| {
        format!("{amount} were read; the store is as after a crash, perhaps without the repair. Run it again")
    });
    let store = Store::open(store_disk).map_err(failed)?;
    reading.expect(&store);
    // The repair writes a new root. A store older than its buffer could not be recognised afterwards.
    let buffer = RecoveredBuffer::read(Arc::new(buffer_disk), store.id(), &SystemClock::new());
    let fits = buffer.and_then(|buffer| buffer.ensure_fits(&store).map(|()| buffer.store_batch()));
    let known = fits.map_err(|source| StackError::Cache { path: media.buffer.clone(), source })?;
    let needs_buffer = store.needs_buffer();
    store.begin_after(Incarnation(store.incarnation().0 + 1), known).map_err(failed)?;
    let repaired =
        store.maintenance().repair(&mut |finding| tracing::info!("wrong     {finding}")).map_err(failed)?;
    if !needs_buffer {
        store.note_complete().map_err(failed)?;
    }
    tracing::info!(
        "repaired  {} node references, {} segments' live counts; both roots are written anew",
        repaired.references,
        repaired.segments
    );
    Ok(())
}

fn open_cache(store: &Arc<Store>, buffer: Arc<dyn Device>) -> Result<Cache, CacheError> {
    Cache::open(store.clone(), buffer, Arc::new(SystemClock::new()), CacheSettings::default())
}

/// Checks the file system or the header of every volume, with the buffer's records applied.
fn check_volumes(store: &Store, cache: &Arc<Cache>, findings: &SharedFindings) {
    let volumes = store.volumes().describe();
    for volume in &volumes {
        let name = if volumes.len() > 1 { format!("volume {}: ", volume.name) } else { String::new() };
        match block_volume_size(cache, volume.id) {
            Ok(None) => check_fs(cache, volume.id, &name, findings),
            Ok(Some(size)) => {
                findings
                    .lock()
                    .checked
                    .push(format!("{name}the header of a block volume of {}", ByteSize(size)));
            }
            Err(error) => findings.lock().add_error(format!("{name}{error}"), error.help()),
        }
    }
}

fn check_fs(cache: &Arc<Cache>, id: VolumeId, volume: &str, findings: &SharedFindings) {
    match Fs::open(cache.clone(), id, Arc::new(SystemClock::new())) {
        Ok(fs) => {
            fs.check(&mut |finding| findings.lock().add(format!("{volume}{}", describe(&finding))));
            findings
                .lock()
                .checked
                .push(format!("{volume}the file system: inodes, links, names, sizes, free lists"));
        }
        Err(error) => findings.lock().add_error(format!("{volume}{error}"), error.help()),
    }
}

fn describe(finding: &fs::FsFinding) -> String {
    match (&finding.path, finding.ino) {
        (Some(path), _) => format!("{path}: {}", finding.what),
        (None, Some(ino)) => format!("inode {}, which has no name: {}", ino.0, finding.what),
        (None, None) => finding.what.clone(),
    }
}
