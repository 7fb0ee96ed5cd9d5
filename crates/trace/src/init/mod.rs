//! Builds the initial tree. It must be called in the confined process: the tree's links may point anywhere.

use crate::benchmark::{Benchmark, Device, Initial, InitialKind};
use crate::error::TraceError;
use rustix::fs::{FileType, Mode};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Bytes written at a time.
const CHUNK: usize = 1 << 20;
/// What file systems need besides the bytes of files.
const RESERVE: u64 = 16 << 20;

/// What was built.
#[derive(Debug, Clone, Copy, Default)]
pub struct Built {
    /// Files, directories and links.
    pub files: u64,
    /// Bytes in files, all written: a hole would be read faster than what it stands for.
    pub bytes: u64,
    /// Devices that could not be made and became files.
    pub stand_ins: u64,
}

/// Builds the initial tree of `benchmark` under `root`.
pub fn initialise(benchmark: &Benchmark, root: &Path) -> Result<Built, TraceError> {
    let needed = benchmark.tree.iter().map(|initial| match initial.kind {
        InitialKind::File(bytes) => bytes,
        _ => 0,
    });
    let needed = needed.fold(RESERVE, u64::saturating_add);
    let space =
        rustix::fs::statvfs(root).map_err(|error| TraceError::io("asking for space", root)(error.into()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if needed > free {
        return Err(TraceError::Space { path: root.into(), needed, free });
    }
    let mut built = Built::default();
    let content = vec![0x57u8; CHUNK];
    for initial in &benchmark.tree {
        let path = below(root, benchmark.names.bytes(initial.path));
        build(benchmark, initial, &path, root, &content, &mut built)
            .map_err(TraceError::io("building", path))?;
    }
    Ok(built)
}

fn build(
    benchmark: &Benchmark,
    initial: &Initial,
    path: &Path,
    root: &Path,
    content: &[u8],
    built: &mut Built,
) -> io::Result<()> {
    built.files += 1;
    match &initial.kind {
        InitialKind::Directory => match std::fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        },
        InitialKind::File(bytes) => {
            fill(path, *bytes, content)?;
            built.bytes += bytes;
        }
        InitialKind::Link(target) => {
            symlink(OsStr::from_bytes(benchmark.names.bytes(*target)), path)?;
            return Ok(());
        }
        InitialKind::HardLink(first) => {
            return std::fs::hard_link(below(root, benchmark.names.bytes(*first)), path);
        }
        InitialKind::Special(device) => {
            if make_device(path, *device).is_err() {
                fill(path, 0, content)?;
                built.stand_ins += 1;
            }
            return Ok(());
        }
    }
    // Whoever replays must be able to use what the program could: permissions that a trace does not show are usual ones.
    std::fs::set_permissions(path, Permissions::from_mode(initial.mode & 0o7777))
}

fn fill(path: &Path, bytes: u64, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let part = left.min(content.len() as u64);
        file.write_all(&content[..part as usize])?;
        left -= part;
    }
    Ok(())
}

/// The numbers are the kernel's, fixed for ever. Random bytes never block: /dev/urandom.
fn make_device(path: &Path, device: Device) -> rustix::io::Result<()> {
    let minor = match device {
        Device::Null => 3,
        Device::Zero => 5,
        Device::Random => 9,
    };
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::CharacterDevice, mode, rustix::fs::makedev(1, minor))
}

fn below(root: &Path, path: &[u8]) -> PathBuf {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    root.join(OsStr::from_bytes(path))
}
