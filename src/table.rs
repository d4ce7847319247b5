//! Plain-text tables: columns aligned by their widest cell.

use std::fmt;

/// Rows of cells under a heading. Columns whose cells are all numbers stand to the right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new<'a>(heading: impl IntoIterator<Item = &'a str>) -> Table {
        Table { heading: heading.into_iter().map(str::to_owned).collect(), rows: Vec::new() }
    }

    /// Appends a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.heading).chain(&self.rows);
        let cell = |line: &'_ Vec<String>, i: usize| line.get(i).cloned().unwrap_or_default();
        let columns: Vec<(usize, bool)> = (0..self.heading.len())
            .map(|i| {
                let width = lines().map(|line| cell(line, i).chars().count()).max().unwrap_or(0);
                let numeric = self.rows.iter().all(|row| cell(row, i).starts_with(|c: char| c.is_ascii_digit() || c == '-'));
                (width, numeric)
            })
            .collect();
        for line in lines() {
            let mut text = String::from(" ");
            for (i, &(width, numeric)) in columns.iter().enumerate() {
                let cell = cell(line, i);
                text += &if numeric { format!(" {cell:>width$} ") } else { format!(" {cell:<width$} ") };
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// Bytes with a binary unit, e.g. `1.5 MiB`.
pub fn bytes(count: f64) -> String {
    let mut value = count;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{value:.0} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right() {
        let mut table = Table::new(["name", "count"]);
        table.row(["a".to_owned(), "7".to_owned()]);
        table.row(["longer".to_owned(), "123".to_owned()]);
        assert_eq!(table.to_string(), "  name    count\n  a           7\n  longer    123\n");
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!((bytes(512.0), bytes(1536.0), bytes(3e12)), ("512 B".into(), "1.5 KiB".into(), "2.7 TiB".into()));
    }
}
