//! New names: files, directories, symbolic and hard links.

use crate::error::FsError;
use crate::format::{HeapBlock, LINK_BYTES_MAX, LINKS_MAX, Slot};
use crate::heap::class_log2;
use crate::names::check_name;
use crate::owners::Rights;
use crate::transaction::{State, Transaction};
use crate::types::{Attributes, Caller, Ino, Kind};
use zerocopy::little_endian::U32;

/// Permission bits, with setuid, setgid and sticky.
pub(crate) const MODE_MASK: u16 = 0o7777;
/// In a directory: what is made in it gets its group.
pub(crate) const SETGID: u16 = 0o2000;
/// The mode of symbolic links; nobody looks at it.
const LINK_MODE: u16 = 0o777;

/// What to make.
#[derive(Clone, Copy)]
pub(crate) enum New<'a> {
    File { mode: u16 },
    Directory { mode: u16 },
    Symlink { target: &'a [u8] },
}

impl New<'_> {
    fn kind(&self) -> Kind {
        match self {
            New::File { .. } => Kind::File,
            New::Directory { .. } => Kind::Directory,
            New::Symlink { .. } => Kind::Symlink,
        }
    }

    fn check(&self) -> Result<(), FsError> {
        match self {
            New::Symlink { target: [] } => Err(FsError::NotFound),
            New::Symlink { target } if target.len() > LINK_BYTES_MAX => Err(FsError::NameTooLong),
            New::Symlink { target } if target.contains(&0) => Err(FsError::Invalid),
            _ => Ok(()),
        }
    }

    /// What a directory with the rights `parent` gives to something new in it.
    fn rights(&self, caller: Caller, parent: Rights) -> Rights {
        let inherits = parent.mode & SETGID != 0;
        let mode = match *self {
            New::File { mode } => mode & MODE_MASK,
            New::Directory { mode } => mode & MODE_MASK | if inherits { SETGID } else { 0 },
            New::Symlink { .. } => LINK_MODE,
        };
        Rights { uid: caller.uid, gid: if inherits { parent.gid } else { caller.gid }, mode }
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
        new.check()?;
        let rights = new.rights(caller, self.owner(&self.hot(directory)?)?);
        let kind = new.kind();
        if kind == Kind::Directory {
            self.add_links(directory, 1)?;
        }
        let (slot, mut hot) = self.take_inode(kind, rights)?;
        match new {
            New::File { .. } => hot.links = U32::new(1),
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
        self.set_hot(slot, &hot);
        self.add_name(directory, name, slot, kind)?;
        self.attributes(slot)
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
