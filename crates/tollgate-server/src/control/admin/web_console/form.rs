//! Forms and queries as browsers encode them.

use form_urlencoded::parse;

use crate::problem::Problem;

/// Maximum number of fields.
const FIELDS_MAX: usize = 32;

/// The fields of a form, each at most once.
#[derive(Debug, Default)]
pub(in super::super) struct FormFields(Vec<(String, String)>);

impl FormFields {
    /// Reads the body of a form, or a query.
    ///
    /// # Errors
    /// When a field is given twice, or there are too many.
    pub(in super::super) fn read(bytes: &[u8]) -> Result<Self, Problem> {
        let mut fields: Vec<(String, String)> = Vec::new();
        for (name, value) in parse(bytes) {
            if fields.len() >= FIELDS_MAX || fields.iter().any(|(known, _)| *known == name) {
                return Err(Problem::invalid(format!("a form has at most {FIELDS_MAX} fields, each once")));
            }
            fields.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(fields))
    }

    /// A field, if it is there and not empty.
    pub(in super::super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.trim());
        found.filter(|value| !value.is_empty())
    }
}

/// Fields as a query.
pub(super) fn encoded(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encoded fields are read back unchanged.
    #[test]
    fn fields_survive_encoding() {
        let hostile = "a=b&c=d <script>\"'+%00 é";
        let text = encoded(&[("key", hostile), ("limit", "per-key")]);
        let fields = FormFields::read(text.as_bytes()).unwrap();
        assert_eq!((fields.get("key"), fields.get("limit")), (Some(hostile), Some("per-key")));
        assert_eq!(FormFields::read(b"a=+&b").unwrap().get("a"), None);
        assert!(FormFields::read(b"a=1&a=2").is_err());
    }
}
