//! A device that reads on while what it read is used: for a log that is followed from its tail to its end.

use device::{Block, BlockRead, Device, DeviceError, Page};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Blocks of one read, and how many of them are in flight at once: what it takes to get all that a device gives.
const PIECE_BLOCKS: u64 = 256;
const PIECES_AT_ONCE: u64 = 4;

/// Batches that lie ready while others are used: 8 MiB at most, beside the one that is being read.
const BATCHES_READY: usize = 1;

/// A read that is shorter says nothing of where the next one will be.
const LONG_BLOCKS: usize = 16;

/// A device, and a thread that reads it ahead of whoever reads it from one block to the next, until that is stopped, or it is written
/// to. Recovery reads through it, and nobody else.
pub(crate) struct ReadAheadDevice {
    below: Arc<dyn Device>,
    reading: Mutex<ReadAheadState>,
}

#[derive(Default)]
struct ReadAheadState {
    stream: Option<ReadAheadStream>,
    /// Threads that may still hold the device: it is not let go before they end.
    threads: Vec<JoinHandle<()>>,
}

/// What a thread reads, in order.
struct ReadAheadStream {
    /// The next block to hand out.
    at: Block,
    batches: Receiver<Vec<BlockRead>>,
    /// Gives memory back: new memory costs as much as the reading.
    used: SyncSender<Vec<BlockRead>>,
    /// What was received and is not used up, and how many blocks of it are.
    batch: Vec<BlockRead>,
    done: usize,
}

impl ReadAheadDevice {
    pub(crate) fn of(below: Arc<dyn Device>) -> ReadAheadDevice {
        ReadAheadDevice { below, reading: Mutex::default() }
    }

    fn reading(&self) -> MutexGuard<'_, ReadAheadState> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads no further: the log has been read.
    pub(crate) fn stop(&self) {
        self.reading().stream = None;
    }
}

impl Drop for ReadAheadDevice {
    fn drop(&mut self) {
        let reading = self.reading.get_mut().unwrap_or_else(PoisonError::into_inner);
        reading.stream = None;
        for thread in reading.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl ReadAheadState {
    /// Begins to read from `at` on. Where there is no thread to be had nothing is read ahead.
    fn start(&mut self, device: &Arc<dyn Device>, at: Block) {
        let (send, batches) = sync_channel(BATCHES_READY);
        let (used, reuse) = sync_channel(BATCHES_READY + 2);
        let device = device.clone();
        let thread = std::thread::Builder::new().name("read-ahead".into());
        if let Ok(thread) = thread.spawn(move || read_on(&*device, at, &send, &reuse)) {
            self.threads.push(thread);
            self.stream = Some(ReadAheadStream { at, batches, used, batch: Vec::new(), done: 0 });
        }
    }
}

impl ReadAheadStream {
    /// Fills `into`; `None` where the thread has come to the device's end or to an error. Whoever wants to know which
    /// reads for himself.
    fn fill(&mut self, mut into: &mut [Page]) -> Option<()> {
        while !into.is_empty() {
            let held = self.batch.len() * PIECE_BLOCKS as usize;
            if self.done == held {
                let used = std::mem::replace(&mut self.batch, self.batches.recv().ok()?);
                // The thread may have ended.
                let _ = self.used.try_send(used);
                self.done = 0;
                continue;
            }
            let (piece, from) = (self.done / PIECE_BLOCKS as usize, self.done % PIECE_BLOCKS as usize);
            let read = &self.batch[piece];
            read.result.as_ref().ok()?;
            let take = into.len().min(read.pages.len() - from);
            let (now, rest) = into.split_at_mut(take);
            Page::bytes_mut(now).copy_from_slice(Page::bytes(&read.pages[from..from + take]));
            into = rest;
            self.done += take;
            self.at = self.at.plus(take as u64);
        }
        Some(())
    }
}

/// Reads whole pieces from `at` on until nobody listens. The last blocks, less than a piece, are not worth it.
fn read_on(
    device: &dyn Device,
    at: Block,
    send: &SyncSender<Vec<BlockRead>>,
    reuse: &Receiver<Vec<BlockRead>>,
) {
    let mut at = at.0;
    loop {
        let pieces = ((device.blocks() - at) / PIECE_BLOCKS).min(PIECES_AT_ONCE);
        if pieces == 0 {
            return;
        }
        let mut reads = reuse.try_recv().unwrap_or_default();
        reads.truncate(pieces as usize);
        reads.resize_with(pieces as usize, || BlockRead::new(Block(0), PIECE_BLOCKS as usize));
        for (read, number) in reads.iter_mut().zip(0..) {
            read.at = Block(at + number * PIECE_BLOCKS);
        }
        device.read_batch(&mut reads);
        at += pieces * PIECE_BLOCKS;
        if send.send(reads).is_err() {
            return;
        }
    }
}

impl Device for ReadAheadDevice {
    fn blocks(&self) -> u64 {
        self.below.blocks()
    }

    fn name(&self) -> &str {
        self.below.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let mut reading = self.reading();
        if let Some(stream) = reading.stream.as_mut().filter(|stream| stream.at == at)
            && stream.fill(into).is_some()
        {
            return Ok(());
        }
        // Elsewhere, or beyond what can be read ahead.
        reading.stream = None;
        self.below.read(at, into)?;
        if into.len() >= LONG_BLOCKS {
            reading.start(&self.below, at.plus(into.len() as u64));
        }
        Ok(())
    }

    fn read_batch(&self, reads: &mut [BlockRead]) {
        self.below.read_batch(reads);
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.stop();
        self.below.write(at, from)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.stop();
        self.below.flush()
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.stop();
        self.below.trim(at, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A device whose blocks tell their numbers, of which one cannot be read.
    struct Numbered {
        blocks: u64,
        bad: Option<u64>,
        blocks_read: AtomicU64,
    }

    impl Numbered {
        fn new(blocks: u64, bad: Option<u64>) -> Arc<Numbered> {
            Arc::new(Numbered { blocks, bad, blocks_read: AtomicU64::new(0) })
        }
    }

    impl Device for Numbered {
        fn blocks(&self) -> u64 {
            self.blocks
        }

        fn name(&self) -> &str {
            "numbered"
        }

        fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
            let count = into.len() as u64;
            self.blocks_read.fetch_add(count, Ordering::Relaxed);
            if at.0 + count > self.blocks || self.bad.is_some_and(|bad| (at.0..at.0 + count).contains(&bad)) {
                let (device, reason) = (self.name().into(), "bad".into());
                let operation = device::DeviceOperation::Read;
                return Err(DeviceError { device, operation, at, count, errno: 5, reason });
            }
            for (page, number) in into.iter_mut().zip(at.0..) {
                page.0[..8].copy_from_slice(&number.to_le_bytes());
            }
            Ok(())
        }

        fn write(&self, _: Block, _: &[Page]) -> Result<(), DeviceError> {
            Ok(())
        }

        fn flush(&self) -> Result<(), DeviceError> {
            Ok(())
        }

        fn trim(&self, _: Block, _: u64) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    fn read(device: &dyn Device, at: u64, count: usize) -> Result<(), DeviceError> {
        let mut pages = device::pages(count);
        device.read(Block(at), &mut pages)?;
        for (page, number) in pages.iter().zip(at..) {
            assert_eq!(page.0[..8], number.to_le_bytes(), "block {number}");
        }
        Ok(())
    }

    #[test]
    fn every_block_is_the_one_that_was_asked_for() {
        let ahead = ReadAheadDevice::of(Numbered::new(5000, None));
        let (mut at, mut count) = (3, 1);
        while at + count as u64 <= 5000 {
            read(&ahead, at, count).expect("a good device");
            at += count as u64;
            count = 1 + (count * 7 + 13) % 700;
        }
        for at in [4000, 17, 4999, 0] {
            read(&ahead, at, 1).expect("a good device");
        }
        read(&ahead, 4990, 11).expect_err("past the end");
    }

    #[test]
    fn a_log_is_read_once() {
        let below = Numbered::new(4096, None);
        let ahead = ReadAheadDevice::of(below.clone());
        (0..16).for_each(|window| read(&ahead, window * 256, 256).expect("a good device"));
        drop(ahead);
        assert_eq!(below.blocks_read.load(Ordering::Relaxed), 4096);
        assert_eq!(Arc::strong_count(&below), 1, "nobody holds the device any more");
    }

    #[test]
    fn a_bad_block_is_told_to_whoever_asks_for_it_and_to_nobody_else() {
        let ahead = ReadAheadDevice::of(Numbered::new(4096, Some(1300)));
        for window in 0..16 {
            assert_eq!(read(&ahead, window * 256, 256).is_err(), window == 5, "window {window}");
        }
        read(&ahead, 1280, 20).expect("the block before it");
    }

    #[test]
    fn a_write_ends_the_reading_ahead() {
        let ahead = ReadAheadDevice::of(Numbered::new(4096, None));
        read(&ahead, 0, 256).expect("a good device");
        assert!(ahead.reading().stream.is_some());
        ahead.write(Block(300), &device::pages(1)).expect("a good device");
        assert!(ahead.reading().stream.is_none());
    }
}
