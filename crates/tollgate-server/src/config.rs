//! The config file: settings of the process, which take effect at a restart. A document is read, then compiled.
//! Compilation reports all problems at once, each with its position, its field and what would be accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::callers::CallersFile;
use crate::disk;
use crate::document::{self, WrongParts};
use crate::outbound::{OutboundDocument, OutboundPlan};
use crate::policy_spelling::Supply;
use crate::policy_warnings::Ends;
use crate::reload::ServedRequests;
use crate::store::{StoreChoice, StoreDocument, StoreSettings};
use tollgate::policy::source::{Entry, Fields, Node, Report, Tree};
use tollgate::policy::{FILE_BYTES_MAX, Findings, Problem};
use tollgate::{HeaderPolicy, Timestamp};
use tollgate_gateway::{HeaderNames, RequestSettings, RouteDocument, RoutePlan};
use tollgate_overload::Plan;
use tollgate_tower::attributes::address::{IPV6_PREFIX, IPV6_PREFIX_DEFAULT, Network, TRUSTED_MAX, Trusted};
use tollgate_tower::attributes::jwt::Verifier;
use tollgate_tower::attributes::path::{EscapedSlashes, PathMatch};
use tollgate_tower::attributes::{BUILT_IN, Reader};
use tollgate_tower::spelling::MethodOverride;

mod attributes;
mod credentials;
mod headers;

use attributes::{Mapping, OtherSections, TrustedTokens, mapped};
use credentials::LocationDocument;
use headers::HeadersDocument;

/// Largest file of keys.
const KEYS_BYTES_MAX: u64 = 1 << 20;
/// Accepted bounds on the connections of one address: from one to all permits of the gateway.
const CONNECTIONS_PER_ADDRESS: std::ops::RangeInclusive<u32> = 1..=100_000;

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    trusted_proxies: Option<Vec<String>>,
    #[serde(default, deserialize_with = "prefix")]
    ipv6_prefix: Option<u8>,
    #[serde(default, with = "EscapedSlashesName")]
    escaped_slashes: EscapedSlashes,
    #[serde(default, with = "PathMatchName")]
    path_match: PathMatch,
    #[serde(default, with = "MethodOverrideName")]
    method_override: MethodOverride,
    #[serde(default, with = "HeaderNamesName")]
    header_names: HeaderNames,
    #[serde(default)]
    connections_per_address: Option<u32>,
    #[serde(default)]
    credentials: Option<Vec<LocationDocument>>,
    #[serde(default)]
    callers: Option<PathBuf>,
    #[serde(default)]
    attributes: BTreeMap<String, Mapping>,
    #[serde(default)]
    jwt: Option<JwtDocument>,
    #[serde(default)]
    headers: HeadersDocument,
    #[serde(default)]
    store: Option<StoreDocument>,
    #[serde(default)]
    routes: Vec<RouteDocument>,
    #[serde(default)]
    outbound: Option<OutboundDocument>,
    /// Only that it is known here: the library reads it.
    #[serde(rename = "overload")]
    _overload: Option<serde::de::IgnoredAny>,
}

/// Reads `ipv6_prefix`. Its errors name the accepted lengths, which those of a byte would not.
fn prefix<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    deserializer.deserialize_any(PrefixVisitor)
}

struct PrefixVisitor;

impl Visitor<'_> for PrefixVisitor {
    type Value = Option<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&accepted_prefixes())
    }

    fn visit_u64<E: de::Error>(self, length: u64) -> Result<Option<u8>, E> {
        let read = u8::try_from(length);
        read.map(Some).map_err(|_| E::invalid_value(Unexpected::Unsigned(length), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<u8>, E> {
        Err(E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Option<u8>, E> {
        Ok(None)
    }
}

fn accepted_prefixes() -> String {
    format!("{} to {}", IPV6_PREFIX.start(), IPV6_PREFIX.end())
}

/// Which tokens are trusted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JwtDocument {
    jwks: PathBuf,
    issuer: Option<String>,
    audience: Option<String>,
}

impl JwtDocument {
    fn verifier(&self) -> Result<Verifier, String> {
        let name = self.jwks.display();
        let keys = key_set(&self.jwks);
        let keys = keys.map_err(|error| format!("jwks: {}", disk::unreadable(&self.jwks, &error)))?;
        let verifier = Verifier::new(&keys).map_err(|problem| format!("jwks: {name}: {problem}"))?;
        let verifier = match &self.issuer {
            Some(issuer) => verifier.issuer(issuer),
            None => verifier,
        };
        Ok(match &self.audience {
            Some(audience) => verifier.audience(audience),
            None => verifier,
        })
    }
}

/// A compiled config file.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// How attributes are read from requests that proxies ask about.
    pub(crate) reader: Reader,
    /// How the gateway reads requests.
    pub(crate) taking: RequestSettings,
    /// The file of known callers. The code that opens it passes them to the readers.
    pub(crate) callers: Option<PathBuf>,
    /// The headers about quotas in answers to callers.
    pub(crate) headers: HeaderPolicy,
    /// The store of the counters, as far as the file sets it. The command line takes precedence.
    pub(crate) store: StoreSettings,
    /// The gateway's routes to upstreams.
    pub(crate) routes: Vec<RoutePlan>,
    /// The proxy for calls to other people's APIs.
    pub(crate) outbound: Option<OutboundPlan>,
    /// The controllers by which the gateway sheds load.
    pub(crate) overload: Option<Plan>,
    /// Settings that are accepted but may be a mistake.
    pub(crate) warnings: Vec<String>,
    /// Whether the file says where credentials are.
    has_credentials: bool,
    /// The file as it is written, for findings.
    source: Option<ConfigSource>,
}

/// A file as it is written.
struct ConfigSource {
    name: String,
    table: Node,
}

/// The file may contain a password.
impl fmt::Debug for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigSource").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why a config cannot be used.
#[derive(Debug)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    Unreadable(String),
    /// The file has errors, or a file that it names. Problems with the command line follow, each in a line.
    Wrong(Findings, Vec<String>),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(problem) => f.write_str(problem),
            Self::Wrong(findings, flags) if findings.is_empty() => f.write_str(&flags.join("\n")),
            Self::Wrong(findings, flags) => {
                write!(f, "the config has errors\n{findings}")?;
                flags.iter().try_for_each(|flag| write!(f, "\n{flag}"))
            }
        }
    }
}

impl From<ConfigError> for String {
    fn from(error: ConfigError) -> String {
        error.to_string()
    }
}

/// The settings of the command line that a config may have, too. They take precedence.
#[derive(Default)]
pub(crate) struct ConfigFlags {
    pub(crate) store: StoreSettings,
    pub(crate) callers: Option<PathBuf>,
}

/// The store and the files that a config names.
pub(crate) struct OpenedConfig {
    pub(crate) store: StoreChoice,
    pub(crate) callers: Option<Arc<CallersFile>>,
}

/// Problems that keep a config from being opened: those of the file begin with its field, the others are of flags.
#[derive(Default)]
struct OpeningProblems {
    filed: Vec<String>,
    flagged: Vec<String>,
}

impl OpeningProblems {
    const fn is_empty(&self) -> bool {
        self.filed.is_empty() && self.flagged.is_empty()
    }
}

impl Config {
    /// Opens the store's settings and the files that the config names, for a server with these flags. Readers know the
    /// callers afterwards.
    ///
    /// # Errors
    /// Every problem at once: a server with this config would not start.
    pub(crate) fn open(&mut self, flags: &ConfigFlags, now: Timestamp) -> Result<OpenedConfig, ConfigError> {
        let mut problems = OpeningProblems::default();
        let store = StoreChoice::of(&flags.store, &self.store).map_err(|problem| {
            let is_filed = flags.store.url.is_none();
            if is_filed { problems.filed.push(problem) } else { problems.flagged.push(problem) }
        });
        let callers = self.open_callers(flags.callers.as_deref(), now, &mut problems);
        problems.filed.extend(tollgate_gateway::file_problems(&self.routes));
        problems.filed.extend(self.outbound.iter().flat_map(OutboundPlan::file_problems));
        match store {
            Ok(store) if problems.is_empty() => {
                let doubts = self.outbound.iter().flat_map(OutboundPlan::doubts);
                self.warnings.extend(doubts.map(|finding| finding.to_string()));
                Ok(OpenedConfig { store, callers })
            }
            _ => Err(self.wrong(problems)),
        }
    }

    /// Opens only what requests are read with, for a command that neither serves nor counts. The store and the
    /// certificates of the server need not exist on its machine.
    ///
    /// # Errors
    /// When the callers file cannot be used.
    pub(crate) fn open_reader(&mut self, now: Timestamp) -> Result<(), ConfigError> {
        let mut problems = OpeningProblems::default();
        self.open_callers(None, now, &mut problems);
        if problems.is_empty() { Ok(()) } else { Err(self.wrong(problems)) }
    }

    /// Opens the callers file of the command line, or that of the config, and makes it known to the readers.
    fn open_callers(
        &mut self,
        flag: Option<&Path>,
        now: Timestamp,
        problems: &mut OpeningProblems,
    ) -> Option<Arc<CallersFile>> {
        let (path, field, found) = match flag {
            Some(path) => (path, "", &mut problems.flagged),
            None => (self.callers.as_deref()?, "callers: ", &mut problems.filed),
        };
        let opened = CallersFile::open(path, &self.reader, now);
        let callers = opened
            .map_err(|problems| found.extend(problems.lines().map(|line| format!("{field}{line}"))))
            .ok()?;
        self.reader.callers = Some(callers.active());
        self.taking.reader.callers = self.reader.callers.clone();
        Some(callers)
    }

    fn wrong(&self, problems: OpeningProblems) -> ConfigError {
        let Some(ConfigSource { name, table }) = &self.source else {
            return ConfigError::Wrong(Findings::default(), problems.flagged);
        };
        let mut report = Report::new(name);
        for problem in &problems.filed {
            document::report_problem(table, &WrongParts::default(), problem, &mut report);
        }
        ConfigError::Wrong(report.into_findings(), problems.flagged)
    }

    /// The requests that a policy is for, once the config is opened.
    pub(crate) fn served(&self) -> ServedRequests {
        let names_attributes = self.has_credentials
            || self.reader.callers.is_some()
            || !self.reader.mapped.is_empty()
            || !self.routes.is_empty();
        ServedRequests {
            reader: self.reader.clone(),
            supply: if names_attributes { Supply::Known } else { Supply::Unknown },
            ends: if self.routes.is_empty() { Ends::Unknown } else { Ends::Seen },
        }
    }
}

// The names by which a config chooses from the types of the libraries.

#[derive(Deserialize)]
#[serde(remote = "EscapedSlashes", rename_all = "lowercase")]
enum EscapedSlashesName {
    Reject,
    Keep,
    Decode,
}

#[derive(Deserialize)]
#[serde(remote = "PathMatch", rename_all = "lowercase")]
enum PathMatchName {
    Loose,
    Exact,
}

#[derive(Deserialize)]
#[serde(remote = "MethodOverride", rename_all = "lowercase")]
enum MethodOverrideName {
    Drop,
    Keep,
}

#[derive(Deserialize)]
#[serde(remote = "HeaderNames", rename_all = "lowercase")]
enum HeaderNamesName {
    Plain,
    Any,
}

/// Reads a config file, or returns the defaults without one. `trusted` are the proxies of the command line, which take
/// precedence over those of the file.
///
/// # Errors
/// When the file is invalid. The message says what would be accepted.
pub(crate) fn load(path: Option<&Path>, trusted: &[Network]) -> Result<Config, ConfigError> {
    let mut config = match path {
        None => Config::default(),
        Some(path) => {
            let name = path.display().to_string();
            let bytes = disk::read(path, FILE_BYTES_MAX as u64);
            let bytes = bytes.map_err(|error| ConfigError::Unreadable(disk::unreadable(path, &error)))?;
            compile(&name, &bytes).map_err(|findings| ConfigError::Wrong(findings, Vec::new()))?
        }
    };
    if !trusted.is_empty() {
        config.reader.trusted = Trusted::new(trusted.to_vec());
        config.taking.reader.trusted = config.reader.trusted.clone();
    }
    Ok(config)
}

fn key_set(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = disk::read(path, KEYS_BYTES_MAX)?;
    if bytes.len() as u64 > KEYS_BYTES_MAX {
        return Err(io::Error::other(format!("more than {KEYS_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// Compiles a file; `name` is how findings call it. It reads no other file than the key set that it names.
fn compile(name: &str, bytes: &[u8]) -> Result<Config, Findings> {
    let mut report = Report::new(name);
    let config = document::table(bytes, &mut report).and_then(|table| {
        if let Some(limits) = Fields::of(&table, "", "a table", &mut report)?.get("limits") {
            let message =
                format!("limits are those of a policy: check it with `tollgate policy check {name}`");
            report.error(limits.at, "", Problem::new(message, "a config, without limits"));
            return None;
        }
        let (document, wrong) = document::readable::<Document>(&table, &mut report);
        let section = Fields::of(&table, "", "a table", &mut report)?.get("overload");
        let overload = section.filter(|node| !matches!(node.tree, Tree::Empty));
        let overload = overload.and_then(|node| Plan::read(node, &mut report));
        let mut problems = Vec::new();
        let config = document.map(|document| assembled(document, &table, overload, &mut problems));
        for problem in problems {
            document::report_problem(&table, &wrong, &problem, &mut report);
        }
        let source = Some(ConfigSource { name: name.to_owned(), table });
        config.map(|config| Config { source, ..config })
    });
    let has_errors = report.errors() > 0;
    let findings = report.into_findings();
    match config {
        Some(config) if !has_errors => {
            Ok(Config { warnings: findings.iter().map(ToString::to_string).collect(), ..config })
        }
        _ => Err(findings),
    }
}

/// The settings that a document means; it is what could be read of the table. Each problem begins with its field.
fn assembled(document: Document, table: &Node, overload: Option<Plan>, problems: &mut Vec<String>) -> Config {
    let written = |name: &str| entries(table).find(|entry| entry.key == name).map(|entry| &entry.node);
    let tokens = match document.jwt.map(|tokens| tokens.verifier()) {
        Some(Ok(verifier)) => TrustedTokens::Of(Arc::new(verifier)),
        Some(Err(problem)) => {
            problems.push(format!("jwt.{problem}"));
            TrustedTokens::Unusable
        }
        None if written("jwt").is_some() => TrustedTokens::Unusable,
        None => TrustedTokens::None,
    };
    let names_trusted_proxies = document.trusted_proxies.is_some();
    // An attribute that cannot be mapped is reported once, and not again at each use of its name.
    let names: Vec<String> =
        written("attributes").into_iter().flat_map(entries).map(|entry| entry.key.clone()).collect();
    let is_unreadable = |name: &&String| !document.attributes.contains_key(*name);
    let unreadable = names.iter().filter(is_unreadable).cloned().collect();
    let others = OtherSections { tokens, callers: document.callers.as_deref(), unreadable };
    let has_credentials = document.credentials.is_some();
    let reader = Reader {
        trusted: trusted(document.trusted_proxies, problems),
        ipv6_prefix: document.ipv6_prefix.unwrap_or(IPV6_PREFIX_DEFAULT),
        slashes: document.escaped_slashes,
        paths: document.path_match,
        method_override: document.method_override,
        credentials: credentials::compile(document.credentials, problems),
        callers: None,
        mapped: mapped(document.attributes, others, problems),
    };
    check_numbers(reader.ipv6_prefix, document.connections_per_address, problems);
    let headers = document.headers.compile(problems);
    let known: BTreeSet<&str> = BUILT_IN.into_iter().chain(names.iter().map(String::as_str)).collect();
    let routes = tollgate_gateway::compile(document.routes, &Vec::from_iter(known), problems);
    let mut taking = RequestSettings {
        reader: reader.clone(),
        header_names: document.header_names,
        connections_per_address: document.connections_per_address,
    };
    // A peer that asks about other clients' requests is a proxy, usually on this machine. A gateway's peer may be any
    // client.
    if !names_trusted_proxies {
        taking.reader.trusted = RequestSettings::default().reader.trusted;
    }
    Config {
        reader,
        taking,
        callers: document.callers,
        headers,
        store: document.store.map(|store| store.compile(problems)).unwrap_or_default(),
        routes,
        outbound: document.outbound.map(|outbound| outbound.compile(problems)),
        overload,
        warnings: Vec::new(),
        has_credentials,
        source: None,
    }
}

/// Reports numbers that are out of their range.
fn check_numbers(ipv6_prefix: u8, connections_per_address: Option<u32>, problems: &mut Vec<String>) {
    if !IPV6_PREFIX.contains(&ipv6_prefix) {
        let accepted = accepted_prefixes();
        problems.push(format!("ipv6_prefix: {ipv6_prefix} is not accepted; accepted: {accepted}"));
    }
    if let Some(most) = connections_per_address.filter(|most| !CONNECTIONS_PER_ADDRESS.contains(most)) {
        problems.push(format!("connections_per_address: {most} is not accepted; accepted: 1 to 100000"));
    }
}

/// The fields of a value, if it is a table.
fn entries(node: &Node) -> impl Iterator<Item = &Entry> {
    match &node.tree {
        Tree::Table(entries) => entries.iter(),
        Tree::Empty | Tree::Text(_) | Tree::List(_) => [].iter(),
    }
}

fn trusted(networks: Option<Vec<String>>, problems: &mut Vec<String>) -> Trusted {
    let Some(networks) = networks else {
        return Trusted::default();
    };
    if networks.len() > TRUSTED_MAX {
        problems.push(format!("trusted_proxies: more than {TRUSTED_MAX}; name larger networks"));
    }
    let mut read = Vec::new();
    for (index, text) in networks.iter().enumerate().take(TRUSTED_MAX) {
        match text.parse() {
            Ok(network) => read.push(network),
            Err(problem) => problems.push(format!("trusted_proxies[{index}]: {problem}")),
        }
    }
    Trusted::new(read)
}

#[cfg(test)]
mod tests {
    use tollgate::Clock;
    use tollgate::policy::Finding;
    use tollgate_tower::attributes::source::Source;

    use super::*;

    /// Compiles a config, or returns its problems without their positions.
    fn compile(text: &str) -> Result<Config, Vec<String>> {
        let without_position = |finding: &Finding| Finding { line: 0, ..finding.clone() }.to_string();
        super::compile("c", text.as_bytes()).map_err(|findings| {
            findings.iter().map(|finding| without_position(finding)["c: ".len()..].to_owned()).collect()
        })
    }

    /// All fields of a config are read, as the guide shows them.
    #[test]
    fn a_config_is_read() {
        let text = "
trusted_proxies: [10.0.0.0/8, '::1']
ipv6_prefix: 56
escaped_slashes: keep
path_match: exact
method_override: keep
header_names: any
connections_per_address: 500
credentials: [{ header: X-Customer-Key }, bearer, basic, { cookie: sid }, { query: key }]
attributes:
  tenant: { header: X-Tenant }
  plan: { header: X-Plan, set_by: client }
  version: { query: v }
  session: { cookie: sid, hash: true }
  route: { path: ['/users/{id}', /health] }
  caller: { first_of: [tenant, api_key, ip] }
";
        let Config { reader, taking, .. } = compile(text).unwrap();
        assert_eq!(taking.bound().most, Some(500));
        assert_eq!(
            (taking.reader.method_override, taking.header_names),
            (MethodOverride::Keep, HeaderNames::Any)
        );
        assert!(taking.reader.trusted.contains("10.9.9.9".parse().unwrap()));
        assert!(reader.trusted.contains("10.9.9.9".parse().unwrap()));
        assert!(!reader.trusted.contains("127.0.0.1".parse().unwrap()));
        assert_eq!((reader.ipv6_prefix, reader.slashes), (56, EscapedSlashes::Keep));
        assert_eq!((reader.paths, compile("").unwrap().reader.paths), (PathMatch::Exact, PathMatch::Loose));
        let names: Vec<_> = reader
            .mapped
            .iter()
            .map(|mapped| (mapped.name.as_str(), matches!(mapped.source, Source::Hashed(_))))
            .collect();
        let expected = [
            ("caller", false),
            ("plan", false),
            ("route", false),
            ("session", true),
            ("tenant", false),
            ("version", false),
        ];
        assert_eq!(names, expected);
        assert!(compile("").is_ok() && compile("{}").is_ok() && compile("# nothing\n").is_ok());
    }

    /// By default the gateway trusts no peer about a request. A peer that asks about other clients' requests is by
    /// default a proxy on this machine.
    #[test]
    fn trust_is_given() {
        let local = "127.0.0.1".parse().unwrap();
        let trust = |config: Config| {
            (config.reader.trusted.contains(local), config.taking.reader.trusted.contains(local))
        };
        assert_eq!(trust(load(None, &[]).unwrap()), (true, false));
        assert_eq!(trust(compile("ipv6_prefix: 64").unwrap()), (true, false));
        assert_eq!(trust(compile("trusted_proxies: [127.0.0.0/8]").unwrap()), (true, true));
        assert_eq!(trust(compile("trusted_proxies: []").unwrap()), (false, false));
        assert_eq!(trust(load(None, &["127.0.0.0/8".parse().unwrap()]).unwrap()), (true, true));
        assert_eq!(trust(load(None, &["10.0.0.0/8".parse().unwrap()]).unwrap()), (false, false));
    }

    /// A route may choose upstreams only by attributes that are read from requests.
    #[test]
    fn routes_spread_by_what_is_read() {
        let text = |name: &str| {
            format!(
                "attributes: {{tenant: {{header: X-Tenant}}}}\nroutes: [{{upstreams: ['http://a'], sticky: [{name}, ip]}}]"
            )
        };
        assert!(compile(&text("tenant")).is_ok() && compile(&text("api_key")).is_ok());
        let problems = compile(&text("tennant")).unwrap_err();
        assert!(
            problems[0].starts_with("routes[0].sticky: \"tennant\" is not read from requests"),
            "{problems:?}"
        );
    }

    /// Claims can be mapped only if the config says which tokens are trusted.
    #[test]
    fn claims_are_mapped() {
        let folder = tollgate_testkit::Scratch::new();
        let file = folder.path("keys");
        let secret = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";
        std::fs::write(&file, format!(r#"{{"keys":[{{"kty":"oct","k":"{secret}"}}]}}"#)).unwrap();
        let text = format!(
            "jwt: {{ jwks: {}, audience: api }}\nattributes: {{ tenant: {{ jwt: org }} }}",
            file.display()
        );
        let config = compile(&text);
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(config.unwrap().reader.mapped[0].source, Source::Jwt { .. }));
        assert!(compile(&text).unwrap_err()[0].starts_with("jwt.jwks: "));
    }

    /// The `overload` section is read with the others, and its problems are reported with theirs.
    #[test]
    fn overload_is_read() {
        let config =
            compile("ipv6_prefix: 56\noverload: {worker: , concurrency: {initial: 5}, queue: }").unwrap();
        let plan = config.overload.unwrap();
        assert!(plan.worker.is_some() && plan.queue.is_some() && plan.fleet.is_none());
        assert!(compile("{}").unwrap().overload.is_none());
        let text = "ipv6_prefix: 12\noverload:\n  worker: {shed_above: 120%, nonsense: 1}\n  queue:\n";
        let problems = compile(text).unwrap_err();
        for expected in [
            "ipv6_prefix: 12 is not accepted",
            "overload.worker.shed_above: 120% is out of range; accepted: a percentage from 1% to 99%",
            "overload.worker.nonsense: ",
            "overload.queue: requests wait for a permit",
        ] {
            assert!(
                problems.iter().any(|problem| problem.starts_with(expected)),
                "{expected}\n{problems:#?}"
            );
        }
        let hasty = compile("overload: {worker: {shed_over: 60s, restore_over: 20s}}").unwrap();
        assert!(
            hasty.warnings[0].contains(": warning: overload.worker.restore_over: "),
            "{:?}",
            hasty.warnings
        );
    }

    /// The story: a value of the wrong kind hid the problems of every other section, and a config that `config check`
    /// accepted did not start. What follows from a problem is not reported as another one.
    #[test]
    fn problems_of_every_section_are_reported_together() {
        let text = "
ipv6_prefix: 200
trusted_proxies: [proxy.internal]
connections_per_address: lots
headers: {denied: 430}
credentials: [bearrer, {heder: x}]
jwt: {issuer: i}
attributes:
  org: {jwt: org}
  plan: {haeder: X-Plan}
  who: {first_of: [plan, org, ip]}
store: {url: postgres://db, deadline: 5, nodes: two}
routes:
- {upstreams: [5], path: /a}
- {upstreams: ['http://a'], timeout: 5s, retries: -1, sticky: plan}
- {upstreams: ['http://b'], path: /b, connections: 0}
";
        let problems = compile(text).unwrap_err();
        let expected = [
            "ipv6_prefix: 200 is not accepted",
            "trusted_proxies[0]: \"proxy.internal\" is not an address",
            "connections_per_address: lots is not accepted",
            "headers.denied: 430 is not accepted",
            "credentials[0]: \"bearrer\" is not known; did you mean bearer?",
            "credentials[1].heder: unknown field; did you mean header?",
            "jwt.jwks: missing",
            "attributes.plan.haeder: unknown field; did you mean header?",
            "store.url: a store's URL begins with",
            "store.deadline: not a duration",
            "store.nodes: \"two\" is not accepted; accepted: auto",
            "routes[0].upstreams[0]: is a number",
            "routes[1].timeout: unknown field; did you mean timeouts?",
            "routes[1].retries: -1 is not accepted",
            "routes[2].connections: 0 is not accepted",
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem}");
        }
    }

    /// A file that the config names, and that cannot be used, is a problem of the config, at its line.
    #[test]
    fn files_are_opened() {
        let text = "callers: no.yaml
store: {url: 'redis://h', password_file: no.word}
routes:
- {upstreams: ['https://a'], ca: no.pem, path: /a}
- {upstreams: ['http://b'], graphql: {persisted: {file: no.json}}}
outbound: {providers: {p: {url: 'https://p', ca: no.pem, policy: no.policy}}}
";
        let mut config = super::compile("c", text.as_bytes()).unwrap();
        let now = Clock::precise().now();
        let error = config.open(&ConfigFlags::default(), now).err().unwrap().to_string();
        for expected in [
            "\nc:1:10: callers: no.yaml: no such file",
            "\nc:2:8: store: no.word: ",
            "\nc:4:34: routes[0].ca: no.pem: no such file",
            "\nc:5:57: routes[1].graphql.persisted.file: no.json: ",
            "\nc:6:50: outbound.providers.p.ca: no.pem: no such file",
            "\nc:6:66: outbound.providers.p.policy: no.policy: ",
        ] {
            assert!(error.contains(expected), "{expected:?}\n{error}");
        }
        assert_eq!(error.lines().count(), 7, "{error}");
        let flags = ConfigFlags { callers: Some("flag.yaml".into()), ..ConfigFlags::default() };
        let error = Config::default().open(&flags, now).err().unwrap().to_string();
        assert!(error.starts_with("flag.yaml: no such file"), "{error}");
    }

    /// Every problem names its field and what would be accepted.
    #[test]
    fn all_problems_are_reported_together() {
        let text = "
trusted_proxies: [10.0.0.1/8, x]
ipv6_prefix: 12
connections_per_address: 0
attributes:
  path: { header: X }
  a: { header: X, query: y }
  b: { }
  c: { jwt: org }
  d: { header: 'no name' }
  e: { path: users }
  f: { query: v, set_by: proxy }
  g: { first_of: [ip, h] }
  h: { first_of: [] }
";
        let problems = compile(text).unwrap_err();
        let expected = [
            "trusted_proxies[0]: \"10.0.0.1/8\" is not a network",
            "trusted_proxies[1]: \"x\" is not an address",
            "ipv6_prefix: 12 is not accepted; accepted: 48 to 128",
            "connections_per_address: 0 is not accepted; accepted: 1 to 100000",
            "attributes.path: is read from every request",
            "attributes.a: has no source, or several; accepted: exactly one of",
            "attributes.b: has no source, or several; accepted: exactly one of",
            "attributes.c.jwt: no issuer's tokens are accepted yet",
            "attributes.d.header: \"no name\"",
            "attributes.e.path: \"users\" does not begin with /",
            "attributes.f.set_by: says who sets a header",
            "attributes.g.first_of: \"h\" is not known; accepted: ip, api_key,",
            "attributes.h.first_of: accepted: 1 to 32 names",
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem}");
        }
        for wrong in
            ["trusted: []", "attributes: {a: {haeder: X}}", "attributes: {a: {query: x}, a: {query: y}}", "["]
        {
            assert!(compile(wrong).is_err(), "{wrong}");
        }
        let findings =
            super::compile("config.yaml", b"trusted_proxies: []\nipv6_prefix: 12\nroute: []").unwrap_err();
        assert_eq!(
            findings.iter().map(ToString::to_string).collect::<Vec<_>>()[1],
            "config.yaml:3:1: route: unknown field; did you mean routes? accepted: trusted_proxies, ipv6_prefix, \
             escaped_slashes, path_match, method_override, header_names, connections_per_address, credentials, callers, \
             attributes, jwt, headers, store, routes, outbound, overload"
        );
        // By these a file is known to be a config, where a policy is expected.
        let shared = "credentials, callers, attributes, jwt";
        let known = findings
            .iter()
            .nth(1)
            .map(|finding| finding.accepted.replace(shared, "credentials, callers, jwt"));
        assert_eq!(known, Some(crate::policy_file::CONFIG_FIELDS.join(", ")));
    }
}
