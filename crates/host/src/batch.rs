//! Many reads in flight, through io_uring.

use device::{BLOCK_BYTES, BlockRead};
use io_uring::{IoUring, opcode, types};
use rustix::process::{Pid, getpid};
use std::any::Any;
use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Reads in flight per thread: as deep as one NVMe queue needs for most of its throughput, and as a cloud
/// volume allows.
const DEPTH: usize = 32;

/// Adjacent reads become one of at most 1 MiB, beyond which devices gain nothing.
const BLOCKS_PER_READ_MAX: usize = 256;

thread_local! {
    /// Created at a thread's first batch.
    static RING: RefCell<ThreadUring> = const { RefCell::new(ThreadUring::Unknown) };
}

enum ThreadUring {
    Unknown,
    /// The ring, and the process that made it. A forked process shares it with its parent, and must not use it.
    Ready(Box<IoUring>, Pid),
    /// Not permitted on this machine, or broken: reads are plain.
    Absent,
}

/// One read for the kernel, joined from reads of the batch that are adjacent on the device.
struct JoinedRead {
    /// Byte offset on the device.
    offset: u64,
    bytes: usize,
    /// The indices of the reads in the batch.
    members: Vec<usize>,
    /// The memory of these reads.
    vectors: Vec<IoVector>,
}

/// The kernel's `struct iovec`.
#[repr(C)]
struct IoVector {
    base: *mut u8,
    len: usize,
}

/// Work to do while the kernel reads. It runs once, even if reads fail. A panic of the work continues when
/// the reads are done.
#[derive(Default)]
struct MeanwhileWork<'a> {
    work: Option<&'a mut dyn FnMut()>,
    panic: Option<Box<dyn Any + Send>>,
}

impl MeanwhileWork<'_> {
    fn run(&mut self) {
        if let Some(work) = self.work.take() {
            self.panic = catch_unwind(AssertUnwindSafe(work)).err();
        }
    }

    fn finish(mut self) {
        self.run();
        if let Some(panic) = self.panic {
            resume_unwind(panic);
        }
    }
}

/// Reads through io_uring. Returns the indices of the reads that the caller must do one by one: out of range,
/// failed, short, or all if there is no io_uring.
pub(crate) fn read(
    file: BorrowedFd<'_>,
    reads: &mut [BlockRead],
    in_range: impl Fn(&BlockRead) -> bool,
) -> Vec<usize> {
    if reads.len() < 2 {
        return (0..reads.len()).collect();
    }
    read_with(file, reads, in_range, MeanwhileWork::default())
}

/// Like [`read`], and does `work` once while the kernel reads.
pub(crate) fn read_while(
    file: BorrowedFd<'_>,
    reads: &mut [BlockRead],
    in_range: impl Fn(&BlockRead) -> bool,
    work: &mut dyn FnMut(),
) -> Vec<usize> {
    read_with(file, reads, in_range, MeanwhileWork { work: Some(work), panic: None })
}

fn read_with(
    file: BorrowedFd<'_>,
    reads: &mut [BlockRead],
    in_range: impl Fn(&BlockRead) -> bool,
    mut meanwhile: MeanwhileWork<'_>,
) -> Vec<usize> {
    let (sensible, mut rest): (Vec<usize>, Vec<usize>) =
        (0..reads.len()).partition(|&index| in_range(&reads[index]) && !reads[index].pages.is_empty());
    let joints = join(reads, sensible);
    let moved = RING.try_with(|ring| match ring.try_borrow_mut() {
        Ok(mut ring) => submit(&mut ring, file, &joints, &mut meanwhile),
        // The caller is the work of another batch on this thread, which uses the ring.
        Err(_) => vec![None; joints.len()],
    });
    // A thread that ends has no ring any more, but may still read: as the main thread at the end of the process.
    let moved = moved.unwrap_or_else(|_| vec![None; joints.len()]);
    meanwhile.finish();
    for (joint, moved) in joints.iter().zip(moved) {
        if moved == Some(joint.bytes) {
            joint.members.iter().for_each(|&index| reads[index].result = Ok(()));
        } else {
            rest.extend(&joint.members);
        }
    }
    rest
}

/// Sorts by address and joins neighbours.
fn join(reads: &mut [BlockRead], mut indices: Vec<usize>) -> Vec<JoinedRead> {
    indices.sort_by_key(|&index| reads[index].at);
    let mut joints: Vec<JoinedRead> = Vec::new();
    for index in indices {
        let read = &mut reads[index];
        let offset = read.at.0 * BLOCK_BYTES as u64;
        let bytes = read.pages.len() * BLOCK_BYTES;
        let vector = IoVector { base: read.pages.as_mut_ptr().cast(), len: bytes };
        match joints.last_mut() {
            Some(last)
                if last.offset + last.bytes as u64 == offset
                    && last.bytes + bytes <= BLOCKS_PER_READ_MAX * BLOCK_BYTES =>
            {
                last.bytes += bytes;
                last.members.push(index);
                last.vectors.push(vector);
            }
            _ => joints.push(JoinedRead { offset, bytes, members: vec![index], vectors: vec![vector] }),
        }
    }
    joints
}

/// The bytes moved for each joined read, `None` if it failed or was not tried. Returns when the kernel no
/// longer uses any of their memory.
fn submit(
    ring: &mut ThreadUring,
    file: BorrowedFd<'_>,
    joints: &[JoinedRead],
    meanwhile: &mut MeanwhileWork<'_>,
) -> Vec<Option<usize>> {
    let mut moved = vec![None; joints.len()];
    let process = getpid();
    if matches!(ring, ThreadUring::Ready(_, owner) if *owner != process) {
        *ring = ThreadUring::Unknown;
    }
    if let ThreadUring::Unknown = ring {
        *ring = IoUring::new(DEPTH as u32)
            .map_or(ThreadUring::Absent, |uring| ThreadUring::Ready(Box::new(uring), process));
    }
    let ThreadUring::Ready(uring, _) = ring else { return moved };
    let mut next = 0;
    let mut in_flight = 0;
    while next < joints.len() || in_flight > 0 {
        while next < joints.len() && in_flight < DEPTH {
            push(uring, file, &joints[next], next);
            next += 1;
            in_flight += 1;
        }
        let awaited = usize::from(meanwhile.work.is_none());
        if let Err(error) = uring.submit_and_wait(awaited) {
            let unseen = uring.submission().len();
            match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN | rustix::io::Errno::BUSY) => {}
                // The kernel has none of our memory: drop the ring with the entries that the kernel has not
                // seen.
                _ if in_flight == unseen => {
                    *ring = ThreadUring::Absent;
                    return moved;
                }
                // The kernel may still write to memory that our caller owns, and cannot report when it is
                // done.
                _ => std::process::abort(),
            }
        }
        meanwhile.run();
        for done in uring.completion() {
            moved[done.user_data() as usize] = usize::try_from(done.result()).ok();
            in_flight -= 1;
        }
    }
    moved
}

fn push(uring: &mut IoUring, file: BorrowedFd<'_>, joint: &JoinedRead, index: usize) {
    let vectors = joint.vectors.as_ptr().cast();
    let entry = opcode::Readv::new(types::Fd(file.as_raw_fd()), vectors, joint.vectors.len() as u32)
        .offset(joint.offset)
        .build()
        .user_data(index as u64);
    // SAFETY: the entry points to the joint's vectors, which point to the pages of the batch. Both are
    // borrowed or owned by `read_with` until `submit` returns, no two vectors overlap, nobody touches the
    // pages meanwhile, and `submit` returns, and lets no panic through, only when no read is in the kernel's
    // hands. The descriptor is borrowed for as long.
    let pushed = unsafe { uring.submission().push(&entry) };
    pushed.expect("the queue is as deep as the reads in flight");
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Block;
    use std::io::Write as _;
    use std::os::fd::AsFd;

    /// A file in which every byte is the number of its block.
    fn numbered(blocks: u8) -> std::fs::File {
        let mut file = tempfile::tempfile().expect("a temporary file");
        for number in 0..blocks {
            file.write_all(&[number; BLOCK_BYTES]).expect("space for a small file");
        }
        file
    }

    #[test]
    fn where_there_is_io_uring_it_reads_everything() {
        let file = numbered(200);
        let mut reads: Vec<BlockRead> =
            (0..150).map(|i| BlockRead::new(Block(i * 7 % 190), 1 + i as usize % 3)).collect();
        let left = read(file.as_fd(), &mut reads, |_| true);
        if IoUring::new(1).is_err() {
            assert_eq!(left.len(), reads.len());
            return;
        }
        assert!(left.is_empty(), "{left:?} were not read");
        for one in &reads {
            for (index, page) in one.pages.iter().enumerate() {
                assert_eq!(page.0[17], (one.at.0 + index as u64) as u8);
            }
        }
    }

    #[test]
    fn failed_and_empty_reads_are_left_to_the_caller() {
        let file = numbered(10);
        let mut reads = [
            BlockRead::new(Block(0), 1),
            BlockRead::new(Block(8), 4),
            BlockRead::new(Block(3), 0),
            BlockRead::new(Block(99), 1),
        ];
        let left = read(file.as_fd(), &mut reads, |read| read.at.0 < 99);
        assert!([1, 2, 3].iter().all(|index| left.contains(index)), "{left:?}");
    }

    #[test]
    fn neighbours_become_one_read_of_at_most_a_mebibyte() {
        let mut reads: Vec<BlockRead> = [5, 3, 4, 9].iter().map(|&at| BlockRead::new(Block(at), 1)).collect();
        let joints = join(&mut reads, vec![0, 1, 2, 3]);
        let members: Vec<&[usize]> = joints.iter().map(|joint| &joint.members[..]).collect();
        assert_eq!(members, [&[1, 2, 0][..], &[3]]);
        let mut long =
            [BlockRead::new(Block(0), 200), BlockRead::new(Block(200), 56), BlockRead::new(Block(256), 1)];
        assert_eq!(join(&mut long, vec![0, 1, 2]).len(), 2);
    }
}
