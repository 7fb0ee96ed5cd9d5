//! `weir run`: a program becomes this process, with the shim before its C library.

use crate::cli::RunArgs;
use crate::error::WeirError;
use host::DiskAccess;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};
use rustix::fs::Access;
use rustix::io::Errno;
use stack::StoreMedia;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that serves the program's calls.
const SHIM: &str = "libweir_shim.so";

/// Names the library in place of looking for it, for tests.
const SHIM_VARIABLE: &str = "WEIR_SHIM";

/// Libraries that the loader loads first.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Bytes of a program that hold its headers, or the line that names its interpreter.
const HEAD_BYTES: u64 = 4096;

/// Interpreters of scripts that are scripts themselves, as in Linux.
const SCRIPTS_MAX: u32 = 5;

/// Becomes the program. Returns only if that fails.
pub(crate) fn run(args: &RunArgs) -> Result<(), WeirError> {
    crate::daemon::ensure_memory(args.memory)?;
    let media = StoreMedia::find(&args.store, None)?;
    if !args.buffer_medium.volatile_buffer {
        media.ensure_durable()?;
    }
    // Refuses a store that another process has.
    drop(media.open(DiskAccess::Write)?);
    let (name, arguments) = args.command.split_first().expect("clap asks for a command");
    let program = find_program(name)?;
    ensure_loads_shim(&program, SCRIPTS_MAX)?;
    let shim = find_shim()?;
    if shim.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        let why = "cannot be preloaded, because its path has a space or a colon";
        return Err(WeirError::CannotServe { program: shim, why });
    }
    let mut command = Command::new(&program);
    command.arg0(name).args(arguments);
    command.env(PRELOAD_VARIABLE, preloaded(&shim));
    command.env("WEIR_RUN_STORE", &media.name).env("WEIR_RUN_VOLUME", &args.volume);
    for unset in ["WEIR_RUN_EXPLAIN", "WEIR_RUN_PREFIX", "WEIR_RUN_VOLATILE_BUFFER"] {
        command.env_remove(unset);
    }
    command.env("WEIR_RUN_MEMORY", args.memory.0.to_string());
    if let Some(prefix) = &args.prefix {
        command.env("WEIR_RUN_PREFIX", prefix);
    }
    if args.explain {
        command.env("WEIR_RUN_EXPLAIN", std::process::id().to_string());
    }
    if args.buffer_medium.volatile_buffer {
        command.env("WEIR_RUN_VOLATILE_BUFFER", "1");
    }
    Err(WeirError::Run { program, source: command.exec() })
}

/// Parses `--prefix`.
pub(crate) fn prefix(text: &str) -> Result<PathBuf, String> {
    let path = text.trim_end_matches('/');
    if !text.starts_with('/') {
        return Err("it must be an absolute path, such as /srv/wiki".into());
    }
    if path.is_empty() {
        return Err(
            "a program needs files of the machine, too: name a directory below the root, such as /srv".into(),
        );
    }
    if path.split('/').skip(1).any(|name| matches!(name, "" | "." | "..")) {
        return Err("write the path as the program does, without `.`, `..` and empty names".into());
    }
    Ok(path.into())
}

/// The shim, then what the user preloads.
fn preloaded(shim: &Path) -> OsString {
    let mut list = shim.as_os_str().to_owned();
    if let Some(others) = std::env::var_os(PRELOAD_VARIABLE).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// The shim: beside this program, or in `../lib/weir`.
fn find_shim() -> Result<PathBuf, WeirError> {
    if let Some(named) = std::env::var_os(SHIM_VARIABLE) {
        return Ok(named.into());
    }
    let own = std::env::current_exe().map_err(WeirError::io("finding this program", "weir"))?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let mut places = vec![directory.to_path_buf()];
    places.extend(directory.parent().map(|parent| parent.join("lib/weir")));
    let found = places.iter().map(|place| place.join(SHIM)).find(|path| path.is_file());
    found.ok_or(WeirError::NoShim { places })
}

/// The program's path, which is looked up in PATH unless it has a directory.
fn find_program(name: &OsStr) -> Result<PathBuf, WeirError> {
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).map(|directory| directory.join(name));
    let is_program = |path: &PathBuf| path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok();
    places
        .into_iter()
        .find(is_program)
        .ok_or_else(|| WeirError::Run { program: name.into(), source: Errno::NOENT.into() })
}

/// Refuses a program whose loader would not load the shim. Of a script, its interpreter is looked at.
fn ensure_loads_shim(program: &Path, scripts_left: u32) -> Result<(), WeirError> {
    let cannot_run = |source| WeirError::Run { program: program.into(), source };
    let refused = |why| Err(WeirError::CannotServe { program: program.into(), why });
    let mut file = File::open(program).map_err(cannot_run)?;
    let mut head = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut head).map_err(cannot_run)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return match interpreter_of_script(line) {
            Some(interpreter) if scripts_left > 0 => ensure_loads_shim(interpreter, scripts_left - 1),
            _ => Ok(()),
        };
    }
    let found = file.metadata().map_err(cannot_run)?;
    if changes_user(&found) {
        return refused("runs as another user (setuid, setgid), so that the loader ignores LD_PRELOAD");
    }
    let capabilities = rustix::fs::getxattr(program, "security.capability", &mut [0_u8; 64]);
    if capabilities.is_ok() {
        return refused("has capabilities (setcap), so that the loader ignores LD_PRELOAD");
    }
    if !head.starts_with(&elf::ELFMAG) {
        // Perhaps a script for the shell: the kernel says so.
        return Ok(());
    }
    let mut own = Vec::new();
    let own_head =
        File::open("/proc/self/exe").and_then(|own_file| own_file.take(HEAD_BYTES).read_to_end(&mut own));
    if own_head.is_ok() && machine_of(&own) != machine_of(&head) {
        return refused("is a program for another machine, or for 32 bits, which cannot load weir's library");
    }
    match loader_of(&head) {
        None => refused("is linked statically, so that its calls cannot be served"),
        Some(loader) if !loader.starts_with(b"ld-linux") => {
            refused("uses another C library than glibc, for which weir's library is made")
        }
        Some(_) => Ok(()),
    }
}

/// Whether the program begins with the rights of another user than the caller.
fn changes_user(program: &std::fs::Metadata) -> bool {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2000;
    let is_setuid = program.mode() & SETUID != 0 && program.uid() != rustix::process::getuid().as_raw();
    is_setuid || (program.mode() & SETGID != 0 && program.gid() != rustix::process::getgid().as_raw())
}

/// The interpreter in the first line of a script, after `#!`.
fn interpreter_of_script(line: &[u8]) -> Option<&Path> {
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    words.next().map(|word| Path::new(OsStr::from_bytes(word)))
}

/// The class (32 or 64 bits) and the machine of a program.
fn machine_of(head: &[u8]) -> Option<(u8, u16)> {
    let class = *head.get(4)?;
    let machine = head.get(18..20)?;
    Some((class, u16::from_le_bytes([machine[0], machine[1]])))
}

/// The file name of the program's loader; `None` if it has none.
fn loader_of(head: &[u8]) -> Option<&[u8]> {
    let header = elf::FileHeader64::<Endianness>::parse(head).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, head).ok()?;
    let loader = segments.iter().find_map(|segment| segment.interpreter(endian, head).ok().flatten())?;
    loader.rsplit(|&byte| byte == b'/').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scripts_interpreter_is_its_first_word() {
        let interpreter = |line: &'static [u8]| interpreter_of_script(line).map(Path::to_path_buf);
        assert_eq!(interpreter(b" /usr/bin/env python3\nimport os"), Some("/usr/bin/env".into()));
        assert_eq!(interpreter(b"/bin/sh"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"\n/bin/sh"), None);
    }

    #[test]
    fn a_prefix_is_a_plain_absolute_path() {
        assert_eq!(prefix("/srv/wiki/"), Ok("/srv/wiki".into()));
        let says = |text: &str, part: &str| assert!(prefix(text).unwrap_err().contains(part), "{text}");
        says("srv", "absolute");
        says("//", "below the root");
        says("/srv/../etc", "without");
        says("/srv//wiki", "without");
    }

    #[test]
    fn this_test_is_a_dynamic_program() {
        ensure_loads_shim(&std::env::current_exe().unwrap(), 0).expect("it is linked to glibc");
    }
}
