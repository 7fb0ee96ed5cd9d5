//! `weir replace-buffer`: another buffer for a store, because of a better device, or because the old one is lost.
//!
//! In this order, so that a crash or an error at any point leaves one buffer that is whole, and a name that leads to it:
//! what the old one holds is written back, the new one is laid out, the store knows it and refuses all others, the store's entry
//! `buffer` leads to it, and the old one is a buffer no more. Until then the old one is as it was: at most the end of its log is
//! written again, so that it is durable; it need not be writable. One that cannot be read stays as it is, under another name if need be.

use crate::byte_size::ByteSize;
use crate::cli::ReplaceBufferArgs;
use crate::error::WeirError;
use crate::find_buffer::describe_store;
use crate::format::{
    BUFFER_DEFAULT, BUFFER_MIN, FormatUndo, MediumPlan, bytes_of, ensure_allowed, ensure_durable,
    make_buffer_disk, plan_buffer, sync_names_beside,
};
use crate::media::{self, BUFFER_FILE, MediumKind, StoreMedia, absolute, medium_kind, store_of};
use crate::storage_stack::{WrittenBack, begin_with_new_buffer, write_back};
use crate::volume::rfc3339;
use buffer::{Buffer, BufferIdentity};
use cache::UNFINISHED_RESCUE;
use device::{BufferId, Lsn, OverlayDevice, StoreId};
use host::{DiskAccess, random_bytes, shell_quoted};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Store, VolumeInfo};

/// LSNs that are left out. More than a lost buffer can have given out since the last page was written back; so the store, which
/// is told of the new one's beginning, refuses the lost one, should it come back.
const GAP: u64 = 1 << 40;

/// How the name of a new buffer ends until it has taken its place.
const NEW: &str = "new";

/// How the name of an old buffer that could not be read ends.
const OLD: &str = "old";

/// What is known of the old buffer.
struct OldBuffer {
    /// Where it is or was; `None`: nobody knows.
    path: Option<PathBuf>,
    /// Why what it held is lost; `None`: it is stored.
    lost: Option<WeirError>,
    bytes: ByteSize,
    store: StoreId,
    /// What is in the store by now.
    written: WrittenBack,
    /// The store's volumes. All but the one whose records the buffer held are whole.
    volumes: Vec<String>,
}

pub(crate) fn run(args: &ReplaceBufferArgs) -> Result<(), WeirError> {
    let directory = entry_of(&args.path)?;
    let plan = plan(args, directory.as_deref())?;
    ensure_allowed(&plan, args.force)?;
    if !args.buffer_medium.volatile_buffer {
        ensure_durable(&plan)?;
    }
    let old = read_old_buffer(args)?;
    if let Some(why) = old.lost.as_ref().filter(|_| !args.accept_loss) {
        return Err(WeirError::BufferLost { path: args.path.clone(), why: why.to_string() });
    }
    let mut undo = FormatUndo::default();
    let identity = BufferIdentity { store: old.store, id: BufferId(random_bytes()) };
    let like = args.buffer_size.is_none().then_some(old.bytes);
    let made = ensure_kept(directory.as_deref(), &old)
        .and_then(|()| make(&plan, like, identity, &old, &mut undo))
        .and_then(|bytes| StoreMedia::find(&args.path, Some(plan.path())).map(|media| (bytes, media)))
        .and_then(|(bytes, media)| {
            Ok((bytes, begin_with_new_buffer(&media, old.lost.is_none().then_some(&old.written))?))
        });
    let (bytes, restored) = match made {
        Ok(made) => made,
        Err(error) => {
            // Once the store knows the new one, it must not be taken away.
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
    tell(args, &old, (bytes, &restored), retired.err());
    media::warn_of_readers(new);
    Ok(())
}

/// The entry `buffer` of a store that is a directory.
fn entry_of(path: &Path) -> Result<Option<PathBuf>, WeirError> {
    let is_directory = medium_kind(path)? == MediumKind::Directory;
    store_of(path)?;
    Ok(if is_directory { Some(absolute(path)?.join(BUFFER_FILE)) } else { None })
}

/// Where the new one goes: beside the entry until it takes that place, if nothing else is said.
fn plan(args: &ReplaceBufferArgs, entry: Option<&Path>) -> Result<MediumPlan, WeirError> {
    let path = match (&args.buffer, entry) {
        (Some(buffer), _) => buffer.clone(),
        (None, Some(entry)) => entry.with_extension(NEW),
        (None, None) => return Err(WeirError::BufferWanted { path: args.path.clone() }),
    };
    plan_buffer(path, args.buffer_size)
}

/// Writes back what the old buffer holds, where it can be read.
fn read_old_buffer(args: &ReplaceBufferArgs) -> Result<OldBuffer, WeirError> {
    let disk = media::open(&store_of(&args.path)?, DiskAccess::Read)?;
    let store = Store::open(Arc::new(OverlayDevice::new(disk)))
        .map_err(|source| WeirError::Store { path: args.path.clone(), source })?;
    let volumes = store.describe_volumes();
    let mut old = OldBuffer {
        path: None,
        lost: None,
        bytes: BUFFER_DEFAULT,
        store: store.id(),
        written: WrittenBack { newest: store.newest_lsn(), lost: Vec::new() },
        volumes: volumes
            .into_iter()
            .map(|volume| volume.name)
            .filter(|name| !name.starts_with(UNFINISHED_RESCUE))
            .collect(),
    };
    // It is locked while it is open.
    drop(store);
    let media = match StoreMedia::find(&args.path, args.old.as_deref()) {
        Ok(media) => media,
        // Another path than the buffer's is a mistake, and not the loss of what the buffer holds.
        Err(error @ WeirError::BufferMissing { .. }) if args.old.is_some() => {
            return Err(error.not_its_buffer());
        }
        Err(error @ WeirError::BufferMissing { .. }) => {
            old.lost = Some(error);
            return Ok(old);
        }
        Err(error) => return Err(error),
    };
    old.path = Some(media.buffer.clone());
    let written = write_back(&media);
    // Also of one that is refused; what is less than a buffer has been cut off.
    let bytes = media::open(&media.buffer, DiskAccess::Read).map(|disk| bytes_of(&disk));
    old.bytes = bytes.ok().filter(|bytes| *bytes >= BUFFER_MIN).unwrap_or(old.bytes);
    match written {
        Ok(written) => old.written = written,
        Err(error) if args.old.is_some() && error.is_of_another_buffer() => {
            return Err(error.not_its_buffer());
        }
        Err(error) if error.is_of(&media.buffer) => old.lost = Some(error),
        Err(error) => return Err(error),
    }
    Ok(old)
}

/// Lays out the new one.
fn make(
    plan: &MediumPlan,
    like: Option<ByteSize>,
    identity: BufferIdentity,
    old: &OldBuffer,
    undo: &mut FormatUndo,
) -> Result<ByteSize, WeirError> {
    let disk = match (plan, like) {
        (MediumPlan::Create { path, .. }, Some(ByteSize(bytes))) => {
            make_buffer_disk(&MediumPlan::Create { path: path.clone(), bytes }, undo)?
        }
        _ => make_buffer_disk(plan, undo)?,
    };
    let newest = Lsn(old.written.newest.0 + GAP);
    Buffer::format_after(&disk, identity, newest)
        .map_err(|source| WeirError::Cache { path: plan.path().into(), source: source.into() })?;
    // The old one may go only after that.
    sync_names_beside(&absolute(plan.path())?)?;
    Ok(bytes_of(&disk))
}

/// Refuses to go on where an old buffer that could not be read would have to go.
fn ensure_kept(entry: Option<&Path>, old: &OldBuffer) -> Result<(), WeirError> {
    let Some(entry) = entry.filter(|entry| old.lost.is_some() && entry.symlink_metadata().is_ok()) else {
        return Ok(());
    };
    let kept = entry.with_extension(OLD);
    match kept.symlink_metadata() {
        Ok(_) => Err(WeirError::EarlierBuffer { path: kept }),
        Err(_) => Ok(()),
    }
}

/// Lets the store's entry lead to the new buffer, at once. After an error it leads to the old one.
fn switch(entry: &Path, new: &Path, old: &OldBuffer) -> Result<(), WeirError> {
    let new = absolute(new)?;
    if absolute(entry).is_ok_and(|entry| entry == new) {
        return Ok(());
    }
    if old.lost.is_some() && entry.symlink_metadata().is_ok() {
        let kept = entry.with_extension(OLD);
        // A second name: the first one leads to a buffer at every moment.
        fs::hard_link(entry, &kept).map_err(WeirError::io("keeping the old buffer as buffer.old", entry))?;
    }
    let beside = entry.with_extension(NEW);
    if new != beside {
        // One that a crash has left here leads to nothing that is in use.
        if beside.is_symlink() {
            fs::remove_file(&beside).map_err(WeirError::io("removing an old link", &beside))?;
        }
        symlink(&new, &beside).map_err(WeirError::io("making the link", &beside))?;
    }
    fs::rename(&beside, entry).map_err(WeirError::io("putting the new buffer in its place", entry))
}

/// What is stored needs no buffer: whoever finds the old one later sees that it is none any more.
fn retire(old: &OldBuffer, new: &Path) -> Result<(), WeirError> {
    match &old.path {
        Some(path) if old.lost.is_none() && is_other(path, new) => {
            let failed =
                |source: buffer::BufferError| WeirError::Cache { path: path.clone(), source: source.into() };
            Buffer::retire(&media::open(path, DiskAccess::Write)?).map_err(failed)
        }
        _ => Ok(()),
    }
}

/// Whether the old buffer is still there, and not where the new one is.
fn is_other(old: &Path, new: &Path) -> bool {
    old.exists() && old.canonicalize().ok() != new.canonicalize().ok()
}

fn tell(
    args: &ReplaceBufferArgs,
    old: &OldBuffer,
    (bytes, restored): (ByteSize, &[VolumeInfo]),
    not_retired: Option<WeirError>,
) {
    let new = args.buffer.clone().unwrap_or_else(|| args.path.join(BUFFER_FILE));
    println!("store {}: buffer {bytes} at {}", old.store, new.display());
    let Some(why) = &old.lost else {
        println!("all changes were written back first: nothing is lost");
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
    for volume in restored {
        let (path, as_of) = (shell_quoted(&args.path), rfc3339(volume.created / 1_000_000_000));
        println!("undamaged, as of {as_of}: `weir mount --volume {} {path} DIR`", volume.name);
        println!("  newer files in the damaged volume: `weir mount {path} DIR && find DIR -newermt {as_of}`");
    }
    match &old.volumes[..] {
        [_] => println!("the store has no volume besides the one that was mounted"),
        all => println!("undamaged, except those mounted lately: the volumes {}", all.join(", ")),
    }
}
