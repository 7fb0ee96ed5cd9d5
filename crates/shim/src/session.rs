//! The store that is open in this process.
//!
//! The first call that touches a path of the store opens it. It is closed at the end of the process, and before a fork if
//! the program has nothing open: the child is often a program that wants the store, too.

use crate::{descriptors, mappings, settings, streams};
use arc_swap::ArcSwapOption;
use rustix::io::Errno;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use weir_library::{Directory, StackError, Weir, WeirOptions};

static SESSION: ArcSwapOption<Session> = ArcSwapOption::const_empty();
/// Held while the store is opened or closed. A forked child clears it, which it could not do to a mutex.
static IS_CHANGING: AtomicBool = AtomicBool::new(false);
static HAS_SAID_WHY: AtomicBool = AtomicBool::new(false);

/// An open store.
pub(crate) struct Session {
    /// `None` once it is closed.
    weir: Mutex<Option<Weir>>,
    root: Directory,
}

impl Session {
    pub(crate) fn root(&self) -> &Directory {
        &self.root
    }

    /// Makes everything durable.
    pub(crate) fn commit(&self) -> io::Result<()> {
        mappings::write_back_all();
        self.weir.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(Ok(()), Weir::commit)
    }

    fn close(&self) {
        let weir = self.weir.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = weir.map(Weir::close) {
            settings::say(&format!("closing the store: {error}; what was synced is safe"));
        }
        descriptors::set_media(&[]);
    }
}

/// The open store, which is opened if necessary.
pub(crate) fn get() -> io::Result<Arc<Session>> {
    if let Some(session) = SESSION.load_full() {
        return Ok(session);
    }
    while IS_CHANGING.swap(true, Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let opened = SESSION.load_full().map_or_else(open, Ok);
    if let Ok(session) = &opened {
        SESSION.store(Some(session.clone()));
    }
    IS_CHANGING.store(false, Ordering::Release);
    opened
}

/// The store, if it is open.
pub(crate) fn get_if_open() -> Option<Arc<Session>> {
    SESSION.load_full()
}

fn open() -> io::Result<Arc<Session>> {
    let settings = settings::get().ok_or(Errno::NOENT)?;
    let mask = current_umask();
    let options = WeirOptions { umask: mask, ..settings.options.clone() };
    // A medium in use is waited for, for two seconds.
    match Weir::open(&settings.store, &options) {
        Ok(weir) => {
            descriptors::set_media(&media_descriptors(&weir));
            Ok(Arc::new(Session { root: weir.root().clone(), weir: Mutex::new(Some(weir)) }))
        }
        Err(error) => {
            if !HAS_SAID_WHY.swap(true, Ordering::Relaxed) {
                settings::say(&error.to_string());
            }
            let is_busy = matches!(error, StackError::Busy { .. } | StackError::InUse { .. });
            Err(if is_busy { Errno::BUSY } else { Errno::IO }.into())
        }
    }
}

fn current_umask() -> u16 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits() as u16
}

/// Hands a new umask to the store.
pub(crate) fn set_umask(mask: u32) {
    if let Some(session) = get_if_open()
        && let Some(weir) = &*session.weir.lock().unwrap_or_else(PoisonError::into_inner)
    {
        weir.set_umask(mask as u16);
    }
}

/// The descriptors of the store and its buffer.
fn media_descriptors(weir: &Weir) -> Vec<RawFd> {
    let media = weir.media().map(|path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok());
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|number: &RawFd| {
            let found = std::fs::metadata(format!("/proc/self/fd/{number}"));
            found.is_ok_and(|found| media.contains(&Some((found.dev(), found.ino()))))
        })
        .collect()
}

/// Makes everything durable, and leaves the store open.
pub(crate) fn commit() {
    if let Some(session) = get_if_open()
        && let Err(error) = session.commit()
    {
        settings::say(&format!("making changes durable: {error}"));
    }
}

/// Closes the store at the end of the process.
pub(crate) fn close() {
    streams::flush_all();
    mappings::write_back_all();
    if let Some(session) = SESSION.swap(None) {
        session.close();
    }
}

/// Closes the store if the program has no file of it open, and no thread is using it.
pub(crate) fn close_if_unused() {
    if descriptors::any_open() || mappings::any() || IS_CHANGING.swap(true, Ordering::Acquire) {
        return;
    }
    if let Some(session) = SESSION.swap(None) {
        if Arc::strong_count(&session) == 1 {
            session.close();
        } else {
            SESSION.store(Some(session));
        }
    }
    IS_CHANGING.store(false, Ordering::Release);
}

/// In a forked child: gives up the parent's store without touching it. Its threads, and the holders of its locks, are not
/// here. The lock of a medium stays with the parent when its descriptor is closed here.
pub(crate) fn forget_of_parent() {
    std::mem::forget(SESSION.swap(None));
    IS_CHANGING.store(false, Ordering::Release);
    HAS_SAID_WHY.store(false, Ordering::Relaxed);
}
