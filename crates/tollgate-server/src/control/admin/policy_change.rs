//! The changes that a policy makes to another, as JSON.

use serde::Serialize;
use tollgate::policy::{Change, Difference, FieldChange};

/// The change of one limit.
#[derive(Serialize)]
pub(crate) struct ChangeView<'a> {
    change: &'static str,
    name: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    fields: &'a [&'static str],
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<&'a str>,
}

impl<'a> From<&'a Change> for ChangeView<'a> {
    fn from(change: &'a Change) -> Self {
        match change {
            Change::Added { name, sentence } => {
                Self { change: "added", name, fields: &[], before: None, after: Some(sentence) }
            }
            Change::Removed { name, sentence } => {
                Self { change: "removed", name, fields: &[], before: Some(sentence), after: None }
            }
            Change::Changed { name, fields, before, after } => {
                Self { change: "changed", name, fields, before: Some(before), after: Some(after) }
            }
        }
    }
}

/// A field of the whole policy that changed.
#[derive(Serialize)]
pub(crate) struct FieldChangeView {
    field: &'static str,
    before: String,
    pub(super) after: String,
}

/// The fields of the whole policy that a candidate changes.
pub(crate) fn fields(fields: &[FieldChange]) -> Vec<FieldChangeView> {
    let view = |change: &FieldChange| {
        let FieldChange { field, before, after } = change.clone();
        FieldChangeView { field, before, after }
    };
    fields.iter().map(view).collect()
}

/// The limits that a candidate changes.
pub(crate) fn changes(difference: &Difference) -> Vec<ChangeView<'_>> {
    difference.changes.iter().map(ChangeView::from).collect()
}
