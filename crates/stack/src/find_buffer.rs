//! Finds a store's buffer that the user does not name: in its last place, beside the store, then on the block
//! devices.
//!
//! The store knows the identity of its buffer, so no other buffer is taken for it. If two of the media that were looked at have that
//! identity, one is a copy, and neither is taken. A mount looks no further than the first two places if one of them has it.

use crate::block_devices::BlockDevices;
use crate::error::StackError;
use crate::media::{BUFFER_FILE, MediumKind, NEW_BUFFER_FILE, absolute, medium_kind};
use crate::medium_content::{MediumContent, is_unfinished_buffer};
use buffer::{Buffer, BufferError, BufferIdentity};
use device::{BLOCK_BYTES, Block, Device, Incarnation};
use host::{HostDisk, HostError};
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Store, StoreSettings};

/// The facts about a store that can be read without opening it.
pub struct StoreDescription {
    /// The settings that the store keeps for its mounts.
    pub settings: StoreSettings,
    /// Problems with these settings.
    pub warnings: Vec<String>,
    /// [`Store::needs_buffer`].
    pub needs_buffer: bool,
    id: device::StoreId,
}

impl StoreDescription {
    /// Where the buffer of the store on the medium `store` was last, if the store says so.
    pub fn last_place(&self, store: &Path) -> Option<PathBuf> {
        let directory = store.parent().unwrap_or(Path::new("/"));
        self.settings.buffer_path.as_ref().map(|place| directory.join(OsStr::from_bytes(place)))
    }
}

/// Reads a store's description. Another process may have the store open.
pub fn describe_store(store: &Path) -> Result<StoreDescription, StackError> {
    let disk =
        HostDisk::open_unlocked(store).map_err(|source| StackError::Host { path: store.into(), source })?;
    let failed = |source| StackError::Store { path: store.into(), source };
    let store = Store::identify(Arc::new(disk)).map_err(failed)?;
    let (settings, warnings) = store.settings().map_err(failed)?;
    Ok(StoreDescription { settings, warnings, needs_buffer: store.needs_buffer(), id: store.id() })
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
    let mut places: Vec<PathBuf> = known.last_place(store).into_iter().collect();
    if medium_kind(store)? == MediumKind::File && !places.contains(&beside) {
        places.push(beside.clone());
    }
    if let Some(found) = only_one(name, places.iter().filter(|place| is_wanted_buffer(place, &known)))? {
        return Ok(found);
    }
    let devices = BlockDevices::of_kernel().unheld();
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
    Err(StackError::BufferMissing { path: name.into(), looked, is_needed: known.needs_buffer })
}

/// The result of a [search](search_buffer) for a store's buffer.
#[derive(Debug)]
pub enum BufferSearch {
    /// The buffer is here.
    Found(PathBuf),
    /// It is in none of these places, of which each could be read, and on no block device.
    Lost(Vec<SearchedPlace>),
}

/// A place where a store's buffer was expected, and is not.
#[derive(Debug)]
pub struct SearchedPlace {
    /// The path.
    pub path: PathBuf,
    /// The content that was found instead of the buffer.
    pub content: PlaceContent,
}

/// The content of a place where a store's buffer was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceContent {
    /// Nothing, or a symbolic link that leads nowhere, or a drive without a medium.
    Nothing,
    /// Zeros.
    Blank,
    /// Something that is no buffer, in these words.
    OtherData(&'static str),
    /// A new buffer for this store that was never used: a crash came before.
    UnusedBuffer,
    /// The buffer of another store.
    BufferOfOther,
}

/// Searches the buffer of the store `store`, which the user calls `name`: in the places `given`, in its last place, beside the store,
/// and on the block devices. Stricter than the search of a mount: what cannot be looked at may be the buffer.
///
/// # Errors
/// [`StackError::PerhapsBuffer`]: the buffer was not found, and a place may have it, or has another buffer of this store that was
/// used. Also if the store does not say which buffer it had, and where. [`StackError::TwoBuffers`].
pub fn search_buffer(name: &Path, store: &Path, given: &[&Path]) -> Result<BufferSearch, StackError> {
    let known = describe_store(store)?;
    let unclear =
        |path: &Path, why: &str| StackError::PerhapsBuffer { path: path.into(), why: why.to_owned() };
    let directory = store.parent().unwrap_or(Path::new("/"));
    let (Some(last), Some(_), true) =
        (known.last_place(store), known.settings.buffer, known.warnings.is_empty())
    else {
        return Err(unclear(name, "the store does not say which buffer it had"));
    };
    let is_in_directory = medium_kind(store)? == MediumKind::File;
    let beside = [BUFFER_FILE, NEW_BUFFER_FILE].map(|file| directory.join(file));
    let named = given.iter().map(|path| path.to_path_buf()).chain([last.clone()]);
    let mut search = SearchState::default();
    for path in named.chain(beside.into_iter().filter(|_| is_in_directory)) {
        search.look_at(path, &known);
    }
    let devices = BlockDevices::of_kernel();
    let was_on_device = last.starts_with("/dev");
    let content = search.content(&last);
    // A device of another size has its name now, and is not the lost one.
    let is_here = matches!(content, Some(PlaceContent::Blank | PlaceContent::UnusedBuffer))
        && known
            .settings
            .buffer_bytes
            .is_none_or(|bytes| blocks_of(&last) == Some(bytes / BLOCK_BYTES as u64));
    let lost_device = was_on_device.then_some(LostDevice { path: &last, is_here });
    search.look_at_devices(&devices, &known, lost_device);
    if let Some(found) = only_one(name, search.found.iter())? {
        return Ok(BufferSearch::Found(found));
    }
    let is_absent = content == Some(PlaceContent::Nothing);
    if is_absent && !was_on_device && !(is_in_directory && last.parent() == Some(directory)) {
        return Err(unclear(&last, "there is no such file now, but perhaps its file system is not mounted"));
    }
    if was_on_device && !is_here && is_loop_device(&last) {
        return Err(unclear(
            &last,
            "it was over a file, which may be over no loop device now, or over another one",
        ));
    }
    if was_on_device && is_absent && devices.has(&last) {
        return Err(unclear(&last, "the kernel has this device, but it cannot be read"));
    }
    let entry = directory.join(BUFFER_FILE);
    let in_place_of_mount = [&last, &entry].into_iter().find(|path| is_empty_file(path));
    let is_given = |path: &Path| given.iter().any(|given| host::are_same_medium(given, path));
    if let Some(path) = in_place_of_mount.filter(|path| !is_given(path)) {
        return Err(unclear(path, "it is an empty file now, but perhaps the buffer is not mounted there"));
    }
    match search.unclear {
        Some(error) => Err(error),
        None => Ok(BufferSearch::Lost(search.places)),
    }
}

/// What a search has found so far.
#[derive(Default)]
struct SearchState {
    found: Vec<PathBuf>,
    places: Vec<SearchedPlace>,
    /// The first thing that may be the buffer.
    unclear: Option<StackError>,
}

impl SearchState {
    fn look_at(&mut self, path: PathBuf, known: &StoreDescription) {
        match content_of_place(&path, known) {
            Ok(Some(content)) => self.places.push(SearchedPlace { path, content }),
            Ok(None) => self.found.push(path),
            Err(error) => drop(self.unclear.get_or_insert(error)),
        }
    }

    /// The content of a place, if the search has looked at that.
    fn content(&self, path: &Path) -> Option<PlaceContent> {
        self.places.iter().find(|place| place.path == path).map(|place| place.content)
    }

    /// Looks at the block devices. If the buffer was on one of them, each may be the buffer that cannot be looked at. Unless that device
    /// is here, but blank, the buffer may also lie on another one: in a partition or a logical volume that is not there yet, or on one that
    /// this process, in a container, has no access to.
    fn look_at_devices(
        &mut self,
        devices: &BlockDevices,
        known: &StoreDescription,
        lost: Option<LostDevice<'_>>,
    ) {
        let is_here = lost.as_ref().is_some_and(|lost| lost.is_here);
        let mut unclear = None;
        for path in devices.unheld() {
            let error = match content_of_place(&path, known) {
                Ok(None) => {
                    self.found.push(path);
                    continue;
                }
                Err(_) if is_here && is_kept_from_root(&path) => continue,
                Err(error) => error,
                Ok(Some(PlaceContent::OtherData(what)))
                    if !is_here
                        && MediumContent::Known(what).is_container()
                        && !devices.has_partitions(&path) =>
                {
                    may_lie_in(path, what)
                }
                Ok(Some(_)) => continue,
            };
            unclear.get_or_insert(error);
        }
        let Some(lost) = lost else { return };
        self.unclear = self.unclear.take().or(unclear);
        if lost.is_here {
            return;
        }
        if devices.may_lie_on_others(lost.path) {
            let incomplete = devices.held().into_iter().find_map(|path| match MediumContent::of(&path) {
                Ok(MediumContent::Known(what)) if MediumContent::Known(what).may_be_incomplete() => {
                    Some(may_lie_in(path, what))
                }
                Ok(_) => None,
                Err(why) => Some(StackError::PerhapsBuffer { path, why: why.to_string() }),
            });
            self.unclear = self.unclear.take().or(incomplete);
        }
        let no_node = devices.nodeless().map(|path| StackError::PerhapsBuffer {
            path,
            why: "the kernel has this device, and weir has no access to it".to_owned(),
        });
        self.unclear = self.unclear.take().or(no_node);
    }
}

/// The device on which a buffer was that is not there.
struct LostDevice<'a> {
    path: &'a Path,
    /// Whether the device is here, but blank.
    is_here: bool,
}

fn may_lie_in(path: PathBuf, what: &str) -> StackError {
    StackError::PerhapsBuffer { path, why: format!("it holds {what}, and the buffer may lie in it") }
}

fn is_empty_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0)
}

/// The size of a medium; `None` if it cannot be opened.
fn blocks_of(path: &Path) -> Option<u64> {
    HostDisk::open_unlocked(path).ok().map(|disk| disk.blocks())
}

fn is_loop_device(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"loop"))
}

/// Whether a container has no access to a device of the machine, even as root.
fn is_kept_from_root(path: &Path) -> bool {
    let opened = fs::File::open(path).map_err(|error| error.kind());
    rustix::process::geteuid().is_root() && opened.is_err_and(|why| why == ErrorKind::PermissionDenied)
}

/// Reads the content of `path`. Returns `None` if it is the buffer of the store `known`.
///
/// # Errors
/// [`StackError::PerhapsBuffer`]: it cannot be read, or is another buffer of the store that was used.
pub fn content_of_place(path: &Path, known: &StoreDescription) -> Result<Option<PlaceContent>, StackError> {
    let unclear = |why: &dyn Display| StackError::PerhapsBuffer { path: path.into(), why: why.to_string() };
    let disk = match HostDisk::open_unlocked(path) {
        // A device node whose device is detached.
        Ok(disk) if disk.blocks() == 0 && medium_kind(path)? == MediumKind::BlockDevice => {
            return Ok(Some(PlaceContent::Nothing));
        }
        Ok(disk) => Arc::new(disk),
        Err(HostError::Missing { .. }) => return Ok(Some(PlaceContent::Nothing)),
        Err(error) if error.is_no_medium() => return Ok(Some(PlaceContent::Nothing)),
        Err(error) => return Err(unclear(&error)),
    };
    match Buffer::identify(&*disk) {
        Ok(BufferIdentity { store, .. }) if store != known.id => Ok(Some(PlaceContent::BufferOfOther)),
        Ok(BufferIdentity { id, .. }) if known.settings.buffer == Some(id) => Ok(None),
        Ok(_) => match Buffer::open(disk, known.id, &mut |_| ()) {
            Ok(buffer) if buffer.incarnation() == Incarnation(0) => Ok(Some(PlaceContent::UnusedBuffer)),
            Ok(_) => Err(unclear(&"it is another buffer of this store")),
            Err(error) => Err(unclear(&error)),
        },
        Err(BufferError::NotABuffer { .. } | BufferError::TooSmall { .. }) => match MediumContent::of(path) {
            Ok(MediumContent::Blank) => Ok(Some(PlaceContent::Blank)),
            Ok(MediumContent::Known(what)) => Ok(Some(PlaceContent::OtherData(what))),
            Ok(MediumContent::Unknown(_)) if is_unfinished_buffer(path) => {
                Ok(Some(PlaceContent::UnusedBuffer))
            }
            Ok(MediumContent::Unknown(what)) => Err(unclear(&format!("it has {what}"))),
            Err(error) => Err(unclear(&error)),
        },
        Err(error) => Err(unclear(&error)),
    }
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

/// The path of `buffer` as the store keeps it: relative if it lies in the directory of the store, so that
/// both can be moved together.
pub(crate) fn place_of(buffer: &Path, store: &Path) -> Vec<u8> {
    let beside = store.parent().and_then(|directory| buffer.strip_prefix(directory).ok());
    let beside = beside.filter(|_| medium_kind(store).is_ok_and(|what| what == MediumKind::File));
    beside.unwrap_or(buffer).as_os_str().as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_devices::tests::FakeDevices;
    use device::{BufferId, StoreId};

    /// Why a search for a buffer that was on the device `last`, which is gone, does not call it lost.
    fn why_unclear(fake: &FakeDevices, last: &str) -> Option<String> {
        let mut settings = StoreSettings::default();
        settings.buffer = Some(BufferId([1; 16]));
        let known =
            StoreDescription { settings, warnings: Vec::new(), needs_buffer: true, id: StoreId([2; 16]) };
        let path = fake.path(last);
        let mut search = SearchState::default();
        search.look_at_devices(&fake.devices, &known, Some(LostDevice { path: &path, is_here: false }));
        search.unclear.map(|error| error.to_string())
    }

    #[test]
    fn a_logical_volume_that_is_gone_may_lie_on_a_device_of_which_another_one_is_used() {
        let fake = FakeDevices::new();
        let lvm = [&[0; 536][..], b"LVM2 001"].concat();
        let physical = fake.add("sda", &lvm, Some("dm-0"));
        fake.add("dm-0", b"XFSB", None);
        let why = why_unclear(&fake, "dm-1").expect("the group has another volume, perhaps");
        assert!(why.contains(&format!("{}: ", physical.display())) && why.contains("LVM"), "{why}");
        // A disk is on no other.
        assert_eq!(why_unclear(&fake, "nvme1n1"), None);
        // The holder of an encrypted disk has all of its content.
        fake.add("sda", b"LUKS\xba\xbe", Some("dm-0"));
        assert_eq!(why_unclear(&fake, "dm-1"), None);
    }

    #[test]
    fn a_device_that_cannot_be_looked_at_may_be_the_lost_one() {
        let fake = FakeDevices::new();
        let path = fake.add("sda", b"XFSB", None);
        assert_eq!(why_unclear(&fake, "sdb"), None);
        fs::remove_file(path).expect("ours");
        assert!(why_unclear(&fake, "sdb").expect("it has no node").contains("no access"));
    }
}
