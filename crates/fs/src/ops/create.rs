//! Creates names: of new files, directories and symbolic links, and hard links.

use crate::acl::PosixAcl;
use crate::arena::{FsState, FsTransaction, corrupt};
use crate::atomic_writes::MARK;
use crate::directory_names::check_name;
use crate::error::FsError;
use crate::format::{ArenaRegion, HeapBlock, Inode, InodeSlot, LINK_BYTES_MAX, LINKS_MAX};
use crate::heap_allocator::class_log2;
use crate::owner_table::OwnerAndMode;
use crate::types::{CallerCredentials, FileAttributes, FileKind, Ino};
use crate::xattr::{ACCESS_ACL, DEFAULT_ACL, XattrKey};
use zerocopy::little_endian::U32;

/// Permission bits, with setuid, setgid and sticky.
pub(crate) const MODE_MASK: u16 = 0o7777;
/// In a directory: new files get its group.
pub(crate) const SETGID: u16 = 0o2000;
/// The bits that a umask may clear.
const PERMISSIONS: u16 = 0o777;
/// The mode of symbolic links, which nothing uses.
const LINK_MODE: u16 = 0o777;

/// The ACLs and the mark of atomic writes that a new inode inherits, with the attributes' names.
type InheritedXattrs = Vec<(XattrKey<'static>, Vec<u8>)>;

/// An inode to create.
#[derive(Clone, Copy)]
pub(crate) enum NewInode<'a> {
    Directory {
        mode: u16,
    },
    Symlink {
        target: &'a [u8],
    },
    /// Any other kind. Only devices have a number.
    Node {
        kind: FileKind,
        mode: u16,
        device: u32,
    },
}

impl NewInode<'_> {
    fn kind(&self) -> FileKind {
        match self {
            NewInode::Node { kind, .. } => *kind,
            NewInode::Directory { .. } => FileKind::Directory,
            NewInode::Symlink { .. } => FileKind::Symlink,
        }
    }

    fn check(&self) -> Result<(), FsError> {
        match self {
            NewInode::Symlink { target: [] } => Err(FsError::NotFound),
            NewInode::Symlink { target } if target.len() > LINK_BYTES_MAX => Err(FsError::NameTooLong),
            NewInode::Symlink { target } if target.contains(&0) => Err(FsError::Invalid),
            NewInode::Node { kind: FileKind::Directory | FileKind::Symlink, .. } => Err(FsError::Invalid),
            _ => Ok(()),
        }
    }

    /// The owner, mode and ACLs of this inode in a directory with the owner `parent` and the default list
    /// `default`.
    fn rights(
        &self,
        caller: CallerCredentials,
        parent: OwnerAndMode,
        default: Option<PosixAcl>,
    ) -> (OwnerAndMode, InheritedXattrs) {
        let inherits = parent.mode & SETGID != 0;
        let gid = if inherits { parent.gid } else { caller.gid };
        let mode = match *self {
            NewInode::Node { mode, .. } => mode & MODE_MASK,
            NewInode::Directory { mode } => mode & MODE_MASK | if inherits { SETGID } else { 0 },
            NewInode::Symlink { .. } => {
                return (OwnerAndMode { uid: caller.uid, gid, mode: LINK_MODE }, InheritedXattrs::new());
            }
        };
        let Some(default) = default else {
            return (
                OwnerAndMode { uid: caller.uid, gid, mode: mode & !(caller.umask & PERMISSIONS) },
                InheritedXattrs::new(),
            );
        };
        let (access, mode) = default.inherit(mode);
        let mut acls = InheritedXattrs::new();
        if !access.is_minimal() {
            acls.push((ACCESS_ACL, access.value()));
        }
        if matches!(self, NewInode::Directory { .. }) {
            acls.push((DEFAULT_ACL, default.value()));
        }
        (OwnerAndMode { uid: caller.uid, gid, mode }, acls)
    }
}

impl FsState {
    /// The directory for a new name, which must not exist.
    fn directory_for_new_name(&self, parent: Ino, name: &[u8]) -> Result<InodeSlot, FsError> {
        let (slot, inode) = self.find_directory(parent)?;
        check_name(name)?;
        match self.lookup_name(&inode, name)? {
            Some(_) => Err(FsError::Exists),
            None => Ok(slot),
        }
    }

    /// A directory's default list.
    fn default_acl(&self, directory: &Inode) -> Result<Option<PosixAcl>, FsError> {
        match self.xattr(directory, DEFAULT_ACL)? {
            Some(value) => PosixAcl::parse(&value).map(Some).map_err(|_| {
                corrupt(
                    directory.xattrs().offset(),
                    "a directory's default access control list makes no sense",
                )
            }),
            None => Ok(None),
        }
    }
}

impl FsTransaction<'_> {
    pub(crate) fn make(
        &mut self,
        caller: CallerCredentials,
        parent: Ino,
        name: &[u8],
        new: NewInode<'_>,
    ) -> Result<FileAttributes, FsError> {
        let directory = self.directory_for_new_name(parent, name)?;
        let slot = self.make_unnamed(caller, directory, new)?;
        self.add_name(directory, name, slot, new.kind())?;
        self.attributes(slot)
    }

    /// Creates an inode with the link count of one name in `directory`. The name is still missing.
    fn make_unnamed(
        &mut self,
        caller: CallerCredentials,
        directory: InodeSlot,
        new: NewInode<'_>,
    ) -> Result<InodeSlot, FsError> {
        new.check()?;
        let above = self.inode(directory)?;
        let (rights, mut inherited) = new.rights(caller, self.owner(&above)?, self.default_acl(&above)?);
        let kind = new.kind();
        if matches!(kind, FileKind::File | FileKind::Directory) {
            inherited.extend(self.atomic_writes_mark(&above)?.map(|value| (MARK, value)));
        }
        if kind == FileKind::Directory {
            self.add_links(directory, 1)?;
        }
        let (slot, mut inode) = self.allocate_inode(kind, rights)?;
        match new {
            NewInode::Node { kind, device, .. } => {
                inode.links = U32::new(1);
                if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
                    inode.set_device(device);
                }
            }
            NewInode::Directory { .. } => {
                inode.links = U32::new(2);
                inode.next = U32::new(directory.0);
            }
            NewInode::Symlink { target } => {
                inode.links = U32::new(1);
                inode.set_root(self.write_link_target(target)?);
                inode.set_size(target.len() as u64);
            }
        }
        self.set_initial_xattrs(&mut inode, &inherited)?;
        self.set_inode(slot, &inode);
        Ok(slot)
    }

    /// Points a name at a new whiteout: a character device 0/0, with which overlayfs hides a name of a lower
    /// layer.
    pub(crate) fn white_out(
        &mut self,
        caller: CallerCredentials,
        directory: InodeSlot,
        name: &[u8],
    ) -> Result<InodeSlot, FsError> {
        let kind = FileKind::CharDevice;
        let slot = self.make_unnamed(caller, directory, NewInode::Node { kind, mode: 0, device: 0 })?;
        let found = self.lookup_name(&self.inode(directory)?, name)?.ok_or(FsError::NotFound)?;
        self.replace_name(directory, (name, found), slot, kind)?;
        Ok(slot)
    }

    fn write_link_target(&mut self, target: &[u8]) -> Result<HeapBlock, FsError> {
        let block = self.allocate_block(class_log2(target.len()))?;
        self.write(block.offset(), target);
        Ok(block)
    }

    pub(crate) fn link(&mut self, ino: Ino, parent: Ino, name: &[u8]) -> Result<FileAttributes, FsError> {
        let (slot, inode, kind) = self.find_inode(ino)?;
        if kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        let directory = self.directory_for_new_name(parent, name)?;
        // A file without a name gets no new one: the caller may be its last opener.
        if inode.links == 0 {
            return Err(FsError::NotFound);
        }
        self.log_bypassed_pages(slot)?;
        self.add_links(slot, 1)?;
        self.touch_changed(slot)?;
        self.add_name(directory, name, slot, kind)?;
        self.attributes(slot)
    }

    /// Adds to a link count.
    pub(crate) fn add_links(&mut self, slot: InodeSlot, more: i64) -> Result<(), FsError> {
        let (mut inode, _) = self.used_inode(slot)?;
        let links = i64::from(inode.links.get()) + more;
        if links > i64::from(LINKS_MAX) {
            return Err(FsError::TooManyLinks);
        }
        inode.links = U32::new(
            u32::try_from(links)
                .map_err(|_| corrupt(ArenaRegion::Inodes.at::<Inode>(slot.0), "fewer links than names"))?,
        );
        self.set_inode(slot, &inode);
        Ok(())
    }
}
