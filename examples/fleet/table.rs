//! The tables that an API server makes, laid out as kubectl does.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

/// `meta.k8s.io/v1 Table`, as far as it is printed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Table {
    column_definitions: Vec<Column>,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Column {
    name: String,
    priority: i32,
}

#[derive(Debug, Deserialize)]
struct Row {
    cells: Vec<Value>,
}

/// The blanks between two columns, and the least width of one with them.
const GAP: usize = 3;
const LEAST: usize = 6;

impl Table {
    /// What `kubectl get` prints, or `kubectl get -o wide`.
    pub(crate) fn print(&self, wide: bool) -> String {
        let shown = |index: usize| wide || self.column_definitions[index].priority == 0;
        let columns = 0..self.column_definitions.len();
        let columns: Vec<_> = columns.filter(|&index| shown(index)).collect();
        let header = |&index: &usize| self.column_definitions[index].name.to_uppercase();
        let mut lines: Vec<Vec<String>> = vec![columns.iter().map(header).collect()];
        for row in &self.rows {
            let cell = |&index: &usize| row.cells.get(index).map(text).unwrap_or_default();
            lines.push(columns.iter().map(cell).collect());
        }
        let widths: Vec<_> = (0..columns.len())
            .map(|column| {
                let cells = lines.iter().map(|line| line[column].chars().count());
                (cells.max().unwrap_or_default() + GAP).max(LEAST)
            })
            .collect();
        let mut printed = String::new();
        for line in lines {
            let mut whole = String::new();
            for (cell, &width) in line.iter().zip(&widths) {
                // Writing to a String can't fail.
                let _ = write!(whole, "{cell:width$}");
            }
            printed.push_str(whole.trim_end());
            printed.push('\n');
        }
        printed
    }
}

fn text(cell: &Value) -> String {
    match cell {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
