//! Changes as the buffer's records: page by page.

use crate::settings::Change;
use crate::state::pages_of;
use buffer::Record;
use device::{BLOCK_BYTES, ObjectId, PageNo};
use smallvec::SmallVec;

/// A transaction's records: most have a few, which then need no memory of their own.
pub(crate) type Records<'a> = SmallVec<[Record<'a>; 4]>;

/// A transaction's records, page by page.
pub(crate) fn records<'a>(changes: &[Change<'a>]) -> Records<'a> {
    let mut records = Records::new();
    for change in changes {
        match *change {
            Change::Write { object, offset, bytes } => {
                records.extend(pages_of(offset, bytes.len()).map(|(page, start, range)| Record::Write {
                    object,
                    page,
                    start: start as u16,
                    bytes: &bytes[range],
                }));
            }
            Change::Zero { object, offset, len } => zero_records(object, offset, len, &mut records),
            Change::Delete { object } => records.push(Record::Delete { object }),
        }
    }
    records
}

/// Zeros: whole pages are a cut, the edges are zeroed.
fn zero_records(object: ObjectId, offset: u64, len: u64, records: &mut Records<'_>) {
    let end = offset.saturating_add(len);
    let (first, last) = (PageNo(offset.div_ceil(BLOCK_BYTES as u64)), PageNo::of(end));
    let mut edge = |from: u64, to: u64| {
        if from < to {
            let start = (from % BLOCK_BYTES as u64) as u16;
            records.push(Record::Zero { object, page: PageNo::of(from), start, len: (to - from) as u16 });
        }
    };
    if first > last {
        return edge(offset, end);
    }
    edge(offset, first.offset());
    edge(last.offset(), end);
    if first < last {
        records.push(Record::Cut { object, from: first, to: last });
    }
}
