//! Names of the model that move.

use super::{ModelFs, ModelOutcome};
use crate::error::FsError;
use crate::types::{FileKind, IfExists, Ino};

impl ModelFs {
    pub(super) fn rename(
        &mut self,
        from: (Ino, Vec<u8>),
        to: (Ino, Vec<u8>),
        if_exists: IfExists,
    ) -> ModelOutcome {
        self.directory(from.0)?;
        self.directory(to.0)?;
        let moved = self.lookup(from.0, &from.1)?;
        let is_directory = self.nodes[&moved].kind == FileKind::Directory;
        if is_directory && self.lies_below(to.0, moved) {
            return Err(FsError::Invalid);
        }
        let present = self.lookup(to.0, &to.1).ok();
        if let Some(present) = present {
            if if_exists == IfExists::Refuse {
                return Err(FsError::Exists);
            }
            if present == moved {
                return Ok(());
            }
            let replaced = &self.nodes[&present];
            match (is_directory, replaced.kind == FileKind::Directory) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) if !replaced.names.is_empty() => return Err(FsError::NotEmpty),
                _ => {}
            }
        }
        self.take_name(from.0, &from.1);
        self.put_name(to.0, to.1, moved);
        if is_directory {
            self.at(from.0).links -= 1;
            self.at(to.0).links += 1;
            self.at(moved).parent = to.0;
        }
        let now = self.now;
        self.at(moved).times[2] = now;
        match present {
            Some(gone) if is_directory => self.drop_directory(to.0, gone),
            Some(gone) => self.drop_file(gone),
            None => {}
        }
        Ok(())
    }

    pub(super) fn exchange(&mut self, one: (Ino, Vec<u8>), other: (Ino, Vec<u8>)) -> ModelOutcome {
        self.directory(one.0)?;
        self.directory(other.0)?;
        let (at_one, at_other) = (self.lookup(one.0, &one.1)?, self.lookup(other.0, &other.1)?);
        if self.lies_below(other.0, at_one) || self.lies_below(one.0, at_other) {
            return Err(FsError::Invalid);
        }
        if at_one == at_other {
            return Ok(());
        }
        for (place, old, new) in [(&one, at_one, at_other), (&other, at_other, at_one)] {
            self.put_name(place.0, place.1.clone(), new);
            let is_directory = |model: &ModelFs, ino: Ino| model.nodes[&ino].kind == FileKind::Directory;
            self.at(place.0).links -= u32::from(is_directory(self, old));
            self.at(place.0).links += u32::from(is_directory(self, new));
            let now = self.now;
            self.at(new).parent = place.0;
            self.at(new).times[2] = now;
        }
        Ok(())
    }

    /// Whether `ino` is the directory `above` or lies below it.
    fn lies_below(&self, mut ino: Ino, above: Ino) -> bool {
        if self.nodes[&above].kind != FileKind::Directory {
            return false;
        }
        while ino != above && ino != Ino::ROOT {
            ino = self.nodes[&ino].parent;
        }
        ino == above
    }
}
