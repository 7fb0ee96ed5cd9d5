//! The files of one writer: the model whose states the judge compares with the directory.

use crate::streams::content::{Content, Version};
use crate::streams::history::{Name, What};
use crash_oracle::{CrashModel, PAGE_BYTES, UnsyncedPages, WritePath};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;

const PAGE: u64 = PAGE_BYTES as u64;

/// The names in a writer's directory, and the files that they lead to.
#[derive(Debug, Clone, Default)]
pub(super) struct WriterFiles {
    pub names: [Option<u32>; 2],
    pub files: BTreeMap<u32, StreamedFile>,
}

/// A file, by the content of each page.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamedFile {
    pub size: u64,
    pub pages: Vec<Content>,
    unsynced: UnsyncedPages<Content>,
}

impl StreamedFile {
    /// A file with this content and no other.
    pub(super) fn known(size: u64, pages: Vec<Content>) -> StreamedFile {
        StreamedFile { size, pages, unsynced: UnsyncedPages::default() }
    }

    /// Whether the file may have this size after a crash.
    pub(super) fn allows_size(&self, size: u64) -> bool {
        self.unsynced.allow_size(self.size, size)
    }

    /// The contents that a page may have after a crash, the newest first.
    pub(super) fn possible(&self, page: usize) -> impl Iterator<Item = Content> {
        self.pages.get(page).into_iter().chain(self.unsynced.older(page as u64)).copied()
    }

    /// The content that a page with these bytes has, if it may have one.
    pub(super) fn content(&self, page: usize, bytes: &[u8]) -> Option<Content> {
        self.possible(page).find(|content| content.is(page as u64, bytes))
    }

    fn set(&mut self, page: u64, content: Content, path: WritePath) {
        let older = self.pages.get_mut(page as usize).map(|older| std::mem::replace(older, content));
        match (path, older) {
            (WritePath::Logged, _) => self.unsynced.settle(page..page + 1),
            (WritePath::Bypassing(number), Some(older)) => self.unsynced.overwrite(page, older, number),
            (WritePath::Bypassing(number), None) => self.unsynced.grow(page, number),
        }
        if older.is_none() {
            self.pages.push(content);
        }
    }

    /// The file grows to at least this size.
    fn grow(&mut self, size: u64) {
        if size > self.size {
            self.size = size;
            self.pages.resize(size.div_ceil(PAGE) as usize, Content::ZEROS);
        }
    }

    fn write(&mut self, pages: Range<u64>, content: Content, path: WritePath) {
        self.grow(pages.start * PAGE);
        pages.clone().for_each(|page| self.set(page, content, path));
        self.size = self.size.max(pages.end * PAGE);
    }

    fn truncate(&mut self, size: u64) {
        if size >= self.size {
            return self.grow(size);
        }
        if !size.is_multiple_of(PAGE) {
            let page = &mut self.pages[(size / PAGE) as usize];
            *page = page.cut(size % PAGE);
        }
        self.size = size;
        self.pages.truncate(size.div_ceil(PAGE) as usize);
        self.unsynced.truncate(size);
    }
}

impl WriterFiles {
    fn file(&mut self, file: u32) -> &mut StreamedFile {
        self.files.get_mut(&file).expect("a file of this writer")
    }

    fn settle(&mut self, file: u32) {
        self.file(file).unsynced.settle_before(u64::MAX);
    }
}

impl CrashModel for WriterFiles {
    type Change = What;
    type File = u32;
    type Made = ();
    type Refusal = Infallible;

    fn apply(&mut self, what: &What, bypass: WritePath) -> Result<(), Infallible> {
        match *what {
            What::Create { file, name } => {
                self.names[name as usize] = Some(file);
                self.files.insert(file, StreamedFile::default());
            }
            What::Write { file, page, pages, number, bypasses } => {
                let path = if bypasses { bypass } else { WritePath::Logged };
                let content = Content::written(Version { file, number });
                self.file(file).write(page..page + pages, content, path);
            }
            What::Patch { file, page, number } => {
                let patched = self.file(file).pages[page as usize].patched(Version { file, number });
                self.file(file).set(page, patched, WritePath::Logged);
            }
            What::Truncate { file, size } => self.file(file).truncate(size),
            What::Punch { file, page, pages } => {
                self.file(file).write(page..page + pages, Content::ZEROS, WritePath::Logged);
            }
            What::Sync { .. } => {}
            What::Replace { file } => {
                self.names = [None, self.names[Name::New as usize]];
                self.settle(file);
            }
            What::Copy { from, to } => {
                self.settle(from);
                let source = self.file(from);
                *self.file(to) = StreamedFile::known(source.size, source.pages.clone());
            }
            What::Remove { name, .. } => self.names[name as usize] = None,
        }
        Ok(())
    }

    fn settle_before(&mut self, file: Option<&u32>, number: u64) {
        let chosen = self.files.iter_mut().filter(|(name, _)| file.is_none_or(|file| file == *name));
        chosen.for_each(|(_, file)| file.unsynced.settle_before(number));
    }

    fn describe(what: &What) -> String {
        format!("{what:?}")
    }
}
