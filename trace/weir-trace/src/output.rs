//! Prints errors, and ends the process when output cannot be written.

use crate::error::ProgramError;
use std::io::Write;
use std::process::ExitCode;

/// The next step after errors that have none of their own.
const WITHOUT_HELP: &str = "see what the kernel says with `dmesg | tail`";

/// The exit code that a shell reports for a program that SIGPIPE ended.
const NOBODY_READS: u8 = 128 + 13;

/// Makes the process end when its output cannot be written. The standard library would panic.
pub(crate) fn end_when_output_fails() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        match panic.payload_as_str().and_then(|why| why.strip_prefix("failed printing to ")) {
            Some(why) => std::process::exit(i32::from(output_failed(why))),
            None => others(panic),
        }
    }));
}

/// The exit code after output that cannot be written: as for SIGPIPE if the reader has ended, as in
/// `weir-trace explain … | head`.
fn output_failed(why: &str) -> u8 {
    if why.contains("Broken pipe") {
        return NOBODY_READS;
    }
    if let Some(why) = why.strip_prefix("stdout: ") {
        let help = "the command may have done its work, but its output is lost: redirect the output to another place";
        print_error(&format!("standard output: {why}"), help);
    }
    1
}

/// Prints an error in the command line, or the help that the user asked for.
pub(crate) fn refuse_command_line(refused: &clap::Error) -> ExitCode {
    match refused.print() {
        Err(why) if !refused.use_stderr() => ExitCode::from(output_failed(&format!("stdout: {why}"))),
        _ => ExitCode::from(u8::try_from(refused.exit_code()).unwrap_or(2)),
    }
}

/// Prints an error and the next step.
pub(crate) fn explain_error(error: &ProgramError) {
    let help = error.help().unwrap_or(WITHOUT_HELP.into());
    print_error(&printable(&error.to_string()), &printable(&help));
}

/// Prints to standard error. A failure is ignored, because no other way is left.
fn print_error(error: &str, help: &str) {
    let _ = writeln!(std::io::stderr(), "error: {error}\n  help: {help}");
}

/// `text` with control characters escaped. A file's name may contain some that move the cursor.
fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}
