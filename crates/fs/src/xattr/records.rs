//! The string of records that holds all attributes of an inode. Pure.

use super::{XATTR_LIST_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX, XattrKey, XattrNamespace};
use crate::error::FsError;
use crate::format::XattrRecordHead;
use std::mem::offset_of;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a record's head, before the name.
pub(crate) const XATTR_HEAD: usize = size_of::<XattrRecordHead>();

/// One record, of an attribute or of a removed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct XattrRecord<'a> {
    /// The offset of the record in the string.
    pub(crate) at: usize,
    /// The namespace's number; 0 if the attribute was removed.
    pub(crate) space: u8,
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
}

impl<'a> XattrRecord<'a> {
    /// The attribute's name; `None` if it was removed.
    pub(crate) fn key(&self) -> Option<XattrKey<'a>> {
        XattrNamespace::of_number(self.space).map(|space| XattrKey { space, name: self.name })
    }

    /// Bytes in the string.
    pub(crate) fn bytes(&self) -> usize {
        XATTR_HEAD + self.name.len() + self.value.len()
    }
}

/// All records, including removed ones. The first record that does not parse is an error, and the last item.
pub(crate) fn records(string: &[u8]) -> impl Iterator<Item = Result<XattrRecord<'_>, &'static str>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= string.len() {
            return None;
        }
        let record = parse(string, at);
        at = record.as_ref().map_or(string.len(), |record| at + record.bytes());
        Some(record)
    })
}

fn parse(string: &[u8], at: usize) -> Result<XattrRecord<'_>, &'static str> {
    let (head, rest) =
        XattrRecordHead::ref_from_prefix(&string[at..]).map_err(|_| "an attribute's head is cut off")?;
    let (name, value) = (usize::from(head.name_len), head.value_len.get() as usize);
    let body = rest.get(..name.saturating_add(value)).ok_or("an attribute is cut off")?;
    if head.space != 0 && XattrNamespace::of_number(head.space).is_none() {
        return Err("an attribute of an unknown space");
    }
    Ok(XattrRecord { at, space: head.space, name: &body[..name], value: &body[name..] })
}

/// Bytes of the attributes' records, and of their names in a list. Removed ones do not count.
pub(crate) fn live_bytes(string: &[u8]) -> (usize, usize) {
    records(string).flatten().fold((0, 0), |(bytes, list), record| match record.key() {
        Some(key) => (bytes + record.bytes(), list + key.list_bytes()),
        None => (bytes, list),
    })
}

fn find<'a>(string: &'a [u8], key: XattrKey<'_>) -> Option<XattrRecord<'a>> {
    records(string).flatten().find(|record| record.key() == Some(key))
}

/// Sets an attribute.
///
/// # Errors
/// [`FsError::XattrTooBig`] for the value, [`FsError::NoSpace`] if all attributes together are too large.
/// Nothing is changed then.
pub(crate) fn set(string: &mut Vec<u8>, key: XattrKey<'_>, value: &[u8]) -> Result<(), FsError> {
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(FsError::XattrTooBig);
    }
    let present = find(string, key);
    let (live, list) = live_bytes(string);
    let others = live - present.map_or(0, |present| present.bytes());
    let other_names = list - present.map_or(0, |_| key.list_bytes());
    let bytes = XATTR_HEAD + key.name.len() + value.len();
    if others + bytes > XATTRS_BYTES_MAX || other_names + key.list_bytes() > XATTR_LIST_BYTES_MAX {
        return Err(FsError::NoSpace);
    }
    if let Some(present) = present {
        if present.value.len() == value.len() {
            let start = present.at + XATTR_HEAD + present.name.len();
            string[start..start + value.len()].copy_from_slice(value);
            return Ok(());
        }
        remove(string, key);
    }
    // Compacts if half of the string is removed records, whose removals pay for the work, or if the new
    // record would not fit.
    if others * 2 < string.len() || string.len() + bytes > XATTRS_BYTES_MAX {
        compact(string);
    }
    let head = XattrRecordHead {
        value_len: U32::new(value.len() as u32),
        space: key.space.number(),
        name_len: key.name.len() as u8,
    };
    string.extend_from_slice(head.as_bytes());
    string.extend_from_slice(key.name);
    string.extend_from_slice(value);
    Ok(())
}

/// Marks an attribute as removed. Returns whether it existed. Removed records at the end are cut off.
pub(crate) fn remove(string: &mut Vec<u8>, key: XattrKey<'_>) -> bool {
    let Some(at) = find(string, key).map(|found| found.at) else { return false };
    string[at + offset_of!(XattrRecordHead, space)] = 0;
    let live = records(string).flatten().filter(|record| record.space != 0);
    let end = live.last().map_or(0, |last| last.at + last.bytes());
    string.truncate(end);
    true
}

fn compact(string: &mut Vec<u8>) {
    let live = records(string).flatten().filter(|record| record.space != 0);
    *string = live.flat_map(|record| string[record.at..record.at + record.bytes()].to_vec()).collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn content(string: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let live = records(string).map(|record| record.expect("it parses"));
        live.filter_map(|record| Some((record.key()?.whole(), record.value.to_vec()))).collect()
    }

    fn user(name: &[u8]) -> XattrKey<'_> {
        XattrKey { space: XattrNamespace::User, name }
    }

    proptest! {
        #[test]
        fn a_string_of_records_is_a_map(changes in proptest::collection::vec(
            (0..12u8, proptest::option::weighted(0.7, 0..300usize), any::<u8>()), 1..120,
        )) {
            let (mut string, mut model) = (Vec::new(), BTreeMap::new());
            for (name, len, fill) in changes {
                let name = vec![b'a' + name; 1 + usize::from(name)];
                let key = user(&name);
                match len {
                    Some(len) => {
                        set(&mut string, key, &vec![fill; len]).expect("it fits");
                        model.insert(key.whole(), vec![fill; len]);
                    }
                    None => {
                        prop_assert_eq!(remove(&mut string, key), model.remove(&key.whole()).is_some());
                    }
                }
                prop_assert_eq!(&content(&string), &model);
                prop_assert!(string.is_empty() == model.is_empty(), "nothing is left of nothing");
            }
        }

        #[test]
        fn any_bytes_parse_or_are_refused(bytes: Vec<u8>) {
            let total: usize = records(&bytes).flatten().map(|record| record.bytes()).sum();
            prop_assert!(total <= bytes.len());
        }
    }

    #[test]
    fn a_value_of_the_same_length_is_changed_in_place_and_others_stay_where_they_are() {
        let mut string = Vec::new();
        set(&mut string, user(b"a"), b"first").expect("set");
        set(&mut string, user(b"b"), b"second").expect("set");
        let before = string.clone();
        set(&mut string, user(b"a"), b"third").expect("set");
        let differ = before.iter().zip(&string).filter(|(one, other)| one != other).count();
        assert!(before.len() == string.len() && differ <= 5);
        assert!(remove(&mut string, user(b"a")));
        assert_eq!(string.len(), before.len(), "it is only marked");
        assert_eq!(content(&string).len(), 1);
    }

    #[test]
    fn limits_are_linuxs() {
        let mut string = Vec::new();
        let too_big = vec![0; XATTR_VALUE_BYTES_MAX + 1];
        assert!(matches!(set(&mut string, user(b"a"), &too_big), Err(FsError::XattrTooBig)));
        set(&mut string, user(b"a"), &too_big[1..]).expect("the largest value");
        // A full list of names beside it.
        let mut names = 0;
        let refused = loop {
            let name = format!("{names:04}{}", "x".repeat(50));
            match set(&mut string, user(name.as_bytes()), b"") {
                Ok(()) => names += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, FsError::NoSpace));
        let (live, list) = live_bytes(&string);
        assert!(list > XATTR_LIST_BYTES_MAX - 60 && list <= XATTR_LIST_BYTES_MAX, "{list}");
        assert!(live <= XATTRS_BYTES_MAX);
        // Not one more of the largest, and what is there stays.
        let before = string.clone();
        set(&mut string, user(b"0000"), &too_big[1..]).expect_err("too much for the list");
        assert!(string == before);
    }
}
