//! The report of a benchmark: the same figures as tables for people and as JSON for scripts.

use std::fmt::{self, Display};

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{Cell, CellAlignment, Table};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::machine_info::MachineInfo;
use super::quantile::{RoundSpread, median, quantile};

/// A report, or the part of a report about one device.
#[derive(Debug, Default)]
pub(super) struct BenchReport {
    text: String,
    json: Map<String, Value>,
}

impl BenchReport {
    /// A report that begins with the machine. Call this before an experiment gives up processors, since their
    /// number is reported.
    pub(super) fn new(benchmark: &str) -> BenchReport {
        let machine = MachineInfo::now();
        let mut report = BenchReport::default();
        report.line(&machine);
        report.fact("benchmark", benchmark);
        report.fact("version", machine.version);
        report.fact("kernel", machine.kernel);
        report.fact("processors", machine.processors);
        report.fact("load_average", machine.load_average);
        report
    }

    /// Adds a line to the text.
    pub(super) fn line(&mut self, line: impl Display) {
        self.text += &format!("{line}\n");
    }

    /// Adds a value to the JSON.
    pub(super) fn fact(&mut self, key: &str, value: impl Serialize) {
        insert(&mut self.json, key, json!(value));
    }

    /// Adds a table, whose rows are a list in the JSON.
    pub(super) fn table(&mut self, key: &str, table: &ReportTable) {
        self.fact(key, &table.rows);
        self.line(table);
    }

    /// Adds single figures: to the text a table of their names and values, to the JSON each by its key.
    pub(super) fn figures<const COUNT: usize>(&mut self, figures: [(&str, &str, ReportCell); COUNT]) {
        let mut table = ReportTable::default();
        for (key, name, figure) in figures {
            self.fact(key, &figure.json);
            table.row([("", "figure", name.into()), ("", "value", figure)]);
        }
        self.line(&table);
    }

    /// Adds a part to the list `key`.
    pub(super) fn part(&mut self, key: &str, part: BenchReport) {
        self.line(part.text.trim_end());
        if let Value::Array(parts) = self.json.entry(key).or_insert_with(|| json!([])) {
            parts.push(part.json.into());
        }
    }

    #[cfg(test)]
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Prints the text or the JSON.
    pub(super) fn print(&self, as_json: bool) {
        if as_json {
            println!("{:#}", Value::Object(self.json.clone()));
        } else {
            print!("{}", self.text);
        }
    }
}

/// Inserts a value. A dot in the key leads into an object within the object.
fn insert(object: &mut Map<String, Value>, key: &str, value: Value) {
    match key.split_once('.') {
        Some((outer, inner)) => {
            if let Value::Object(within) = object.entry(outer).or_insert_with(|| json!({})) {
                insert(within, inner, value);
            }
        }
        None => {
            object.insert(key.to_owned(), value);
        }
    }
}

/// A Markdown table, and its rows as JSON. Names are left-aligned, figures right-aligned.
#[derive(Debug, Default)]
pub(super) struct ReportTable {
    table: Table,
    pub(super) rows: Vec<Value>,
    heads: Vec<String>,
}

impl ReportTable {
    /// Adds a row. Each cell has its key in the JSON and the head of its column in the text. A cell without a
    /// key is not in the JSON, one without a head not in the text. All rows have the same columns.
    pub(super) fn row<'a>(&mut self, cells: impl IntoIterator<Item = (&'a str, &'a str, ReportCell)>) {
        let (mut heads, mut header, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        let mut row = Map::new();
        for (key, head, ReportCell { text, json, alignment }) in cells {
            if !key.is_empty() {
                insert(&mut row, key, json);
            }
            if !head.is_empty() {
                heads.push(head.to_owned());
                header.push(Cell::new(head).set_alignment(alignment));
                texts.push(Cell::new(text).set_alignment(alignment));
            }
        }
        if self.rows.is_empty() {
            self.table.load_style(ASCII_MARKDOWN).set_header(header);
            self.heads = heads;
        } else {
            assert_eq!(heads, self.heads, "all rows have the same columns");
        }
        self.table.add_row(texts);
        self.rows.push(row.into());
    }
}

/// Begins with an empty line, as Markdown needs it.
impl fmt::Display for ReportTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}", self.table)
    }
}

/// A name or a figure in a table.
pub(super) struct ReportCell {
    text: String,
    json: Value,
    alignment: CellAlignment,
}

impl ReportCell {
    fn figure(text: String, json: Value) -> ReportCell {
        ReportCell { text, json, alignment: CellAlignment::Right }
    }

    /// A share, in percent in the text.
    pub(super) fn percent(share: f64) -> ReportCell {
        ReportCell::figure(number(share * 100.0), json!(share)).unit(" %")
    }

    /// A value for a column that only the JSON has.
    pub(super) fn json(value: impl Serialize) -> ReportCell {
        ReportCell::figure(String::new(), json!(value))
    }

    /// Whether a target is met.
    pub(super) fn verdict(met: bool) -> ReportCell {
        ReportCell::json(met).shown_as(if met { "met" } else { "MISSED" })
    }

    /// The median of all rounds in the text, and each round in the JSON.
    pub(super) fn rounds(values: &[f64]) -> ReportCell {
        let text = if values.is_empty() { "-".to_owned() } else { number(median(values)) };
        ReportCell::figure(text, json!(values))
    }

    /// The median in the text with the range of the rounds, and each round in the JSON.
    pub(super) fn median_and_range(values: &[f64]) -> ReportCell {
        let [least, median, most] = [0.0, 0.5, 1.0].map(|share| number(quantile(values, share)));
        let text = if values.len() < 2 { median } else { format!("{median} ({least}–{most})") };
        ReportCell::rounds(values).shown_as(text)
    }

    /// The median in the text, and all of `spread` in the JSON.
    pub(super) fn median(spread: RoundSpread) -> ReportCell {
        ReportCell::figure(number(spread.median), json!(spread))
    }

    /// The text alone, for a line outside a table.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The cell with another text.
    pub(super) fn shown_as(self, text: impl Into<String>) -> ReportCell {
        ReportCell { text: text.into(), ..self }
    }

    /// The cell with a unit in the text.
    pub(super) fn unit(self, unit: &str) -> ReportCell {
        ReportCell { text: self.text + unit, ..self }
    }
}

impl From<String> for ReportCell {
    fn from(name: String) -> ReportCell {
        ReportCell { json: json!(name), text: name, alignment: CellAlignment::Left }
    }
}

impl From<&str> for ReportCell {
    fn from(name: &str) -> ReportCell {
        name.to_owned().into()
    }
}

impl From<f64> for ReportCell {
    fn from(value: f64) -> ReportCell {
        ReportCell::figure(number(value), json!(value))
    }
}

impl From<u64> for ReportCell {
    fn from(count: u64) -> ReportCell {
        ReportCell::figure(count.to_string(), json!(count))
    }
}

/// `-` in the text if there is no value.
impl<T: Into<ReportCell>> From<Option<T>> for ReportCell {
    fn from(value: Option<T>) -> ReportCell {
        value.map_or_else(|| ReportCell::figure("-".to_owned(), Value::Null), T::into)
    }
}

impl From<RoundSpread> for ReportCell {
    fn from(spread: RoundSpread) -> ReportCell {
        let quartiles = [spread.first_quartile, spread.third_quartile].map(number).join("–");
        ReportCell::median(spread).unit(&format!(" ({quartiles})"))
    }
}

/// Formats a number with three digits or more; `-` if it is not a number.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        unknown if unknown.is_nan() => "-".to_owned(),
        0.0 => "0".to_owned(),
        below if below < 0.9995 => format!("{value:.3}"),
        below if below < 9.995 => format!("{value:.2}"),
        below if below < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_names_left_its_figures_right_and_the_same_values_as_json() {
        let mut table = ReportTable::default();
        table.row([
            ("load", "load", "overwrite".into()),
            ("rate.all", "writes/s", 7.0.into()),
            ("runs", "", ReportCell::json([6, 8])),
            ("", "verdict", "met".into()),
        ]);
        let mut part = BenchReport::default();
        part.table("rows", &table);
        let lines = "\n| load      | writes/s | verdict |\n|-----------|----------|---------|\n\
                     | overwrite |     7.00 | met     |\n";
        assert_eq!(part.text, lines);
        let row = json!({ "load": "overwrite", "rate": { "all": 7.0 }, "runs": [6, 8] });
        assert_eq!(part.json["rows"], json!([row]));
    }

    #[test]
    fn a_report_has_facts_and_a_list_of_parts() {
        let mut report = BenchReport::new("some");
        for device in ["hdd", "ssd"] {
            let mut part = BenchReport::default();
            part.figures([("reads", &format!("reads of {device}"), 5_u64.into())]);
            report.part("devices", part);
        }
        assert_eq!(report.json["benchmark"], "some");
        assert_eq!(report.json["devices"], json!([{ "reads": 5 }, { "reads": 5 }]));
        assert!(report.text.contains("| reads of ssd |     5 |"), "{}", report.text);
    }

    #[test]
    fn numbers_have_three_digits_or_more() {
        let found = [0.0, 0.0126, 0.9999, 9.999, 84.31, 1_304_842.0, -3.0, f64::NAN].map(number);
        assert_eq!(found, ["0", "0.013", "1.00", "10.0", "84.3", "1304842", "-3.00", "-"]);
    }
}
