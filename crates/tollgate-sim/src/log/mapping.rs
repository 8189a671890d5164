//! Which column of CSV, or field of NDJSON, means what.

use tollgate::policy::source::nearest;

/// Which columns the caller named: `--time`, `--key`, `--cost` and `--status`. Columns that it does not name are found by
/// the names that people give them, and every column is an attribute under its own name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The column of the arrival.
    pub time: Option<String>,
    /// Columns that the policy knows under another name, or that must exist.
    pub keys: Vec<KeyColumn>,
    /// The column of the cost.
    pub cost: Option<String>,
    /// The column of the answer's status.
    pub status: Option<String>,
}

/// A column that becomes an attribute of a given name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    /// The attribute of the policy.
    pub attribute: String,
    /// The column of the log.
    pub column: String,
}

impl Mapping {
    /// Whether the caller named no column.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds a column as `--key` names it: `api_key`, or `api_key=customer` where the policy's name is another one.
    #[must_use]
    pub fn with_key(mut self, written: &str) -> Self {
        let (attribute, column) = written.split_once('=').unwrap_or((written, written));
        self.keys.push(KeyColumn { attribute: attribute.to_owned(), column: column.to_owned() });
        self
    }

    /// The columns that the caller named, each with its flag.
    fn named(&self) -> impl Iterator<Item = (&'static str, &str)> {
        fn one<'m>(flag: &'static str, column: &'m Option<String>) -> Option<(&'static str, &'m str)> {
            Some((flag, column.as_deref()?))
        }
        let keys = self.keys.iter().map(|key| ("--key", key.column.as_str()));
        let others = [one("--time", &self.time), one("--cost", &self.cost), one("--status", &self.status)];
        others.into_iter().flatten().chain(keys)
    }
}

/// The meaning of a column for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Time,
    Cost,
    Status,
    Client,
    Method,
    Target,
    Host,
    User,
    UserAgent,
    Bytes,
    Seconds,
    Millis,
    Micros,
    /// Only an attribute.
    None,
}

/// The names by which columns are found, the best first.
const NAMES: [(Role, &[&str]); 13] = [
    (
        Role::Time,
        &[
            "time",
            "timestamp",
            "@timestamp",
            "ts",
            "at",
            "datetime",
            "date",
            "start_time",
            "time_iso8601",
            "time_local",
        ],
    ),
    (Role::Cost, &["cost"]),
    (Role::Status, &["status", "status_code", "response_code", "http_status"]),
    (
        Role::Client,
        &[
            "client",
            "client_ip",
            "clientip",
            "ip",
            "remote_addr",
            "remote_ip",
            "remote_address",
            "source_ip",
            "src_ip",
        ],
    ),
    (Role::Method, &["method", "request_method", "http_method", "verb"]),
    (Role::Target, &["target", "path", "uri", "url", "request_uri", "request_path"]),
    (Role::Host, &["host", "http_host", "domain", "server_name"]),
    (Role::User, &["user", "username", "remote_user"]),
    (Role::UserAgent, &["user_agent", "user-agent", "http_user_agent", "useragent"]),
    (Role::Bytes, &["bytes", "bytes_sent", "body_bytes_sent", "size"]),
    (Role::Seconds, &["duration", "duration_s", "duration_seconds", "request_time"]),
    (Role::Millis, &["duration_ms", "latency_ms", "response_time_ms"]),
    (Role::Micros, &["duration_us", "duration_micros", "latency_us"]),
];

/// A column as a record uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) role: Role,
    /// The attribute of the column; `None` for time, cost and what no policy counts by.
    pub(super) attribute: Option<String>,
}

/// Why the columns do not fit the mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColumnError {
    /// A flag names a column that the log does not have.
    #[error(
        "{flag} names the column {column}, which does not exist{}; the columns are {}",
        meant(.column, .columns),
        list(.columns)
    )]
    Unknown {
        /// The flag.
        flag: &'static str,
        /// The name that the caller gave.
        column: String,
        /// The columns of the log.
        columns: Vec<String>,
    },
    /// No column has one of the usual names of a time.
    #[error("no column is called time or timestamp: name it with --time; the columns are {}", list(.columns))]
    NoTime {
        /// The columns of the log.
        columns: Vec<String>,
    },
}

fn meant(column: &str, columns: &[String]) -> String {
    match nearest(column, columns.iter().map(String::as_str)) {
        Some(near) => format!(" (did you mean {}?)", near.escape_debug()),
        None => String::new(),
    }
}

/// Most columns that a message lists.
const LISTED_MAX: usize = 40;

fn list(columns: &[String]) -> String {
    let shown: Vec<_> = columns.iter().take(LISTED_MAX).map(|name| name.escape_debug().to_string()).collect();
    let more = columns.len().saturating_sub(LISTED_MAX);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &tail
}

/// Gives every column its role: those that the caller named first, then those with a usual name.
pub(super) fn columns(names: &[String], mapping: &Mapping) -> Result<Vec<Column>, ColumnError> {
    for (flag, column) in mapping.named() {
        if !names.iter().any(|name| name == column) {
            return Err(ColumnError::Unknown { flag, column: column.to_owned(), columns: names.to_vec() });
        }
    }
    let mut columns: Vec<Column> = names
        .iter()
        .map(|name| Column { name: name.clone(), role: Role::None, attribute: Some(name.clone()) })
        .collect();
    for (role, usual) in NAMES {
        let named = match role {
            Role::Time => mapping.time.as_deref(),
            Role::Cost => mapping.cost.as_deref(),
            Role::Status => mapping.status.as_deref(),
            _ => None,
        };
        let place = match named {
            Some(named) => names.iter().position(|name| name == named),
            None => usual.iter().find_map(|usual| {
                let same =
                    |column: &Column| column.role == Role::None && column.name.eq_ignore_ascii_case(usual);
                columns.iter().position(same)
            }),
        };
        match place {
            Some(place) => columns[place].role = role,
            None if role == Role::Time => return Err(ColumnError::NoTime { columns: names.to_vec() }),
            None => {}
        }
    }
    for column in &mut columns {
        if matches!(
            column.role,
            Role::Time | Role::Cost | Role::Bytes | Role::Seconds | Role::Millis | Role::Micros
        ) {
            column.attribute = None;
        }
        if let Some(key) = mapping.keys.iter().find(|key| key.column == column.name) {
            column.attribute = Some(key.attribute.clone());
        }
    }
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn usual_names_and_named_columns() {
        let header = names(&["Timestamp", "date", "tenant", "path", "tokens", "duration_ms"]);
        let mapping = Mapping { cost: Some("tokens".into()), ..Mapping::default() }.with_key("org=tenant");
        let columns = columns(&header, &mapping).unwrap();
        let roles: Vec<Role> = columns.iter().map(|column| column.role).collect();
        assert_eq!(roles, [Role::Time, Role::None, Role::None, Role::Target, Role::Cost, Role::Millis]);
        let attributes: Vec<_> = columns.iter().map(|column| column.attribute.as_deref()).collect();
        assert_eq!(attributes, [None, Some("date"), Some("org"), Some("path"), None, None]);
    }

    #[test]
    fn an_unknown_column_is_an_error_that_names_the_columns() {
        let header = names(&["time", "api_key", "path"]);
        let error = columns(&header, &Mapping::default().with_key("apikey")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--key names the column apikey, which does not exist (did you mean api_key?); the columns are time, api_key, path"
        );
        let error = columns(&names(&["when", "who"]), &Mapping::default()).unwrap_err();
        assert!(error.to_string().contains("--time; the columns are when, who"), "{error}");
    }
}
