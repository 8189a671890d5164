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

/// Rows under their titles, with each column as wide as its widest cell. A terminal that is too narrow does not show the
/// columns in `optional`, the first of them first, and lines that are still too long are cut; a file has them all.
pub(crate) fn table(
    titles: &[&str],
    rows: &[Vec<String>],
    optional: &[&str],
    at: Option<Cut>,
) -> Vec<String> {
    let optional = optional.iter().filter_map(|title| titles.iter().position(|known| known == title));
    let mut left_out: Vec<usize> = Vec::new();
    for column in optional {
        let all = lines(titles, rows, &left_out);
        if at.is_none_or(|at| all.iter().all(|line| columns(line) <= at.width)) {
            break;
        }
        left_out.push(column);
    }
    let all = lines(titles, rows, &left_out);
    all.into_iter().map(|line| at.map_or_else(|| line.clone(), |at| at.fitted(&line))).collect()
}

fn lines(titles: &[&str], rows: &[Vec<String>], left_out: &[usize]) -> Vec<String> {
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| columns(cell));
        cells.chain(titles.get(column).map(|title| columns(title))).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(widest).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        let shown = cells.zip(&widths).enumerate().filter(|(column, _)| !left_out.contains(column));
        for (_, (cell, width)) in shown {
            let missing = width.saturating_sub(columns(cell));
            let _ = write!(line, "{cell}{:missing$}  ", "");
        }
        line.trim_end().to_owned()
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
        assert_eq!(table(&["key", "n"], &rows, &["n"], None), ["key     n", "a       1", "longer  2"]);
    }

    /// On a terminal no line is wider than it, and colours take no columns.
    #[test]
    fn lines_fit_a_terminal() {
        let red = "\u{1b}[31m5\u{1b}[0m".to_owned();
        let rows = [vec![red.clone(), "a long key".to_owned()]];
        let narrow = |width| table(&["n", "key"], &rows, &["n"], Some(Cut { width, mark: '…' }));
        assert_eq!(narrow(13), ["n  key", &format!("{red}  a long key")]);
        assert_eq!(narrow(12), ["key", "a long key"], "the optional column goes before the key is cut");
        assert_eq!(narrow(5), ["key", "a lo…"]);
        for mark in ['…', '>'] {
            let cut = table(&["n", "key"], &rows, &[], Some(Cut { width: 8, mark }));
            assert_eq!(cut, ["n  key", &format!("{red}  a lo{mark}")]);
        }
        assert_eq!(table(&["n", "key"], &rows, &[], None), ["n  key", &format!("{red}  a long key")]);
    }
}
