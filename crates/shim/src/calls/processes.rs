//! Forks, other programs, and the end of the process.

use crate::calls::bytes::errno_of;
use crate::symbol::{Answer, pass_on, symbols};
use crate::{descriptors, explain, session, settings};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_void};
use std::io;

type Strings = *const *const c_char;
type Actions = *const c_void;

symbols! {
    // A child of vfork would run in this process's memory, and touch its files.
    vfork() -> c_int = {
        // The fork handler does nothing while we are here.
        session::close_if_unused();
        Some(Ok(pass_on!(fork_symbol::fork, (), () -> c_int)))
    };
    execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int = { let _ = (path, arguments, environment); before_exec() };
    execv(path: *const c_char, arguments: Strings) -> c_int = { let _ = (path, arguments); before_exec() };
    execvp(file: *const c_char, arguments: Strings) -> c_int = { let _ = (file, arguments); before_exec() };
    execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int = { let _ = (file, arguments, environment); before_exec() };
    fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int = { let _ = (fd, arguments, environment); before_exec() };
    // These start a program without fork handlers.
    posix_spawn(pid: *mut c_int, path: *const c_char, actions: Actions, attributes: Actions, arguments: Strings, environment: Strings) -> c_int = {
        let _ = (pid, path, actions, attributes, arguments, environment);
        errno_of(before_program())
    };
    posix_spawnp(pid: *mut c_int, file: *const c_char, actions: Actions, attributes: Actions, arguments: Strings, environment: Strings) -> c_int = {
        let _ = (pid, file, actions, attributes, arguments, environment);
        errno_of(before_program())
    };
    system(command: *const c_char) -> c_int = { let _ = command; before_program() };
    popen(command: *const c_char, mode: *const c_char) -> *mut c_void = { let _ = (command, mode); before_program() };
    umask(mask: u32) -> u32 = { session::set_umask(mask); None };
    quick_exit(code: c_int) -> () = { let _ = code; end(); None };
}

/// `fork` itself is not replaced: the handlers below are called by the C library.
#[allow(non_upper_case_globals)]
mod fork_symbol {
    pub(super) static fork: crate::symbol::Symbol = crate::symbol::Symbol::new(c"fork");
}

/// The memory of this process ends with the call, and with it what is not durable.
fn before_exec<T>() -> Answer<T> {
    if let Some(refused) = refuse_in_volume() {
        return Some(Err(refused));
    }
    session::commit();
    explain::print_if_served();
    None
}

fn before_program<T>() -> Answer<T> {
    if let Some(refused) = refuse_in_volume() {
        return Some(Err(refused));
    }
    session::close_if_unused();
    None
}

/// The error while the working directory is in the volume: another program would work in the machine's.
fn refuse_in_volume() -> Option<io::Error> {
    let working = crate::place::working_directory()?;
    let shown = String::from_utf8_lossy(&working.shown).into_owned();
    settings::say(&format!("no program can be started while the working directory is {shown}"));
    Some(Errno::OPNOTSUPP.into())
}

/// Ends the process, without its exit handlers.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn _exit(code: c_int) -> ! {
    crate::symbol::inside(end);
    // SAFETY: the call takes a number.
    unsafe { libc::syscall(libc::SYS_exit_group, code) };
    std::process::abort();
}

/// The same, by its name in the C standard.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, non_snake_case))]
unsafe extern "C" fn _Exit(code: c_int) -> ! {
    // SAFETY: as above.
    unsafe { _exit(code) }
}

/// Whether a descriptor is open.
pub(crate) fn is_open(fd: c_int) -> bool {
    descriptors::real_fcntl(fd, libc::F_GETFD, 0).is_ok()
}

/// Closes the store, and says what `--explain` asks for. Later calls do nothing.
pub(crate) fn end() {
    if settings::is_active() {
        session::close();
        explain::print();
    }
}

/// Asks the C library to call us around each fork.
pub(crate) fn watch_forks() {
    // SAFETY: the functions live as long as the process: the loader never unloads what it has preloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_child)) };
}

unsafe extern "C" fn before_fork() {
    crate::symbol::inside(session::close_if_unused);
}

unsafe extern "C" fn in_child() {
    session::forget_of_parent();
    descriptors::forget_of_parent();
    crate::mappings::forget_of_parent();
    crate::streams::forget_of_parent();
    explain::forget_of_parent();
}
