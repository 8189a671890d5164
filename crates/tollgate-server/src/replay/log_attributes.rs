//! The attributes that a log has, for messages about one that it lacks.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tollgate_sim::log::Record;

use crate::text::plain;

/// How many records are looked at.
pub(crate) const RECORDS_MAX: u32 = 1_000;
/// Most attributes that a message lists.
const NAMES_MAX: usize = 20;
/// The attributes that most limits count by, the best first.
const USUAL_KEYS: [&str; 4] = ["ip", "api_key", "user", "tenant"];

/// The attributes of the first records of a log.
#[derive(Debug, Default)]
pub(crate) struct LogAttributes {
    records: u32,
    names: BTreeSet<String>,
    headers: BTreeSet<String>,
    /// A column of CSV or a field of NDJSON that has addresses.
    address_column: Option<String>,
    is_table: bool,
}

impl LogAttributes {
    /// Looks at a record, unless it is a late one.
    pub(crate) fn look(&mut self, record: &Record<'_>) {
        if self.records >= RECORDS_MAX {
            return;
        }
        self.records += 1;
        for (name, is_given) in [
            ("ip", record.client.is_some()),
            ("method", record.method.is_some()),
            ("path", record.target.is_some()),
            ("host", record.host.is_some()),
            ("user", record.user.is_some()),
            ("user_agent", record.user_agent.is_some()),
            ("bytes", record.bytes.is_some()),
        ] {
            if is_given {
                self.names.insert(name.to_owned());
            }
        }
        self.is_table |= !record.attributes.is_empty();
        for (name, value) in &record.attributes {
            self.names.insert(name.clone().into_owned());
            if self.address_column.is_none() && value.parse::<IpAddr>().is_ok() {
                self.address_column = Some(name.clone().into_owned());
            }
        }
        self.headers.extend(record.headers.iter().map(|(name, _)| name.clone().into_owned()));
    }

    /// The way to get an attribute that no record has.
    pub(crate) fn cure(&self, attribute: &str) -> String {
        let cure = match attribute {
            _ if self.is_table => {
                let column = self.address_column.as_deref().filter(|_| attribute == "ip").unwrap_or("COLUMN");
                format!("name its column with --key {attribute}={}", plain(column))
            }
            "ip" => "log the address of the client".to_owned(),
            "path" | "method" | "host" => "log the whole request line, and the host".to_owned(),
            _ => "log it, and say where it is: `attributes` or `credentials` in --config for a header, --key for a column \
                  of CSV or NDJSON"
                .to_owned(),
        };
        format!("{cure}; the log has {}", self.listed())
    }

    /// The arguments of the attribute that most limits count by, if the log has one such.
    pub(crate) fn usual_key(&self) -> Option<String> {
        let usual = USUAL_KEYS.into_iter().find(|name| self.names.contains(*name));
        let address =
            || self.address_column.as_ref().map(|column| format!("--by ip --key ip={}", plain(column)));
        usual.map(|name| format!("--by {name}")).or_else(address)
    }

    /// The attributes of the log, for a message.
    pub(crate) fn listed(&self) -> String {
        let headers = self.headers.iter().map(|name| format!("the header {}", plain(name)));
        let names = self.names.iter().map(|name| plain(name).to_string()).chain(headers);
        let mut listed: Vec<String> = names.take(NAMES_MAX + 1).collect();
        if listed.len() > NAMES_MAX {
            listed[NAMES_MAX] = "...".to_owned();
        }
        if listed.is_empty() { "nothing".to_owned() } else { listed.join(", ") }
    }
}
