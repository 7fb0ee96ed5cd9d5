//! `weir replace-buffer`: gives a store another buffer, because of a better device, or because the old buffer
//! is lost.
//!
//! The steps, in an order that leaves one complete buffer and a name that leads to it after a crash or an
//! error at any point:
//!
//! 1. Write the changes in the old buffer back to the store.
//! 2. Format the new buffer.
//! 3. Let the store name the new buffer. From now on it refuses every other buffer.
//! 4. Let the store's entry `buffer` lead to the new buffer.
//! 5. Retire the old buffer, so that it is a buffer no more.
//!
//! Until step 5 the old buffer keeps its content. At most the end of its log is written again, to make it
//! durable, but the buffer need not be writable. A buffer that cannot be read is never written, and gets
//! another name if it is in the way.
//!
//! A signal ends the command in step 1, where nothing but the write-back was done. A signal in step 2 undoes that step. From
//! step 3 on signals are held, because the rest takes a moment.

use crate::byte_size::ByteSize;
use crate::cli::ReplaceBufferArgs;
use crate::epoch_keeper::{self, EpochCopy};
use crate::error::WeirError;
use crate::format::{
    BUFFER_DEFAULT, BUFFER_MIN, FormatUndo, MediumPlan, bytes_of, ensure_allowed, ensure_durable,
    make_buffer_disk, plan_buffer, sync_names_beside,
};
use crate::volume::rfc3339;
use buffer::{Buffer, BufferError, BufferIdentity};
use cache::{Cache, CacheError, CacheSettings, UNFINISHED_RESCUE};
use device::{
    BLOCK_BYTES, Block, BufferId, Device, DeviceError, DeviceOperation, Lsn, ObjectId, Page, PageNo, StoreId,
};
use host::{DiskAccess, HostDisk, are_same_medium, random_bytes, shell_quoted};
use progress::{LongWork, OnInterrupt, WorkAmount, WorkUnit, exit_code_of_interrupt, held_signal};
use stack::{
    BUFFER_FILE, ExpectedBuffer, MediumKind, PlaceContent, StackError, StorageStack, StoreMedia, absolute,
    content_of_place, describe_store, medium_kind, open_medium, store_of, warn_of_readers,
};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use store::{Store, VolumeInfo};

/// LSNs that the new buffer leaves out: more than a lost buffer can have used since the last page was written
/// back. The store knows where the new buffer begins, and so refuses the lost one if it comes back.
pub(crate) const LSN_GAP: u64 = 1 << 40;

/// The end of a new buffer's name until the buffer is in its place.
const NEW: &str = "new";

/// The end of the name of an old buffer that could not be read.
const OLD: &str = "old";

/// The old buffer, as far as it is known.
struct OldBuffer {
    /// Its path; `None` if that is not known.
    path: Option<PathBuf>,
    /// Why its changes are lost; `None` if they are in the store.
    lost: Option<WeirError>,
    bytes: ByteSize,
    store: StoreId,
    /// Whether it could be read. What lies in its place otherwise is kept.
    was_read: bool,
    /// The state of the store after the write-back.
    written: WrittenBack,
    /// The store's volumes. All are undamaged but the one whose records the buffer held.
    volumes: Vec<String>,
}

pub(crate) fn run(args: &ReplaceBufferArgs) -> Result<ExitCode, WeirError> {
    let directory = entry_of(&args.path)?;
    let store_path = store_of(&args.path)?;
    // Locked until the end: what another process changed after the write-back would be in the old buffer alone.
    let store: Arc<dyn Device> = Arc::new(open_medium(&store_path, DiskAccess::Write)?);
    if let Some(entry) = &directory {
        remove_left_over(entry, &store_path)?;
    }
    let plan = plan(args, directory.as_deref())?;
    if are_same_medium(plan.path(), &store_path) {
        return Err(StackError::SameMedia { path: plan.path().into() }.into());
    }
    ensure_allowed(&plan, args.force)?;
    if !args.buffer_medium.volatile_buffer {
        ensure_durable(&plan)?;
    }
    let old = read_old_buffer(args, &store)?;
    if let Some(why) = old.lost.as_ref().filter(|_| !args.accept_loss) {
        return Err(WeirError::BufferLost { path: args.path.clone(), why: why.to_string() });
    }
    if old.path.as_deref().is_some_and(|path| old.was_read && !is_other(path, plan.path())) {
        return Err(WeirError::SameBuffer { path: plan.path().into() });
    }
    let mut undo = FormatUndo::default();
    let identity = BufferIdentity { store: old.store, id: BufferId(random_bytes()) };
    let like = args.buffer_size.is_none().then_some(old.bytes);
    let formatting = Arc::new(FormatProgress::default());
    let work = formatting.show(plan.path());
    let make_and_begin = |undo: &mut FormatUndo| {
        ensure_old_name_is_free(directory.as_deref(), &old)?;
        let Some(bytes) = make(&plan, like, identity, &old, (undo, &formatting))? else { return Ok(None) };
        let media = StoreMedia::find(&args.path, Some(plan.path()))?;
        let written = old.lost.is_none().then_some(&old.written);
        let restored = begin_with_new_buffer(media, store.clone(), written)?;
        Ok(Some((bytes, restored)))
    };
    let (bytes, restored) = match make_and_begin(&mut undo) {
        Ok(Some(made)) => made,
        Ok(None) => {
            undo.run();
            drop(work);
            return Ok(ExitCode::from(exit_code_of_interrupt(&interrupted_format(args, &plan, &old))));
        }
        Err(error) => {
            // Once the store names the new buffer, it must stay.
            let known = store_of(&args.path).and_then(|store| describe_store(&store));
            if known.is_ok_and(|known| known.settings.buffer != Some(identity.id)) {
                undo.run();
            }
            return Err(error);
        }
    };
    if let Some(entry) = &directory {
        switch(entry, plan.path(), &old)?;
        sync_names_beside(entry)?;
    }
    let new = directory.as_deref().unwrap_or(plan.path());
    let retired = retire(&old, new);
    drop(work);
    print_result(args, &old, bytes, &restored, retired.err());
    warn_of_readers(new);
    Ok(ExitCode::SUCCESS)
}

/// The last line after a signal in step 2.
fn interrupted_format(args: &ReplaceBufferArgs, plan: &MediumPlan, old: &OldBuffer) -> String {
    let store = args.path.display();
    let new = match plan {
        MediumPlan::Create { path, .. } => format!("{} was removed", path.display()),
        MediumPlan::Use { path } => format!("{} is not a buffer", path.display()),
    };
    match &old.path {
        Some(path) if old.was_read => format!(
            "{store} still has the buffer {}, and all of its changes are in the store, too; {new}. Run it again, or mount the \
             store as before",
            path.display()
        ),
        _ => format!("{store} still has no buffer that can be used; {new}. Run it again"),
    }
}

/// The progress of formatting the new buffer.
#[derive(Default)]
struct FormatProgress {
    bytes: AtomicU64,
    /// 0 until the buffer's size is known.
    total: AtomicU64,
}

impl FormatProgress {
    /// Shows the progress. Signals are held meanwhile.
    fn show(self: &Arc<FormatProgress>, new: &Path) -> LongWork {
        let progress = self.clone();
        let amount = move || {
            let total = progress.total.load(Ordering::Relaxed);
            WorkAmount {
                unit: WorkUnit::Bytes,
                done: progress.bytes.load(Ordering::Relaxed),
                total: Some(total).filter(|&total| total > 0),
            }
        };
        LongWork::start(format!("formatting {}", new.display()), amount, OnInterrupt::Hold)
    }
}

/// The disk of the new buffer while it is formatted. It counts written bytes, and refuses writes after a signal.
struct FormattedDisk<'a> {
    disk: &'a HostDisk,
    progress: &'a FormatProgress,
}

impl Device for FormattedDisk<'_> {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn name(&self) -> &str {
        self.disk.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.disk.read(at, into)
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        let count = from.len() as u64;
        if held_signal().is_some() {
            return Err(DeviceError {
                device: self.name().into(),
                operation: DeviceOperation::Write,
                at,
                count,
                // EINTR on every Linux.
                errno: 4,
                reason: "interrupted".into(),
            });
        }
        self.disk.write(at, from)?;
        self.progress.bytes.fetch_add(count * BLOCK_BYTES as u64, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.disk.flush()
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.disk.trim(at, count)
    }
}

/// The path of the entry `buffer`, if the store is a directory.
fn entry_of(path: &Path) -> Result<Option<PathBuf>, WeirError> {
    let is_directory = medium_kind(path)? == MediumKind::Directory;
    store_of(path)?;
    Ok(if is_directory { Some(absolute(path)?.join(BUFFER_FILE)) } else { None })
}

/// Plans the new buffer: at `--buffer`, or else beside the entry `buffer` until it takes that place.
fn plan(args: &ReplaceBufferArgs, entry: Option<&Path>) -> Result<MediumPlan, WeirError> {
    let path = match (&args.buffer, entry) {
        (Some(buffer), _) => buffer.clone(),
        (None, Some(entry)) => entry.with_extension(NEW),
        (None, None) => return Err(WeirError::BufferWanted { path: args.path.clone() }),
    };
    plan_buffer(path, args.buffer_size)
}

/// Removes the new buffer of an earlier command that was killed before the store named it. Refuses one that the store names.
fn remove_left_over(entry: &Path, store: &Path) -> Result<(), WeirError> {
    let new = entry.with_extension(NEW);
    if !new.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let known = describe_store(store)?;
    let was_last = known.last_place(store).is_some_and(|last| last == new);
    match content_of_place(&new, &known) {
        Ok(None) => Err(WeirError::ReplacementCutOff { new, entry: entry.into() }),
        // In its last place, something blank may be the buffer with a damaged beginning.
        Ok(Some(PlaceContent::UnusedBuffer | PlaceContent::Blank)) if !was_last => {
            fs::remove_file(&new).map_err(WeirError::io("removing an unfinished buffer", &new))
        }
        // It is refused like any other place that is not blank.
        Ok(Some(_)) | Err(_) => Ok(()),
    }
}

/// Writes the changes in the old buffer back to the store on `disk`, if that buffer can be read.
fn read_old_buffer(args: &ReplaceBufferArgs, disk: &Arc<dyn Device>) -> Result<OldBuffer, WeirError> {
    let store =
        Store::open(disk.clone()).map_err(|source| StackError::Store { path: args.path.clone(), source })?;
    let volumes = store.volumes().describe();
    let mut old = OldBuffer {
        path: None,
        lost: None,
        bytes: store.settings().buffer_bytes.map_or(BUFFER_DEFAULT, ByteSize),
        was_read: false,
        store: store.id(),
        written: WrittenBack { newest: store.data().newest_lsn(), lost: Vec::new() },
        volumes: volumes
            .into_iter()
            .map(|volume| volume.name)
            .filter(|name| !name.starts_with(UNFINISHED_RESCUE))
            .collect(),
    };
    let needs_buffer = store.needs_buffer();
    // The write-back opens it again.
    drop(store);
    let media = match StoreMedia::find(&args.path, args.old.as_deref()) {
        Ok(media) => media,
        // A wrong path in `--old` is a mistake, and does not mean that the buffer is lost.
        Err(error @ StackError::BufferMissing { .. }) if args.old.is_some() => {
            return Err(WeirError::not_its_buffer(&error));
        }
        Err(error @ StackError::BufferMissing { .. }) => {
            // A store that was closed cleanly has every change.
            old.lost = needs_buffer.then(|| error.into());
            return Ok(old);
        }
        Err(error) => return Err(error.into()),
    };
    old.path = Some(media.buffer.clone());
    let written = write_back(&media, disk.clone());
    // The size of a buffer that is refused counts, too. A file smaller than any buffer was truncated.
    let bytes = open_medium(&media.buffer, DiskAccess::Read).map(|disk| bytes_of(&disk));
    old.bytes = bytes.ok().filter(|bytes| *bytes >= BUFFER_MIN).unwrap_or(old.bytes);
    match written {
        Ok(written) => {
            old.written = written;
            old.was_read = true;
        }
        Err(error) if args.old.is_some() && error.is_of_another_buffer() => {
            return Err(WeirError::not_its_buffer(&error));
        }
        Err(error) if error.is_of(&media.buffer) => {
            // A buffer that does not fit may have changes of a newer copy of the store, or of another weir.
            let is_newer =
                matches!(&error, StackError::Cache { source, .. } if may_have_newer_changes(source));
            old.lost = (needs_buffer || is_newer).then(|| error.into());
        }
        Err(error) => return Err(error.into()),
    }
    Ok(old)
}

/// Whether a buffer that was refused so may have changes that not even a store which was closed cleanly has.
pub(crate) fn may_have_newer_changes(refused: &CacheError) -> bool {
    matches!(
        refused,
        CacheError::StaleStore { .. }
            | CacheError::Buffer(BufferError::Version { .. } | BufferError::OldVersion { .. })
    )
}

/// The state after the content of a buffer was written back.
#[derive(Debug)]
struct WrittenBack {
    /// The LSN of the buffer's newest record.
    newest: Lsn,
    /// Pages that a crash took from files in volumes that are damaged. The next buffer has to keep the list.
    lost: Vec<(ObjectId, PageNo)>,
}

/// Writes back all changes in the buffer of `media`, without changing the buffer.
///
/// So a device that can be read but no longer written, as at the end of its life, loses nothing. After a
/// crash the buffer has the same content, and may be written back again.
fn write_back(media: &StoreMedia, store: Arc<dyn Device>) -> Result<WrittenBack, StackError> {
    let draining = Arc::new(DrainProgress::default());
    let _work = draining.show(media);
    // The store must not get changes that the buffer does not have after a crash. If the buffer cannot be
    // made durable, there is nothing better to do than to continue. If the power then fails, the store is
    // ahead of the buffer, and the next start says so.
    let _ = make_durable(&media.buffer);
    let settings = CacheSettings { buffer_is_given_up: true, ..CacheSettings::default() };
    let stack = StorageStack::open_beside_buffer(media.clone(), store, settings)?;
    let _ = draining.0.set((stack.cache.clone(), stack.cache.status().dirty_bytes));
    let not_truncated = stack.truncate_lost_ends();
    stack.cache.drain().map_err(|source| StackError::Cache { path: media.name.clone(), source })?;
    let lost = stack.cache.lost_tails().into_iter();
    let lost = lost.filter(|(object, _)| not_truncated.contains(&object.volume)).collect();
    Ok(WrittenBack { newest: stack.cache.status().applied, lost })
}

/// The progress of writing a buffer's changes back: the cache, once it is open, and the dirty bytes that it had then.
#[derive(Default)]
struct DrainProgress(OnceLock<(Cache, u64)>);

impl DrainProgress {
    /// Shows the progress. A signal ends the process: the store may have some of the buffer's changes, and the buffer has all.
    fn show(self: &Arc<DrainProgress>, media: &StoreMedia) -> LongWork {
        let progress = self.clone();
        let amount = move || match progress.0.get() {
            Some((cache, total)) => {
                let done = total.saturating_sub(cache.status().dirty_bytes);
                WorkAmount { unit: WorkUnit::Bytes, done, total: Some(*total) }
            }
            None => WorkAmount { unit: WorkUnit::Unknown, done: 0, total: None },
        };
        let store = media.name.display().to_string();
        let buffer = media.buffer.display().to_string();
        let interrupted = move |amount: &WorkAmount| {
            let done = match amount.unit {
                WorkUnit::Unknown => "nothing was written back".to_owned(),
                _ => format!("{amount} were written back"),
            };
            format!(
                "{done}; {store} still has the buffer {buffer}, with all that it had. Run it again, or mount the store as before"
            )
        };
        let what = format!("writing back {}", media.buffer.display());
        LongWork::start(what, amount, OnInterrupt::Exit(Box::new(interrupted)))
    }
}

/// Makes everything durable that can be read from the buffer at `path`.
fn make_durable(path: &Path) -> Result<(), StackError> {
    let failed = |source: BufferError| StackError::Cache { path: path.into(), source: source.into() };
    let disk: Arc<dyn Device> = Arc::new(open_medium(path, DiskAccess::Write)?);
    let store = Buffer::identify(&*disk).map_err(failed)?.store;
    let buffer = Buffer::open(disk, store, &mut |_| ()).map_err(failed)?;
    buffer.make_durable().map_err(failed)
}

/// A writable copy of an epoch, in place of a volume that may be damaged.
struct RestoredVolume {
    volume: VolumeInfo,
    /// The name of that volume.
    of: String,
    is_block_volume: bool,
}

impl RestoredVolume {
    fn of(stack: &StorageStack, EpochCopy { copy, of }: EpochCopy) -> RestoredVolume {
        let is_block_volume = matches!(block::block_volume_size(&stack.cache, copy.id), Ok(Some(_)));
        RestoredVolume { volume: copy, of: of.name, is_block_volume }
    }
}

/// Opens `store`, the medium of the store, with the new buffer of `media`, which is empty. From then on the store refuses every
/// other buffer.
///
/// `old` is the state after the old buffer was written back; `None` if that buffer could not be read.
/// Writable copies of the newest epochs are then made, and returned.
fn begin_with_new_buffer(
    media: StoreMedia,
    store: Arc<dyn Device>,
    old: Option<&WrittenBack>,
) -> Result<Vec<RestoredVolume>, StackError> {
    let (settings, which) = (CacheSettings::default(), ExpectedBuffer::NewUnnamed);
    let stack = StorageStack::open_with_store(media, store, settings, DiskAccess::Write, which)?;
    let restored = match old {
        None => {
            let newest = stack.cache.buffer().newest_lsn();
            let restored = epoch_keeper::restore(&stack.store, newest);
            let failed = |source| StackError::Store { path: stack.media.name.clone(), source };
            restored.map_err(failed)?.into_iter().map(|copy| RestoredVolume::of(&stack, copy)).collect()
        }
        Some(old) => {
            let taken = stack.cache.take_over_lost_tails(&old.lost);
            taken.map_err(|source| StackError::Cache { path: stack.media.buffer.clone(), source })?;
            Vec::new()
        }
    };
    // The store names the new buffer last. So a mount with that buffer after a crash also finds what was
    // stored above.
    stack.name_buffer()?;
    // The new buffer is empty. If that fails, nothing is lost but the note.
    let _ = stack.cache.note_complete();
    Ok(restored)
}

/// Makes and formats the new buffer, and returns its size. `None` if a signal came before it was a buffer.
fn make(
    plan: &MediumPlan,
    like: Option<ByteSize>,
    identity: BufferIdentity,
    old: &OldBuffer,
    (undo, progress): (&mut FormatUndo, &FormatProgress),
) -> Result<Option<ByteSize>, WeirError> {
    let disk = match (plan, like) {
        (MediumPlan::Create { path, .. }, Some(ByteSize(bytes))) => {
            make_buffer_disk(&MediumPlan::Create { path: path.clone(), bytes }, undo)?
        }
        _ => make_buffer_disk(plan, undo)?,
    };
    progress.total.store(bytes_of(&disk).0, Ordering::Relaxed);
    let newest = Lsn(old.written.newest.0 + LSN_GAP);
    match Buffer::format_after(&FormattedDisk { disk: &disk, progress }, identity, newest) {
        Ok(()) => {}
        Err(_) if held_signal().is_some() => return Ok(None),
        Err(source) => {
            return Err(StackError::Cache { path: plan.path().into(), source: source.into() }.into());
        }
    }
    // The old buffer may be retired only after that.
    sync_names_beside(&absolute(plan.path())?)?;
    Ok(Some(bytes_of(&disk)))
}

/// Refuses to continue if the old buffer could not be read and the name that would keep it is taken.
fn ensure_old_name_is_free(entry: Option<&Path>, old: &OldBuffer) -> Result<(), WeirError> {
    let Some(entry) = entry.filter(|entry| !old.was_read && entry.symlink_metadata().is_ok()) else {
        return Ok(());
    };
    let kept = entry.with_extension(OLD);
    match kept.symlink_metadata() {
        Ok(_) => Err(WeirError::EarlierBuffer { path: kept }),
        Err(_) => Ok(()),
    }
}

/// Lets the store's entry lead to the new buffer, atomically. After an error the entry leads to the old
/// buffer.
fn switch(entry: &Path, new: &Path, old: &OldBuffer) -> Result<(), WeirError> {
    let new = absolute(new)?;
    if absolute(entry).is_ok_and(|entry| entry == new) {
        return Ok(());
    }
    if !old.was_read && entry.symlink_metadata().is_ok() {
        let kept = entry.with_extension(OLD);
        // A second name, so that the first one leads to a buffer at every moment.
        fs::hard_link(entry, &kept).map_err(WeirError::io("keeping the old buffer as buffer.old", entry))?;
    }
    let beside = entry.with_extension(NEW);
    if new != beside {
        // A link that a crash has left here leads to no buffer in use.
        if beside.is_symlink() {
            fs::remove_file(&beside).map_err(WeirError::io("removing an old link", &beside))?;
        }
        symlink(&new, &beside).map_err(WeirError::io("making the link", &beside))?;
    }
    fs::rename(&beside, entry).map_err(WeirError::io("putting the new buffer in its place", entry))
}

/// Marks the old buffer as unused, if all its changes are in the store.
fn retire(old: &OldBuffer, new: &Path) -> Result<(), WeirError> {
    match &old.path {
        Some(path) if old.was_read && is_other(path, new) => {
            let failed =
                |source: BufferError| StackError::Cache { path: path.clone(), source: source.into() };
            Ok(Buffer::retire(&open_medium(path, DiskAccess::Write)?).map_err(failed)?)
        }
        _ => Ok(()),
    }
}

/// Whether the old buffer still exists, and is not the new one.
fn is_other(old: &Path, new: &Path) -> bool {
    old.exists() && !are_same_medium(old, new)
}

fn print_result(
    args: &ReplaceBufferArgs,
    old: &OldBuffer,
    bytes: ByteSize,
    restored: &[RestoredVolume],
    not_retired: Option<WeirError>,
) {
    let new = args.buffer.clone().unwrap_or_else(|| args.path.join(BUFFER_FILE));
    println!("store {}: buffer {bytes} at {}", old.store, new.display());
    let Some(why) = &old.lost else {
        let why = if old.was_read {
            "all changes were written back first"
        } else {
            "the store had every change and did not need the old buffer"
        };
        println!("{why}: nothing is lost");
        if let Some(why) = not_retired {
            println!(
                "the old buffer could not be marked as unused ({why}); the store refuses it from now on"
            );
        }
        return;
    };
    println!("LOST: the changes in the old buffer that were not in the store yet ({why})");
    println!(
        "recently written files may be damaged: `weir check {}` checks names and sizes, not the contents of files; let \
         your programs verify their files, or restore a backup",
        shell_quoted(&args.path)
    );
    for RestoredVolume { volume, of, is_block_volume } in restored {
        let path = shell_quoted(&args.path);
        let as_of = rfc3339(volume.created / 1_000_000_000);
        let name = &volume.name;
        if *is_block_volume {
            println!("volume {of}, undamaged, as of {as_of}: `weir export {path} {name} --socket PATH`");
            continue;
        }
        println!("volume {of}, undamaged, as of {as_of}: `weir mount --volume {name} {path} DIR`");
        println!(
            "  newer files in the damaged volume: `weir mount --volume {of} {path} DIR && find DIR -newermt {as_of}`"
        );
    }
    let is_named = |name: &String| restored.iter().any(|one| one.of == *name);
    let others: Vec<&str> = old.volumes.iter().filter(|name| !is_named(name)).map(String::as_str).collect();
    match &others[..] {
        [] | [_] if old.volumes.len() == 1 => {
            println!("the store has no volume besides the one that was mounted or exported")
        }
        [] => {}
        all => {
            println!("undamaged, unless they were mounted or exported lately: the volumes {}", all.join(", "))
        }
    }
}
