//! `mount -t weir`: `mount` and fstab call this program by the name `mount.weir`, with their own form of a command line. It is
//! turned into that of `weir mount`, which is then run.
//!
//! `umount` calls it by the name `umount.fuse.weir`, after the type that the mount table shows. That runs `weir unmount`, which
//! returns when everything is written back: so a shutdown waits for that.
//!
//! Options of `weir mount` are options of the mount by their long names: `volume=nightly,memory=4GiB,allow_other`.

use crate::cli::{DirArgs, WeirCommandLine};
use crate::error::WeirError;
use crate::unmount;
use clap::{Arg, ArgAction, CommandFactory};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The name by which `mount` calls this program.
const NAME: &str = "mount.weir";

/// The name by which `umount` calls it.
const UMOUNT_NAME: &str = "umount.fuse.weir";

/// Options of every mount that ask for what weir does anyway, or are about fstab and not about the mount.
const IGNORED: [&str; 20] = [
    "rw",
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "exec",
    "async",
    "nosuid",
    "nodev",
    "noatime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "loud",
];

/// The exit code of `mount` for a wrong command line.
const EXIT_CODE_USAGE: u8 = 1;

/// The exit code of `umount` if it failed.
const EXIT_CODE_FAILED: u8 = 32;

/// Whether this process was called as a helper of `mount` or `umount`.
pub(crate) fn is_called() -> bool {
    [NAME, UMOUNT_NAME].iter().any(|name| is_called_as(name))
}

fn is_called_as(name: &str) -> bool {
    let called = std::env::args_os().next();
    called.is_some_and(|called| Path::new(&called).file_name() == Some(OsStr::new(name)))
}

/// Runs `weir mount` in place of this process, or unmounts.
pub(crate) fn run() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if is_called_as(UMOUNT_NAME) {
        return run_unmount(&arguments);
    }
    let refused = |why: String| {
        let help = format!(
            "{NAME} STORE DIR [-o OPTIONS], with the options of `weir mount --help` by their long names"
        );
        tracing::error!("{why}\n  help: {help}");
        ExitCode::from(EXIT_CODE_USAGE)
    };
    let call = match MountCall::parse(&arguments) {
        Ok(call) => call,
        Err(why) => return refused(why),
    };
    if call.is_dry_run {
        return ExitCode::SUCCESS;
    }
    let itself = match std::env::current_exe() {
        Ok(itself) => itself,
        Err(why) => return refused(format!("this program's own path: {why}")),
    };
    let why = Command::new(itself).arg("mount").args(&call.arguments).exec();
    refused(format!("running weir mount: {why}"))
}

/// Unmounts, and returns when everything is written back. Runs `umount` in place of this process where it was called to detach or
/// force.
fn run_unmount(arguments: &[OsString]) -> ExitCode {
    let (flags, rest): (Vec<_>, Vec<_>) =
        arguments.iter().partition(|argument| argument.as_bytes().starts_with(b"-"));
    let is_urgent = |flag: &&OsString| flag.as_bytes().iter().any(|letter| b"fl".contains(letter));
    if flags.iter().any(is_urgent) {
        let why = Command::new("umount").arg("--internal-only").args(flags).args(rest).exec();
        tracing::error!("{UMOUNT_NAME}: running umount: {why}");
        return ExitCode::from(EXIT_CODE_USAGE);
    }
    let Some(dir) = rest.first() else {
        tracing::error!("{UMOUNT_NAME}: a directory is needed");
        return ExitCode::from(EXIT_CODE_USAGE);
    };
    match unmount::run(&DirArgs { dir: dir.into() }) {
        // To `umount`, one of several mount points is a mount of its own.
        Ok(()) | Err(WeirError::StillMounted { .. }) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}\n  help: {}", error.help().unwrap_or_default());
            ExitCode::from(EXIT_CODE_FAILED)
        }
    }
}

/// A call of the helper, as arguments of `weir mount`.
#[derive(Debug, PartialEq, Eq)]
struct MountCall {
    arguments: Vec<OsString>,
    /// `mount --fake`: everything but the mount.
    is_dry_run: bool,
}

impl MountCall {
    fn parse(given: &[OsString]) -> Result<MountCall, String> {
        let mut places = Vec::new();
        let mut options = Vec::new();
        let (mut is_dry_run, mut is_sloppy) = (false, false);
        let mut given = given.iter();
        while let Some(argument) = given.next() {
            let mut value = |what: &str| given.next().ok_or_else(|| format!("{what} needs a value"));
            match argument.as_bytes() {
                b"-o" => options.extend(split_options(value("-o")?)?),
                // The type, which is weir.
                b"-t" => drop(value("-t")?),
                [b'-', flags @ ..]
                    if !flags.is_empty() && flags.iter().all(|flag| b"fnsv".contains(flag)) =>
                {
                    is_dry_run |= flags.contains(&b'f');
                    is_sloppy |= flags.contains(&b's');
                }
                [b'-', ..] => return Err(format!("{}: not an option that weir knows", argument.display())),
                _ => places.push(argument.clone()),
            }
        }
        let [store, dir] =
            <[OsString; 2]>::try_from(places).map_err(|_| "a store and a directory are needed")?;
        let mut arguments = Vec::new();
        for option in &options {
            match argument_of(option) {
                Ok(argument) => arguments.extend(argument),
                Err(_) if is_sloppy => {}
                Err(why) => return Err(why),
            }
        }
        arguments.extend([OsString::from("--"), store, dir]);
        Ok(MountCall { arguments, is_dry_run })
    }
}

/// The options in the value of `-o`. A value in quotes may have commas.
fn split_options(value: &OsStr) -> Result<Vec<String>, String> {
    let text = value.to_str().ok_or_else(|| format!("{}: options are UTF-8", value.display()))?;
    let mut options = vec![String::new()];
    let mut is_quoted = false;
    for letter in text.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => options.push(String::new()),
            _ => options.last_mut().expect("one at least").push(letter),
        }
    }
    if is_quoted {
        return Err(format!("{text}: a quote without its end"));
    }
    options.retain(|option| !option.is_empty());
    Ok(options)
}

/// The argument of `weir mount` for an option of a mount; `None` if it has none.
fn argument_of(option: &str) -> Result<Option<OsString>, String> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    if IGNORED.contains(&name) || name.starts_with("x-") || name.starts_with("X-") || name == "comment" {
        return Ok(None);
    }
    match name {
        "ro" => return Ok(Some("--read-only".into())),
        "remount" => return Err("remount: weir cannot; `weir tune DIR` changes what can be changed".into()),
        _ => {}
    }
    let long = name.replace('_', "-");
    let command = WeirCommandLine::command();
    let mount = command.find_subcommand("mount").expect("weir has this command");
    let is_it = |argument: &&Arg| argument.get_long() == Some(&long) && !argument.is_hide_set();
    let Some(argument) = mount.get_arguments().find(is_it) else {
        return Err(format!("{name}: weir does not know this option"));
    };
    match (argument.get_action(), value) {
        (ArgAction::SetTrue, None) => Ok(Some(format!("--{long}").into())),
        (ArgAction::SetTrue, Some(_)) => Err(format!("{name}: this option has no value")),
        (_, Some(value)) => Ok(Some(format!("--{long}={value}").into())),
        (_, None) => Err(format!("{name}: this option needs a value, as {name}=…")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<String, String> {
        let given: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let call = MountCall::parse(&given)?;
        let words: Vec<&str> = call.arguments.iter().map(|word| word.to_str().expect("UTF-8")).collect();
        Ok(words.join(" "))
    }

    #[test]
    fn a_line_of_fstab_becomes_a_weir_mount() {
        assert_eq!(parse("/s /d -o rw").as_deref(), Ok("-- /s /d"));
        let line = "/dev/vdb /mnt/db -o ro,nofail,_netdev,x-systemd.device-timeout=9s,volume=night,memory=4GiB,allow_other,on_lost_buffer=restore";
        let expected = "--read-only --volume=night --memory=4GiB --allow-other --on-lost-buffer=restore -- /dev/vdb /mnt/db";
        assert_eq!(parse(line).as_deref(), Ok(expected));
        assert_eq!(parse("-t weir -n -sv /s /d -o defaults,nonsense").as_deref(), Ok("-- /s /d"));
        assert_eq!(
            parse("/s /d -o rules=\"a,b\",data=journal").as_deref(),
            Ok("--rules=a,b --data=journal -- /s /d")
        );
        assert_eq!(parse("-f /s /d").map(drop), Ok(()));
    }

    #[test]
    fn wrong_lines_are_refused_by_name() {
        for (line, why) in [
            ("/s", "a store and a directory are needed"),
            ("/s /d /e", "a store and a directory are needed"),
            ("/s /d -o", "-o needs a value"),
            ("/s /d -o voluem=x", "voluem: weir does not know this option"),
            ("/s /d -o volume", "volume: this option needs a value, as volume=…"),
            ("/s /d -o allow_other=1", "allow_other: this option has no value"),
            ("/s /d -o daemon", "daemon: weir does not know this option"),
            ("/s /d -o remount,ro", "remount: weir cannot; `weir tune DIR` changes what can be changed"),
            ("/s /d -o noexec", "noexec: weir does not know this option"),
            ("/s /d -o rules=\"a", "rules=\"a: a quote without its end"),
            ("/s /d --all", "--all: not an option that weir knows"),
        ] {
            assert_eq!(parse(line), Err(why.to_owned()), "{line}");
        }
    }
}
