//! Settings that a store keeps for whoever mounts it: where its buffer is, and the options chosen for it.
//!
//! They are a record in the tables' stream, which every checkpoint writes. Values that make no sense count as
//! absent. Items of a later weir are kept.

use device::{BufferId, Incarnation};
use std::ops::RangeInclusive;

/// Settings that belong to a store, on whatever machine it is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreSettings {
    /// The buffer that it was last used with.
    pub buffer: Option<BufferId>,
    /// The path of that buffer. A relative path begins in the directory of the store.
    pub buffer_path: Option<Vec<u8>>,
    /// The size of that buffer.
    pub buffer_bytes: Option<u64>,
    /// Changes that no client has synced are durable after this many milliseconds.
    pub commit_interval_ms: Option<u64>,
    /// How data is written.
    pub data: Option<DataMode>,
    /// The incarnation at whose end the store had every change: see [`Store::needs_buffer`](crate::Store::needs_buffer).
    pub complete_at: Option<Incarnation>,
    /// Items whose keys this weir does not know.
    unknown_items: Vec<(u16, Vec<u8>)>,
}

/// How data is written. ext4 has the same words for the same choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataMode {
    /// All data goes through the buffer. A crash leaves every change that came before the first that it lost.
    Journal,
    /// Large sequential writes of whole pages bypass the buffer. A crash leaves each of their unsynced pages
    /// old or new; all other changes keep their order.
    Ordered,
}

impl DataMode {
    /// The mode with this [name](DataMode::name).
    pub fn named(name: &str) -> Option<DataMode> {
        [DataMode::Journal, DataMode::Ordered].into_iter().find(|mode| mode.name() == name)
    }

    /// The mode's name, in one word.
    pub const fn name(self) -> &'static str {
        match self {
            DataMode::Journal => "journal",
            DataMode::Ordered => "ordered",
        }
    }
}

/// The range of [`StoreSettings::commit_interval_ms`].
pub const COMMIT_INTERVAL_MS_RANGE: RangeInclusive<u64> = 1..=3_600_000;

/// The longest path that Linux takes.
const PATH_BYTES_MAX: usize = 4095;

const BUFFER: u16 = 1;
const BUFFER_PATH: u16 = 2;
const COMMIT_INTERVAL_MS: u16 = 3;
const DATA_MODE: u16 = 4;
const COMPLETE_AT: u16 = 5;
const BUFFER_BYTES: u16 = 6;

/// The record's checksum; and the key and length before each value.
const CRC_BYTES: usize = 4;
const ITEM_HEAD_BYTES: usize = 4;

impl StoreSettings {
    /// Encodes the record: a CRC32C of the rest, then the items.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; CRC_BYTES];
        self.for_each_item(|key, value| {
            bytes.extend(key.to_le_bytes());
            bytes.extend((value.len() as u16).to_le_bytes());
            bytes.extend(value);
        });
        let crc = crc32c::crc32c(&bytes[CRC_BYTES..]);
        bytes[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Length of the encoded record, in bytes.
    pub(crate) fn encoded_bytes(&self) -> usize {
        let mut bytes = CRC_BYTES;
        self.for_each_item(|_, value| bytes += ITEM_HEAD_BYTES + value.len());
        bytes
    }

    fn for_each_item(&self, mut put: impl FnMut(u16, &[u8])) {
        self.buffer.iter().for_each(|id| put(BUFFER, &id.0));
        self.buffer_path.iter().filter(|place| is_path(place)).for_each(|place| put(BUFFER_PATH, place));
        self.commit_interval_ms.iter().for_each(|ms| put(COMMIT_INTERVAL_MS, &ms.to_le_bytes()));
        self.data.iter().for_each(|mode| put(DATA_MODE, &[u8::from(*mode == DataMode::Ordered)]));
        self.complete_at.iter().for_each(|incarnation| put(COMPLETE_AT, &incarnation.0.to_le_bytes()));
        self.buffer_bytes.iter().for_each(|bytes| put(BUFFER_BYTES, &bytes.to_le_bytes()));
        self.unknown_items.iter().for_each(|(key, value)| put(*key, value));
    }

    /// Decodes a record. Also returns what is wrong with it, in words. If something is and no data mode can
    /// be read, the data mode is the one that promises more.
    pub(crate) fn decode(bytes: &[u8]) -> (StoreSettings, Vec<String>) {
        let (mut settings, wrong) = StoreSettings::decode_items(bytes);
        if !wrong.is_empty() {
            settings.data.get_or_insert(DataMode::Journal);
        }
        (settings, wrong)
    }

    fn decode_items(bytes: &[u8]) -> (StoreSettings, Vec<String>) {
        let mut settings = StoreSettings::default();
        let Some((crc, mut rest)) = bytes.split_first_chunk() else { return (settings, Vec::new()) };
        if u32::from_le_bytes(*crc) != crc32c::crc32c(rest) {
            return (settings, vec!["its settings are damaged: each has its default".to_owned()]);
        }
        let mut wrong = Vec::new();
        while !rest.is_empty() {
            let Some((key, value, after)) = first_item(rest) else {
                wrong.push("its settings end in the middle of one".to_owned());
                break;
            };
            rest = after;
            if let Err(what) = settings.set_item(key, value) {
                wrong.push(format!("its setting of {what} makes no sense: the default counts"));
            }
        }
        (settings, wrong)
    }

    /// Sets one item, or returns the name of the item that this value makes no sense for.
    fn set_item(&mut self, key: u16, value: &[u8]) -> Result<(), &'static str> {
        match key {
            BUFFER => {
                let id = value.try_into().map_err(|_| "the buffer's identity")?;
                self.buffer = Some(BufferId(id));
            }
            BUFFER_PATH if is_path(value) => self.buffer_path = Some(value.to_vec()),
            BUFFER_PATH => return Err("the buffer's place"),
            COMMIT_INTERVAL_MS => {
                let ms = value.try_into().map(u64::from_le_bytes).ok();
                let sane = ms.filter(|ms| COMMIT_INTERVAL_MS_RANGE.contains(ms));
                self.commit_interval_ms = Some(sane.ok_or("the commit interval")?);
            }
            DATA_MODE => {
                self.data = Some(match value {
                    [0] => DataMode::Journal,
                    [1] => DataMode::Ordered,
                    _ => return Err("the data mode"),
                });
            }
            COMPLETE_AT => {
                let number = value.try_into().map_err(|_| "the last clean end")?;
                self.complete_at = Some(Incarnation(u64::from_le_bytes(number)));
            }
            BUFFER_BYTES => {
                let bytes = value.try_into().map_err(|_| "the buffer's size")?;
                self.buffer_bytes = Some(u64::from_le_bytes(bytes));
            }
            _ => self.unknown_items.push((key, value.to_vec())),
        }
        Ok(())
    }
}

/// Whether these bytes can be a path.
fn is_path(bytes: &[u8]) -> bool {
    (1..=PATH_BYTES_MAX).contains(&bytes.len()) && !bytes.contains(&0)
}

/// Splits off the first item: its key, its value, and the rest.
fn first_item(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<ITEM_HEAD_BYTES>()?;
    let [key, key_too, length, length_too] = *head;
    let (value, rest) = rest.split_at_checked(u16::from_le_bytes([length, length_too]).into())?;
    Some((u16::from_le_bytes([key, key_too]), value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> StoreSettings {
        StoreSettings {
            buffer: Some(BufferId([7; 16])),
            buffer_path: Some(b"/dev/vdb".to_vec()),
            commit_interval_ms: Some(250),
            data: Some(DataMode::Ordered),
            complete_at: Some(Incarnation(12)),
            buffer_bytes: Some(1 << 28),
            unknown_items: vec![(77, b"of a later weir".to_vec())],
        }
    }

    /// The settings that count where nothing can be read.
    fn strict() -> StoreSettings {
        StoreSettings { data: Some(DataMode::Journal), ..StoreSettings::default() }
    }

    #[test]
    fn settings_read_back_as_they_were_written_with_those_that_nobody_knows() {
        for settings in [all(), StoreSettings::default()] {
            assert_eq!(settings.encode().len(), settings.encoded_bytes());
            assert_eq!(StoreSettings::decode(&settings.encode()), (settings, vec![]));
        }
        assert_eq!(StoreSettings::decode(&[]), (StoreSettings::default(), vec![]));
    }

    #[test]
    fn a_record_with_any_bit_flipped_gives_defaults_and_says_so() {
        let bytes = all().encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let (settings, wrong) = StoreSettings::decode(&flipped);
            assert_eq!((settings, wrong.len()), (strict(), 1), "bit {bit}");
        }
    }

    #[test]
    fn a_value_that_makes_no_sense_is_named_and_the_others_count() {
        let senseless: [(u16, &[u8], &str); 8] = [
            (BUFFER, b"short", "identity"),
            (BUFFER_PATH, b"", "place"),
            (BUFFER_PATH, b"a\0b", "place"),
            (COMMIT_INTERVAL_MS, &0_u64.to_le_bytes(), "commit interval"),
            (COMMIT_INTERVAL_MS, &3_600_001_u64.to_le_bytes(), "commit interval"),
            (COMMIT_INTERVAL_MS, &[1], "commit interval"),
            (DATA_MODE, &[2], "data mode"),
            (DATA_MODE, &[], "data mode"),
        ];
        for (key, value, what) in senseless {
            // Written as an unknown item.
            let written =
                StoreSettings { unknown_items: vec![(key, value.to_vec())], ..StoreSettings::default() };
            let (settings, wrong) = StoreSettings::decode(&written.encode());
            assert_eq!(settings, strict());
            assert!(wrong.len() == 1 && wrong[0].contains(what), "{wrong:?}");
        }
        let mut cut = all().encode();
        cut.truncate(cut.len() - 1);
        let crc = crc32c::crc32c(&cut[CRC_BYTES..]);
        cut[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
        let (settings, wrong) = StoreSettings::decode(&cut);
        assert_eq!((settings.commit_interval_ms, wrong.len()), (Some(250), 1));
    }
}
