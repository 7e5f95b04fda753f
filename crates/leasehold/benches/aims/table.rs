//! The table: one row per figure, with its aim and its reference.

use std::fmt::Write as _;

use serde_json::json;

use crate::stage::Stage;

/// The aim of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

#[derive(Debug)]
struct Row {
    aim: &'static str,
    what: String,
    value: f64,
    unit: &'static str,
    bound: Aim,
    reference: String,
}

/// The rows so far.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

impl Row {
    fn met(&self) -> bool {
        match self.bound {
            Aim::AtMost(most) => self.value <= most,
            Aim::AtLeast(least) => self.value >= least,
        }
    }

    fn bound(&self) -> String {
        match self.bound {
            Aim::AtMost(most) => format!("≤ {most}"),
            Aim::AtLeast(least) => format!("≥ {least}"),
        }
    }
}

impl Table {
    /// Adds a row, and shows it at once: the whole takes minutes.
    pub(crate) fn row(
        &mut self,
        aim: &'static str,
        what: impl Into<String>,
        (value, unit): (f64, &'static str),
        bound: Aim,
        reference: impl Into<String>,
    ) {
        let row = Row {
            aim,
            what: what.into(),
            value,
            unit,
            bound,
            reference: reference.into(),
        };
        let met = if row.met() { "" } else { "  MISSED" };
        eprintln!(
            "   {}: {} {unit} (aim {}){met}; {}",
            row.what,
            number(value),
            row.bound(),
            row.reference
        );
        self.rows.push(row);
    }

    pub(crate) fn text(&self, stage: &Stage) -> String {
        let mut cells = vec![
            [
                "",
                "figure",
                "measured",
                "aim",
                "met",
                "beside it, in the same run",
            ]
            .map(str::to_owned),
        ];
        for row in &self.rows {
            cells.push([
                row.aim.to_owned(),
                row.what.clone(),
                format!("{} {}", number(row.value), row.unit)
                    .trim_end()
                    .to_owned(),
                row.bound(),
                if row.met() { "yes" } else { "NO" }.to_owned(),
                row.reference.clone(),
            ]);
        }
        let mut widths = [0; 6];
        for line in &cells {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = format!("\n{}\n\n", stage.described());
        for (at, line) in cells.iter().enumerate() {
            for (cell, width) in line.iter().zip(widths) {
                // Writing to a string does not fail.
                let _ = write!(text, "| {cell:width$} ");
            }
            text.push_str("|\n");
            if at == 0 {
                for width in widths {
                    let _ = write!(text, "|{:-<1$}", "", width + 2);
                }
                text.push_str("|\n");
            }
        }
        let missed = self.rows.iter().filter(|row| !row.met()).count();
        let _ = writeln!(text, "\n{} of {} aims missed", missed, self.rows.len());
        text
    }

    pub(crate) fn json(&self, stage: &Stage) -> serde_json::Value {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "aim": row.aim,
                    "figure": row.what,
                    "value": row.value,
                    "unit": row.unit,
                    "bound": row.bound(),
                    "met": row.met(),
                    "reference": row.reference,
                })
            })
            .collect();
        json!({ "where": stage.described(), "rows": rows })
    }
}

/// Three or four digits.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size == 0.0 {
        "0".to_owned()
    } else if size >= 0.1 {
        format!("{value:.3}")
    } else {
        format!("{value:.4}")
    }
}
