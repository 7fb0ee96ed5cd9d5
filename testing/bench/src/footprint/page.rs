//! A page in HTML: the lines of code and data that were touched, by function, each shaded by its touched bytes.

use std::fmt::Write;

use super::symbols::{FunctionId, ProcessSymbols, TracedFunction};
use super::touched::{DataLine, FunctionTouches, LINE_BYTES, LineMask, TouchedLines};

/// Lines of data that are drawn for a function.
const DATA_LINES_MAX: usize = 256;

const HEAD: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Footprint</title><style>
body { font: 13px sans-serif; margin: 2em }
table { border-collapse: collapse }
td, th { padding: 1px 8px; text-align: left; vertical-align: top; border-top: 1px solid #ddd }
td.figure { text-align: right }
td.lines { max-width: 70em }
i { display: inline-block; width: 9px; height: 12px; margin: 0 1px 1px 0; background: #eee }
</style></head><body>
<p>A cell is a line of 64 bytes; the darker, the more of its bytes were touched. Code is green, and every line of a function is
drawn. Data is blue, and red if it was written; only touched lines are drawn. The title of a cell has the line's address and
bytes.</p>
";

/// One run on the page: its heading, and what it touched.
pub(super) struct PageSection<'a> {
    pub(super) heading: &'a str,
    pub(super) touched: &'a TouchedLines,
}

/// The page. A function whose component is `left_out` is not drawn.
pub(super) fn page(sections: &[PageSection<'_>], symbols: &ProcessSymbols, left_out: &str) -> String {
    let mut page = HEAD.to_owned();
    for PageSection { heading, touched } in sections {
        let mut functions: Vec<(&TracedFunction, &FunctionTouches)> = touched
            .functions
            .iter()
            .map(|(&id, touches): (&FunctionId, _)| (symbols.function(id), touches))
            .filter(|(function, _)| function.component != left_out)
            .collect();
        functions.sort_by_key(|(function, touches)| {
            (&function.component, std::cmp::Reverse(touches.code.len()), &function.name)
        });
        let _ = write!(
            page,
            "<h2>{}</h2>\n<table><tr><th>component<th>function<th>instructions<th>code<th>data</tr>\n",
            escaped(heading)
        );
        for (function, touches) in functions {
            let _ = writeln!(
                page,
                "<tr><td>{}<td>{}<td class=figure>{}<td class=lines>{}<td class=lines>{}</tr>",
                escaped(&function.component),
                escaped(&function.name),
                touches.instructions,
                code_cells(function, touches),
                data_cells(touches)
            );
        }
        page.push_str("</table>\n");
    }
    page.push_str("</body></html>\n");
    page
}

/// The lines of a function from its first to its last byte; without a symbol, those that were executed.
fn code_cells(function: &TracedFunction, touches: &FunctionTouches) -> String {
    let known = function.range.start / LINE_BYTES..function.range.end.div_ceil(LINE_BYTES);
    let executed = |line: u64| touches.code.get(&line).copied().unwrap_or(0);
    if function.range.is_empty() {
        return touches.code.keys().map(|&line| cell(line, executed(line), "executed", "0,110,40")).collect();
    }
    known.map(|line| cell(line, executed(line), "executed", "0,110,40")).collect()
}

fn data_cells(touches: &FunctionTouches) -> String {
    let one = |(&line, &DataLine { read, written }): (&u64, &DataLine)| match written {
        0 => cell(line, read, "read", "0,60,160"),
        _ => cell(line, read | written, "read or written", "170,20,20"),
    };
    let mut cells: String = touches.data.iter().take(DATA_LINES_MAX).map(one).collect();
    if let Some(more) = touches.data.len().checked_sub(DATA_LINES_MAX).filter(|&more| more > 0) {
        let _ = write!(cells, " and {more} lines");
    }
    cells
}

/// A cell for a line, with the touched bytes of `mask`.
fn cell(line: u64, mask: LineMask, touched: &str, colour: &str) -> String {
    let address = line * LINE_BYTES;
    let count = mask.count_ones();
    if count == 0 {
        return format!("<i title=\"{address:#x}\"></i>");
    }
    let share = 0.15 + 0.85 * f64::from(count) / LINE_BYTES as f64;
    let bytes = byte_ranges(mask);
    format!(
        "<i style=\"background:rgba({colour},{share:.2})\" title=\"{address:#x}: {count} bytes {touched}: {bytes}\"></i>"
    )
}

/// The touched bytes of a line as ranges, such as `0-7, 16-23`.
fn byte_ranges(mask: LineMask) -> String {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < LINE_BYTES as u32 {
        let skipped = (mask >> at).trailing_zeros();
        if at + skipped >= LINE_BYTES as u32 {
            break;
        }
        let first = at + skipped;
        let count = (mask >> first).trailing_ones();
        ranges.push(format!("{first}-{}", first + count - 1));
        at = first + count;
    }
    ranges.join(", ")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_bytes_are_ranges() {
        assert_eq!(byte_ranges(0), "");
        assert_eq!(byte_ranges(0b1111_0001), "0-0, 4-7");
        assert_eq!(byte_ranges(u64::MAX), "0-63");
        assert_eq!(byte_ranges(1 << 63), "63-63");
    }

    #[test]
    fn a_cell_is_darker_the_more_bytes_were_touched() {
        assert_eq!(cell(2, 0, "read", "1,2,3"), "<i title=\"0x80\"></i>");
        let full = cell(2, u64::MAX, "read", "1,2,3");
        assert!(full.contains("rgba(1,2,3,1.00)") && full.contains("64 bytes read: 0-63"), "{full}");
        assert!(cell(2, 0xff, "read", "1,2,3").contains("0.26"));
    }
}
