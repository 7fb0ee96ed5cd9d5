//! What volumes are called, and when they were made.
//!
//! A clone's log entry is followed, in the same batch, by the log entries that tell its name: both are there after a crash, or
//! neither. A checkpoint keeps names behind the dying list.

use crate::entry::{LogEntry, NAME_PART};
use crate::error::StoreError;
use crate::map::Map;
use crate::policy::Class;
use crate::store::{Store, Writer};
use crate::volume::{VolumeId, VolumeMode};
use device::Lsn;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The name of the volume that every store has.
pub const MAIN_NAME: &str = "main";

/// Bytes of a name at most, as other volume managers have it.
const NAME_BYTES_MAX: usize = 127;

/// A volume to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewVolume<'a> {
    /// What it is to be called: see [`check_name`].
    pub name: &'a str,
    /// Whether it may be changed.
    pub mode: VolumeMode,
    /// When, in nanoseconds since 1970.
    pub created: u64,
}

/// What is known of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its number.
    pub id: VolumeId,
    /// Whether it may be changed.
    pub mode: VolumeMode,
    /// What it is called; `#` and its number if it has no name.
    pub name: String,
    /// When it was made, in nanoseconds since 1970; 0 if not said.
    pub created: u64,
    /// What it was cloned from, which may be gone, and its number used again; `None` for the volume that every store has.
    pub from: Option<VolumeId>,
}

/// What the map keeps of a volume for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) name: String,
    pub(crate) created: u64,
    pub(crate) from: VolumeId,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LabelBytes {
    volume: U32,
    from: U32,
    created: U64,
    name: U32,
    reserved: U32,
}

const LABEL_BYTES: usize = size_of::<LabelBytes>();
const _: () = assert!(LABEL_BYTES == 24);

/// Why a name cannot be a volume's, if it cannot: it is letters, digits and `. _ - + : @` of ASCII, at most 127, and
/// begins with a letter or a digit, so that no shell and no option parser takes it for something else.
///
/// # Errors
/// [`StoreError::BadName`].
pub fn check_name(name: &str) -> Result<(), StoreError> {
    let bad = |why: &str| Err(StoreError::BadName { name: name.to_owned(), why: why.to_owned() });
    if name.is_empty() {
        return bad("it is empty");
    }
    if name.len() > NAME_BYTES_MAX {
        return bad("it has more than 127 characters");
    }
    if !name.chars().all(|one| one.is_ascii_alphanumeric() || "._-+:@".contains(one)) {
        return bad("letters, digits and . _ - + : @ are what it may have");
    }
    if !name.starts_with(|one: char| one.is_ascii_alphanumeric()) {
        return bad("it begins with neither a letter nor a digit");
    }
    Ok(())
}

impl Store {
    /// Makes a new volume that is what `from` is now, whatever that holds, in one durable batch; returns its number.
    /// `lsn` is the clone's place in the one order.
    ///
    /// # Errors
    /// Those of [`check_clone`](Store::check_clone) and [`apply`](Store::apply).
    pub fn clone_named(&self, from: VolumeId, new: &NewVolume<'_>, lsn: Lsn) -> Result<VolumeId, StoreError> {
        self.clone_by(&mut self.lock_writer(), from, new, lsn)
    }

    /// The same for a volume that others write to meanwhile: refused where there is no space for what their pages need beside
    /// once nodes are shared. From that check on every reservation is as much.
    ///
    /// # Errors
    /// Those of `clone_named`; [`StoreError::Full`], too, before anything is done.
    pub fn clone_beside_writers(
        &self,
        from: VolumeId,
        new: &NewVolume<'_>,
        lsn: Lsn,
    ) -> Result<VolumeId, StoreError> {
        let mut writer = self.lock_writer();
        self.map_mut().expect_sharing()?;
        let cloned = self.clone_by(&mut writer, from, new, lsn);
        self.map_mut().expects_sharing = false;
        cloned
    }

    fn clone_by(
        &self,
        writer: &mut Writer,
        from: VolumeId,
        new: &NewVolume<'_>,
        lsn: Lsn,
    ) -> Result<VolumeId, StoreError> {
        self.make_ready(writer)?;
        self.check_clone(from, new.name)?;
        let last = self.map().volumes.keys().next_back().map_or(0, |last| last.0);
        let to = VolumeId(last + 1);
        let mut entries = vec![LogEntry::CloneVolume { to, mode: new.mode, lsn, created: new.created }];
        let parts = new.name.as_bytes().chunks(NAME_PART);
        entries.extend(parts.map(|part| LogEntry::NameVolume { volume: to, part: part.to_vec() }));
        self.append_entries(writer, from, entries, Class::Writer)?;
        Ok(to)
    }

    /// Whether a clone of `from` may have this name: said before much is done for it.
    ///
    /// # Errors
    /// [`StoreError::BadName`], [`StoreError::NameTaken`], [`StoreError::NoSuchVolume`],
    /// [`StoreError::TooManyVolumes`], [`StoreError::NamelessStore`].
    pub fn check_clone(&self, from: VolumeId, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        if !self.geometry.has_names {
            return Err(StoreError::NamelessStore { device: self.device.name().to_owned() });
        }
        if self.volume_named(name).is_some() {
            return Err(StoreError::NameTaken { name: name.to_owned() });
        }
        let map = self.map();
        map.volumes.get(&from).ok_or(StoreError::NoSuchVolume { volume: from })?;
        map.space_for_volume()
    }

    /// All volumes, by number.
    pub fn describe_volumes(&self) -> Vec<VolumeInfo> {
        let map = self.map();
        map.volumes.iter().map(|(&id, volume)| map.describe(id, volume.mode)).collect()
    }

    /// The volume of this name; one that has none is `#` and its number.
    pub fn volume_named(&self, name: &str) -> Option<VolumeInfo> {
        self.describe_volumes().into_iter().find(|volume| volume.name == name)
    }

    /// Whether deleted volumes still hold something that [`free_step`](Store::free_step) would free.
    pub fn is_freeing(&self) -> bool {
        !self.map().dying.is_empty()
    }
}

impl Map {
    fn describe(&self, id: VolumeId, mode: VolumeMode) -> VolumeInfo {
        if id == VolumeId::MAIN {
            return VolumeInfo { id, mode, name: MAIN_NAME.to_owned(), created: 0, from: None };
        }
        let Label { mut name, created, from } = self.labels.get(&id).cloned().unwrap_or_default();
        if name.is_empty() {
            name = format!("#{id}");
        }
        VolumeInfo { id, mode, name, created, from: Some(from) }
    }

    /// A part of a name, after those before it.
    pub(crate) fn name_volume(&mut self, volume: VolumeId, part: &[u8]) {
        if let Some(label) = self.labels.get_mut(&volume) {
            label.name.push_str(&String::from_utf8_lossy(part));
        }
    }

    /// Bytes of [`encode_labels`](Map::encode_labels).
    pub(crate) fn label_bytes(&self) -> usize {
        self.labels.values().map(|label| LABEL_BYTES + label.name.len()).sum()
    }

    /// The labels, as the tables' stream has them.
    pub(crate) fn encode_labels(&self, into: &mut Vec<u8>) {
        for (volume, label) in &self.labels {
            let head = LabelBytes {
                volume: volume.0.into(),
                from: label.from.0.into(),
                created: label.created.into(),
                name: (label.name.len() as u32).into(),
                reserved: 0.into(),
            };
            into.extend(head.as_bytes());
            into.extend(label.name.as_bytes());
        }
    }
}

/// One label, and what follows it; `None` if it is none.
pub(crate) fn decode_label(bytes: &[u8]) -> Option<(VolumeId, Label, &[u8])> {
    let (head, rest) = LabelBytes::read_from_prefix(bytes).ok()?;
    let (name, rest) = rest.split_at_checked(head.name.get() as usize)?;
    let name = std::str::from_utf8(name).ok()?.to_owned();
    let label = Label { name, created: head.created.get(), from: VolumeId(head.from.get()) };
    Some((VolumeId(head.volume.get()), label, rest))
}
