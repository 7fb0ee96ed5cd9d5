//! Read-ahead: which objects are read in order, and which of their pages to fetch before a read asks for
//! them.
//!
//! As in the kernel (`mm/readahead.c`): a read that continues where another ended makes a stream. Each time
//! half of what is ahead of its reader is used up, twice as much is fetched. Programs come through the
//! kernel, which reads 128 KiB ahead in a file system like this one: too little to keep a device busy, and
//! enough to recognise a stream.

use crate::page_table::PageKey;
use device::{BLOCK_BYTES, ObjectId, PageNo};
use std::collections::VecDeque;
use std::ops::Range;

const PAGE: u64 = BLOCK_BYTES as u64;

/// Streams at a time. The stream that was read least recently is dropped for a new one. As many readers as a
/// disk serves well, and space for single reads, which look like the beginning of a stream.
const STREAMS_MAX: usize = 32;

/// The largest window, in bytes. The first window is twice what the read asks for, so that small reads that
/// meet by chance cost little. The largest is what a cloud volume of 1 GB/s delivers in the few milliseconds
/// that one of its reads takes.
const WINDOW_MAX: u64 = 4 << 20;

/// After this many reads by others a stream's reader seems to have gone: what is ahead of it no longer
/// reduces the share of the others.
const STREAM_PATIENCE: u64 = 4 * STREAMS_MAX as u64;

/// Streams, and what is to be fetched for them. Under the cache's lock. After a crash: empty.
#[derive(Default)]
pub(crate) struct ReadAhead {
    /// The most recently read stream is the last.
    streams: Vec<ReadStream>,
    /// Number of reads that began or continued a stream.
    reads: u64,
    /// Objects that will be read, with their pages that were not looked at yet.
    objects: VecDeque<(ObjectId, Range<PageNo>)>,
}

/// One reader of an object.
#[derive(Debug)]
struct ReadStream {
    object: ObjectId,
    /// Where the reader continues, in bytes.
    next: u64,
    /// Pages up to here were handed out to be looked at and fetched if absent: a page boundary, `next` or
    /// later.
    asked: u64,
    /// Pages up to here are to be fetched: a page boundary, `asked` or later.
    until: u64,
    /// How far `until` may be ahead, in bytes. 0 until the second read.
    window: u64,
    /// The number of its last read among all reads.
    last: u64,
}

/// One read, in bytes.
pub(crate) struct ReadSpan {
    pub(crate) object: ObjectId,
    pub(crate) range: Range<u64>,
    /// The end of the object: nothing behind it is fetched.
    pub(crate) end: u64,
}

impl ReadStream {
    /// Several reads of the kernel's own read-ahead may be in progress, and arrive in another order.
    fn continues_at(&self, start: u64) -> bool {
        match self.window {
            0 => start == self.next,
            window => (self.next.saturating_sub(window)..=self.until).contains(&start),
        }
    }

    fn ahead_bytes(&self) -> u64 {
        self.until - self.next
    }
}

impl ReadAhead {
    /// Notes a read that found everything in memory. `true` if it continues a stream. All streams together
    /// are at most `bytes_max` ahead.
    pub(crate) fn hit(&mut self, read: &ReadSpan, bytes_max: u64) -> bool {
        let goes_on =
            |stream: &ReadStream| stream.object == read.object && stream.continues_at(read.range.start);
        let Some(at) = self.streams.iter().rposition(goes_on) else { return false };
        let stream = self.streams.remove(at);
        self.go_on(stream, read, bytes_max);
        true
    }

    /// Notes a read that waits for a page. If it continues no stream, it may begin one.
    pub(crate) fn miss(&mut self, read: &ReadSpan, bytes_max: u64) {
        if self.hit(read, bytes_max) {
            return;
        }
        if self.streams.len() == STREAMS_MAX {
            self.streams.remove(0);
        }
        self.reads += 1;
        let object = read.object;
        let next = read.range.end;
        let asked = next.next_multiple_of(PAGE);
        self.streams.push(ReadStream { object, next, asked, until: asked, window: 0, last: self.reads });
    }

    fn go_on(&mut self, mut stream: ReadStream, read: &ReadSpan, bytes_max: u64) {
        self.reads += 1;
        stream.last = self.reads;
        stream.next = stream.next.max(read.range.end);
        // Pages that the reader reached by itself are not fetched after it.
        stream.asked = stream.asked.max(stream.next.next_multiple_of(PAGE));
        stream.until = stream.until.max(stream.asked);
        if stream.window == 0 || stream.ahead_bytes() <= stream.window / 2 {
            let lives = |other: &&ReadStream| other.last + STREAM_PATIENCE > self.reads;
            let others: u64 = self.streams.iter().filter(lives).map(ReadStream::ahead_bytes).sum();
            let most = bytes_max.saturating_sub(others);
            let len = read.range.end - read.range.start;
            let last = if stream.window == 0 { len.next_multiple_of(PAGE) } else { stream.window };
            stream.window = (2 * last).min(WINDOW_MAX);
            let until = stream.next.saturating_add(stream.window.min(most)) / PAGE * PAGE;
            stream.until = stream.until.max(until.min(read.end.next_multiple_of(PAGE)));
        }
        self.streams.push(stream);
    }

    /// Queues an object of `bytes` bytes, unless the queued objects would exceed `bytes_max`.
    pub(crate) fn queue_object(&mut self, object: ObjectId, bytes: u64, bytes_max: u64) {
        let end = PageNo::of(bytes.next_multiple_of(PAGE));
        let queued: u64 = self.objects.iter().map(|(_, pages)| pages.end.0 - pages.start.0).sum();
        if (queued + end.0) * PAGE <= bytes_max {
            self.objects.push_back((object, PageNo(0)..end));
        }
    }

    /// The next page to look at, and to fetch if it is absent: of the stream that was read least recently,
    /// then of queued objects.
    pub(crate) fn pop(&mut self) -> Option<PageKey> {
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.asked < stream.until) {
            let page = PageNo::of(stream.asked);
            stream.asked += PAGE;
            return Some(PageKey { object: stream.object, page });
        }
        let (object, pages) = self.objects.front_mut()?;
        let key = PageKey { object: *object, page: pages.start };
        pages.start.0 += 1;
        if pages.is_empty() {
            self.objects.pop_front();
        }
        Some(key)
    }

    /// Ends streams that were ahead in pages which became holes.
    pub(crate) fn note_punch(&mut self, object: ObjectId, cut: Range<PageNo>) {
        self.streams.retain(|stream| {
            let behind = cut.end <= PageNo::of(stream.next);
            stream.object != object || behind || PageNo::of(stream.until) <= cut.start
        });
        self.objects.retain(|(whole, _)| *whole != object);
    }

    /// Fetches nothing more.
    pub(crate) fn stop(&mut self) {
        self.streams.clear();
        self.objects.clear();
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.objects.is_empty() && self.streams.iter().all(|stream| stream.asked == stream.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::SeededRng;
    use device::VolumeId;

    const MAX: u64 = 64 << 20;
    const READ: u64 = 128 << 10;
    const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
    const OTHER: ObjectId = VolumeId::MAIN.object(6, 1);

    fn passage(object: ObjectId, start: u64, len: u64, end: u64) -> ReadSpan {
        ReadSpan { object, range: start..start + len, end }
    }

    /// Notes a read as a miss. Returns the ranges of bytes that are queued then.
    fn read(ahead: &mut ReadAhead, object: ObjectId, start: u64, len: u64, end: u64) -> Vec<Range<u64>> {
        ahead.miss(&passage(object, start, len, end), MAX);
        let wanted = ahead.streams.iter_mut().filter(|stream| stream.asked < stream.until).map(|stream| {
            assert_eq!(stream.object, object);
            std::mem::replace(&mut stream.asked, stream.until)..stream.until
        });
        wanted.collect()
    }

    /// Number of queued pages.
    fn pages(ahead: &ReadAhead) -> u64 {
        ahead.streams.iter().map(|stream| (stream.until - stream.asked) / PAGE).sum()
    }

    #[test]
    fn a_stream_is_ahead_by_a_window_that_doubles_and_every_page_is_queued_once_and_in_order() {
        let mut ahead = ReadAhead::default();
        let mut until = 2 * READ;
        let end = 100 << 20;
        assert_eq!(read(&mut ahead, FILE, 0, READ, end), [], "one read is no stream");
        for number in 1..end / READ {
            let next = (number + 1) * READ;
            for queued in read(&mut ahead, FILE, number * READ, READ, end) {
                assert_eq!(queued.start, until);
                until = queued.end;
            }
            let least = (next + next.min(WINDOW_MAX) / 2).min(end);
            assert!((least..=next + WINDOW_MAX).contains(&until), "{until} after {next}");
        }
        assert_eq!(until, end);
    }

    #[test]
    fn nothing_behind_the_end_is_queued_and_the_page_that_it_is_in_is() {
        let mut ahead = ReadAhead::default();
        let end = 2 * READ + 5 * PAGE + 1;
        read(&mut ahead, FILE, 0, READ, end);
        let queued = read(&mut ahead, FILE, READ, READ, end);
        assert_eq!(queued.first(), Some(&(2 * READ..2 * READ + 6 * PAGE)));
        assert_eq!(read(&mut ahead, FILE, 2 * READ, 5 * PAGE + 1, end), []);
    }

    #[test]
    fn single_pages_that_meet_by_chance_have_two_more_fetched_and_not_a_read_ahead_of_the_kernel() {
        let mut ahead = ReadAhead::default();
        let end = 100 << 20;
        read(&mut ahead, FILE, 10 * PAGE, PAGE, end);
        assert_eq!(read(&mut ahead, FILE, 11 * PAGE, PAGE, end).first(), Some(&(12 * PAGE..14 * PAGE)));
    }

    #[test]
    fn reads_that_overtake_each_other_are_one_stream() {
        let mut ahead = ReadAhead::default();
        let end = 100 << 20;
        let mut queued = Vec::new();
        for pair in 0..100 {
            for number in [2 * pair + 1, 2 * pair] {
                queued.extend(read(&mut ahead, FILE, number * READ, READ, end));
            }
        }
        assert_eq!(ahead.streams.iter().filter(|stream| stream.window > 0).count(), 1);
        queued.retain(|queued| queued.start > 1 << 20);
        assert!(queued.windows(2).all(|pair| pair[0].end == pair[1].start), "{queued:?}");
        assert!(queued.last().expect("a stream").end >= 200 * READ + WINDOW_MAX / 2);
    }

    #[test]
    fn readers_of_one_object_or_of_several_have_a_stream_each() {
        let mut ahead = ReadAhead::default();
        let end = 100 << 20;
        let readers = [(FILE, 0), (FILE, 50 << 20), (OTHER, 0)];
        let mut untils = readers.map(|(_, from)| from);
        for number in 0..100 {
            for (reader, until) in readers.iter().zip(&mut untils) {
                let queued = read(&mut ahead, reader.0, reader.1 + number * READ, READ, end);
                *until = queued.last().map_or(*until, |queued| queued.end);
            }
        }
        assert!(readers.iter().zip(untils).all(|((_, from), until)| until > from + 100 * READ));
    }

    #[test]
    fn reads_at_random_backwards_and_with_gaps_are_no_streams() {
        let mut ahead = ReadAhead::default();
        let mut random = SeededRng::new(3);
        let end = 1 << 40;
        for number in 0..10_000 {
            assert_eq!(read(&mut ahead, FILE, random.below(end / PAGE) * PAGE, PAGE, end), []);
            assert_eq!(read(&mut ahead, OTHER, end - (number + 1) * READ, READ, end), []);
            assert_eq!(read(&mut ahead, OTHER, 2 * number * READ, READ, end), []);
        }
    }

    #[test]
    fn a_stream_lives_among_reads_at_random_that_are_fewer_than_streams_between_two_of_its_own() {
        let mut ahead = ReadAhead::default();
        let mut random = SeededRng::new(3);
        let end = 1 << 40;
        let mut queued = 0;
        for number in 0..1000 {
            queued += read(&mut ahead, FILE, number * READ, READ, end).len();
            for _ in 0..STREAMS_MAX - 1 {
                read(&mut ahead, OTHER, random.below(end / PAGE) * PAGE, PAGE, end);
            }
        }
        assert!(queued > 50, "queued {queued} times");
    }

    #[test]
    fn all_streams_together_are_no_more_than_their_share_of_the_memory_ahead() {
        let mut ahead = ReadAhead::default();
        let share = 5 << 20;
        let mut random = SeededRng::new(8);
        let mut next = [0; 8];
        for _ in 0..5000 {
            let slot = random.below(8);
            let at = &mut next[slot as usize];
            let object = VolumeId::MAIN.object(slot, 1);
            ahead.miss(&passage(object, *at, READ, 1 << 30), share);
            *at += READ;
            let total: u64 = ahead.streams.iter().map(ReadStream::ahead_bytes).sum();
            assert!(total <= share, "{total} bytes");
        }
        assert!(ahead.streams.iter().map(ReadStream::ahead_bytes).sum::<u64>() > share / 2);
    }

    #[test]
    fn readers_who_went_away_keep_no_share_from_others() {
        let mut ahead = ReadAhead::default();
        let end = 100 << 20;
        for slot in 0..20 {
            let object = VolumeId::MAIN.object(slot, 1);
            (0..50).for_each(|number| drop(read(&mut ahead, object, number * READ, READ, end)));
        }
        let object = VolumeId::MAIN.object(99, 1);
        let queued: Vec<_> =
            (0..200).flat_map(|number| read(&mut ahead, object, number * READ, READ, end)).collect();
        assert!(queued.last().is_some_and(|queued| queued.end > 200 * READ), "{queued:?}");
    }

    #[test]
    fn what_is_in_memory_begins_no_stream_and_goes_on_with_one() {
        let mut ahead = ReadAhead::default();
        let end = 100 << 20;
        assert!((0..100).all(|number| !ahead.hit(&passage(FILE, number * READ, READ, end), MAX)));
        assert!(ahead.streams.is_empty() && ahead.is_idle());
        ahead.miss(&passage(FILE, 0, READ, end), MAX);
        ahead.hit(&passage(FILE, READ, READ, end), MAX);
        assert_eq!(pages(&ahead), 2 * READ / PAGE);
    }

    #[test]
    fn pages_that_were_cut_are_not_fetched_any_more() {
        let mut ahead = ReadAhead::default();
        let end = 100 << 20;
        for object in [FILE, OTHER] {
            ahead.miss(&passage(object, 0, READ, end), MAX);
            ahead.miss(&passage(object, READ, READ, end), MAX);
        }
        ahead.note_punch(FILE, PageNo(0)..PageNo(2 * READ / PAGE));
        assert_eq!(pages(&ahead), 4 * READ / PAGE, "those that were read already");
        ahead.note_punch(FILE, PageNo(70)..PageNo(u64::MAX));
        let left: Vec<PageKey> = std::iter::from_fn(|| ahead.pop()).collect();
        assert!(left.len() as u64 == 2 * READ / PAGE && left.iter().all(|key| key.object == OTHER));
    }
}
