//! `weir mount --on-lost-buffer restore`: a mount that comes back by itself after its buffer is lost, for a buffer on storage
//! that a cloud takes away.
//!
//! If the store was closed cleanly, it has every change, and gets a new buffer: nothing is lost. Otherwise what it has is of
//! different points in time. Each volume's name then goes to a clone of its newest epoch.
//!
//! The steps, with the store locked:
//!
//! 1. Search the buffer everywhere, strictly: a place that cannot be read may have it. Check all that follows.
//! 2. Make the new buffer, in a place where nothing is lost.
//! 3. Search again, as step 2 may take minutes. Then, in the directory of a store, the new buffer gets the name `buffer`, or a link of
//!    that name leads to it.
//! 4. Open the store with the new buffer. The checkpoint with which it begins names that buffer, and has the restored volumes.
//!
//! A crash before step 4 leaves the volumes and the lost buffer's last place as they were, and an unused buffer, which the next
//! attempt makes anew.

use crate::blank_check;
use crate::cli::{LostBufferAnswer, MountArgs};
use crate::daemon::ensure_caller_waits;
use crate::epoch_keeper;
use crate::error::WeirError;
use crate::format::{
    BUFFER_DEFAULT, FormatUndo, MediumPlan, ensure_allowed, ensure_durable, make_buffer_disk, plan_buffer,
    sync_names_beside,
};
use crate::mount_point::MountPoint;
use crate::replace_buffer::LSN_GAP;
use crate::volume::rfc3339;
use buffer::{Buffer, BufferIdentity};
use device::{BLOCK_BYTES, BufferId, Device, Lsn};
use host::{DiskAccess, random_bytes, shell_quoted};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use stack::{
    BUFFER_FILE, BufferSearch, MediumKind, NEW_BUFFER_FILE, PlaceContent, SearchedPlace, StackError,
    StoreMedia, absolute, describe_store, ensure_leads_somewhere, medium_kind, open_medium, search_buffer,
    store_of, volume_named,
};
use std::fs;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{Store, VolumeMode, VolumeRestoration};

/// How often a mount looks whether the device of its buffer has come.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes of a block. A buffer does not use the rest of a device after its last whole block.
const BLOCK: u64 = BLOCK_BYTES as u64;

/// The attempts of a mount whose buffer may be lost.
pub(crate) struct LostBuffer<'a> {
    args: &'a MountArgs,
    /// Until when the device may come.
    patience: Instant,
    /// Whether the user was told of the wait.
    was_told: bool,
    /// Whether the next attempt is the last.
    is_over: bool,
}

/// The next attempt of a mount whose buffer was not in its place.
pub(crate) enum NextAttempt {
    /// As before.
    Repeat,
    /// With the buffer, which is here.
    With(PathBuf),
    /// With a new buffer.
    Restore,
}

impl LostBuffer<'_> {
    pub(crate) fn of(args: &MountArgs) -> LostBuffer<'_> {
        let patience = Instant::now() + Duration::from_secs(args.lost_buffer_wait);
        LostBuffer { args, patience, was_told: false, is_over: false }
    }

    /// Whether this mount restores.
    pub(crate) fn restores(&self) -> bool {
        self.args.on_lost_buffer == Some(LostBufferAnswer::Restore)
    }

    /// Whether there is another attempt after this error.
    pub(crate) fn is_for(&self, error: &StackError) -> bool {
        let is_of_buffer = match error {
            StackError::BufferMissing { .. } | StackError::OtherBuffer { .. } => true,
            StackError::Host { path, .. } => store_of(&self.args.path).is_ok_and(|store| store != *path),
            _ => error.is_of_another_buffer(),
        };
        self.restores() && !self.is_over && is_of_buffer
    }

    /// Searches the buffer everywhere. If it is nowhere, waits a moment, until its time is over.
    pub(crate) fn search_or_wait(&mut self, missing: &StackError) -> Result<NextAttempt, WeirError> {
        let (name, store) = (absolute(&self.args.path)?, store_of(&self.args.path)?);
        let searched = search_buffer(&name, &store, &places_of(self.args));
        if let Ok(BufferSearch::Found(found)) = searched {
            if self.args.buffer.is_some() {
                tracing::warn!("{}: its buffer is {}: correct `--buffer`", name.display(), found.display());
            }
            self.is_over = true;
            return Ok(NextAttempt::With(found));
        }
        if Instant::now() < self.patience {
            if !std::mem::replace(&mut self.was_told, true) {
                tracing::warn!("{missing}; waiting for it, {} s at most", self.args.lost_buffer_wait);
            }
            std::thread::sleep(LOOK_INTERVAL);
            return Ok(NextAttempt::Repeat);
        }
        self.is_over = true;
        searched?;
        Ok(NextAttempt::Restore)
    }
}

/// A store that gets a new buffer in place of a lost one. The store names it when it is opened.
pub(crate) struct Restoration {
    /// Dropped before `store`, so that no other process makes a buffer meanwhile.
    new_buffer: UnnamedBuffer,
    pub(crate) media: StoreMedia,
    /// The store's medium, locked.
    pub(crate) store: Arc<dyn Device>,
    /// The new buffer.
    pub(crate) buffer: BufferId,
    pub(crate) volumes: Vec<VolumeRestoration>,
    /// Whether the store may lack changes that the lost buffer had.
    needed_buffer: bool,
    /// The names of these volumes, in the same order.
    names: Vec<String>,
}

/// A new buffer. If the store names the lost one in the end, the files that were made for the new one are removed.
struct UnnamedBuffer {
    store: PathBuf,
    lost: Option<BufferId>,
    undo: FormatUndo,
    /// A link that the entry `buffer` replaces, and where it leads.
    link: Option<(PathBuf, PathBuf)>,
    /// Whether it is known that the store names it.
    is_named: bool,
}

impl Drop for UnnamedBuffer {
    fn drop(&mut self) {
        if self.is_named {
            return;
        }
        let known = describe_store(&self.store);
        if known.is_ok_and(|known| known.settings.buffer == self.lost) {
            std::mem::take(&mut self.undo).run();
            if let Some((link, to)) = &self.link {
                let _ = symlink(to, link);
            }
        }
    }
}

impl Restoration {
    /// Checks everything, and makes the new buffer.
    pub(crate) fn prepare(args: &MountArgs) -> Result<Restoration, WeirError> {
        let (name, path) = (absolute(&args.path)?, store_of(&args.path)?);
        let disk: Arc<dyn Device> = Arc::new(open_medium(&path, DiskAccess::Write)?);
        let places = search(args, &name, &path)?;
        MountPoint::check(&args.dir, args.allow_other, &name)?;
        let failed = |source| StackError::Store { path: name.clone(), source };
        let store = Store::open(disk.clone()).map_err(failed)?;
        let needed_buffer = store.needs_buffer();
        let volumes = restorations(&store, &name, &args.volume)?;
        let described = store.volumes().describe();
        let name_of = |one: &VolumeRestoration| {
            described.iter().find(|volume| volume.id == one.volume).map(|volume| volume.name.clone())
        };
        let names = volumes.iter().filter_map(name_of).collect();
        let settings = store.settings();
        let bytes = settings.buffer_bytes.unwrap_or(BUFFER_DEFAULT.0);
        let place = NewBufferPlace::choose(args, (&path, bytes), &places)?;
        place.ensure_allowed(args)?;

        let identity = BufferIdentity { store: store.id(), id: BufferId(random_bytes()) };
        let newest = Lsn(store.data().newest_lsn().0 + LSN_GAP);
        drop(store);
        let (lost, undo) = (settings.buffer, FormatUndo::default());
        let mut new_buffer = UnnamedBuffer { store: path.clone(), lost, undo, link: None, is_named: false };
        let entry = place.entry.as_ref();
        new_buffer.link = entry.and_then(|entry| Some((entry.clone(), entry.read_link().ok()?)));
        place.format(identity, newest, &mut new_buffer.undo)?;
        // That may have taken minutes, in which the lost one may have come back, or somebody may have ended the command to attach it.
        search(args, &name, &path)?;
        ensure_caller_waits(args)?;
        let placed = place.put_in_place(&mut new_buffer.undo);
        if placed.is_err() {
            // It has come back at this moment, perhaps.
            search(args, &name, &path)?;
        }
        let media = StoreMedia::find(&args.path, Some(&placed?))?;
        Ok(Restoration { media, store: disk, buffer: identity.id, volumes, needed_buffer, names, new_buffer })
    }

    /// Tells what is lost, once the store is open.
    pub(crate) fn report(self) {
        let Restoration { media, volumes, needed_buffer, names, mut new_buffer, .. } = self;
        new_buffer.is_named = true;
        let (store, buffer) = (shell_quoted(&media.name), media.buffer.display());
        if !needed_buffer {
            tracing::warn!(
                "{store}: the buffer is gone; a new one is at {buffer}. Nothing is lost: the store had every change"
            );
            return;
        }
        tracing::warn!(
            "{store}: the buffer is lost; a new one is at {buffer}. Changes that only the lost one had are LOST"
        );
        for (VolumeRestoration { kept_name, snapshot, .. }, name) in volumes.iter().zip(names) {
            let Some(snapshot) = snapshot else {
                tracing::warn!(
                    "volume {name} has no epoch to go on from, and is volume {kept_name} now. If it was neither mounted nor exported \
                     since the store was last closed cleanly, it is undamaged: `weir volume rename {store} {kept_name} {name}`"
                );
                continue;
            };
            let as_of = rfc3339(snapshot.created / 1_000_000_000);
            tracing::warn!(
                "volume {name} is as of {as_of} now. What it was, newer and perhaps damaged, is volume {kept_name}: `weir mount \
                 --volume {kept_name} {store} DIR && find DIR -newermt {as_of}` (a block volume: `weir export {store} {kept_name} --socket PATH`)"
            );
        }
    }
}

/// The places that the command names.
fn places_of(args: &MountArgs) -> Vec<&Path> {
    [&args.buffer, &args.new_buffer].into_iter().flatten().map(PathBuf::as_path).collect()
}

/// Searches the buffer, and refuses if it is there.
fn search(args: &MountArgs, name: &Path, store: &Path) -> Result<Vec<SearchedPlace>, WeirError> {
    match search_buffer(name, store, &places_of(args))? {
        BufferSearch::Lost(places) => Ok(places),
        BufferSearch::Found(buffer) => Err(WeirError::BufferCame { buffer }),
    }
}

/// What becomes of the volumes: nothing if the store has every change. Refuses if the volume `wanted` could not be mounted.
fn restorations(store: &Store, path: &Path, wanted: &str) -> Result<Vec<VolumeRestoration>, WeirError> {
    let wanted = volume_named(store, path, wanted)?;
    if !store.needs_buffer() {
        return Ok(Vec::new());
    }
    if let Some(rescued) = epoch_keeper::rescued(store) {
        return Err(WeirError::BufferLostAfterRescue { path: path.into(), rescued });
    }
    let all = epoch_keeper::restorations(store);
    // A damaged state that somebody goes on with is not restored.
    let is_restored = |one: &VolumeRestoration| one.volume == wanted.id && one.snapshot.is_some();
    if wanted.mode == VolumeMode::Writable && !all.iter().any(is_restored) {
        return Err(WeirError::NoEpoch { path: path.into(), volume: wanted.name });
    }
    Ok(all)
}

/// The size of a file or device, in bytes.
fn medium_bytes(path: &Path) -> Result<u64, WeirError> {
    let end = fs::File::open(path).and_then(|mut medium| medium.seek(SeekFrom::End(0)));
    end.map_err(WeirError::io("finding its size", path))
}

fn is_absent_or_empty(path: &Path) -> Result<bool, WeirError> {
    Ok(match medium_kind(path)? {
        MediumKind::Absent => true,
        MediumKind::File => medium_bytes(path)? == 0,
        _ => false,
    })
}

/// Where the new buffer is made.
struct NewBufferPlace {
    plan: MediumPlan,
    /// The entry `buffer` of the store's directory, if it does not lead there yet.
    entry: Option<PathBuf>,
    /// Whether nothing has that name.
    is_entry_free: bool,
    /// Places where an attempt that was cut off has left an unused buffer.
    left_over: Vec<PathBuf>,
}

impl NewBufferPlace {
    /// The place that was asked for; else the lost buffer's device, if it has come back blank and with its size; else a file in the
    /// directory of the store. `bytes` is the size of the lost buffer.
    fn choose(
        args: &MountArgs,
        (store, bytes): (&Path, u64),
        places: &[SearchedPlace],
    ) -> Result<NewBufferPlace, WeirError> {
        let is_in_directory = medium_kind(store)? == MediumKind::File;
        let entry = is_in_directory.then(|| store.with_file_name(BUFFER_FILE));
        let unfinished = is_in_directory.then(|| store.with_file_name(NEW_BUFFER_FILE));
        let (mut devices, mut left_over, mut other_data) = (Vec::new(), Vec::new(), None);
        for SearchedPlace { path, content } in places {
            match content {
                PlaceContent::Nothing | PlaceContent::BufferOfOther => continue,
                PlaceContent::UnusedBuffer => left_over.push(path.clone()),
                PlaceContent::Blank => {}
                PlaceContent::OtherData(what) => {
                    other_data.get_or_insert((path, what));
                    continue;
                }
            }
            // Another size is another device, which has the name of the lost one now.
            if medium_kind(path)? == MediumKind::BlockDevice && medium_bytes(path)? / BLOCK == bytes / BLOCK {
                devices.push(path);
            }
        }
        if let Some(path) = &args.new_buffer {
            ensure_leads_somewhere(path)?;
            // A file there would be in memory, and in the way of the device.
            if path.starts_with("/dev") && medium_kind(path)? == MediumKind::Absent {
                return Err(StackError::Missing { path: path.clone() }.into());
            }
        }
        let (plan, entry) = match (&args.new_buffer, devices.first(), unfinished) {
            // A crash may have left a file without its length.
            (Some(path), ..) if is_absent_or_empty(path)? => {
                (MediumPlan::Create { path: path.clone(), bytes }, entry)
            }
            (Some(path), ..) => (plan_buffer(path.clone(), None)?, entry),
            (None, Some(device), _) => (plan_buffer(device.to_path_buf(), None)?, None),
            (None, None, Some(path)) => (MediumPlan::Create { path, bytes }, entry),
            (None, None, None) => {
                let why = match other_data {
                    Some((path, what)) => format!("{} holds {what}", path.display()),
                    None => "its device is not there".to_owned(),
                };
                return Err(WeirError::NewBufferWanted { path: args.path.clone(), why });
            }
        };
        // The entry itself may have been asked for.
        let directory = plan.path().parent().and_then(|directory| directory.canonicalize().ok());
        let place = directory.zip(plan.path().file_name()).map(|(directory, name)| directory.join(name));
        let entry = entry.filter(|entry| place.as_ref() != Some(entry));
        let is_entry_free = entry.as_ref().is_some_and(|entry| entry.symlink_metadata().is_err());
        Ok(NewBufferPlace { plan, entry, is_entry_free, left_over })
    }

    fn ensure_allowed(&self, args: &MountArgs) -> Result<(), WeirError> {
        let is_left_over = |path: &Path| self.left_over.iter().any(|left| left == path);
        ensure_allowed(&self.plan, is_left_over(self.plan.path()))?;
        // The file that is there would be removed for the new one.
        let path = self.plan.path();
        if matches!(self.plan, MediumPlan::Create { .. }) && path.exists() && !is_left_over(path) {
            blank_check::ensure_blank(path)?;
        }
        if !args.buffer_medium.volatile_buffer {
            ensure_durable(&self.plan)?;
        }
        // The new buffer, or a link to it, replaces a link, an unused buffer or a blank file. The link is made beside it first.
        let replaced =
            self.entry.iter().flat_map(|entry| [entry.clone(), entry.with_file_name(NEW_BUFFER_FILE)]);
        for path in replaced.filter(|path| path.exists() && !path.is_symlink() && !is_left_over(path)) {
            blank_check::ensure_blank(&path)?;
        }
        Ok(())
    }

    /// Makes the new buffer, without replacing anything that may be in use.
    fn format(&self, identity: BufferIdentity, newest: Lsn, undo: &mut FormatUndo) -> Result<(), WeirError> {
        let path = self.plan.path();
        if let (MediumPlan::Create { .. }, true) = (&self.plan, path.symlink_metadata().is_ok()) {
            fs::remove_file(path).map_err(WeirError::io("removing an unfinished buffer", path))?;
        }
        let disk = make_buffer_disk(&self.plan, undo)?;
        Buffer::format_after(&disk, identity, newest)
            .map_err(|source| StackError::Cache { path: path.into(), source: source.into() })?;
        sync_names_beside(&absolute(path)?)
    }

    /// Lets the entry `buffer` be the new buffer, or lead there, and returns the path that the store will name.
    fn put_in_place(&self, undo: &mut FormatUndo) -> Result<PathBuf, WeirError> {
        let path = self.plan.path();
        let Some(entry) = &self.entry else { return Ok(path.into()) };
        let beside = entry.with_file_name(NEW_BUFFER_FILE);
        if beside != path {
            let _ = fs::remove_file(&beside);
            symlink(absolute(path)?, &beside).map_err(WeirError::io("making the link", &beside))?;
        }
        // A buffer that comes back at this moment stays.
        let moved =
            if self.is_entry_free { rename_unless_there(&beside, entry) } else { fs::rename(&beside, entry) };
        moved.map_err(WeirError::io("putting the new buffer in its place", entry))?;
        undo.add(entry.clone());
        sync_names_beside(entry)?;
        Ok(entry.clone())
    }
}

fn rename_unless_there(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can do so.
        Err(Errno::INVAL) => fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}
