//! `weir format`: creates an empty store on blank media.

use crate::blank_check::ensure_blank;
use crate::byte_size::ByteSize;
use crate::cli::FormatArgs;
use crate::error::WeirError;
use crate::volume;
use buffer::{Buffer, BufferIdentity};
use cache::{CacheError, CacheSettings};
use device::{BLOCK_BYTES, BufferId, Device, StoreId};
use host::{
    DiskAccess, ExistingFile, FileIdentity, HostDisk, MountTable, VolatileReason, probe_durability,
    random_bytes, spare_bytes,
};
use stack::{
    BUFFER_FILE, ExpectedBuffer, MediumKind, STORE_FILE, StackError, StorageStack, StoreMedia, absolute,
    ensure_leads_somewhere, ensure_not_on_weir, host_error, medium_kind, open_medium,
};
use std::ffi::{OsStr, OsString};
use std::fs as files;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use store::{Store, StoreError, StoreLayout};

const STORE_DEFAULT: ByteSize = ByteSize(8 << 30);
pub(crate) const BUFFER_DEFAULT: ByteSize = ByteSize(256 << 20);

/// The smallest `--size`: twice the segments that a store needs, of the smallest size that weir chooses by
/// itself, and the first blocks.
const STORE_MIN: ByteSize = ByteSize(64 << 20);

/// In a nearly full store with smaller segments, the write-back of a page costs a segment of cleaning or
/// more, and a write would wait for that.
const SEGMENT_MIN: ByteSize = ByteSize(512 << 10);
/// A larger segment takes seconds to clean on a disk.
const SEGMENT_MAX: ByteSize = ByteSize(128 << 20);

/// The smallest buffer: space for several of the kernel's largest write requests, each with its whole
/// transaction.
pub(crate) const BUFFER_MIN: ByteSize = ByteSize(8 << 20);

/// The path of a medium, and whether weir creates it.
#[derive(Debug)]
pub(crate) enum MediumPlan {
    /// A file to create, of `bytes` bytes.
    Create { path: PathBuf, bytes: u64 },
    /// An existing device or file.
    Use { path: PathBuf },
}

impl MediumPlan {
    /// The path of the medium.
    pub(crate) fn path(&self) -> &Path {
        let (MediumPlan::Create { path, .. } | MediumPlan::Use { path }) = self;
        path
    }
}

pub(crate) fn run(args: &FormatArgs) -> Result<(), WeirError> {
    let plans = plan(args)?;
    for plan in [&plans.store, &plans.buffer] {
        ensure_allowed(plan, args.force)?;
    }
    if !args.buffer_medium.volatile_buffer {
        ensure_durable(&plans.buffer)?;
    }
    let warning = if args.preallocate { None } else { too_little_space(&plans)? };
    if !args.force {
        ensure_no_others(args, &plans)?;
    }
    let mut undo = FormatUndo::default();
    let result = make(args, &plans, &mut undo);
    if let (Ok(()), Some(warning)) = (&result, warning) {
        let help = "choose a smaller --size, or give --preallocate to take the space now";
        tracing::warn!("{warning}\n  help: {help}");
    }
    if result.is_ok() {
        warn_of_volatile_store(plans.store.path());
    }
    if result.is_err() {
        undo.run();
    }
    result
}

/// Refuses a directory that holds other files: the user probably meant another directory.
fn ensure_no_others(args: &FormatArgs, plans: &FormatPlan) -> Result<(), WeirError> {
    if medium_kind(&args.path)? != MediumKind::Directory {
        return Ok(());
    }
    let ours = [Some(OsStr::new(STORE_FILE)), Some(OsStr::new(BUFFER_FILE)), plans.buffer.path().file_name()];
    let entries = files::read_dir(&args.path).map_err(WeirError::io("listing it", &args.path))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut others: Vec<OsString> =
        names.filter(|name| name != "lost+found" && !ours.contains(&Some(name.as_os_str()))).collect();
    others.sort();
    match &others[..] {
        [] => Ok(()),
        [first, more @ ..] => {
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            let found = format!("{}{more}", first.display());
            Err(WeirError::NotEmpty { path: args.path.clone(), found })
        }
    }
}

struct FormatPlan {
    store: MediumPlan,
    buffer: MediumPlan,
    /// Whether PATH is a directory whose entry `buffer` becomes a link to the buffer.
    link: bool,
}

fn plan(args: &FormatArgs) -> Result<FormatPlan, WeirError> {
    check_sizes(args)?;
    ensure_leads_somewhere(&args.path)?;
    let into_directory = matches!(medium_kind(&args.path)?, MediumKind::Absent | MediumKind::Directory);
    let store = if into_directory {
        plan_medium(args.path.join(STORE_FILE), "--size", args.size, STORE_DEFAULT)?
    } else {
        plan_medium(args.path.clone(), "--size", args.size, STORE_DEFAULT)?
    };
    let buffer = match &args.buffer {
        Some(path) => path.clone(),
        None if into_directory => args.path.join(BUFFER_FILE),
        None => return Err(WeirError::BufferWanted { path: args.path.clone() }),
    };
    let buffer = plan_buffer(buffer, args.buffer_size)?;
    if let (MediumPlan::Use { path: one }, MediumPlan::Use { path: other }) = (&store, &buffer)
        && host::are_same_medium(one, other)
    {
        return Err(StackError::SameMedia { path: one.clone() }.into());
    }
    Ok(FormatPlan { store, buffer, link: into_directory && args.buffer.is_some() })
}

fn check_sizes(args: &FormatArgs) -> Result<(), WeirError> {
    let wrong = |option, size, why: &str| Err(WeirError::Size { option, size, why: why.into() });
    if let Some(size) = args.size {
        check_size("--size", size, STORE_MIN)?;
    }
    let Some(segment) = args.segment_size else { return Ok(()) };
    let option = "--segment-size";
    if segment.0 % BLOCK_BYTES as u64 != 0 {
        return wrong(option, segment, &not_whole(segment));
    }
    if segment < SEGMENT_MIN || segment > SEGMENT_MAX {
        return wrong(option, segment, &format!("not between {SEGMENT_MIN} and {SEGMENT_MAX}"));
    }
    let store = args.size.unwrap_or(STORE_DEFAULT);
    if segment.0 > store.0 / 65 {
        return wrong(option, segment, &format!("too few segments in a store of {store}: it needs 64"));
    }
    Ok(())
}

fn check_size(option: &'static str, size: ByteSize, least: ByteSize) -> Result<(), WeirError> {
    let wrong = |why| Err(WeirError::Size { option, size, why });
    match size {
        size if size < least => wrong(format!("less than {least}")),
        size if !size.0.is_multiple_of(BLOCK_BYTES as u64) => wrong(not_whole(size)),
        _ => Ok(()),
    }
}

/// Plans a buffer at `path`, and checks that it is large enough.
pub(crate) fn plan_buffer(path: PathBuf, size: Option<ByteSize>) -> Result<MediumPlan, WeirError> {
    ensure_leads_somewhere(&path)?;
    let plan = plan_medium(path, "--buffer-size", size, BUFFER_DEFAULT)?;
    match &plan {
        MediumPlan::Create { bytes, .. } => check_size("--buffer-size", ByteSize(*bytes), BUFFER_MIN)?,
        MediumPlan::Use { path } => {
            let end = files::File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
            let end = end.map_err(WeirError::io("finding its size", path))?;
            // An incomplete block at the end is not used.
            check_size("--buffer", ByteSize(end - end % BLOCK_BYTES as u64), BUFFER_MIN)?;
        }
    }
    Ok(plan)
}

fn not_whole(size: ByteSize) -> String {
    let below = size.0 - size.0 % BLOCK_BYTES as u64;
    format!("{} bytes is not a multiple of 4096; {below} is", size.0)
}

fn plan_medium(
    path: PathBuf,
    option: &'static str,
    size: Option<ByteSize>,
    default: ByteSize,
) -> Result<MediumPlan, WeirError> {
    match (medium_kind(&path)?, size) {
        (MediumKind::Absent, size) => Ok(MediumPlan::Create { path, bytes: size.unwrap_or(default).0 }),
        (MediumKind::Directory, _) => Err(WeirError::IsDirectory { path }),
        (MediumKind::BlockDevice | MediumKind::File, Some(_)) => Err(WeirError::FixedSize { option, path }),
        (MediumKind::BlockDevice | MediumKind::File, None) => Ok(MediumPlan::Use { path }),
    }
}

/// Refuses a path on a weir mount, a mounted device, and, without `force`, a medium that is not blank.
pub(crate) fn ensure_allowed(plan: &MediumPlan, force: bool) -> Result<(), WeirError> {
    match plan {
        MediumPlan::Create { path, .. } => Ok(ensure_not_on_weir(&nearest_existing(path)?)?),
        MediumPlan::Use { path } => {
            let path = absolute(path)?;
            ensure_not_on_weir(&path)?;
            ensure_not_mounted(&path)?;
            if force { Ok(()) } else { ensure_blank(&path) }
        }
    }
}

/// Refuses a buffer that loses flushed data at a power failure.
pub(crate) fn ensure_durable(plan: &MediumPlan) -> Result<(), WeirError> {
    match probe_durability(plan.path()) {
        Some(why) => Err(StackError::VolatileBuffer { path: plan.path().into(), why, store: None }.into()),
        None => Ok(()),
    }
}

/// Warns of a store that a power failure loses completely. No warning for a store that only loses recent
/// writes (a host file system without barriers): those are lost only if the buffer is lost, too.
fn warn_of_volatile_store(store: &Path) {
    if let Some(why) = probe_durability(store).filter(VolatileReason::loses_all) {
        tracing::warn!("{}: a power failure loses the whole store: it {why}", store.display());
    }
}

fn ensure_not_mounted(path: &Path) -> Result<(), WeirError> {
    let mounts = MountTable::read().map_err(|source| StackError::Host { path: path.into(), source })?;
    let is_it = |source: &Path| files::canonicalize(source).is_ok_and(|source| source == path);
    let found = mounts.iter().find(|mount| mount.source.starts_with("/dev") && is_it(&mount.source));
    match found {
        Some(mount) => Err(WeirError::DeviceMounted { path: path.into(), at: mount.point.clone() }),
        None => Ok(()),
    }
}

fn nearest_existing(path: &Path) -> Result<PathBuf, WeirError> {
    let path = std::path::absolute(path).map_err(WeirError::io("finding it", path))?;
    let existing = path.ancestors().find(|at| at.exists()).unwrap_or(Path::new("/"));
    Ok(absolute(existing)?)
}

/// The files and directories that were created so far. They are removed if the command fails, but not what another process has put in
/// their places.
#[derive(Default)]
pub(crate) struct FormatUndo(Vec<(PathBuf, Option<FileIdentity>)>);

impl FormatUndo {
    /// Adds a file or a directory, which goes first.
    pub(crate) fn add(&mut self, path: PathBuf) {
        let created = FileIdentity::at(&path);
        self.0.push((path, created));
    }

    pub(crate) fn run(self) {
        for (path, _) in self.0.into_iter().rev().filter(|(path, created)| FileIdentity::at(path) == *created)
        {
            // A directory is removed only if it is empty, so other programs' files stay.
            let _ = files::remove_file(&path).or_else(|_| files::remove_dir(&path));
        }
    }
}

fn make(args: &FormatArgs, plans: &FormatPlan, undo: &mut FormatUndo) -> Result<(), WeirError> {
    make_directories(args, plans, undo)?;
    let store_disk = make_disk(&plans.store, undo)?;
    let buffer_disk = make_buffer_disk(&plans.buffer, undo)?;
    let store_disk =
        if args.preallocate { preallocated(store_disk, plans.store.path())? } else { store_disk };
    if plans.link {
        make_link(args, plans, undo)?;
    }
    let id = StoreId(random_bytes());
    let segment_blocks = args.segment_size.map(|size| (size.0 / BLOCK_BYTES as u64) as u32);
    Store::format(&store_disk, &StoreLayout { id, segment_blocks })
        .map_err(|source| no_space(args, source))?;
    Buffer::format(&buffer_disk, BufferIdentity { store: id, id: BufferId(random_bytes()) })
        .map_err(|source| StackError::Cache { path: args.path.clone(), source: source.into() })?;
    let (store_bytes, buffer_bytes) = (bytes_of(&store_disk), bytes_of(&buffer_disk));
    // The stack opens both disks again. An open disk is locked.
    drop((store_disk, buffer_disk));

    let media = StoreMedia::find(&args.path, args.buffer.as_deref())?;
    create_main(&media).map_err(|error| match error {
        WeirError::Stack(
            StackError::Store { source, .. } | StackError::Cache { source: CacheError::Store(source), .. },
        ) => no_space(args, source),
        other => other,
    })?;
    println!(
        "store {id}: {store_bytes} at {}, buffer {buffer_bytes} at {}",
        media.store.display(),
        media.buffer.display()
    );
    media.warn_of_readers();
    Ok(())
}

/// Makes the volume `main` on media that were just formatted.
fn create_main(media: &StoreMedia) -> Result<(), WeirError> {
    let settings = CacheSettings::default();
    let stack = StorageStack::open(media.clone(), settings, DiskAccess::Write, ExpectedBuffer::New)?;
    volume::create_volume(&stack.cache, &media.name, volume::DEFAULT, None)?;
    let drained = stack.cache.drain().and_then(|()| stack.cache.note_complete());
    Ok(drained.map_err(|source| StackError::Cache { path: media.name.clone(), source })?)
}

/// The error of creating a store. An error for lack of space becomes one that names the free bytes of the
/// host file system.
fn no_space(args: &FormatArgs, source: StoreError) -> WeirError {
    let path = args.path.clone();
    match spare_bytes(&path) {
        Ok(free) if source.is_full() => {
            let wanted = args.size.unwrap_or(STORE_DEFAULT);
            WeirError::NoSpace { path, wanted, free: ByteSize(free) }
        }
        _ => StackError::Store { path, source }.into(),
    }
}

pub(crate) fn bytes_of(disk: &HostDisk) -> ByteSize {
    ByteSize(disk.blocks() * BLOCK_BYTES as u64)
}

fn make_directories(args: &FormatArgs, plans: &FormatPlan, undo: &mut FormatUndo) -> Result<(), WeirError> {
    let directory = match &plans.store {
        MediumPlan::Create { .. } => args.path.as_path(),
        MediumPlan::Use { .. } => return Ok(()),
    };
    let path = std::path::absolute(directory).map_err(WeirError::io("finding it", directory))?;
    let missing: Vec<&Path> = path.ancestors().take_while(|at| !at.exists()).collect();
    for at in missing.into_iter().rev() {
        files::create_dir(at).map_err(WeirError::io("making the directory", at))?;
        undo.add(at.into());
        sync_names_beside(at)?;
    }
    Ok(())
}

pub(crate) fn make_disk(plan: &MediumPlan, undo: &mut FormatUndo) -> Result<HostDisk, WeirError> {
    match plan {
        MediumPlan::Use { path } => {
            let path = absolute(path)?;
            let disk = open_medium(&path, DiskAccess::Write)?;
            disk.make_private().map_err(|error| host_error(&path, error))?;
            Ok(disk)
        }
        MediumPlan::Create { path, bytes } => {
            let disk = HostDisk::create(path, *bytes, ExistingFile::Refuse)
                .map_err(|error| host_error(path, error))?;
            // Not what another process may have put there since.
            undo.0.push((path.clone(), disk.file_identity()));
            Ok(disk)
        }
    }
}

/// Makes the disk of a buffer, with all its space allocated: no other user of the host file system can take
/// that space later.
pub(crate) fn make_buffer_disk(plan: &MediumPlan, undo: &mut FormatUndo) -> Result<HostDisk, WeirError> {
    preallocated(make_disk(plan, undo)?, plan.path())
}

/// Allocates space for the whole disk, and returns the disk.
fn preallocated(disk: HostDisk, path: &Path) -> Result<HostDisk, WeirError> {
    let wanted = bytes_of(&disk);
    disk.preallocate().map_err(|source| match spare_bytes(path) {
        Ok(free) if source.is_no_space() => {
            WeirError::NoSpace { path: path.into(), wanted, free: ByteSize(free) }
        }
        _ => StackError::Store { path: path.into(), source: source.into() }.into(),
    })
}

/// The warning for a sparse store file that may outgrow the free space of the host file system.
fn too_little_space(plans: &FormatPlan) -> Result<Option<String>, WeirError> {
    let MediumPlan::Create { path, bytes } = &plans.store else { return Ok(None) };
    let directory = nearest_existing(path)?;
    let Ok(free) = spare_bytes(&directory) else { return Ok(None) };
    let buffer = match &plans.buffer {
        MediumPlan::Create { path, bytes } if is_beside(&nearest_existing(path)?, &directory) => *bytes,
        _ => 0,
    };
    let free = free.saturating_sub(buffer);
    let warning = format!(
        "{}: the store may grow to {}, and its file system has {} free: writes will fail with ENOSPC before the store is full",
        path.display(),
        ByteSize(*bytes),
        ByteSize(free)
    );
    Ok((*bytes > free).then_some(warning))
}

/// Whether two directories are on one host file system.
fn is_beside(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| files::metadata(path).map(|found| found.dev()).ok();
    device(one).is_some() && device(one) == device(other)
}

/// Makes the names in the directory of `path` durable.
pub(crate) fn sync_names_beside(path: &Path) -> Result<(), WeirError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let synced = files::File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(WeirError::io("making the new name durable", directory))
}

/// Points the directory's entry `buffer` at the buffer, so that `mount` finds it.
fn make_link(args: &FormatArgs, plans: &FormatPlan, undo: &mut FormatUndo) -> Result<(), WeirError> {
    let (link, buffer) = (args.path.join(BUFFER_FILE), absolute(plans.buffer.path())?);
    if link.exists() && absolute(&link)? == buffer {
        return Ok(());
    }
    if args.force && link.is_symlink() {
        files::remove_file(&link).map_err(WeirError::io("replacing the link", &link))?;
    }
    symlink(&buffer, &link).map_err(WeirError::io("making the link", &link))?;
    undo.add(link.clone());
    sync_names_beside(&link)
}
