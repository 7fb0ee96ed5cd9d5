use super::*;
use std::fs;
use trace_file::Names;

fn tree() -> CompiledTrace {
    let mut names = Names::default();
    let mut tree = Vec::new();
    let target = names.intern(b"../outside");
    let file = names.intern(b"/dir/file");
    let mut add = |path: &[u8], kind, mode| {
        let path = names.intern(path);
        let (attributes, holes) = Default::default();
        tree.push(InitialFile { path, kind, mode, attributes, holes });
    };
    add(b"/dir", InitialKind::Directory, 0o555);
    add(b"/dir/file", InitialKind::File(3_000_000), 0o640);
    add(b"/dir/null", InitialKind::Special(Device::Null), 0o666);
    add(b"/dir/link", InitialKind::Link(target), 0o777);
    add(b"/other", InitialKind::HardLink(file), 0o640);
    for number in 0..100 {
        add(format!("/{number}").as_bytes(), InitialKind::File(number), 0o600);
    }
    CompiledTrace { names, tree, ..CompiledTrace::default() }
}

fn build(compiled: &CompiledTrace, root: &Path) -> BuiltTree {
    let go_on = |_, _| std::ops::ControlFlow::Continue(());
    super::build(compiled, root, &go_on).expect("it is built").expect("it is not stopped")
}

#[test]
fn a_tree_has_its_sizes_modes_links_and_no_holes() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let built = build(&tree(), dir.path());
    assert_eq!((built.files, built.bytes, built.written), (105, 3_004_950, 3_004_950));
    let file = fs::metadata(dir.path().join("dir/file")).expect("a file");
    assert_eq!((file.len(), file.mode() & 0o7777, file.nlink()), (3_000_000, 0o640, 2));
    assert!(file.blocks() * 512 >= 3_000_000);
    let directory = fs::metadata(dir.path().join("dir")).expect("a directory");
    assert_eq!(directory.mode() & 0o7777, 0o555);
    assert_eq!(fs::read_link(dir.path().join("dir/link")).expect("a link"), Path::new("../outside"));
    assert_eq!(fs::metadata(dir.path().join("99")).expect("a file").len(), 99);
}

#[test]
fn building_again_restores_what_changed_and_writes_nothing_else() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name);
    let mut compiled = tree();
    compiled.tree.retain(|initial| !matches!(initial.kind, InitialKind::HardLink(_)));
    build(&compiled, dir.path());
    fs::create_dir_all(path("new/deep")).expect("a directory");
    fs::write(path("new/deep/file"), b"new").expect("a file");
    fs::write(path("10"), b"longer than before").expect("a file");
    File::options().write(true).open(path("50")).and_then(|file| file.set_len(0)).expect("it is cut");
    fs::remove_file(path("20")).expect("it is removed");
    fs::create_dir(path("20")).expect("something else");
    fs::set_permissions(path("30"), Permissions::from_mode(0o000)).expect("a mode");
    let built = build(&compiled, dir.path());
    assert_eq!(built.written, 10 + 20 + 50);
    assert!(!path("new").exists());
    for number in [10, 20, 30, 50] {
        let found = fs::metadata(path(&number.to_string())).expect("a file");
        assert_eq!((found.len(), found.mode() & 0o7777), (number, 0o600));
    }
    assert_eq!(build(&compiled, dir.path()).written, 0);
}

#[test]
fn a_file_with_a_hole_is_written_again() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    build(&tree(), dir.path());
    let path = dir.path().join("dir/file");
    fs::remove_file(&path).expect("it is removed");
    File::create(&path).and_then(|file| file.set_len(3_000_000)).expect("a hole");
    assert!(build(&tree(), dir.path()).written >= 3_000_000);
    assert_eq!(fs::metadata(dir.path().join("other")).expect("the other name").nlink(), 2);
}

#[test]
fn holes_and_attributes_are_as_they_were() {
    // Attributes need a file system that supports them: tmpfs has no user attributes on older kernels.
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut compiled = tree();
    let name = compiled.names.intern(b"user.note");
    compiled.tree.retain(|initial| !matches!(initial.kind, InitialKind::HardLink(_)));
    compiled.tree[1].holes = Box::new([(0, 1 << 20), (2 << 20, 1 << 30)]);
    compiled.tree[1].attributes = Box::new([(name, 5)]);
    let built = build(&compiled, dir.path());
    let path = dir.path().join("dir/file");
    let file = fs::metadata(&path).expect("a file");
    assert_eq!(file.len(), 3_000_000);
    assert!(file.blocks() * 512 < 2 << 20, "{} blocks", file.blocks());
    assert_eq!(built.written, (1 << 20) + 4950);
    let mut value = [0u8; 64];
    match rustix::fs::lgetxattr(&path, "user.note", &mut value[..]) {
        Ok(bytes) => assert_eq!((bytes, built.refused_attributes), (5, 0)),
        Err(_) => assert_eq!(built.refused_attributes, 1),
    }
}

#[test]
fn parts_between_holes_are_data_whatever_the_holes_are() {
    assert_eq!(data(10, &[]), [(0, 10)]);
    assert_eq!(data(10, &[(0, 3), (5, 2)]), [(3, 5), (7, 10)]);
    assert_eq!(data(10, &[(8, u64::MAX), (2, 1)]), [(0, 8)]);
    assert_eq!(data(0, &[(3, 4)]), [(0u64, 0u64); 0]);
}
