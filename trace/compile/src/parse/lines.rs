//! Reads the lines of a trace.

use crate::coverage::Coverage;
use std::io::{self, BufRead, Read};

/// Maximum length of a line, in bytes. Tracers cut strings and arrays far below, so a longer line is garbage
/// or an attack.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Reads the next line into `text`, without its end, and counts the line. `false` at the end of the trace.
pub(super) fn read_line(
    input: &mut impl BufRead,
    text: &mut Vec<u8>,
    coverage: &mut Coverage,
) -> io::Result<bool> {
    text.clear();
    if input.take(LINE_BYTES_MAX as u64).read_until(b'\n', text)? == 0 {
        return Ok(false);
    }
    coverage.lines += 1;
    if text.last() == Some(&b'\n') {
        text.pop();
    } else if text.len() == LINE_BYTES_MAX {
        // Skip the rest of a truncated line, so that it is not taken for other lines.
        while !skip_to_newline(input)? {}
        coverage.problem("line too long", coverage.lines, text);
        text.clear();
    }
    Ok(true)
}

fn skip_to_newline(input: &mut impl BufRead) -> io::Result<bool> {
    let buffer = input.fill_buf()?;
    let (used, found) = match buffer.iter().position(|byte| *byte == b'\n') {
        Some(at) => (at + 1, true),
        None => (buffer.len(), buffer.is_empty()),
    };
    input.consume(used);
    Ok(found)
}
