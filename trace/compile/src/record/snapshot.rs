//! Lists files in their current state.

use rustix::fs::SeekFrom;
use std::fs::{DirEntry, File, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Maximum number of holes that are listed for one file; further holes are left out.
const HOLES_MAX: usize = 1024;
/// The unit of `st_blocks`, in bytes.
const BLOCK_BYTES: u64 = 512;

/// Lists `path` and everything below it.
pub(super) fn list(path: &Path, out: &mut impl Write) -> io::Result<()> {
    let meta = path.symlink_metadata()?;
    line(path, &meta, None, true, out)?;
    details(path, &meta, out)?;
    if meta.is_dir() {
        let mut entries: Vec<DirEntry> = std::fs::read_dir(path)?.collect::<io::Result<_>>()?;
        entries.sort_by_key(DirEntry::file_name);
        entries.iter().try_for_each(|entry| list(&entry.path(), out))?;
    }
    Ok(())
}

/// Writes the line of a file: type, mode, size, links, device:inode, path, TAB, link target. The size is
/// written only if it matters.
pub(super) fn line(
    path: &Path,
    meta: &Metadata,
    kind: Option<char>,
    sized: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let kind = kind.unwrap_or(match meta.mode() & libc::S_IFMT {
        libc::S_IFDIR => 'd',
        libc::S_IFREG => 'f',
        libc::S_IFLNK => 'l',
        libc::S_IFCHR => 'c',
        libc::S_IFBLK => 'b',
        libc::S_IFIFO => 'p',
        _ => 's',
    });
    let size = if sized || kind != 'f' { meta.size() } else { 0 };
    let (mode, links) = (meta.mode() & 0o7777, meta.nlink());
    write!(out, "{kind} {mode:o} {size} {links} {}:{} ", meta.dev(), meta.ino())?;
    out.write_all(path.as_os_str().as_bytes())?;
    out.write_all(b"\t")?;
    if kind == 'l' {
        out.write_all(std::fs::read_link(path)?.as_os_str().as_bytes())?;
    }
    out.write_all(b"\n")
}

/// Writes the holes of a regular file, and its user attributes. Details that cannot be read are left out.
fn details(path: &Path, meta: &Metadata, out: &mut impl Write) -> io::Result<()> {
    let mut detail = |kind: &str, first: &[u8], second: u64| -> io::Result<()> {
        out.write_all(kind.as_bytes())?;
        out.write_all(first)?;
        write!(out, " {second} ")?;
        out.write_all(path.as_os_str().as_bytes())?;
        out.write_all(b"\n")
    };
    let mut names = vec![0u8; 64 << 10];
    if let Ok(length) = rustix::fs::llistxattr(path, &mut names[..]) {
        let all = names[..length].split(|byte| *byte == 0);
        for name in all.filter(|name| name.starts_with(b"user.") && !name.contains(&b' ')) {
            let mut nothing = [0u8; 0];
            if let Ok(size) = rustix::fs::lgetxattr(path, name, &mut nothing[..]) {
                detail("x ", name, size as u64)?;
            }
        }
    }
    if meta.is_file() && meta.blocks().saturating_mul(BLOCK_BYTES) < meta.len() {
        for (start, bytes) in holes(path, meta.len()).unwrap_or_default() {
            detail("h ", start.to_string().as_bytes(), bytes)?;
        }
    }
    Ok(())
}

fn holes(path: &Path, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let file = File::open(path)?;
    let mut found = Vec::new();
    let mut at = 0;
    while at < size && found.len() < HOLES_MAX {
        let start = rustix::fs::seek(&file, SeekFrom::Hole(at))?;
        if start >= size {
            break;
        }
        at = match rustix::fs::seek(&file, SeekFrom::Data(start)) {
            Err(rustix::io::Errno::NXIO) => size,
            end => end?,
        };
        found.push((start, at - start));
    }
    Ok(found)
}
