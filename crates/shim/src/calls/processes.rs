//! Forks, other programs, and the end of the process.

use crate::calls::bytes::errno_of;
use crate::symbol::{Answer, symbols};
use crate::{descriptors, explain, session, settings};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_void};
use std::io;

type Strings = *const *const c_char;
type Actions = *const c_void;

symbols! {
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
}

/// A child of the C library's `vfork` would run in this process's memory, and touch its files. `fork` itself is not
/// replaced: the handlers below are called by the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn vfork() -> c_int {
    // SAFETY: a child of fork may do what one of vfork may.
    unsafe { libc::fork() }
}

/// The arguments of a function with `...` that are passed in registers, behind the first one.
#[cfg(target_arch = "x86_64")]
const REGISTER_ARGUMENTS: usize = 5;
#[cfg(target_arch = "aarch64")]
const REGISTER_ARGUMENTS: usize = 7;

/// Defines a function that takes a path and any number of arguments, and hands to `$gather` the path, the arguments in
/// registers and those on the stack.
macro_rules! variadic {
    ($name:ident, $gather:path) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() -> c_int {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                "sub rsp, 56",
                "mov [rsp], rsi",
                "mov [rsp + 8], rdx",
                "mov [rsp + 16], rcx",
                "mov [rsp + 24], r8",
                "mov [rsp + 32], r9",
                "mov rsi, rsp",
                "lea rdx, [rsp + 64]",
                "call {gather}",
                "add rsp, 56",
                "ret",
                gather = sym $gather,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "mov x29, sp",
                "stp x1, x2, [sp, #16]",
                "stp x3, x4, [sp, #32]",
                "stp x5, x6, [sp, #48]",
                "str x7, [sp, #64]",
                "add x1, sp, #16",
                "add x2, sp, #80",
                "bl {gather}",
                "ldp x29, x30, [sp], #80",
                "ret",
                gather = sym $gather,
            );
        }
    };
}
variadic!(execl, execl_with);
variadic!(execlp, execlp_with);
variadic!(execle, execle_with);

/// The arguments up to the null pointer, which is the last one, and what follows it.
///
/// # Safety
/// `registers` has [`REGISTER_ARGUMENTS`] pointers, which go on at `stack` if there is no null pointer among them.
unsafe fn gathered(registers: Strings, stack: Strings) -> (Vec<*const c_char>, *const c_char) {
    // SAFETY: the caller says so.
    let at = |index: usize| unsafe {
        if index < REGISTER_ARGUMENTS {
            *registers.add(index)
        } else {
            *stack.add(index - REGISTER_ARGUMENTS)
        }
    };
    let mut arguments = Vec::new();
    loop {
        let argument = at(arguments.len());
        arguments.push(argument);
        if argument.is_null() {
            let next = arguments.len();
            return (arguments, at(next));
        }
    }
}

unsafe extern "C" fn execl_with(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: `execl` passes what the program has passed to it: strings, and a null pointer behind them.
    unsafe { execv(path, gathered(registers, stack).0.as_ptr()) }
}

unsafe extern "C" fn execlp_with(file: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: as above.
    unsafe { execvp(file, gathered(registers, stack).0.as_ptr()) }
}

unsafe extern "C" fn execle_with(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: as above. Behind the null pointer comes the environment.
    unsafe {
        let (arguments, environment) = gathered(registers, stack);
        execve(path, arguments.as_ptr(), environment.cast())
    }
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

/// Closes the store, and says what `--explain` asks for. Later calls do nothing.
pub(crate) fn end() {
    if settings::is_active() {
        session::close();
        explain::print();
    }
}

unsafe extern "C" {
    fn __cxa_at_quick_exit(handler: unsafe extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

/// Asks the C library to call us around each fork, and after all other handlers of `quick_exit`.
pub(crate) fn watch_forks_and_exit() {
    // SAFETY: the functions live as long as the process: the loader never unloads what it has preloaded.
    unsafe {
        libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child));
        __cxa_at_quick_exit(at_quick_exit, std::ptr::null_mut());
    }
}

unsafe extern "C" fn at_quick_exit(_: *mut c_void) {
    crate::symbol::inside(end);
}

unsafe extern "C" fn before_fork() {
    crate::symbol::inside(|| {
        session::close_if_unused();
        crate::mappings::hold_for_fork();
        crate::locks::hold_for_fork();
    });
}

unsafe extern "C" fn in_parent() {
    crate::locks::release_after_fork();
    crate::mappings::release_after_fork();
}

unsafe extern "C" fn in_child() {
    session::forget_of_parent();
    descriptors::forget_of_parent();
    crate::locks::forget_of_parent();
    crate::mappings::forget_of_parent();
    crate::streams::forget_of_parent();
    explain::forget_of_parent();
}
