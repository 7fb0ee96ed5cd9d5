//! Reads the list of the tree before a run, as `find ROOTS -printf '%y %m %s %n %D:%i %p\t%l\n'` prints it.
//!
//! `weir trace record` adds lines of three more kinds: `D`, a directory that is not listed completely; `h
//! START BYTES PATH`, a hole in the file listed before it, and `x NAME BYTES PATH`, an extended attribute of
//! that file.

use crate::model::{NodeKind, World};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use trace_file::TraceError;

/// Adds a snapshot to a world. Relative paths belong to `root`. Directories in the list are complete, except
/// `root` itself and those above it.
pub(super) fn read_snapshot(world: &mut World, file: &Path, root: &Path) -> Result<(), TraceError> {
    let input = crate::open_text(file)?;
    let mut inodes = HashMap::new();
    let mut last = None;
    for (index, line) in BufReader::new(input).split(b'\n').enumerate() {
        let line = line.map_err(TraceError::io("reading", file))?;
        if line.is_empty() {
            continue;
        }
        let bad = |why| TraceError::Snapshot { path: file.into(), line: index as u64 + 1, why };
        match line.split_at(2.min(line.len())) {
            (b"h " | b"x ", rest) => add_detail(world, line[0], rest, last).map_err(bad)?,
            _ => last = add_line(world, &line, root, &mut inodes).map_err(bad)?,
        }
    }
    Ok(())
}

fn number(field: &[u8], radix: u32) -> Result<u64, &'static str> {
    let text = std::str::from_utf8(field).map_err(|_| "a number is none")?;
    u64::from_str_radix(text, radix).map_err(|_| "a number is none")
}

/// Adds a hole or an extended attribute to the file listed last.
fn add_detail(world: &mut World, kind: u8, rest: &[u8], of: Option<u32>) -> Result<(), &'static str> {
    let mut fields = rest.splitn(3, |byte| *byte == b' ');
    let mut field = || fields.next().ok_or("fewer than three fields");
    let (first, second) = (field()?, field()?);
    let of = of.ok_or("a detail of no file")?;
    match kind {
        b'h' => world.add_hole(of, number(first, 10)?, number(second, 10)?),
        _ => {
            let name = world.names.intern(first);
            let bytes = u32::try_from(number(second, 10)?).map_err(|_| "an attribute is too long")?;
            world.add_attribute(of, name, bytes);
        }
    }
    Ok(())
}

/// Adds the file of a line. Returns the file, or `None` for another name of a file.
fn add_line(
    world: &mut World,
    line: &[u8],
    root: &Path,
    inodes: &mut HashMap<Vec<u8>, u32>,
) -> Result<Option<u32>, &'static str> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let mut field = || fields.next().ok_or("fewer than six fields");
    let (kind, mode, size, count, inode) = (field()?, field()?, field()?, field()?, field()?);
    let (mode, size, count) = (number(mode, 8)? as u32, number(size, 10)?, number(count, 10)?);
    let rest = field()?;
    let tab = rest.iter().rposition(|byte| *byte == b'\t').unwrap_or(rest.len());
    let (path, target) = (&rest[..tab], &rest[(tab + 1).min(rest.len())..]);
    let path = if path.starts_with(b"/") {
        path.to_vec()
    } else {
        [root.as_os_str().as_encoded_bytes(), b"/", path].concat()
    };
    let kind = match kind {
        b"d" | b"D" => NodeKind::Directory { entries: HashMap::new(), whole: kind == b"d", parent: 0 },
        b"p" => NodeKind::Fifo,
        b"s" => NodeKind::Socket,
        b"f" => NodeKind::File,
        b"l" => NodeKind::Link(Some(world.names.intern(target))),
        _ => NodeKind::Special,
    };
    let linked = count > 1 && matches!(kind, NodeKind::File);
    match inodes.get(inode).filter(|_| linked) {
        Some(node) => {
            world.add_hard_link(&path, *node);
            Ok(None)
        }
        None => {
            let node = world.add_initial(&path, kind, mode, size);
            if linked {
                inodes.insert(inode.to_vec(), node);
            }
            Ok(Some(node))
        }
    }
}
