//! Output of results, as tables or as JSON.

use std::fmt;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

/// Prints a result as JSON, or calls `text`, which prints tables.
pub(super) fn print_result(as_json: bool, result: &impl Serialize, text: impl FnOnce()) {
    if as_json {
        print_json(result);
    } else {
        text();
    }
}

/// Prints a result as JSON.
pub(super) fn print_json(result: &impl Serialize) {
    println!("{}", serde_json::to_string_pretty(result).expect("a result has only names and numbers"));
}

/// A Markdown table: names are left-aligned, figures right-aligned.
pub(super) struct ReportTable {
    table: Table,
}

impl ReportTable {
    /// An empty table whose first `names` columns are names.
    pub(super) fn new(names: usize, columns: &[&str]) -> ReportTable {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN);
        table.set_header(columns.iter().copied());
        for column in table.column_iter_mut().skip(names) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        ReportTable { table }
    }

    /// Adds a row with a cell for each column.
    pub(super) fn row<const COLUMNS: usize>(&mut self, cells: [String; COLUMNS]) {
        self.table.add_row(cells);
    }
}

impl fmt::Display for ReportTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_on_the_right_of_their_columns() {
        let mut table = ReportTable::new(1, &["load", "writes/s"]);
        table.row(["overwrite".to_owned(), "7".to_owned()]);
        let lines = "| load      | writes/s |\n|-----------|----------|\n| overwrite |        7 |\n";
        assert_eq!(table.to_string(), lines);
    }
}
