//! POSIX access control lists. The kernel checks them. weir keeps them consistent with modes and new files.

use crate::common::{Mounted, Sandbox, can_mount};
use crate::{USER, as_user, crash, open_to_all};
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Tags of entries, each with the id of an entry that names no user or group.
const OWNER: (u16, u32) = (1, u32::MAX);
const GROUP: (u16, u32) = (4, u32::MAX);
const MASK: (u16, u32) = (16, u32::MAX);
const OTHERS: (u16, u32) = (32, u32::MAX);

fn user(uid: u32) -> (u16, u32) {
    (2, uid)
}

fn acl(entries: &[((u16, u32), u16)]) -> Vec<u8> {
    let entries = entries.iter().flat_map(|&((tag, id), permissions)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    [2, 0, 0, 0].into_iter().chain(entries).collect()
}

fn set(mounted: &Mounted, file: &str, name: &str, entries: &[((u16, u32), u16)]) -> Result<(), Errno> {
    setxattr(mounted.path(file), name, &acl(entries), XattrFlags::empty())
}

fn get(mounted: &Mounted, file: &str, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 8192];
    let len = getxattr(mounted.path(file), name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn mode(mounted: &Mounted, file: &str) -> u32 {
    fs::metadata(mounted.path(file)).expect("it is there").mode() & 0o7777
}

#[test]
fn a_named_user_gets_what_the_list_and_its_mask_give() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    fs::write(mounted.path("f"), b"for you\n").expect("a file");
    fs::set_permissions(mounted.path("f"), Permissions::from_mode(0o600)).expect("a mode");
    let read = |mounted: &Mounted| as_user(mounted, USER, "cat f");
    assert!(read(&mounted).expect_err("not for users").contains("Permission denied"));
    let list = [(OWNER, 6), (user(1000), 6), (GROUP, 0), (MASK, 4), (OTHERS, 0)];
    set(&mounted, "f", ACCESS, &list).expect("a list");
    assert_eq!(mode(&mounted, "f"), 0o640, "the mask stands where the group stood");
    assert_eq!(read(&mounted).expect("allowed"), "for you");
    assert!(as_user(&mounted, USER, "echo x >f").is_err(), "masked");
    assert!(as_user(&mounted, (1001, 1001, ""), "cat f").is_err(), "somebody else");
    // chmod changes the mask, and the list keeps its names.
    fs::set_permissions(mounted.path("f"), Permissions::from_mode(0o660)).expect("a mode");
    as_user(&mounted, USER, "echo x >f").expect("no longer masked");
    let mounted = crash(&sandbox, mounted);
    let expected = [(OWNER, 6), (user(1000), 6), (GROUP, 0), (MASK, 6), (OTHERS, 0)];
    assert_eq!(get(&mounted, "f", ACCESS).expect("it is kept"), acl(&expected));
    as_user(&mounted, USER, "echo y >f").expect("after the crash, too");
    // A list that is equivalent to a mode becomes the mode.
    set(&mounted, "f", ACCESS, &[(OWNER, 7), (GROUP, 5), (OTHERS, 1)]).expect("a minimal list");
    assert_eq!((mode(&mounted, "f"), get(&mounted, "f", ACCESS)), (0o751, Err(Errno::NODATA)));
    set(&mounted, "f", ACCESS, &list).expect("a list");
    removexattr(mounted.path("f"), ACCESS).expect("removed");
    assert_eq!((mode(&mounted, "f"), get(&mounted, "f", ACCESS)), (0o640, Err(Errno::NODATA)));
    mounted.unmount();
}

#[test]
fn what_is_made_in_a_directory_gets_its_default_list_and_without_one_the_umask() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    as_user(&mounted, USER, "umask 027; mkdir plain d; echo >plain/f; mkfifo plain/p; ln -s f plain/l")
        .expect("made");
    assert_eq!(
        (mode(&mounted, "plain"), mode(&mounted, "plain/f"), mode(&mounted, "plain/p")),
        (0o750, 0o640, 0o640)
    );
    fs::set_permissions(mounted.path("d"), Permissions::from_mode(0o755)).expect("a mode");
    let default = [(OWNER, 7), (user(1001), 7), (GROUP, 5), (MASK, 7), (OTHERS, 5)];
    set(&mounted, "d", DEFAULT, &default).expect("a default list");
    as_user(
        &mounted,
        USER,
        "umask 077; mkdir d/e d/e/g; echo >d/f; mkfifo d/p; ln -s f d/l; echo >d/e/g/deep",
    )
    .expect("made");
    let mounted = crash(&sandbox, mounted);
    // The umask does not count. The requested modes (0777 and 0666) do.
    let file = acl(&[(OWNER, 6), (user(1001), 7), (GROUP, 5), (MASK, 6), (OTHERS, 4)]);
    for name in ["d/f", "d/p", "d/e/g/deep"] {
        assert_eq!((mode(&mounted, name), get(&mounted, name, ACCESS)), (0o664, Ok(file.clone())), "{name}");
        assert_eq!(get(&mounted, name, DEFAULT), Err(Errno::NODATA));
    }
    for name in ["d/e", "d/e/g"] {
        assert_eq!((mode(&mounted, name), get(&mounted, name, ACCESS)), (0o775, Ok(acl(&default))), "{name}");
        assert_eq!(get(&mounted, name, DEFAULT), Ok(acl(&default)), "{name}");
    }
    as_user(&mounted, (1001, 1001, ""), "echo more >>d/e/g/deep; echo >d/e/mine")
        .expect("the list names them");
    assert!(as_user(&mounted, (1002, 1002, ""), "echo more >>d/e/g/deep").is_err());
    // A default list without names gives modes only.
    set(&mounted, "d", DEFAULT, &[(OWNER, 7), (GROUP, 5), (OTHERS, 0)]).expect("a minimal default list");
    as_user(&mounted, USER, "umask 0; echo >d/h").expect("made");
    assert_eq!((mode(&mounted, "d/h"), get(&mounted, "d/h", ACCESS)), (0o640, Err(Errno::NODATA)));
    removexattr(mounted.path("d"), DEFAULT).expect("removed");
    removexattr(mounted.path("d"), DEFAULT).expect("as on ext4, it may be gone already");
    as_user(&mounted, USER, "umask 022; echo >d/i").expect("made");
    assert_eq!(mode(&mounted, "d/i"), 0o644);
    mounted.unmount();
}

#[test]
fn lists_that_make_no_sense_or_have_no_place_are_refused() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    fs::write(mounted.path("f"), b"").expect("a file");
    let whole = [(OWNER, 7), (GROUP, 5), (OTHERS, 0)];
    assert_eq!(set(&mounted, "f", DEFAULT, &whole), Err(Errno::ACCESS), "not a directory");
    assert_eq!(
        set(&mounted, "f", ACCESS, &[(OWNER, 7), (user(5), 5), (GROUP, 5), (OTHERS, 0)]),
        Err(Errno::INVAL)
    );
    assert_eq!(set(&mounted, "f", ACCESS, &whole[..2]), Err(Errno::INVAL));
    let garbage = setxattr(mounted.path("f"), ACCESS, b"x", XattrFlags::empty());
    assert_eq!(garbage, Err(Errno::INVAL));
    // Hundreds of names fit. Thousands are more than the kernel passes on.
    let many = |count: u32| {
        let users = (0..count).map(|id| (user(id), 5));
        [vec![(OWNER, 7)], users.collect(), vec![(GROUP, 5), (MASK, 5), (OTHERS, 0)]].concat()
    };
    set(&mounted, "f", ACCESS, &many(500)).expect("a long list");
    assert_eq!(get(&mounted, "f", ACCESS).expect("kept").len(), 4 + 504 * 8);
    assert!(set(&mounted, "f", ACCESS, &many(2000)).is_err());
    mounted.unmount();
}
