//! The panels of the console, as tables of text: the page draws them as HTML, and the script as elements with text. Text
//! from requests is in no other place, so that it is escaped in one function on each side.

use serde::Serialize;

/// The meaning of a text, which its colour shows beside the words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Tone {
    #[default]
    Plain,
    Good,
    Warn,
    Bad,
    /// A number, at the right of its column.
    Count,
}

impl Tone {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Tone::Plain => "plain",
            Tone::Good => "good",
            Tone::Warn => "warn",
            Tone::Bad => "bad",
            Tone::Count => "count",
        }
    }

    fn is_plain(&self) -> bool {
        *self == Tone::Plain
    }
}

/// One field of an entry.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PanelField {
    pub(super) text: String,
    #[serde(skip_serializing_if = "Tone::is_plain")]
    pub(super) tone: Tone,
    /// Counts to draw, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) trend: Vec<u32>,
}

impl PanelField {
    pub(super) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone, trend: Vec::new() }
    }

    /// A number.
    pub(super) fn count(number: impl ToString) -> Self {
        Self::toned(number.to_string(), Tone::Count)
    }
}

impl<T: Into<String>> From<T> for PanelField {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// One entry of a panel.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PanelEntry {
    pub(super) fields: Vec<PanelField>,
    /// The query of `/console/subject` about it, if something can be done about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) about: Option<String>,
}

impl PanelEntry {
    pub(super) fn new(fields: impl IntoIterator<Item = PanelField>) -> Self {
        Self { fields: fields.into_iter().collect(), about: None }
    }

    pub(super) fn about(self, query: Option<String>) -> Self {
        Self { about: query, ..self }
    }
}

/// A table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Panel {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// The meaning of the numbers.
    pub(super) note: String,
    pub(super) columns: &'static [&'static str],
    pub(super) entries: Vec<PanelEntry>,
    /// Shown in place of no entries.
    pub(super) empty: &'static str,
}

/// One fact of the strip at the top.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fact {
    pub(super) name: &'static str,
    pub(super) text: String,
    pub(super) tone: Tone,
}
