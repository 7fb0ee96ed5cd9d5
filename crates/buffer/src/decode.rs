//! Decodes records and transactions from untrusted bytes: every number is checked before it is used.

use crate::record::{
    KIND_BYPASSED, KIND_CLONE, KIND_DELETE, KIND_MOVE, KIND_PUNCH, KIND_WRITE, KIND_ZERO, LogRecord,
    RELOGGED, RecordHeader, SLOT_END, TRANSACTION_HEADER_BYTES, TransactionHeader, TransactionLsn,
    TransferTarget,
};
use device::{BLOCK_BYTES, Lsn, ObjectId, PageNo, PageTransfer, TransferKind, VolumeId};
use zerocopy::FromBytes;

/// A decoded transaction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DecodedTransaction<'a> {
    pub(crate) lsn: TransactionLsn,
    pub(crate) records: Vec<LogRecord<'a>>,
}

/// Decodes the transaction at the front of `bytes`, and advances `bytes` past it.
pub(crate) fn decode_transaction<'a>(bytes: &mut &'a [u8]) -> Result<DecodedTransaction<'a>, &'static str> {
    let (head, _) = TransactionHeader::read_from_prefix(bytes).map_err(|_| "a transaction is cut off")?;
    let len = head.bytes.get() as usize;
    if len < TRANSACTION_HEADER_BYTES || len > bytes.len() {
        return Err("a transaction is longer than its group");
    }
    let (this, rest) = bytes.split_at(len);
    if head.checksum.get() != TransactionHeader::checksum(this) {
        return Err("a transaction's checksum is wrong");
    }
    let mut body = &this[TRANSACTION_HEADER_BYTES..];
    let mut records = Vec::with_capacity(head.count().min(len / size_of::<RecordHeader>()));
    for _ in 0..head.count() {
        records.push(decode_record(&mut body)?);
    }
    if !body.is_empty() {
        return Err("bytes follow a transaction's last record");
    }
    *bytes = rest;
    Ok(DecodedTransaction { lsn: head.order(), records })
}

/// Decodes a transaction without checks, for the planted bug of a torn group. Returns the records that parse,
/// and advances as far as the header says.
pub(crate) fn decode_transaction_unchecked<'a>(bytes: &mut &'a [u8]) -> Option<DecodedTransaction<'a>> {
    let (head, _) = TransactionHeader::read_from_prefix(bytes).ok()?;
    let len = head.bytes.get() as usize;
    if len <= TRANSACTION_HEADER_BYTES || len > bytes.len() {
        return None;
    }
    let (this, rest) = bytes.split_at(len);
    *bytes = rest;
    let mut body = &this[TRANSACTION_HEADER_BYTES..];
    let records = (0..head.count()).map_while(|_| decode_record(&mut body).ok()).collect();
    Some(DecodedTransaction { lsn: head.order(), records })
}

impl TransactionHeader {
    fn count(&self) -> usize {
        (self.records.get() & !RELOGGED) as usize
    }

    fn order(&self) -> TransactionLsn {
        let first = Lsn(self.first.get());
        if self.records.get() & RELOGGED == 0 {
            TransactionLsn::New(first)
        } else {
            TransactionLsn::Relogged(first)
        }
    }
}

/// Decodes the record at the front of `bytes`, and advances `bytes` past it.
fn decode_record<'a>(bytes: &mut &'a [u8]) -> Result<LogRecord<'a>, &'static str> {
    let (head, rest) = RecordHeader::read_from_prefix(bytes).map_err(|_| "a record is cut off")?;
    let object = VolumeId(head.volume.get()).object(head.slot(), head.generation.get());
    let page = PageNo(head.page.get());
    let start = head.start.get();
    let len = head.len.get();
    if head.reserve != 0 {
        return Err("a record uses bytes that are in reserve");
    }
    if matches!(head.kind, KIND_WRITE | KIND_ZERO) && usize::from(start) + usize::from(len) > BLOCK_BYTES {
        return Err("a record leaves its page");
    }
    let taken = match head.kind {
        KIND_WRITE => usize::from(len),
        KIND_PUNCH | KIND_BYPASSED => 8,
        KIND_CLONE | KIND_MOVE => size_of::<TransferTarget>(),
        _ => 0,
    };
    let (body, rest) = rest.split_at_checked(taken).ok_or("a record is cut off")?;
    *bytes = rest;
    match head.kind {
        KIND_WRITE => Ok(LogRecord::Write { object, page, start, bytes: body }),
        KIND_ZERO => Ok(LogRecord::Zero { object, page, start, len }),
        KIND_PUNCH => {
            let to = page_after(body);
            if page <= to {
                Ok(LogRecord::Punch { object, from: page, to })
            } else {
                Err("a punch goes backwards")
            }
        }
        KIND_DELETE => Ok(LogRecord::Delete { object }),
        KIND_CLONE => decode_transfer(TransferKind::Clone, object, page, body),
        KIND_MOVE => decode_transfer(TransferKind::Move, object, page, body),
        KIND_BYPASSED => match (page_after(body), start) {
            (to, 0 | 1) if page < to => {
                Ok(LogRecord::Bypassed { object, from: page, to, extends_file: start == 1 })
            }
            _ => Err("a bypassing write goes backwards, or is of an unknown sort"),
        },
        _ => Err("a record is of an unknown kind"),
    }
}

/// The page after the last, from a record's body.
fn page_after(body: &[u8]) -> PageNo {
    PageNo(u64::from_le_bytes(body.try_into().expect("eight bytes")))
}

/// The record of a clone or a move of `from`'s pages from `first` on.
fn decode_transfer(
    kind: TransferKind,
    from: ObjectId,
    first: PageNo,
    body: &[u8],
) -> Result<LogRecord<'static>, &'static str> {
    let target = TransferTarget::read_from_bytes(body).map_err(|_| "a record is cut off")?;
    if target.slot.get() >= SLOT_END {
        return Err("a slot is over 48 bits");
    }
    let to = VolumeId(target.volume.get()).object(target.slot.get(), target.generation.get());
    let end = PageNo(target.end.get());
    let at = PageNo(target.at.get());
    let transfer = PageTransfer { kind, from, first, end, to, at };
    if transfer.is_valid() {
        Ok(LogRecord::Transfer(transfer))
    } else {
        Err("a clone or a move goes backwards or onto itself")
    }
}

impl RecordHeader {
    fn slot(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes[..6].copy_from_slice(&self.slot);
        u64::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{encode_transaction, transaction_bytes};
    use proptest::prelude::*;
    use zerocopy::IntoBytes;
    use zerocopy::little_endian::U32;

    /// The record `bytes` in a transaction whose header claims `len` bytes, with the right checksum.
    fn made_up(count: u32, bytes: &[u8], len: usize) -> Vec<u8> {
        let mut all =
            TransactionHeader::new(len as u32, TransactionLsn::New(Lsn(1)), count).as_bytes().to_vec();
        all.extend(bytes);
        let this = all.len().min(len.max(8));
        let sum = TransactionHeader::checksum(&all[..this]);
        all[4..8].copy_from_slice(&sum.to_le_bytes());
        all
    }

    fn record_bytes(kind: u8, page: u64, start: u16, len: u16, body: &[u8]) -> Vec<u8> {
        let head = RecordHeader {
            kind,
            reserve: 0,
            slot: [0; 6],
            volume: U32::ZERO,
            generation: U32::ZERO,
            page: page.into(),
            start: start.into(),
            len: len.into(),
        };
        [head.as_bytes(), body].concat()
    }

    #[test]
    fn a_transaction_that_is_shorter_than_its_header_or_longer_than_its_group_is_refused() {
        for len in [0, 1, 8, 19, 21, 1000] {
            let bytes = made_up(0, &[], len);
            assert!(decode_transaction(&mut &bytes[..]).is_err(), "{len} bytes");
        }
        let bytes = made_up(0, &[], 20);
        assert_eq!(decode_transaction(&mut &bytes[..]).map(|one| one.records.len()), Ok(0));
        assert!(decode_transaction(&mut &bytes[..19]).is_err(), "its header is cut off");
    }

    #[test]
    fn a_record_with_a_number_that_cannot_be_is_refused_and_the_greatest_is_not() {
        let of = |count: u32, record: &[u8]| {
            let bytes = made_up(count, record, 20 + record.len());
            decode_transaction(&mut &bytes[..]).map(|one| one.records.len())
        };
        let punch = |from, to: u64| of(1, &record_bytes(KIND_PUNCH, from, 0, 0, &to.to_le_bytes()));
        assert_eq!((punch(7, 8), punch(7, 7)), (Ok(1), Ok(1)));
        assert_eq!(punch(8, 7), Err("a punch goes backwards"));
        let clone = |kind, slot: u64, end: u64, at: u64| {
            let volume = U32::ZERO;
            let generation = U32::ZERO;
            let target =
                TransferTarget { end: end.into(), slot: slot.into(), volume, generation, at: at.into() };
            of(1, &record_bytes(kind, 7, 0, 0, target.as_bytes()))
        };
        for kind in [KIND_CLONE, KIND_MOVE] {
            let ends = (clone(kind, (1 << 48) - 1, u64::MAX, 7), clone(kind, 1 << 48, 8, 0));
            assert_eq!(ends, (Ok(1), Err("a slot is over 48 bits")));
            // From pages 7 and 8 of one object to others of it.
            assert_eq!((clone(kind, 0, 9, 5), clone(kind, 0, 9, 9)), (Ok(1), Ok(1)));
            for (end, at) in [(7, 0), (6, 0), (9, 6), (9, 7), (9, 8), (9, u64::MAX - 1)] {
                assert_eq!(clone(kind, 0, end, at), Err("a clone or a move goes backwards or onto itself"));
            }
        }
        let bypassed =
            |from, to: u64, start| of(1, &record_bytes(KIND_BYPASSED, from, start, 0, &to.to_le_bytes()));
        assert_eq!((bypassed(7, 8, 0), bypassed(0, u64::MAX, 1)), (Ok(1), Ok(1)));
        for (from, to, start) in [(7, 7, 0), (8, 7, 1), (7, 8, 2)] {
            let refused = "a bypassing write goes backwards, or is of an unknown sort";
            assert_eq!(bypassed(from, to, start), Err(refused));
        }
        let zero = |start, len| of(1, &record_bytes(KIND_ZERO, 0, start, len, &[]));
        assert_eq!((zero(4096, 0), zero(4000, 96), zero(0, 4096)), (Ok(1), Ok(1), Ok(1)));
        for (start, len) in [(4097, 0), (4000, 97), (1, 4096), (u16::MAX, u16::MAX)] {
            assert_eq!(zero(start, len), Err("a record leaves its page"));
        }
        let mut reserved = record_bytes(KIND_DELETE, 0, 0, 0, &[]);
        assert_eq!((of(1, &reserved), of(2, &reserved)), (Ok(1), Err("a record is cut off")));
        assert_eq!(of(0, &reserved), Err("bytes follow a transaction's last record"));
        reserved[1] = 1;
        assert_eq!(of(1, &reserved), Err("a record uses bytes that are in reserve"));
        assert_eq!(of(1, &record_bytes(200, 0, 0, 0, &[])), Err("a record is of an unknown kind"));
        assert_eq!(of(1, &record_bytes(KIND_WRITE, 0, 0, 5, b"weir")), Err("a record is cut off"));
    }

    fn object() -> impl Strategy<Value = ObjectId> {
        (any::<u32>(), 0u64..1 << 48, any::<u32>())
            .prop_map(|(volume, slot, generation)| VolumeId(volume).object(slot, generation))
    }

    /// Kind, objects, page, start, length.
    type Seed = (u8, ObjectId, ObjectId, u64, u16, u16);

    fn seed() -> impl Strategy<Value = Seed> {
        (0u8..7, object(), object(), any::<u64>(), 0u16..=4096, 0u16..=4096)
    }

    fn record_of<'a>(&(kind, object, to, page, start, len): &Seed, bytes: &'a [u8]) -> LogRecord<'a> {
        let len = len.min(4096 - start);
        match kind {
            0 => LogRecord::Write { object, page: PageNo(page), start, bytes: &bytes[..len.into()] },
            1 => LogRecord::Zero { object, page: PageNo(page), start, len },
            2 => LogRecord::Punch { object, from: PageNo(page / 2), to: PageNo(page) },
            3 => LogRecord::Delete { object },
            6 => LogRecord::Bypassed {
                object,
                from: PageNo(page / 2),
                to: PageNo(page / 2 + 1),
                extends_file: start > 9,
            },
            _ => {
                let first = PageNo(page / 2);
                let end = PageNo(page / 2 + 1);
                let at = PageNo(page / 3);
                let kind = if kind == 4 { TransferKind::Clone } else { TransferKind::Move };
                LogRecord::Transfer(PageTransfer { kind, from: object, first, end, to, at })
            }
        }
    }

    proptest! {
        #[test]
        fn encoded_transactions_decode_and_flipped_bits_are_detected(
            seeds in prop::collection::vec(seed(), 1..6), first: u64, relogged: bool, flip: usize,
        ) {
            let page: Vec<u8> = (0..4096).map(|at| at as u8).collect();
            let records: Vec<LogRecord<'_>> = seeds.iter().map(|seed| record_of(seed, &page)).collect();
            let order = if relogged { TransactionLsn::Relogged(Lsn(first)) } else { TransactionLsn::New(Lsn(first)) };
            let mut bytes = vec![0; transaction_bytes(&records) as usize];
            encode_transaction(order, &records, &mut bytes);
            let mut rest = &bytes[..];
            prop_assert_eq!(decode_transaction(&mut rest), Ok(DecodedTransaction { lsn: order, records }));
            prop_assert!(rest.is_empty());
            let bit = flip % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode_transaction(&mut &bytes[..]).is_err());
        }

        #[test]
        fn any_bytes_are_decoded_without_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let len = bytes.len() as u32;
            if bytes.len() >= TRANSACTION_HEADER_BYTES {
                // With a right length and checksum, so that the records are looked at.
                bytes[..4].copy_from_slice(&len.to_le_bytes());
                bytes[9..12].fill(0);
                let sum = TransactionHeader::checksum(&bytes);
                bytes[4..8].copy_from_slice(&sum.to_le_bytes());
            }
            let _ = decode_transaction(&mut &bytes[..]);
            let _ = decode_transaction_unchecked(&mut &bytes[..]);
        }
    }
}
