//! The mount table, from `/proc/self/mountinfo`.

use crate::error::HostError;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The type of mounts of weir in the mount table.
pub const WEIR_FS_TYPE: &str = "fuse.weir";

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The mount's id, which `statx` reports as `mnt_id` for every file on the mount.
    pub id: u64,
    /// The mount point, an absolute path.
    pub point: PathBuf,
    /// The file system's type, such as `ext4` or `fuse.weir`.
    pub fs_type: String,
    /// The mounted source: a device's path, or any text.
    pub source: PathBuf,
    /// Major and minor number of the mounted file system, which `stat` reports for every file on it.
    pub device: (u32, u32),
    /// The options of the file system itself, such as `size=5k`.
    pub options: Vec<String>,
    /// The owner of a FUSE mount: the user and group who made and serve it. Only the kernel sets them, so
    /// they can be trusted.
    pub owner: Option<FuseMountOwner>,
}

/// The user and group who serve a FUSE mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FuseMountOwner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// All mounts that this process sees, in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountTable(Vec<MountEntry>);

impl MountTable {
    /// The mounts as they are now.
    pub fn read() -> Result<MountTable, HostError> {
        MountTable::read_from(Path::new("/proc/self/mountinfo"))
    }

    /// The mounts that another process sees, which may be in a mount namespace of its own.
    pub fn of_process(pid: u32) -> Result<MountTable, HostError> {
        MountTable::read_from(Path::new(&format!("/proc/{pid}/mountinfo")))
    }

    fn read_from(path: &Path) -> Result<MountTable, HostError> {
        let text = std::fs::read(path).map_err(|error| HostError::of(path, "reading it", error))?;
        Ok(MountTable::parse(&text))
    }

    /// Parses mountinfo as proc(5) describes it. Lines of another shape are left out.
    pub fn parse(text: &[u8]) -> MountTable {
        MountTable(text.split(|&byte| byte == b'\n').filter_map(parse_line).collect())
    }

    /// The mount that `path` lies on; `path` must be absolute and without links. Of the longest mount points
    /// that lead to it the newest, since that hides the others.
    pub fn mount_of(&self, path: &Path) -> Option<&MountEntry> {
        let leads = self.0.iter().filter(|mount| path.starts_with(&mount.point));
        leads.max_by_key(|mount| mount.point.components().count())
    }

    /// The mount with this id.
    pub(crate) fn with_id(&self, id: u64) -> Option<&MountEntry> {
        self.0.iter().find(|mount| mount.id == id)
    }

    /// The mount whose mount point is exactly `point`.
    pub fn mounted_at(&self, point: &Path) -> Option<&MountEntry> {
        self.0.iter().rev().find(|mount| mount.point == point)
    }

    /// Whether `path`, with links followed, lies on a file system of this type, such as `fuse.weir`. If
    /// `path` does not exist yet, its directory counts.
    pub fn lies_on(&self, path: &Path, fs_type: &str) -> Result<bool, HostError> {
        let real = match path.canonicalize() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => parent(path).canonicalize(),
            other => other,
        };
        let real = real.map_err(|error| HostError::of(path, "following its links", error))?;
        Ok(self.mount_of(&real).is_some_and(|mount| mount.fs_type == fs_type))
    }

    /// All mounts.
    pub fn iter(&self) -> impl Iterator<Item = &MountEntry> {
        self.0.iter()
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// `36 35 98:0 /root /mount/point rw,noatime shared:1 - ext4 /dev/root rw`: any number of fields before the
/// dash.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = parse_device(fields.nth(1)?)?;
    let point = unescape(fields.nth(1)?);
    let mut behind = fields.skip_while(|&field| field != b"-").skip(1);
    let fs_type = unescape(behind.next()?).into_string().ok()?;
    let source = unescape(behind.next()?);
    let options = behind.next().unwrap_or_default();
    let owner = parse_owner(options);
    let options = options.split(|&byte| byte == b',');
    let options = options.map(|option| unescape(option).to_string_lossy().into_owned()).collect();
    Some(MountEntry { id, point: point.into(), fs_type, source: source.into(), device, options, owner })
}

/// The owner in `rw,user_id=1000,group_id=1000,allow_other`. The first value of a name counts: options of the
/// file system's own may follow, never come first.
fn parse_owner(options: &[u8]) -> Option<FuseMountOwner> {
    let value = |name: &[u8]| {
        let mut options = options.split(|&byte| byte == b',');
        let value = options.find_map(|option| option.strip_prefix(name))?;
        std::str::from_utf8(value).ok()?.parse().ok()
    };
    Some(FuseMountOwner { uid: value(b"user_id=")?, gid: value(b"group_id=")? })
}

fn parse_device(field: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Replaces escapes: blanks, tabs, line ends and backslashes appear as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\').and_then(octal);
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes)
}

fn octal(digits: &[u8]) -> Option<u8> {
    let value = |sum: u16, digit: &u8| match digit {
        b'0'..=b'7' => Some(sum * 8 + u16::from(digit - b'0')),
        _ => None,
    };
    digits.iter().try_fold(0, value).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /mnt/a\\040b rw shared:7 master:3 - tmpfs tmpfs rw,size=5k
31 30 0:40 / /mnt/a\\040b/weir rw - fuse.weir /srv/store rw,user_id=1000,group_id=100
32 22 0:41 / /over rw - ext4 /dev/vdb rw
33 32 0:42 / /over rw - fuse.weir \\134odd rw
nonsense
";

    #[test]
    fn the_longest_mount_point_wins_and_then_the_newest() {
        let mounts = MountTable::parse(TEXT);
        let type_of = |path: &str| mounts.mount_of(Path::new(path)).expect("a mount").fs_type.clone();
        assert_eq!(mounts.iter().count(), 5);
        assert_eq!(type_of("/mnt/a"), "ext4");
        assert_eq!(type_of("/mnt/a b/x"), "tmpfs");
        assert_eq!(type_of("/mnt/a b/weird"), "tmpfs");
        assert_eq!(type_of("/mnt/a b/weir/x"), "fuse.weir");
        assert_eq!(type_of("/over/x"), "fuse.weir");
        assert_eq!(mounts.mount_of(Path::new("/over")).expect("a mount").source, Path::new("\\odd"));
    }

    #[test]
    fn a_fuse_mount_has_an_owner_and_others_have_none() {
        let mounts = MountTable::parse(TEXT);
        let owner = |point: &str| mounts.mounted_at(Path::new(point)).expect("mounted").owner;
        assert_eq!(owner("/mnt/a b/weir"), Some(FuseMountOwner { uid: 1000, gid: 100 }));
        assert_eq!(owner("/"), None);
    }

    #[test]
    fn a_mount_has_the_number_and_the_options_of_its_line() {
        let mounts = MountTable::parse(TEXT);
        let tmpfs = mounts.with_id(30).expect("a mount");
        assert_eq!((tmpfs.id, tmpfs.fs_type.as_str()), (30, "tmpfs"));
        assert_eq!(tmpfs.options, ["rw", "size=5k"]);
        assert_eq!(mounts.with_id(29), None);
    }

    #[test]
    fn only_an_exact_mount_point_is_mounted_at() {
        let mounts = MountTable::parse(TEXT);
        assert_eq!(mounts.mounted_at(Path::new("/over")).expect("mounted").fs_type, "fuse.weir");
        assert_eq!(mounts.mounted_at(Path::new("/over")).expect("mounted").device, (0, 42));
        assert_eq!(mounts.mounted_at(Path::new("/over/x")), None);
    }

    #[test]
    fn a_path_that_does_not_exist_lies_where_its_directory_does() {
        let mounts = MountTable::read().expect("a kernel with /proc");
        let proc_type = mounts.mount_of(Path::new("/proc")).expect("mounted").fs_type.clone();
        assert!(mounts.lies_on(Path::new("/proc/no such file"), &proc_type).expect("/proc exists"));
        assert!(!mounts.lies_on(Path::new("/proc"), "fuse.weir").expect("/proc exists"));
        assert!(mounts.lies_on(Path::new("/no such/file"), "fuse.weir").is_err());
    }

    #[test]
    fn odd_escapes_are_left_as_they_are() {
        assert_eq!(unescape(b"a\\0b\\777\\04"), "a\\0b\\777\\04");
        assert_eq!(unescape(b"\\011\\012\\134"), "\t\n\\");
    }
}
