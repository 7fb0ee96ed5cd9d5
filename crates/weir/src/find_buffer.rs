//! Where a store's buffer is, if nobody says so: its last place, then beside the store, then the block devices of this machine.
//!
//! The store knows the identity of its buffer, so another one is not taken for it, and none of two that say to be it.

use crate::error::WeirError;
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

/// Less than that is no buffer: 1 MiB, in the sectors that the kernel counts in.
const SECTORS_MIN: u64 = 2048;

/// What a store says of itself, to who only looks.
pub(crate) struct StoreDescription {
    pub(crate) settings: StoreSettings,
    /// What is wrong with them.
    pub(crate) wrong: Vec<String>,
    id: device::StoreId,
}

/// Reads what a store says of itself. Others may have it open.
pub(crate) fn describe_store(store: &Path) -> Result<StoreDescription, WeirError> {
    let disk =
        HostDisk::open_unlocked(store).map_err(|source| WeirError::Host { path: store.into(), source })?;
    let failed = |source| WeirError::Store { path: store.into(), source };
    let store = Store::identify(Arc::new(disk)).map_err(failed)?;
    let (settings, wrong) = store.settings().map_err(failed)?;
    Ok(StoreDescription { settings, wrong, id: store.id() })
}

/// Finds the buffer of the store whose medium is `store`, and which the user calls `name`. Where there is none but something else has
/// its place beside the store, it is that: who opens it says what is wrong with it.
pub(crate) fn find_buffer(
    name: &Path,
    store: &Path,
    known: Result<StoreDescription, WeirError>,
) -> Result<PathBuf, WeirError> {
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
    Err(WeirError::BufferMissing { path: name.into(), looked })
}

/// The one medium that these paths lead to, if there is one; refused, if there are two.
fn only_one<'a>(name: &Path, paths: impl Iterator<Item = &'a PathBuf>) -> Result<Option<PathBuf>, WeirError> {
    let mut media = paths.map(|path| absolute(path)).collect::<Result<Vec<_>, _>>()?;
    media.sort();
    media.dedup();
    match &media[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        [one, other, ..] => {
            Err(WeirError::TwoBuffers { store: name.into(), one: one.clone(), other: other.clone() })
        }
    }
}

/// Whether the buffer that the store was used with last is at `path`: that of any of its mounts, if the store does not know.
fn is_wanted_buffer(path: &Path, known: &StoreDescription) -> bool {
    let Ok(BufferIdentity { store, id }) = identify(path) else { return false };
    store == known.id && known.settings.buffer.is_none_or(|wanted| wanted == id)
}

fn identify(path: &Path) -> Result<BufferIdentity, String> {
    let disk = HostDisk::open_unlocked(path).map_err(|error| error.to_string())?;
    let found = Buffer::identify(&disk).map_err(|error| error.to_string())?;
    // One that cannot be read to its end is none.
    let mut last = device::pages(1);
    disk.read(Block(disk.blocks() - 1), &mut last).map_err(|error| error.to_string())?;
    Ok(found)
}

/// Why it is not what is at `path`, in brackets.
fn why_not_a_buffer(path: &Path) -> String {
    match (path.read_link(), medium_kind(path)) {
        (Ok(to), Ok(MediumKind::Absent)) => {
            format!(", a symbolic link to {}, which does not exist", to.display())
        }
        (_, Ok(MediumKind::Absent)) => String::new(),
        _ => identify(path).err().map(|why| format!(" ({why})")).unwrap_or_default(),
    }
}

/// The block devices of this machine that are large enough and no part of another one: what lies on those is seen there.
fn devices() -> Vec<PathBuf> {
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let of_its_own = |at: &Path| {
        let sectors = fs::read_to_string(at.join("size")).ok().and_then(|size| size.trim().parse().ok());
        let held = fs::read_dir(at.join("holders")).is_ok_and(|mut holders| holders.next().is_some());
        !held && sectors.is_some_and(|sectors: u64| sectors >= SECTORS_MIN)
    };
    let named = entries.filter(|entry| of_its_own(&entry.path())).map(|entry| {
        // The kernel writes a slash so.
        Path::new("/dev").join(entry.file_name().to_string_lossy().replace('!', "/"))
    });
    let mut found: Vec<PathBuf> = named.filter(|path| path.exists()).collect();
    found.sort();
    found
}

/// How the place of `buffer` is kept: from the directory of the store on, if it lies there, so that both can be moved together.
pub(crate) fn place_of(buffer: &Path, store: &Path) -> Vec<u8> {
    let beside = store.parent().and_then(|directory| buffer.strip_prefix(directory).ok());
    let beside = beside.filter(|_| medium_kind(store).is_ok_and(|what| what == MediumKind::File));
    beside.unwrap_or(buffer).as_os_str().as_bytes().to_vec()
}
