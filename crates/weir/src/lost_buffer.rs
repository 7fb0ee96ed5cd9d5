//! `weir mount --on-lost-buffer restore`: a mount that comes back by itself after its buffer is lost, for a buffer on storage
//! that a cloud takes away. What the store has is of different points in time, so each volume gets the state of its newest
//! epoch, under its own name.

use crate::cli::{BufferMediumArgs, LostBufferAnswer, MountArgs, ReplaceBufferArgs};
use crate::error::WeirError;
use crate::replace_buffer::{LossAnswer, replace};
use crate::volume::rfc3339;
use host::shell_quoted;
use stack::{BUFFER_FILE, MediumKind, StackError, absolute, describe_store, medium_kind, store_of};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a mount looks whether the device of its buffer has come.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What a mount does about a lost buffer.
pub(crate) struct LostBuffer<'a> {
    args: &'a MountArgs,
    /// Until when the device may come.
    patience: Instant,
    /// Whether a new buffer was made.
    is_restored: bool,
}

impl LostBuffer<'_> {
    pub(crate) fn of(args: &MountArgs) -> LostBuffer<'_> {
        let patience = Instant::now() + Duration::from_secs(args.lost_buffer_wait);
        LostBuffer { args, patience, is_restored: false }
    }

    /// Whether the mount waits or makes a new buffer after this error.
    pub(crate) fn is_for(&self, error: &StackError) -> bool {
        let is_lost = error.is_of_another_buffer() || matches!(error, StackError::BufferMissing { .. });
        let restores = self.args.on_lost_buffer == LostBufferAnswer::Restore;
        is_lost && restores && !self.is_restored && !self.args.read_only
    }

    /// Waits a moment for the buffer, or makes a new one if it did not come. Returns the new one's place.
    pub(crate) fn wait_or_restore(&mut self) -> Result<Option<PathBuf>, WeirError> {
        if Instant::now() < self.patience {
            std::thread::sleep(LOOK_INTERVAL);
            return Ok(None);
        }
        self.is_restored = true;
        let args = self.args;
        let replaced = replace(
            &ReplaceBufferArgs {
                path: args.path.clone(),
                buffer: new_place(args)?,
                buffer_size: None,
                old: None,
                accept_loss: true,
                force: false,
                buffer_medium: BufferMediumArgs { volatile_buffer: args.buffer_medium.volatile_buffer },
            },
            &LossAnswer::RollBack { wanted: &args.volume },
        )?;
        let path = shell_quoted(&args.path);
        match &replaced.old.lost {
            None => tracing::warn!("{path}: the buffer has come while it was replaced; nothing is lost"),
            Some(why) => tracing::warn!(
                "{path}: the buffer is lost ({why}). A new one is at {}. Changes that were not in the store are LOST",
                replaced.place.display()
            ),
        }
        for restored in &replaced.restored {
            let as_of = rfc3339(restored.volume.created / 1_000_000_000);
            let (name, kept) = (&restored.volume.name, restored.damaged.as_deref().unwrap_or_default());
            tracing::warn!(
                "volume {name} is as of {as_of} now. Newer files may be in volume {kept}, which may be damaged: \
                 `weir mount --volume {kept} {path} DIR && find DIR -newermt {as_of}`"
            );
        }
        Ok(Some(replaced.place))
    }
}

/// Where the new buffer is made: as asked for, or in the place of the lost one. `None`: in the directory of the store.
fn new_place(args: &MountArgs) -> Result<Option<PathBuf>, WeirError> {
    if let Some(place) = &args.new_buffer {
        return Ok(Some(place.clone()));
    }
    let is_there = |path: &Path| medium_kind(path).is_ok_and(|kind| kind == MediumKind::BlockDevice);
    if let Some(given) = args.buffer.as_ref().filter(|given| is_there(given)) {
        return Ok(Some(given.clone()));
    }
    if medium_kind(&args.path)? == MediumKind::Directory {
        // A link to a device that has come back blank.
        let entry = absolute(&args.path)?.join(BUFFER_FILE);
        return Ok(entry.canonicalize().ok().filter(|device| is_there(device)));
    }
    let store = store_of(&args.path)?;
    let last = describe_store(&store)?.settings.buffer_path;
    let directory = store.parent().unwrap_or(Path::new("/"));
    let last = last.map(|place| directory.join(OsStr::from_bytes(&place)));
    match last.filter(|place| is_there(place)) {
        Some(place) => Ok(Some(place)),
        None => Err(WeirError::NewBufferWanted { path: args.path.clone() }),
    }
}
