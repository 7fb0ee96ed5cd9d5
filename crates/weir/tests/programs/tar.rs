use crate::common::succeeds;
use crate::weir::Weir;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The properties of a file that must not depend on where it is unpacked.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// Kind and permissions.
    mode: u32,
    owner: (u32, u32),
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// The first name, in order, of the same file.
    same_as: PathBuf,
    links: u64,
    content: Content,
}

#[derive(Debug, PartialEq, Eq)]
enum Content {
    Directory,
    Bytes(Vec<u8>),
    Target(PathBuf),
}

fn manifest(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut found = BTreeMap::new();
    let mut first_names: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut names = Vec::new();
    list(root, &mut names);
    names.sort();
    for path in names {
        let name = path.strip_prefix(root).expect("below the root").to_path_buf();
        let metadata = fs::symlink_metadata(&path).expect("metadata");
        let content = if metadata.is_dir() {
            Content::Directory
        } else if metadata.is_symlink() {
            Content::Target(fs::read_link(&path).expect("a link"))
        } else {
            Content::Bytes(fs::read(&path).expect("a file"))
        };
        let entry = Entry {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            same_as: first_names.entry(metadata.ino()).or_insert_with(|| name.clone()).clone(),
            links: metadata.nlink(),
            content,
        };
        found.insert(name, entry);
    }
    found
}

fn list(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if fs::symlink_metadata(&path).expect("metadata").is_dir() {
            list(&path, into);
        }
        into.push(path);
    }
}

fn generate_tree(root: &Path) {
    let mut directories = Vec::new();
    for outer in 0..12_u32 {
        let below = root.join(format!("directory-{outer}")).join("below");
        fs::create_dir_all(&below).expect("a directory");
        for inner in 0..25_u32 {
            let path = below.join(format!("file {inner} ü"));
            let bytes: Vec<u8> =
                (0..outer * 900 + inner * inner * 77).map(|byte| (byte * 31 + inner) as u8).collect();
            fs::write(&path, bytes).expect("a file");
            set_time(&path, u64::from(outer * 1000 + inner));
            let modes = [0o600, 0o644, 0o755, 0o4750, 0o400];
            fs::set_permissions(&path, fs::Permissions::from_mode(modes[inner as usize % modes.len()]))
                .expect("permissions");
        }
        symlink("file 3 ü", below.join("link")).expect("a link");
        symlink("/nowhere/at/all", below.join("broken link")).expect("a link");
        fs::hard_link(below.join("file 1 ü"), below.join("other name")).expect("a link");
        directories.push(below);
    }
    fs::write(root.join("x".repeat(255)), b"the longest name").expect("a file");
    fs::set_permissions(&directories[3], fs::Permissions::from_mode(0o1777)).expect("permissions");
    // Last, because each new name changes its directory's time.
    directories.iter().for_each(|directory| set_time(directory, 77));
}

fn set_time(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + seconds, 123_456_789);
    let file = fs::File::open(path).expect("open");
    file.set_modified(time).expect("a time");
}

fn pack(directory: &Path, archive: &Path) {
    // Only the POSIX format holds nanoseconds.
    succeeds(
        Command::new("tar").args(["--format=posix", "-cf"]).arg(archive).arg("-C").arg(directory).arg("."),
    );
}

fn unpack(archive: &Path, directory: &Path) {
    fs::create_dir(directory).expect("a directory");
    succeeds(Command::new("tar").args(["-xpf"]).arg(archive).arg("-C").arg(directory));
}

#[test]
fn tar_puts_a_tree_in_and_gets_the_same_tree_out_with_modes_times_and_links() {
    let Some(mut weir) = Weir::start("2GiB", "64MiB") else { return };
    let (archive, tree, out) = (weir.beside("in.tar"), weir.beside("tree"), weir.beside("out"));
    fs::create_dir(&tree).expect("a directory");
    generate_tree(&tree);
    let expected = manifest(&tree);
    assert!(expected.len() > 300, "the tree is smaller than it should be");
    pack(&tree, &archive);

    let inside = weir.path().join("tree");
    unpack(&archive, &inside);
    assert_same("unpacked on the mount", &manifest(&inside), &expected);
    weir.unmount_and_check();
    weir.mount();
    assert_same("after mounting again", &manifest(&inside), &expected);

    pack(&inside, &weir.path().join("out.tar"));
    unpack(&weir.path().join("out.tar"), &out);
    assert_same("packed on the mount, unpacked beside it", &manifest(&out), &expected);
}

fn assert_same(when: &str, found: &BTreeMap<PathBuf, Entry>, expected: &BTreeMap<PathBuf, Entry>) {
    let names = |manifest: &BTreeMap<PathBuf, Entry>| manifest.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{when}");
    for (name, entry) in expected {
        assert_eq!(&found[name], entry, "{when}: {}", name.display());
    }
}
