//! `weir check`: checks every promise of the on-disk formats, and changes nothing unless `--repair` is given.
//!
//! The check opens the whole stack as a mount does, but over media that keep writes in memory. So it sees the
//! state that the next mount would recover, with the buffer's records applied.

use crate::byte_size::ByteSize;
use crate::cli::CheckArgs;
use crate::error::WeirError;
use crate::json_schema::JsonSchema;
use block::block_volume_size;
use cache::{Cache, CacheError, CacheSettings, RecoveredBuffer};
use device::{Device, Incarnation, OverlayDevice};
use fs::Fs;
use host::{DiskAccess, SystemClock};
use serde_json::json;
use stack::{StackError, StoreMedia, open_medium, store_of};
use std::borrow::Cow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use store::{Store, SuperblockRepair, VolumeId};

/// Findings that are listed. A broken disk can cause millions, which nobody reads.
const FINDINGS_MAX: usize = 1000;

/// The parts that were checked, the parts that were skipped, and the findings.
#[derive(Default)]
struct CheckFindings {
    checked: Vec<String>,
    skipped: Vec<String>,
    found: Vec<String>,
    count: u64,
    /// Next steps for particular findings.
    help: Vec<String>,
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
    let findings = check(args).map_err(|error| WeirError::CannotCheck { source: Box::new(error) })?;
    if args.json {
        println!("{:#}", to_json(&findings))
    } else {
        print(&findings)
    }
    Ok(ExitCode::from(u8::from(findings.count > 0)))
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
        count => println!("{count} finding(s): copy the files that can still be read, and restore the rest"),
    }
}

fn check(args: &CheckArgs) -> Result<CheckFindings, WeirError> {
    if args.repair {
        mend_superblocks(&args.path)?;
    }
    let media = StoreMedia::find(&args.path, args.buffer.as_deref())?;
    let mut findings = CheckFindings::default();
    if args.repair {
        match repair(&media) {
            Err(WeirError::Stack(StackError::Store { source, .. })) if source.is_damaged_node() => {
                findings.add_error(format!("not repaired: {source}"), source.help());
            }
            outcome => outcome?,
        }
    }
    let (store_disk, buffer_disk) = media.open(DiskAccess::Read)?;
    let rest = ["the buffer's log", "the metadata of the file system"];
    let store = match Store::open(Arc::new(OverlayDevice::new(store_disk))) {
        Ok(store) => Arc::new(store),
        Err(error) => {
            findings.add_error(error.to_string(), error.help());
            findings.skipped.push("the store's map and data".into());
            findings.skipped.extend(rest.map(String::from));
            return Ok(findings);
        }
    };
    store.maintenance().check(&mut |finding| findings.add(finding.to_string()));
    findings
        .checked
        .push("the store: superblocks, roots, log, map, reference counts, every block of data".into());
    match open_cache(&store, Arc::new(OverlayDevice::new(buffer_disk))) {
        Ok(cache) => {
            let waiting = cache.status().counters.replayed;
            let log = format!("the buffer's log: {waiting} transactions, all of this store");
            findings.checked.push(log);
            check_volumes(&store, &Arc::new(cache), &mut findings);
        }
        Err(error) => {
            let (source, path) = (error.clone(), media.buffer);
            let wrong = StackError::Cache { path, source };
            // A mistake in the command line, not a problem of the store.
            if args.buffer.is_some() && wrong.is_of_another_buffer() {
                return Err(WeirError::not_its_buffer(&wrong));
            }
            findings.add_error(error.to_string(), error.help());
            findings.skipped.push(rest[1].into());
        }
    }
    Ok(findings)
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
    let store = Store::open(Arc::new(store_disk)).map_err(failed)?;
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
fn check_volumes(store: &Store, cache: &Arc<Cache>, findings: &mut CheckFindings) {
    let volumes = store.volumes().describe();
    for volume in &volumes {
        let name = if volumes.len() > 1 { format!("volume {}: ", volume.name) } else { String::new() };
        match block_volume_size(cache, volume.id) {
            Ok(None) => check_fs(cache, volume.id, &name, findings),
            Ok(Some(size)) => {
                findings.checked.push(format!("{name}the header of a block volume of {}", ByteSize(size)));
            }
            Err(error) => findings.add_error(format!("{name}{error}"), error.help()),
        }
    }
}

fn check_fs(cache: &Arc<Cache>, id: VolumeId, volume: &str, findings: &mut CheckFindings) {
    match Fs::open(cache.clone(), id, Arc::new(SystemClock::new())) {
        Ok(fs) => {
            fs.check(&mut |finding| findings.add(format!("{volume}{}", describe(&finding))));
            findings
                .checked
                .push(format!("{volume}the file system: inodes, links, names, sizes, free lists"));
        }
        Err(error) => findings.add_error(format!("{volume}{error}"), error.help()),
    }
}

fn describe(finding: &fs::FsFinding) -> String {
    match (&finding.path, finding.ino) {
        (Some(path), _) => format!("{path}: {}", finding.what),
        (None, Some(ino)) => format!("inode {}, which has no name: {}", ino.0, finding.what),
        (None, None) => finding.what.clone(),
    }
}
