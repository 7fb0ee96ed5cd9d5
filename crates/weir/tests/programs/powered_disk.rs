//! Block devices that lose what was not flushed when their power fails: simulated disks behind files of a FUSE file system, each with a
//! loop device on top.

use crate::common::succeeds;
use device::{BLOCK_BYTES, Block, Device, Page};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyWrite, Request, Session,
    WriteFlags,
};
use sim_disk::{PowerSupply, SimDisk};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Bytes of a block, as offsets are.
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Disks on one power supply.
pub(crate) struct PoweredDisks {
    power: Arc<PowerSupply>,
    disks: Vec<Arc<SimDisk>>,
    directory: PathBuf,
    loops: Vec<PathBuf>,
    /// Ends after the loop devices: see `drop`.
    files: Option<BackgroundSession>,
}

impl PoweredDisks {
    /// Disks of these sizes in bytes, as files of a file system that is mounted on the new directory `directory`. `seed` decides
    /// which writes a power failure loses.
    pub(crate) fn start(directory: &Path, sizes: &[u64], seed: u64) -> PoweredDisks {
        let power = PowerSupply::new();
        let disk = |(index, bytes): (usize, &u64)| {
            SimDisk::new(&index.to_string(), bytes / BLOCK, &power, seed.wrapping_add(index as u64))
        };
        let disks: Vec<_> = sizes.iter().enumerate().map(disk).collect();
        fs::create_dir(directory).expect("a directory");
        let files = DiskFiles { disks: disks.clone() };
        let session = Session::new(files, directory, &Config::default()).expect("a mount");
        let files = Some(session.spawn().expect("a thread"));
        let directory = directory.to_owned();
        let mut disks = PoweredDisks { power, disks, directory, loops: Vec::new(), files };
        disks.attach();
        disks
    }

    fn attach(&mut self) {
        for index in 0..self.disks.len() {
            let mut losetup = Command::new("losetup");
            losetup.args(["--find", "--show", "--sector-size", "4096", "--direct-io=on"]);
            let output = succeeds(losetup.arg(self.directory.join(index.to_string())));
            self.loops.push(String::from_utf8_lossy(&output.stdout).trim().into());
        }
    }

    fn detach(&mut self) {
        for device in self.loops.drain(..) {
            let _ = Command::new("losetup").arg("--detach").arg(device).status();
        }
    }

    /// The loop device of a disk.
    pub(crate) fn device(&self, index: usize) -> &Path {
        &self.loops[index]
    }

    /// Cuts the power: from now on all reads and writes fail.
    pub(crate) fn cut_power(&self) {
        self.power.cut();
    }

    /// Turns the power on again, once nobody uses the devices. Each disk has lost some of the writes that were not flushed, and has
    /// some of them in part.
    pub(crate) fn restore_power(&mut self) {
        self.detach();
        self.disks.iter().for_each(|disk| disk.crash());
        self.power.restore();
        self.attach();
    }
}

impl Drop for PoweredDisks {
    fn drop(&mut self) {
        self.detach();
        drop(self.files.take());
    }
}

/// A file for each disk, by its number.
struct DiskFiles {
    disks: Vec<Arc<SimDisk>>,
}

impl DiskFiles {
    /// The inode of a disk is its number and 2, because 1 is the root.
    fn disk(&self, ino: INodeNo) -> &SimDisk {
        &self.disks[ino.0 as usize - 2]
    }

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let is_root = ino == INodeNo::ROOT;
        let time = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino,
            size: if is_root { 0 } else { self.disk(ino).blocks() * BLOCK },
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: if is_root { FileType::Directory } else { FileType::RegularFile },
            perm: if is_root { 0o755 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: BLOCK as u32,
            flags: 0,
        }
    }
}

/// How long the kernel may keep attributes, which do not change.
const FOREVER: Duration = Duration::from_secs(3600);

impl Filesystem for DiskFiles {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let index = name.to_str().and_then(|name| name.parse::<usize>().ok());
        match index.filter(|index| *index < self.disks.len()) {
            Some(index) => reply.entry(&FOREVER, &self.attributes(INodeNo(index as u64 + 2)), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(ino));
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let disk = self.disk(ino);
        let end = (offset + u64::from(size)).min(disk.blocks() * BLOCK);
        let mut pages = vec![Page([0; BLOCK_BYTES]); (end.saturating_sub(offset) / BLOCK) as usize];
        match disk.read(Block(offset / BLOCK), &mut pages) {
            Ok(()) => reply.data(&pages.iter().flat_map(|page| page.0).collect::<Vec<u8>>()),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (blocks, rest) = data.as_chunks::<BLOCK_BYTES>();
        assert!(rest.is_empty() && offset.is_multiple_of(BLOCK), "a loop device writes whole sectors");
        let pages: Vec<Page> = blocks.iter().map(|block| Page(*block)).collect();
        match self.disk(ino).write(Block(offset / BLOCK), &pages) {
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.disk(ino).flush() {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EIO),
        }
    }
}
