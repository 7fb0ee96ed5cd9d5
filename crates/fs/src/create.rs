//! New names: files, directories, symbolic and hard links.

use crate::acl::Acl;
use crate::arena::{State, Transaction, corrupt};
use crate::error::FsError;
use crate::format::{HeapBlock, Hot, LINK_BYTES_MAX, LINKS_MAX, Slot};
use crate::heap::class_log2;
use crate::names::check_name;
use crate::owners::Rights;
use crate::types::{Attributes, Caller, Ino, Kind};
use crate::xattr::{ACCESS_ACL, DEFAULT_ACL, Key};
use zerocopy::little_endian::U32;

/// Permission bits, with setuid, setgid and sticky.
pub(crate) const MODE_MASK: u16 = 0o7777;
/// In a directory: what is made in it gets its group.
pub(crate) const SETGID: u16 = 0o2000;
/// What a umask is about.
const PERMISSIONS: u16 = 0o777;
/// The mode of symbolic links; nobody looks at it.
const LINK_MODE: u16 = 0o777;

/// Lists for a new inode, and under which name.
type Acls = Vec<(Key<'static>, Vec<u8>)>;

/// What to make.
#[derive(Clone, Copy)]
pub(crate) enum New<'a> {
    Directory {
        mode: u16,
    },
    Symlink {
        target: &'a [u8],
    },
    /// Anything else; only devices have a number.
    Node {
        kind: Kind,
        mode: u16,
        device: u32,
    },
}

impl New<'_> {
    fn kind(&self) -> Kind {
        match self {
            New::Node { kind, .. } => *kind,
            New::Directory { .. } => Kind::Directory,
            New::Symlink { .. } => Kind::Symlink,
        }
    }

    fn check(&self) -> Result<(), FsError> {
        match self {
            New::Symlink { target: [] } => Err(FsError::NotFound),
            New::Symlink { target } if target.len() > LINK_BYTES_MAX => Err(FsError::NameTooLong),
            New::Symlink { target } if target.contains(&0) => Err(FsError::Invalid),
            New::Node { kind: Kind::Directory | Kind::Symlink, .. } => Err(FsError::Invalid),
            _ => Ok(()),
        }
    }

    /// What a directory with the rights `parent` and this default list gives to something new in it.
    fn rights(&self, caller: Caller, parent: Rights, default: Option<Acl>) -> (Rights, Acls) {
        let inherits = parent.mode & SETGID != 0;
        let gid = if inherits { parent.gid } else { caller.gid };
        let mode = match *self {
            New::Node { mode, .. } => mode & MODE_MASK,
            New::Directory { mode } => mode & MODE_MASK | if inherits { SETGID } else { 0 },
            New::Symlink { .. } => return (Rights { uid: caller.uid, gid, mode: LINK_MODE }, Acls::new()),
        };
        let Some(default) = default else {
            return (
                Rights { uid: caller.uid, gid, mode: mode & !(caller.umask & PERMISSIONS) },
                Acls::new(),
            );
        };
        let (access, mode) = default.inherit(mode);
        let mut acls = Acls::new();
        if !access.is_minimal() {
            acls.push((ACCESS_ACL, access.value()));
        }
        if matches!(self, New::Directory { .. }) {
            acls.push((DEFAULT_ACL, default.value()));
        }
        (Rights { uid: caller.uid, gid, mode }, acls)
    }
}

impl State {
    /// Where a new name may go: the directory, which has none such yet.
    fn place_for(&self, parent: Ino, name: &[u8]) -> Result<Slot, FsError> {
        let (slot, hot) = self.find_directory(parent)?;
        check_name(name)?;
        match self.name(&hot, name)? {
            Some(_) => Err(FsError::Exists),
            None => Ok(slot),
        }
    }

    /// A directory's default list.
    fn default_acl(&self, directory: &Hot) -> Result<Option<Acl>, FsError> {
        match self.xattr(directory, DEFAULT_ACL)? {
            Some(value) => Acl::parse(&value).map(Some).map_err(|_| {
                corrupt(
                    directory.xattrs().offset(),
                    "a directory's default access control list makes no sense",
                )
            }),
            None => Ok(None),
        }
    }
}

impl Transaction<'_> {
    pub(crate) fn make(
        &mut self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        new: New<'_>,
    ) -> Result<Attributes, FsError> {
        let directory = self.place_for(parent, name)?;
        let slot = self.make_nameless(caller, directory, new)?;
        self.add_name(directory, name, slot, new.kind())?;
        self.attributes(slot)
    }

    /// An inode with the links of one name in `directory`, which it does not have yet.
    fn make_nameless(&mut self, caller: Caller, directory: Slot, new: New<'_>) -> Result<Slot, FsError> {
        new.check()?;
        let above = self.hot(directory)?;
        let (rights, acls) = new.rights(caller, self.owner(&above)?, self.default_acl(&above)?);
        let kind = new.kind();
        if kind == Kind::Directory {
            self.add_links(directory, 1)?;
        }
        let (slot, mut hot) = self.take_inode(kind, rights)?;
        match new {
            New::Node { kind, device, .. } => {
                hot.links = U32::new(1);
                if matches!(kind, Kind::CharDevice | Kind::BlockDevice) {
                    hot.set_device(device);
                }
            }
            New::Directory { .. } => {
                hot.links = U32::new(2);
                hot.next = U32::new(directory.0);
            }
            New::Symlink { target } => {
                hot.links = U32::new(1);
                hot.set_root(self.target(target)?);
                hot.set_size(target.len() as u64);
            }
        }
        self.give_acls(&mut hot, &acls)?;
        self.set_hot(slot, &hot);
        Ok(slot)
    }

    /// Lets a name lead to a new whiteout: a character device 0/0, which overlayfs takes for "nothing here, whatever lies
    /// below".
    pub(crate) fn white_out(
        &mut self,
        caller: Caller,
        directory: Slot,
        name: &[u8],
    ) -> Result<Slot, FsError> {
        let kind = Kind::CharDevice;
        let slot = self.make_nameless(caller, directory, New::Node { kind, mode: 0, device: 0 })?;
        let found = self.name(&self.hot(directory)?, name)?.ok_or(FsError::NotFound)?;
        self.replace_name(directory, found, slot, kind)?;
        Ok(slot)
    }

    fn target(&mut self, target: &[u8]) -> Result<HeapBlock, FsError> {
        let block = self.take_block(class_log2(target.len()))?;
        self.write(block.offset(), target);
        Ok(block)
    }

    pub(crate) fn link(&mut self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes, FsError> {
        let (slot, hot, kind) = self.find(ino)?;
        if kind == Kind::Directory {
            return Err(FsError::NotPermitted);
        }
        let directory = self.place_for(parent, name)?;
        // A file that lost its last name gets no new one: whoever holds it may be its last opener.
        if hot.links == 0 {
            return Err(FsError::NotFound);
        }
        self.settle(slot)?;
        self.add_links(slot, 1)?;
        self.touch_changed(slot)?;
        self.add_name(directory, name, slot, kind)?;
        self.attributes(slot)
    }

    /// Changes a count of links.
    pub(crate) fn add_links(&mut self, slot: Slot, more: i64) -> Result<(), FsError> {
        let (mut hot, _) = self.used(slot)?;
        let links = i64::from(hot.links.get()) + more;
        if links > i64::from(LINKS_MAX) {
            return Err(FsError::TooManyLinks);
        }
        hot.links = U32::new(u32::try_from(links).map_err(|_| {
            let at = crate::format::Region::Hot.at::<crate::format::Hot>(slot.0);
            crate::arena::corrupt(at, "fewer links than names")
        })?);
        self.set_hot(slot, &hot);
        Ok(())
    }
}
