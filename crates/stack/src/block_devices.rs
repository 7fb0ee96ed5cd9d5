//! The block devices that the kernel has.

use std::fs;
use std::path::{Path, PathBuf};

/// The kernel's list of block devices, with a directory for each.
const LIST: &str = "/sys/class/block";

/// Where their nodes are.
const NODES: &str = "/dev";

/// The smallest device that can be a buffer, 1 MiB, in the kernel's sectors of 512 bytes.
const SECTORS_MIN: u64 = 2048;

/// Starts of the names of disks, and of their partitions.
const DISKS: &[&str] = &["nvme", "sd", "vd", "xvd", "hd", "mmcblk", "pmem", "loop"];

/// The block devices that the kernel has.
pub(crate) struct BlockDevices {
    list: PathBuf,
    nodes: PathBuf,
}

impl BlockDevices {
    /// The block devices of this machine.
    pub(crate) fn of_kernel() -> BlockDevices {
        BlockDevices { list: LIST.into(), nodes: NODES.into() }
    }

    /// The nodes of the devices that are large enough for a buffer, and that no other device holds.
    pub(crate) fn unheld(&self) -> Vec<PathBuf> {
        self.large(|at| !is_held(at)).into_iter().filter(|path| path.exists()).collect()
    }

    /// The nodes of the devices that other devices hold, as a logical volume holds its disk. The holders usually have
    /// all that is on the disk. But where one of several logical volumes is not active, its content is on no other device.
    pub(crate) fn held(&self) -> Vec<PathBuf> {
        self.large(is_held).into_iter().filter(|path| path.exists()).collect()
    }

    /// A device that is large enough for a buffer, and has no node.
    pub(crate) fn nodeless(&self) -> Option<PathBuf> {
        match fs::read_dir(&self.list) {
            Ok(_) => self.large(|_| true).into_iter().find(|path| !path.exists()),
            Err(_) => Some(self.list.clone()),
        }
    }

    /// Whether the kernel has the device whose node is at `path`.
    pub(crate) fn has(&self, path: &Path) -> bool {
        path.starts_with(&self.nodes) && self.list.join(self.name(path)).exists()
    }

    /// Whether the kernel knows partitions of the device at `path`, which are devices themselves.
    pub(crate) fn has_partitions(&self, path: &Path) -> bool {
        let below = fs::read_dir(self.list.join(self.name(path))).into_iter().flatten().flatten();
        below.into_iter().any(|entry| entry.path().join("partition").exists())
    }

    /// Whether the device at `path` may lie on others, as a logical volume does: whether it is not a disk, nor a partition of one.
    pub(crate) fn may_lie_on_others(&self, path: &Path) -> bool {
        path.parent() != Some(&self.nodes) || !DISKS.iter().any(|disk| self.name(path).starts_with(disk))
    }

    /// The name of a device in the kernel's list, which writes `!` for a slash.
    fn name(&self, path: &Path) -> String {
        path.strip_prefix(&self.nodes).unwrap_or(path).to_string_lossy().replace('/', "!")
    }

    /// The nodes of the devices that are large enough, that the kernel does not hide, and for whose entry in the list `is_wanted` is true.
    fn large(&self, is_wanted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.list).into_iter().flatten().flatten();
        let is_large = |at: &Path| {
            let sectors = fs::read_to_string(at.join("size")).ok().and_then(|size| size.trim().parse().ok());
            sectors.is_some_and(|sectors: u64| sectors >= SECTORS_MIN)
        };
        // A path of a disk that has several, which are one device.
        let is_hidden =
            |at: &Path| fs::read_to_string(at.join("hidden")).is_ok_and(|hidden| hidden.trim() == "1");
        let is_wanted = |at: &Path| is_large(at) && !is_hidden(at) && is_wanted(at);
        let wanted = entries.filter(|entry| is_wanted(&entry.path()));
        let node = |name: &str| self.nodes.join(name.replace('!', "/"));
        let mut found: Vec<PathBuf> =
            wanted.map(|entry| node(&entry.file_name().to_string_lossy())).collect();
        found.sort();
        found
    }
}

/// Whether another device holds the device with this entry in the kernel's list.
fn is_held(entry: &Path) -> bool {
    fs::read_dir(entry.join("holders")).is_ok_and(|mut holders| holders.next().is_some())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Devices of a test: files in a directory.
    pub(crate) struct FakeDevices {
        directory: tempfile::TempDir,
        pub(crate) devices: BlockDevices,
    }

    impl FakeDevices {
        pub(crate) fn new() -> FakeDevices {
            let directory = tempfile::tempdir().expect("a directory");
            let [list, nodes] = ["list", "nodes"].map(|name| directory.path().join(name));
            [&list, &nodes].into_iter().for_each(|path| fs::create_dir(path).expect("a directory"));
            FakeDevices { directory, devices: BlockDevices { list, nodes } }
        }

        pub(crate) fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join("nodes").join(name)
        }

        /// Adds a device of 2 MiB that begins with `content`, and that `holder` holds.
        pub(crate) fn add(&self, name: &str, content: &[u8], holder: Option<&str>) -> PathBuf {
            let entry = self.directory.path().join("list").join(name);
            fs::create_dir_all(entry.join("holders")).expect("a directory");
            fs::write(entry.join("size"), "4096\n").expect("a file");
            if let Some(holder) = holder {
                fs::create_dir_all(entry.join("holders").join(holder)).expect("a directory");
            }
            let path = self.path(name);
            let mut bytes = content.to_vec();
            bytes.resize(2 << 20, 0);
            fs::write(&path, bytes).expect("a file");
            path
        }
    }

    #[test]
    fn a_disk_and_its_partition_lie_on_no_others_and_logical_volumes_may() {
        let devices = BlockDevices::of_kernel();
        for disk in ["/dev/sda", "/dev/sdb1", "/dev/nvme0n1p2", "/dev/vdc", "/dev/mmcblk0p1"] {
            assert!(!devices.may_lie_on_others(Path::new(disk)), "{disk}");
        }
        for other in ["/dev/dm-4", "/dev/md0", "/dev/mapper/sdata", "/dev/vg/sda", "/dev/bcache0", "/srv/sda"]
        {
            assert!(devices.may_lie_on_others(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn a_held_device_is_told_from_others() {
        let fake = FakeDevices::new();
        let (root, disk) = (fake.add("dm-0", b"", None), fake.add("sda", b"", Some("dm-0")));
        assert_eq!((fake.devices.unheld(), fake.devices.held()), (vec![root], vec![disk.clone()]));
        assert!(fake.devices.has(&disk) && fake.devices.nodeless().is_none());
        fs::remove_file(&disk).expect("ours");
        assert_eq!(fake.devices.held(), Vec::<PathBuf>::new());
    }
}
