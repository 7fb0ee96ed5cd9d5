//! `weir class`: runs a program in place of this one, tagged with a class, or assigns a class to a running process.

use crate::cli::ClassArgs;
use crate::error::WeirError;
use crate::escape_control_chars;
use client::WeirMount;
use request::RequestClass;
use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::process::Command;

pub(crate) fn run(args: &ClassArgs) -> Result<(), WeirError> {
    match args.pid {
        Some(pid) => assign(args, pid),
        None => Err(exec(args)),
    }
}

/// Becomes the program. Returns only if that fails.
fn exec(args: &ClassArgs) -> WeirError {
    let (program, arguments) = args.command.split_first().expect("clap asks for a command");
    let mut command = Command::new(program);
    command.args(arguments);
    match args.class.class() {
        Some(class) => command.env(host::TAG_VARIABLE, class.name()),
        None => command.env_remove(host::TAG_VARIABLE),
    };
    WeirError::Run { program: program.into(), source: command.exec() }
}

/// Asks the daemons of all mounts, and returns the first error. Warns if the class counts on none of them yet.
fn assign(args: &ClassArgs, pid: u32) -> Result<(), WeirError> {
    let mounts = if args.dirs.is_empty() {
        WeirMount::all_of_user()?
    } else {
        args.dirs.iter().map(|dir| WeirMount::at(dir)).collect::<Result<_, _>>()?
    };
    if mounts.is_empty() {
        return Err(WeirError::NothingMounted);
    }
    let class = args.class.class().map(RequestClass::name);
    let request = json!({ "operation": "class", "pid": pid, "class": class });
    let replies: Vec<_> = mounts.iter().map(|mount| mount.connect()?.ask(&request)).collect();
    let does_not_count = |reply: &Result<Value, _>| matches!(reply, Ok(reply) if reply["counts"] == false);
    if class.is_some() && replies.iter().all(does_not_count) {
        let dir = mounts[0].dir().display();
        let message = format!(
            "classes do not count yet, because the policy is another: `weir tune {dir} --policy critical`"
        );
        tracing::warn!("{}", escape_control_chars(&message));
    }
    replies.into_iter().try_for_each(|reply| reply.map(drop))?;
    Ok(())
}
