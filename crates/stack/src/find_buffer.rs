//! Finds a store's buffer that the user does not name: in its last place, beside the store, then on the block
//! devices.
//!
//! The store knows the identity of its buffer, so no other buffer is taken for it. If two media have that
//! identity, one is a copy, and neither is taken.

use crate::error::StackError;
use crate::media::{BUFFER_FILE, MediumKind, absolute, medium_kind};
use buffer::{Buffer, BufferIdentity};
use device::{Block, Device};
use host::HostDisk;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Store, StoreSettings};

/// The kernel's list of block devices.
const DEVICES: &str = "/sys/class/block";

/// The smallest device that can be a buffer, 1 MiB, in the kernel's sectors of 512 bytes.
const SECTORS_MIN: u64 = 2048;

/// The facts about a store that can be read without opening it.
pub struct StoreDescription {
    /// The settings that the store keeps for its mounts.
    pub settings: StoreSettings,
    /// Problems with these settings.
    pub warnings: Vec<String>,
    id: device::StoreId,
}

/// Reads a store's description. Another process may have the store open.
pub fn describe_store(store: &Path) -> Result<StoreDescription, StackError> {
    let disk =
        HostDisk::open_unlocked(store).map_err(|source| StackError::Host { path: store.into(), source })?;
    let failed = |source| StackError::Store { path: store.into(), source };
    let store = Store::identify(Arc::new(disk)).map_err(failed)?;
    let (settings, warnings) = store.settings().map_err(failed)?;
    Ok(StoreDescription { settings, warnings, id: store.id() })
}

/// Finds the buffer of the store on the medium `store`, which the user calls `name`.
///
/// If no medium is that buffer, but a file or link named `buffer` lies beside the store, returns its path:
/// the error from opening it says more than "not found".
pub(crate) fn find_buffer(
    name: &Path,
    store: &Path,
    known: Result<StoreDescription, StackError>,
) -> Result<PathBuf, StackError> {
    let directory = store.parent().unwrap_or(Path::new("/"));
    let beside = directory.join(BUFFER_FILE);
    let has_beside = medium_kind(store)? == MediumKind::File && beside.symlink_metadata().is_ok();
    let known = match known {
        Ok(known) => known,
        Err(_) if has_beside => return Ok(beside),
        Err(error) => return Err(error),
    };
    let last = known.settings.buffer_path.as_ref().map(|place| directory.join(OsStr::from_bytes(place)));
    let mut places: Vec<PathBuf> = last.into_iter().collect();
    if medium_kind(store)? == MediumKind::File && !places.contains(&beside) {
        places.push(beside.clone());
    }
    if let Some(found) = only_one(name, places.iter().filter(|place| is_wanted_buffer(place, &known)))? {
        return Ok(found);
    }
    let devices = devices();
    if let Some(found) = only_one(name, devices.iter().filter(|device| is_wanted_buffer(device, &known)))? {
        return Ok(found);
    }
    if has_beside {
        return Ok(beside);
    }
    let places: Vec<String> =
        places.iter().map(|place| format!("{}{}", place.display(), why_not_a_buffer(place))).collect();
    let looked = format!(": not {}, nor on one of {} block devices", places.join(", nor "), devices.len());
    let looked =
        if places.is_empty() { format!(": on none of {} block devices", devices.len()) } else { looked };
    Err(StackError::BufferMissing { path: name.into(), looked })
}

/// The medium to which these paths lead, if there is one. Two media are an error.
fn only_one<'a>(
    name: &Path,
    paths: impl Iterator<Item = &'a PathBuf>,
) -> Result<Option<PathBuf>, StackError> {
    let mut media = paths.map(|path| absolute(path)).collect::<Result<Vec<_>, _>>()?;
    media.sort();
    media.dedup();
    match &media[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        [one, other, ..] => {
            Err(StackError::TwoBuffers { store: name.into(), one: one.clone(), other: other.clone() })
        }
    }
}

/// Whether `path` is the buffer that the store was used with last. If the store does not know that buffer,
/// any buffer of the store is accepted.
fn is_wanted_buffer(path: &Path, known: &StoreDescription) -> bool {
    let Ok(BufferIdentity { store, id }) = identify(path) else { return false };
    store == known.id && known.settings.buffer.is_none_or(|wanted| wanted == id)
}

fn identify(path: &Path) -> Result<BufferIdentity, String> {
    let disk = HostDisk::open_unlocked(path).map_err(|error| error.to_string())?;
    let found = Buffer::identify(&disk).map_err(|error| error.to_string())?;
    // A medium that cannot be read to its end is not a buffer.
    let mut last = device::pages(1);
    disk.read(Block(disk.blocks() - 1), &mut last).map_err(|error| error.to_string())?;
    Ok(found)
}

/// Why the medium at `path` is not a buffer, in brackets.
fn why_not_a_buffer(path: &Path) -> String {
    match (path.read_link(), medium_kind(path)) {
        (Ok(to), Ok(MediumKind::Absent)) => {
            format!(", a symbolic link to {}, which does not exist", to.display())
        }
        (_, Ok(MediumKind::Absent)) => String::new(),
        _ => identify(path).err().map(|why| format!(" ({why})")).unwrap_or_default(),
    }
}

/// The block devices that are large enough and that no other device holds: the content of a held device is
/// found on its holder.
fn devices() -> Vec<PathBuf> {
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let of_its_own = |at: &Path| {
        let sectors = fs::read_to_string(at.join("size")).ok().and_then(|size| size.trim().parse().ok());
        let held = fs::read_dir(at.join("holders")).is_ok_and(|mut holders| holders.next().is_some());
        !held && sectors.is_some_and(|sectors: u64| sectors >= SECTORS_MIN)
    };
    let named = entries.filter(|entry| of_its_own(&entry.path())).map(|entry| {
        // The kernel writes `!` for a slash.
        Path::new("/dev").join(entry.file_name().to_string_lossy().replace('!', "/"))
    });
    let mut found: Vec<PathBuf> = named.filter(|path| path.exists()).collect();
    found.sort();
    found
}

/// The path of `buffer` as the store keeps it: relative if it lies in the directory of the store, so that
/// both can be moved together.
pub(crate) fn place_of(buffer: &Path, store: &Path) -> Vec<u8> {
    let beside = store.parent().and_then(|directory| buffer.strip_prefix(directory).ok());
    let beside = beside.filter(|_| medium_kind(store).is_ok_and(|what| what == MediumKind::File));
    beside.unwrap_or(buffer).as_os_str().as_bytes().to_vec()
}
