//! Where the fields of a limit stand in its file, for warnings of programs that know more than the compiler, such as
//! which attributes requests have.

use crate::policy::document::Tree;
use crate::policy::fields::Fields;
use crate::policy::finding::Position;

/// The positions of a limit's fields, and those of the attributes in `by` and `when`.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitPositions {
    limit: Position,
    /// By their paths, such as `rate`, `by[1]` or `when.method`.
    fields: Vec<(Box<str>, Position)>,
}

impl LimitPositions {
    pub(crate) fn of(fields: Fields<'_>) -> Self {
        let mut positions = Self { limit: fields.place("name"), fields: Vec::new() };
        for entry in fields.iter() {
            let name = entry.key.as_str();
            positions.fields.push((name.into(), entry.node.at));
            match &entry.node.tree {
                Tree::List(items) if name == "by" => {
                    let items = items.iter().enumerate();
                    positions.fields.extend(items.map(|(i, item)| (format!("by[{i}]").into(), item.at)));
                }
                Tree::Table(entries) if name == "when" => {
                    let entries = entries.iter();
                    let placed = entries.map(|entry| (format!("when.{}", entry.key).into(), entry.at));
                    positions.fields.extend(placed);
                }
                _ => {}
            }
        }
        positions
    }

    /// The position of a field or of a part of it, else that of the whole field, else that of the limit's name.
    pub(crate) fn of_field(&self, path: &str) -> Position {
        let found = |path: &str| self.fields.iter().find(|(known, _)| **known == *path);
        let whole = path.find(['.', '[']).map_or(path, |end| &path[..end]);
        found(path).or_else(|| found(whole)).map_or(self.limit, |(_, at)| *at)
    }
}
