//! Rows in columns.

use std::fmt::Write;

use crate::console::{Cut, columns};
use crate::text::plain;

/// Maximum length of a cell, in characters.
const CELL_CHARS_MAX: usize = 60;

/// External text, escaped so that it cannot act on the terminal, and shortened to fit a column.
pub(crate) fn cell(text: &str) -> String {
    let text = plain(text);
    match text.char_indices().nth(CELL_CHARS_MAX) {
        None => text,
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
    }
}

/// Rows under their titles, with each column as wide as its widest cell. On a terminal lines are cut to its width; in a
/// file the last column may have any length.
pub(crate) fn table(titles: &[&str], rows: &[Vec<String>], at: Option<Cut>) -> Vec<String> {
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| columns(cell));
        cells.chain(titles.get(column).map(|title| columns(title))).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(widest).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, width) in cells.zip(&widths) {
            let missing = width.saturating_sub(columns(cell));
            let _ = write!(line, "{cell}{:missing$}  ", "");
        }
        let line = line.trim_end().to_owned();
        at.map_or_else(|| line.clone(), |at| at.fitted(&line))
    };
    let mut lines = vec![line(&mut titles.iter().copied())];
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key can write only printable characters to the operator's terminal, and not too many.
    #[test]
    fn keys_cannot_move_the_cursor() {
        assert_eq!(cell("a\u{1b}[2Jb\r\nc\u{202e}d"), r"a\u{1b}[2Jb\r\nc\u{202e}d");
        assert_eq!(cell(&"x".repeat(100)).chars().count(), CELL_CHARS_MAX + 3);
    }

    /// Columns are as wide as their widest cell.
    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["longer".to_owned(), "2".to_owned()]];
        assert_eq!(table(&["key", "n"], &rows, None), ["key     n", "a       1", "longer  2"]);
    }

    /// On a terminal no line is wider than it, and colours take no columns.
    #[test]
    fn lines_fit_a_terminal() {
        let red = "\u{1b}[31m5\u{1b}[0m".to_owned();
        let rows = [vec![red.clone(), "a long key".to_owned()]];
        for mark in ['…', '>'] {
            let cut = table(&["n", "key"], &rows, Some(Cut { width: 8, mark }));
            assert_eq!(cut, ["n  key", &format!("{red}  a lo{mark}")]);
        }
        assert_eq!(table(&["n", "key"], &rows, None), ["n  key", &format!("{red}  a long key")]);
    }
}
