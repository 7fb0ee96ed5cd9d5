//! Extended attributes.

use crate::common::{Mounted, Sandbox, can_mount};
use crate::{USER, as_user, crash, open_to_all};
use rustix::fs::{XattrFlags, getxattr, getxattr_query, listxattr, lsetxattr, removexattr, setxattr};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

fn get(mounted: &Mounted, file: &str, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 1 << 16];
    let len = getxattr(mounted.path(file), name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn set(mounted: &Mounted, file: &str, name: &str, value: &[u8]) -> Result<(), Errno> {
    setxattr(mounted.path(file), name, value, XattrFlags::empty())
}

fn list(mounted: &Mounted, file: &str) -> BTreeSet<String> {
    let mut names = vec![0; 1 << 16];
    let len = listxattr(mounted.path(file), &mut names[..]).expect("a list");
    let names = String::from_utf8(names[..len].to_vec()).expect("text");
    names.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn attributes_of_all_sizes_survive_a_crash_and_belong_to_the_inode() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    fs::write(mounted.path("file"), b"bytes").expect("a file");
    fs::create_dir(mounted.path("dir")).expect("a directory");
    let sizes = [0, 1, 20, 60, 1000, 4060, 4090, 5000, 65536];
    for file in ["file", "dir"] {
        for size in sizes {
            set(&mounted, file, &format!("user.size{size}"), &vec![size as u8 | 1; size]).expect("set");
        }
        for space in ["trusted.t", "security.s", "user.\u{540d}"] {
            set(&mounted, file, space, space.as_bytes()).expect("set");
        }
    }
    fs::hard_link(mounted.path("file"), mounted.path("other")).expect("another name");
    fs::rename(mounted.path("file"), mounted.path("dir/moved")).expect("moved");
    let mounted = crash(&sandbox, mounted);
    for file in ["other", "dir/moved", "dir"] {
        for size in sizes {
            let name = format!("user.size{size}");
            assert_eq!(get(&mounted, file, &name).expect("there"), vec![size as u8 | 1; size]);
            assert_eq!(getxattr_query(mounted.path(file), &*name).expect("its size"), size);
        }
        assert_eq!(list(&mounted, file).len(), sizes.len() + 3);
        // Remove one after the other, the largest first. The others must not change.
        for size in sizes.iter().rev() {
            removexattr(mounted.path(file), &*format!("user.size{size}")).expect("removed");
            assert_eq!(get(&mounted, file, "trusted.t").expect("it stays"), b"trusted.t");
            if file == "other" {
                // The same inode.
                assert!(!list(&mounted, "dir/moved").contains(&format!("user.size{size}")));
            }
        }
        if file == "other" {
            for size in sizes {
                set(&mounted, file, &format!("user.size{size}"), &vec![size as u8 | 1; size]).expect("set");
            }
        }
    }
    let mounted = crash(&sandbox, mounted);
    assert_eq!(list(&mounted, "dir").len(), 3);
    mounted.unmount();
}

#[test]
fn every_error_of_attributes_has_its_errno() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    fs::write(mounted.path("f"), b"").expect("a file");
    symlink("f", mounted.path("link")).expect("a link");
    let path = mounted.path("f");
    set(&mounted, "f", "user.a", b"12345").expect("set");
    let create = setxattr(&path, "user.a", b"", XattrFlags::CREATE);
    assert_eq!(create, Err(Errno::EXIST));
    assert_eq!(setxattr(&path, "user.b", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(get(&mounted, "f", "user.b"), Err(Errno::NODATA));
    assert_eq!(removexattr(&path, "user.b"), Err(Errno::NODATA));
    assert_eq!(getxattr(&path, "user.a", &mut [0; 4][..]), Err(Errno::RANGE));
    assert_eq!(listxattr(&path, &mut [0; 3][..]), Err(Errno::RANGE));
    assert_eq!(set(&mounted, "f", &format!("user.{}", "n".repeat(251)), b""), Err(Errno::RANGE));
    set(&mounted, "f", &format!("user.{}", "n".repeat(250)), b"").expect("the longest name");
    assert_eq!(set(&mounted, "f", "user.big", &vec![0; 65537]), Err(Errno::TOOBIG));
    assert_eq!(set(&mounted, "f", "user.", b""), Err(Errno::INVAL));
    assert_eq!(set(&mounted, "f", "", b""), Err(Errno::RANGE));
    for name in ["unknown.x", "system.x", "user"] {
        assert_eq!(set(&mounted, "f", name, b""), Err(Errno::OPNOTSUPP), "{name}");
        assert_eq!(get(&mounted, "f", name), Err(Errno::OPNOTSUPP), "{name}");
    }
    assert_eq!(lsetxattr(mounted.path("link"), "user.a", b"", XattrFlags::empty()), Err(Errno::PERM));
    lsetxattr(mounted.path("link"), "trusted.a", b"of the link", XattrFlags::empty())
        .expect("trusted is for all");
    assert_eq!(get(&mounted, "link", "trusted.a"), Err(Errno::NODATA), "not of what it leads to");
    assert_eq!(get(&mounted, "gone", "user.a"), Err(Errno::NOENT));
    // The names of one file fill a list completely. One more name is refused.
    let mut names = list(&mounted, "f").iter().map(|name| name.len() + 1).sum::<usize>();
    let mut refused = Ok(());
    for i in 0.. {
        let name = format!("user.{i:0200}");
        refused = set(&mounted, "f", &name, b"");
        if refused.is_err() {
            break;
        }
        names += name.len() + 1;
    }
    assert_eq!(refused, Err(Errno::NOSPC));
    assert!(names > 65536 - 206 && names <= 65536, "{names}");
    assert_eq!(listxattr(&path, &mut vec![0; 65536][..]), Ok(names));
    mounted.unmount();
}

#[test]
fn the_class_belongs_to_the_thread_and_to_no_file() {
    const CLASS: &str = "user.weir.class";
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    fs::write(mounted.path("f"), b"").expect("a file");
    set(&mounted, "f", "user.a", b"of the file").expect("set");
    assert_eq!(get(&mounted, "f", CLASS), Err(Errno::NODATA));
    assert_eq!(removexattr(mounted.path("f"), CLASS), Err(Errno::NODATA));
    set(&mounted, "f", CLASS, b"background").expect("set");
    assert_eq!(get(&mounted, "", CLASS).expect("set"), b"background");
    assert_eq!(getxattr_query(mounted.path("f"), CLASS), Ok(10));
    assert_eq!(getxattr(mounted.path("f"), CLASS, &mut [0; 9][..]), Err(Errno::RANGE));
    for wrong in [&b"urgent"[..], b"critical\0", b"\xff", &[b'a'; 300]] {
        assert_eq!(set(&mounted, "f", CLASS, wrong), Err(Errno::INVAL));
    }
    assert_eq!(list(&mounted, "f"), BTreeSet::from(["user.a".into()]));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert_eq!(get(&mounted, "f", CLASS), Err(Errno::NODATA), "another thread");
            set(&mounted, "", CLASS, b"critical").expect("set");
        });
        other.join().expect("no panic");
    });
    assert_eq!(get(&mounted, "f", CLASS).expect("as it was"), b"background");
    removexattr(mounted.path("f"), CLASS).expect("it was set");
    assert_eq!(get(&mounted, "f", CLASS), Err(Errno::NODATA));
    set(&mounted, "f", CLASS, b"critical").expect("set");
    set(&mounted, "f", CLASS, b"").expect("taken back");
    set(&mounted, "f", CLASS, b"").expect("nothing to take back");
    assert_eq!(get(&mounted, "f", CLASS), Err(Errno::NODATA));
    set(&mounted, "f", CLASS, b"critical").expect("set");
    let mounted = crash(&sandbox, mounted);
    assert_eq!(get(&mounted, "f", CLASS), Err(Errno::NODATA));
    mounted.unmount();
}

#[test]
fn users_need_the_rights_that_xattr_7_names() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    fs::write(mounted.path("f"), b"").expect("a file");
    for name in ["user.u", "trusted.t", "security.s"] {
        set(&mounted, "f", name, b"secret").expect("set");
    }
    // By their numbers on this machine: 188 is setxattr, 194 listxattr.
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let perl = |code: &str| as_user(&mounted, USER, &format!("perl -e '{code}'"));
    let set_as_user = |name: &str| {
        perl(&format!("($f, $n, $v) = qw(f {name} x); exit(syscall(188, $f, $n, $v, 1, 0) == 0 ? 0 : 1)"))
    };
    assert!(set_as_user("user.u").is_err(), "another's file");
    fs::set_permissions(mounted.path("f"), std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .expect("a mode");
    set_as_user("user.u").expect("everybody may write it");
    assert!(set_as_user("trusted.t").is_err() && set_as_user("security.s").is_err());
    assert_eq!(get(&mounted, "f", "user.u").expect("set"), b"x");
    assert_eq!(get(&mounted, "f", "trusted.t").expect("as it was"), b"secret");
    let listed =
        perl("$f = \"f\"; $b = \"-\" x 999; $n = syscall(194, $f, $b, 999); print substr($b, 0, $n)")
            .expect("a list");
    assert!(listed.contains("user.u") && !listed.contains("trusted.t"), "{listed:?}");
    mounted.unmount();
}
